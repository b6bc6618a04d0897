//! The log of the service, on standard error. A thread of its own writes the lines and drops them
//! rather than wait: a slow, broken or full log costs lines, nothing else.

use std::io;
use std::io::{IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::LevelFilter;

use crate::config::{Level, LogFormat, LogSection};
use crate::lock::watched;

/// The most lines that wait to be written: a few megabytes, or seconds of a busy service.
const MAX_WAITING_LINES: usize = 8_192;

/// Writes the rest of the log when dropped, for a second at most.
pub(super) struct LogWriter {
    _thread: WorkerGuard,
}

/// Starts the log of this process, panics included. Also returns a counter of lost lines.
pub(super) fn start(log: &LogSection) -> (LogWriter, impl Fn() -> u64 + Send + Sync + 'static) {
    let failed = Arc::new(AtomicU64::new(0));
    let output = Output { failed: failed.clone() };
    let (lines, thread) =
        NonBlockingBuilder::default().buffered_lines_limit(MAX_WAITING_LINES).finish(output);
    let dropped = lines.error_counter();
    let terminal = io::stderr().is_terminal();
    let log_lines = tracing_subscriber::fmt()
        .with_max_level(level(log.level))
        // Its own errors would go to standard error directly, and panic if that fails.
        .log_internal_errors(false)
        .with_writer(lines);
    let as_json = match log.format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    if as_json {
        log_lines.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
    } else {
        log_lines.with_ansi(terminal).with_target(false).init();
    }
    std::panic::set_hook(Box::new(log_panic));
    let lost = move || failed.load(Ordering::Relaxed) + dropped.dropped_lines() as u64;
    (LogWriter { _thread: thread }, lost)
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
