//! Metrics that are asked for at each scrape.

use std::fmt;
use std::fmt::Debug;
use std::sync::OnceLock;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

type Callback = OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>;

/// The callbacks, each set once.
#[derive(Default)]
pub(super) struct Callbacks {
    /// The log's counter of lost lines; 0 without a log.
    pub(super) lost_lines: Callback,
    /// The end of the certificate in seconds since 1970; no line without one.
    pub(super) certificate_end: Callback,
}

impl Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Callbacks")
    }
}

impl Collector for Callbacks {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let count = ConstCounter::new(self.lost_lines.get().map_or(0, |count| count()));
        let (name, kind) = ("log_lines_dropped", count.metric_type());
        let help = "Log lines that were lost: the log was too slow, or could not be written";
        count.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        let Some(end) = self.certificate_end.get() else { return Ok(()) };
        let end = ConstGauge::new(end());
        let name = "tls_certificate_expiration_timestamp_seconds";
        let help = "The end of the TLS certificate, in seconds since 1970";
        end.encode(encoder.encode_descriptor(name, help, None, end.metric_type())?)
    }
}
