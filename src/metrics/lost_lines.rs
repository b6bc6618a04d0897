//! The number of lost log lines, as a metric.

use std::fmt;
use std::fmt::Debug;
use std::sync::OnceLock;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

/// A callback into the log's counter of lost lines; 0 without a log.
#[derive(Default)]
pub(super) struct LostLines(pub(super) OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>);

impl Debug for LostLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LostLines")
    }
}

impl Collector for LostLines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let count = ConstCounter::new(self.0.get().map_or(0, |count| count()));
        let help = "Log lines that were lost: the log was too slow, or could not be written";
        count.encode(encoder.encode_descriptor(
            "log_lines_dropped",
            help,
            None,
            count.metric_type(),
        )?)
    }
}
