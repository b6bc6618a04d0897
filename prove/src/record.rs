//! The recorder: one clock, one numbering of tokens, and one thread that writes the history.
//!
//! Clients never wait for the file. The lines also stay in memory, for the checker.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::history::{Line, Nanos, Token};

/// What tokens that a client chose begin with; their number follows.
const CHOSEN: &str = "token-of-the-proof-";

/// The clock and the door to the history, shared by all who record.
#[derive(Debug)]
pub(crate) struct Recorder {
    start: Instant,
    lines: mpsc::Sender<Option<Line>>,
    next_token: AtomicU64,
    made_tokens: Mutex<HashMap<Box<str>, Token>>,
}

#[derive(Debug)]
pub(crate) struct Recording {
    recorder: Arc<Recorder>,
    thread: JoinHandle<io::Result<Vec<Line>>>,
}

impl Recorder {
    /// Starts a history in a new file.
    pub(crate) fn start(path: &Path) -> io::Result<(Arc<Self>, Recording)> {
        let file = File::create(path)?;
        let (lines, written) = mpsc::channel();
        let recorder = Arc::new(Self {
            start: Instant::now(),
            lines,
            next_token: AtomicU64::new(1),
            made_tokens: Mutex::default(),
        });
        let thread = std::thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || write_all(&written, file))?;
        Ok((recorder.clone(), Recording { recorder, thread }))
    }

    pub(crate) fn now(&self) -> Nanos {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }

    pub(crate) fn write(&self, line: Line) {
        // The thread ends before its time only if the disk fails, which `finish` reports.
        let _ = self.lines.send(Some(line));
    }

    /// Returns a new token for a client to choose.
    pub(crate) fn new_token(&self) -> Token {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number of a token that an answer contained.
    pub(crate) fn number(&self, text: &str) -> Token {
        if let Some(number) = text.strip_prefix(CHOSEN).and_then(|rest| rest.parse().ok()) {
            return number;
        }
        let mut made = self.made_tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = made.get(text) {
            return *number;
        }
        let number = self.new_token();
        made.insert(text.into(), number);
        number
    }
}

impl Recording {
    /// Waits until all lines are written, and returns them.
    pub(crate) fn finish(self) -> io::Result<Vec<Line>> {
        let _ = self.recorder.lines.send(None);
        self.thread.join().map_err(|_| io::Error::other("the recorder panicked"))?
    }
}

/// Returns the text of a token that a client chooses.
pub(crate) fn chosen_text(number: Token) -> String {
    format!("{CHOSEN}{number:010}")
}

fn write_all(written: &mpsc::Receiver<Option<Line>>, file: File) -> io::Result<Vec<Line>> {
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let mut lines = Vec::new();
    while let Ok(Some(line)) = written.recv() {
        serde_json::to_writer(&mut file, &line)?;
        file.write_all(b"\n")?;
        lines.push(line);
    }
    file.flush()?;
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_one_number_whoever_made_it() {
        let directory = tempfile::tempdir().unwrap();
        let (recorder, _recording) = Recorder::start(&directory.path().join("history")).unwrap();
        let chosen = recorder.new_token();
        let made = recorder.number("made-by-the-service");
        assert_ne!(made, chosen);
        assert_eq!(recorder.number("made-by-the-service"), made);
        assert_eq!(recorder.number(&chosen_text(chosen)), chosen);
    }
}
