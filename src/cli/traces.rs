//! The export of spans to an OpenTelemetry collector, with the feature `otel`.
//!
//! The variables of OpenTelemetry configure it; without an endpoint nothing is exported. A thread
//! of the SDK sends the spans, and drops them rather than wait.

use std::env::var_os;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::Registry;

/// The variables that name the collector.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// The time limit for the last spans when the process ends.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// The exporter of spans.
pub(super) struct Traces {
    provider: SdkTracerProvider,
}

/// The layer that takes the spans.
pub(super) type SpanLayer = Box<dyn Layer<Registry> + Send + Sync>;

impl Traces {
    /// Starts the exporter if a variable names a collector.
    pub(super) fn start() -> Result<Option<(Self, SpanLayer)>, String> {
        let set = ENDPOINTS.iter().find_map(|name| {
            let value = var_os(name).filter(|value| !value.is_empty())?;
            Some((name, value.to_string_lossy().into_owned()))
        });
        let Some((name, endpoint)) = set else { return Ok(None) };
        if !endpoint.starts_with("http://") {
            return Err(format!(
                "the variable {name} has to begin with http://: traces are sent without TLS, to a \
                 collector beside the service"
            ));
        }
        let exporter = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
        let exporter = exporter.build();
        let exporter =
            exporter.map_err(|error| format!("cannot export traces (variable {name}): {error}"))?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let mut resource = Resource::builder().with_attribute(version);
        if var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("lockkeeper");
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("lockkeeper"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false);
        // Only our own spans: the exporter's requests would make spans for ever.
        let ours = filter_fn(|from| from.is_span() && from.target().starts_with("lockkeeper"));
        Ok(Some((Self { provider }, layer.with_filter(ours).boxed())))
    }

    /// Sends the spans that are left.
    pub(super) fn finish(&self) {
        // The collector may be unreachable, and the log is about to end.
        let _ = self.provider.shutdown_with_timeout(LAST_SPANS);
    }
}
