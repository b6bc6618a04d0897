//! The log of the service, on standard error. A thread of its own writes the lines and drops them
//! rather than wait: a slow, broken or full log costs lines, nothing else.
//!
//! Lines of the target `audit` are written at every level, unless `log.audit` is off.

mod json;

use std::io;
use std::io::{IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::log::json::JsonLine;
#[cfg(feature = "otel")]
use crate::cli::traces::Traces;
use crate::config::{Level, LogFormat, LogSection};
use crate::lock::watched;

/// The most lines that wait to be written: a few megabytes, or seconds of a busy service.
const MAX_WAITING_LINES: usize = 8_192;

/// Writes the rest of the log when dropped, for a second at most.
pub(super) struct LogWriter {
    _thread: WorkerGuard,
    #[cfg(feature = "otel")]
    traces: Option<Traces>,
}

impl LogWriter {
    /// Writes what is left.
    pub(super) fn finish(self) {
        #[cfg(feature = "otel")]
        if let Some(traces) = &self.traces {
            traces.finish();
        }
    }
}

/// Sets the lowest level that is logged.
#[derive(Clone)]
pub(super) struct LogFilter {
    filter: reload::Handle<Targets, Registry>,
    audit: LevelFilter,
}

impl LogFilter {
    /// Sets the level from now on.
    pub(super) fn set(&self, level: Level) {
        // It fails only once the log is gone.
        let _ = self.filter.reload(targets(level, self.audit));
    }
}

/// The log of this process.
pub(super) struct Log {
    pub(super) writer: LogWriter,
    pub(super) filter: LogFilter,
}

/// Starts the log of this process, panics included. Also returns a counter of lost lines.
///
/// # Errors
///
/// One sentence, if traces are to be exported and cannot be.
pub(super) fn start(
    log: &LogSection,
) -> Result<(Log, impl Fn() -> u64 + Send + Sync + use<>), String> {
    let failed = Arc::new(AtomicU64::new(0));
    let output = Output { failed: failed.clone() };
    let (lines, thread) =
        NonBlockingBuilder::default().buffered_lines_limit(MAX_WAITING_LINES).finish(output);
    let dropped = lines.error_counter();
    let terminal = io::stderr().is_terminal();
    // Its own errors would go to standard error directly, and panic if that fails.
    let log_lines = tracing_subscriber::fmt::layer().log_internal_errors(false).with_writer(lines);
    let as_json = match log.format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let log_lines = if as_json {
        log_lines.event_format(JsonLine).boxed()
    } else {
        log_lines.with_ansi(terminal).with_target(false).boxed()
    };
    let audit = if log.audit { LevelFilter::INFO } else { LevelFilter::OFF };
    // A filter of the log alone: spans are exported at every level of the log.
    let (filter, handle) = reload::Layer::new(targets(log.level, audit));
    let layers = vec![log_lines.with_filter(filter).boxed()];
    #[cfg(feature = "otel")]
    let (traces, spans) = Traces::start()?.unzip();
    #[cfg(feature = "otel")]
    let layers: Vec<_> = layers.into_iter().chain(spans).collect();
    tracing_subscriber::registry().with(layers).init();
    std::panic::set_hook(Box::new(log_panic));
    let lost = move || failed.load(Ordering::Relaxed) + dropped.dropped_lines() as u64;
    let writer = LogWriter {
        _thread: thread,
        #[cfg(feature = "otel")]
        traces,
    };
    Ok((Log { writer, filter: LogFilter { filter: handle, audit } }, lost))
}

/// Replaces the standard library's hook, which writes to standard error itself.
fn log_panic(panic: &PanicHookInfo<'_>) {
    if watched::is_caught() {
        return;
    }
    let place = panic.location().map(ToString::to_string);
    let thread = std::thread::current();
    let message = panic.payload_as_str().unwrap_or("no message");
    tracing::error!(
        panic = message,
        place,
        thread = thread.name(),
        "a part of the service panicked"
    );
}

/// Standard error; failed writes are counted and otherwise ignored.
struct Output {
    failed: Arc<AtomicU64>,
}

impl Write for Output {
    /// Writes one line: the log thread writes them one by one.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if io::stderr().write_all(line).is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines from the lowest level on; those of the audit from its own, if that is lower.
fn targets(lowest: Level, audit: LevelFilter) -> Targets {
    let lowest = level(lowest);
    Targets::new().with_default(lowest).with_target("audit", audit.max(lowest))
}

fn level(level: Level) -> LevelFilter {
    match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    }
}
