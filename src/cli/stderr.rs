//! Standard error, for the log of the service and the lines of a command. A thread writes it: where
//! it is slow, broken or full, lines are lost and counted, and nothing waits for them.

use std::io::{Write, stderr};
use std::iter::once;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};

/// The most lines that wait to be written: a few megabytes, or seconds of a busy service.
const MAX_LINES: usize = 8_192;

/// The most bytes of several lines that are written at once: a pipe with other writers keeps them
/// together (`PIPE_BUF`).
const UNBROKEN_BYTES: usize = 4_096;

/// How long further lines wait after a write.
const PAUSE: Duration = Duration::from_millis(2);

/// The longest that the process waits for a slow reader at its end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The writing thread; `None` if it cannot be started.
static WRITER: OnceLock<Option<SyncSender<Message>>> = OnceLock::new();

/// The lines that were lost.
static LOST: AtomicU64 = AtomicU64::new(0);

/// A line, and whoever waits until it is written.
type Message = (Vec<u8>, Option<Sender<()>>);

/// Has a line written soon. Blocks only if there is no thread for it.
pub(super) fn write(line: Vec<u8>) {
    let written = match WRITER.get_or_init(start) {
        Some(writer) => writer.try_send((line, None)).is_ok(),
        None => stderr().write_all(&line).is_ok(),
    };
    LOST.fetch_add(u64::from(!written), Ordering::Relaxed);
}

pub(super) fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Waits briefly for unwritten lines, before the process ends.
pub(super) fn flush() {
    let Some(Some(writer)) = WRITER.get() else { return };
    let (written, all_written) = channel();
    // Full because the reader stopped reading.
    let _ = writer.try_send((Vec::new(), Some(written)));
    let _ = all_written.recv_timeout(LAST_WORDS);
}

/// Starts the thread with all signals blocked: the main thread handles them.
fn start() -> Option<SyncSender<Message>> {
    let (lines, messages) = sync_channel(MAX_LINES);
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok()?;
    let write = move || write_all(&messages, stderr(), &LOST);
    let started = thread::Builder::new().name("stderr".to_owned()).spawn(write);
    let _ = before.thread_set_mask();
    started.ok().map(|_| lines)
}

/// Writes the lines, those together that wait at the same time, and pauses after that. A line that
/// wakes this thread costs its request a third more processor time; while the thread pauses, lines
/// wake no thread.
#[expect(clippy::disallowed_methods, reason = "a pause is what saves the wake-ups")]
fn write_all(messages: &Receiver<Message>, mut to: impl Write, lost: &AtomicU64) {
    while let Ok(first) = messages.recv() {
        let mut batch = Vec::with_capacity(UNBROKEN_BYTES);
        let mut lines = 0;
        let mut waiting = vec![];
        let mut put = |batch: &mut Vec<u8>, lines: &mut u64| {
            if to.write_all(batch).is_err() {
                lost.fetch_add(*lines, Ordering::Relaxed);
            }
            batch.clear();
            *lines = 0;
        };
        for (line, written) in once(first).chain(messages.try_iter()) {
            if batch.len() + line.len() > UNBROKEN_BYTES {
                put(&mut batch, &mut lines);
            }
            batch.extend_from_slice(&line);
            lines += u64::from(!line.is_empty());
            waiting.extend(written);
        }
        put(&mut batch, &mut lines);
        // Whoever waits hears of it when its sender is dropped.
        drop(waiting);
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::sync_channel;

    use super::write_all;

    /// What was written at once; it fails after the first few.
    #[derive(Debug, Default)]
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
        let lost = AtomicU64::new(0);
        let mut writes = Writes::default();
        let line = |letter: u8, length: usize| [vec![letter; length - 1], vec![b'\n']].concat();
        let lines = [line(b'a', 96), line(b'b', 4000), line(b'c', 1), line(b'd', 5000)];
        let (sender, messages) = sync_channel(8);
        // The last three are lost and counted, whether they come together or alone.
        for line in lines.iter().chain([&lines[0], &lines[1], &lines[2]]) {
            sender.send((line.clone(), None)).unwrap();
        }
        drop(sender);
        write_all(&messages, &mut writes, &lost);
        let [first, second, third] = &writes.0[..] else { panic!("{writes:?}") };
        assert_eq!(*first, [&lines[0][..], &lines[1]].concat());
        assert_eq!((second, third), (&lines[2], &lines[3]));
        assert_eq!(lost.load(Ordering::Relaxed), 3);
    }
}
