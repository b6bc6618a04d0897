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
use std::thread;
use std::time::Duration;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::log::json::JsonLine;
use crate::config::{Level, LogFormat, LogSection};
use crate::lock::watched;

/// The most lines that wait to be written: a few megabytes, or seconds of a busy service.
const MAX_WAITING_LINES: usize = 8_192;

/// The most bytes of several lines that are written at once: a pipe with other writers keeps them
/// together (`PIPE_BUF`).
const UNBROKEN_BYTES: usize = 4_096;

/// How long further lines wait after a write.
const PAUSE: Duration = Duration::from_millis(2);

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
    /// Writes the rest when dropped, for a second at most.
    pub(super) writer: WorkerGuard,
    pub(super) filter: LogFilter,
}

/// Starts the log of this process, panics included. Also returns a counter of lost lines.
pub(super) fn start(log: &LogSection) -> (Log, impl Fn() -> u64 + Send + Sync + use<>) {
    let failed = Arc::new(AtomicU64::new(0));
    let (batch, counted) = (Vec::with_capacity(UNBROKEN_BYTES), failed.clone());
    let output = Output { to: io::stderr(), batch, lines: 0, failed: counted };
    let (lines, writer) =
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
    let (filter, handle) = reload::Layer::new(targets(log.level, audit));
    tracing_subscriber::registry().with(log_lines.with_filter(filter)).init();
    std::panic::set_hook(Box::new(log_panic));
    let lost = move || failed.load(Ordering::Relaxed) + dropped.dropped_lines() as u64;
    (Log { writer, filter: LogFilter { filter: handle, audit } }, lost)
}

/// Replaces the standard library's hook, which writes to standard error itself.
fn log_panic(panic: &PanicHookInfo<'_>) {
    if watched::is_caught() {
        return;
    }
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

/// Standard error; lines of failed writes are counted and otherwise ignored.
///
/// The log thread has many lines at a time, and flushes when there are no more.
struct Output<W> {
    to: W,
    batch: Vec<u8>,
    lines: u64,
    failed: Arc<AtomicU64>,
}

impl<W: Write> Output<W> {
    fn write_batch(&mut self) {
        if self.to.write_all(&self.batch).is_err() {
            self.failed.fetch_add(self.lines, Ordering::Relaxed);
        }
        self.batch.clear();
        self.lines = 0;
    }
}

impl<W: Write> Write for Output<W> {
    /// Takes one line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.batch.len() + line.len() > UNBROKEN_BYTES {
            self.write_batch();
        }
        self.batch.extend_from_slice(line);
        self.lines += 1;
        Ok(line.len())
    }

    /// Writes the lines and pauses. A line that wakes this thread costs its request a third more
    /// processor time; while the thread pauses, lines wake no thread.
    #[expect(clippy::disallowed_methods, reason = "a pause is what saves the wake-ups")]
    fn flush(&mut self) -> io::Result<()> {
        if self.lines > 0 {
            self.write_batch();
            thread::sleep(PAUSE);
        }
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

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use crate::cli::log::Output;

    /// What was written at once; it fails after the first few.
    #[derive(Default)]
    struct Writes(Vec<Vec<u8>>);

    impl Write for &mut Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.len() == 3 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_together_and_never_torn() {
        let (failed, mut writes) = (Arc::new(AtomicU64::new(0)), Writes::default());
        let counted = failed.clone();
        let mut output = Output { to: &mut writes, batch: Vec::new(), lines: 0, failed: counted };
        let line = |letter: u8, length: usize| [vec![letter; length - 1], vec![b'\n']].concat();
        let lines = [line(b'a', 96), line(b'b', 4000), line(b'c', 1), line(b'd', 5000)];
        for line in &lines {
            output.write_all(line).unwrap();
        }
        assert_eq!(output.to.0, [[&lines[0][..], &lines[1]].concat(), lines[2].clone()]);
        output.flush().unwrap();
        assert_eq!((output.to.0.len(), &output.to.0[2]), (3, &lines[3]));
        output.write_all(&lines[0]).unwrap();
        output.write_all(&lines[1]).unwrap();
        assert_eq!(failed.load(Ordering::Relaxed), 0);
        output.flush().unwrap();
        assert_eq!(failed.load(Ordering::Relaxed), 2, "both are lost and counted");
        output.write_all(&lines[2]).unwrap();
        output.flush().unwrap();
        assert_eq!(failed.load(Ordering::Relaxed), 3);
    }
}
