//! The log of the service, on standard error: a slow, broken or full log costs lines, nothing else.
//!
//! Lines of the target `audit` are written at every level, unless `log.audit` is off.

mod json;

use std::io;
use std::io::{IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::thread;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::log::json::JsonLine;
use crate::cli::stderr;
use crate::config::{LogFormat, LogSection};

/// Starts the log of this process, panics included. Returns a function that sets its lowest level.
pub(super) fn start(log: &LogSection) -> impl Fn(LevelFilter) + Send + use<> {
    let terminal = io::stderr().is_terminal();
    // Its own errors would go to standard error directly, and panic if that fails.
    let log_lines =
        tracing_subscriber::fmt::layer().log_internal_errors(false).with_writer(|| Line);
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
    let (filter, handle) = reload::Layer::new(targets(log.level, audit));
    tracing_subscriber::registry().with(log_lines.with_filter(filter)).init();
    std::panic::set_hook(Box::new(log_panic));
    // It fails only once the log is gone.
    move |lowest| _ = handle.reload(targets(lowest, audit))
}

/// Replaces the standard library's hook, which writes to standard error itself.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string);
    let thread = thread::current();
    let message = panic.payload_as_str().unwrap_or("no message");
    tracing::error!(
        panic = message,
        place,
        thread = thread.name(),
        "a part of the service panicked"
    );
}

/// A line of the log on standard error.
struct Line;

impl Write for Line {
    /// Takes a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        stderr::write(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines from the lowest level on; those of the audit from its own, if that is lower.
fn targets(lowest: LevelFilter, audit: LevelFilter) -> Targets {
    Targets::new().with_default(lowest).with_target("audit", audit.max(lowest))
}
