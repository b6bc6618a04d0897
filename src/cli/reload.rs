//! Reading files again while the service runs: on SIGHUP, and when one has changed.
//!
//! A file has changed if its size, its times or its inode have, behind all symbolic links: so an
//! exchanged link of Kubernetes is seen as well, on every file system. It is read once it has
//! stayed the same from one look to the next, so that no half of it is read.

use std::convert::Infallible;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::server::Controls;

/// The largest file that is read again; settings and certificates take a few kilobytes.
const MAX_BYTES: u64 = 4 << 20;

/// The pause between two looks at the files.
const PAUSE: Duration = Duration::from_secs(1);

/// The causes of a reload, as the log has them.
const SIGNAL: &str = "SIGHUP";
const FILE: &str = "the file has changed";

/// Files that are read together, as they were when they were last read.
#[derive(Debug)]
pub(super) struct WatchedFiles {
    paths: Vec<PathBuf>,
    read: Vec<Option<Stamp>>,
    seen: Vec<Option<Stamp>>,
}

/// The outside of a file, which changes with its content: device, inode, size, and the times of the
/// last change of its content and of its inode.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

impl WatchedFiles {
    /// Watches these files from now on: call it before they are read for the first time.
    pub(super) fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let paths: Vec<_> = paths.into_iter().collect();
        let read = stamps(&paths);
        Self { seen: read.clone(), read, paths }
    }

    /// Returns whether the files have to be read again: they differ from those that were read, and
    /// have stayed the same since the last look.
    fn have_changed(&mut self) -> bool {
        let now = stamps(&self.paths);
        let calm = now == self.seen;
        self.seen = now;
        calm && self.seen != self.read
    }

    /// The reason why reading these files might never end.
    fn endless(&self) -> Option<String> {
        let endless = |path: &PathBuf| {
            let file = std::fs::metadata(path).ok()?;
            let sound = file.is_file() && file.len() <= MAX_BYTES;
            (!sound).then(|| format!("{} is no file of up to {MAX_BYTES} bytes", path.display()))
        };
        self.paths.iter().find_map(endless)
    }

    /// Notes that the files are read now.
    fn are_read(&mut self) {
        self.read = stamps(&self.paths);
        self.seen = self.read.clone();
    }
}

/// Everything that is read again.
pub(super) struct Reloads {
    parts: Arc<Mutex<Vec<Part>>>,
    asked: Notify,
    controls: Controls,
}

/// Files, and the function that reads them.
pub(super) struct Part {
    what: &'static str,
    files: WatchedFiles,
    reload: Box<Reload>,
    failed: bool,
}

/// Reads files, checks all, and then replaces what they were before. The argument is the cause. An
/// error is one sentence, and has changed nothing.
type Reload = dyn Fn(&str) -> Result<(), String> + Send;

impl Part {
    /// A part of the service, as the log names it.
    pub(super) fn new(
        what: &'static str,
        files: WatchedFiles,
        reload: impl Fn(&str) -> Result<(), String> + Send + 'static,
    ) -> Self {
        Self { what, files, reload: Box::new(reload), failed: false }
    }
}

impl Reloads {
    pub(super) fn new(parts: Vec<Part>, controls: Controls) -> Self {
        Self { parts: Arc::new(Mutex::new(parts)), asked: Notify::new(), controls }
    }

    /// Reads all files again soon.
    pub(super) fn ask(&self) {
        self.asked.notify_one();
    }

    /// Reads files again for as long as the future is polled.
    pub(super) async fn run(&self) -> Infallible {
        loop {
            let cause = tokio::select! {
                () = self.asked.notified() => SIGNAL,
                () = tokio::time::sleep(PAUSE) => FILE,
            };
            let (parts, controls) = (self.parts.clone(), self.controls.clone());
            // A panic is in the log; the next look is a new try.
            let _ = tokio::task::spawn_blocking(move || {
                let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
                look(&mut parts, cause, &controls);
            })
            .await;
        }
    }
}

fn look(parts: &mut [Part], cause: &str, controls: &Controls) {
    for at in 0..parts.len() {
        let part = &mut parts[at];
        if !part.files.have_changed() && cause == FILE {
            continue;
        }
        // Before they are read: a change during that is a change.
        part.files.are_read();
        let done = part.files.endless().map_or_else(|| (part.reload)(cause), Err);
        part.failed = done.is_err();
        let outcome = if part.failed { "failed" } else { "ok" };
        if let Err(error) = done {
            let what = part.what;
            tracing::error!(what, cause, error, "reload failed; what was in force stays in force");
        }
        controls.reloaded(outcome, parts.iter().filter(|part| part.failed).count());
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |path: &PathBuf| {
        let file = std::fs::metadata(path).ok()?;
        let times = ((file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec()));
        Some((file.dev(), file.ino(), file.size(), times.0, times.1))
    };
    paths.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::WatchedFiles;

    /// Whether a change is seen at the second look, and not again after the file was read.
    fn is_seen(files: &mut WatchedFiles) -> bool {
        let early = files.have_changed();
        assert!(!early, "at the first look");
        let seen = files.have_changed();
        files.are_read();
        assert!(!files.have_changed() && !files.have_changed(), "it was read");
        seen
    }

    #[test]
    fn a_change_is_seen_once_the_file_has_stayed_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        fs::write(&path, "one").unwrap();
        let mut files = WatchedFiles::new([path.clone()]);
        assert!(!is_seen(&mut files));
        fs::write(&path, "two or three").unwrap();
        assert!(is_seen(&mut files));
        fs::remove_file(&path).unwrap();
        assert!(is_seen(&mut files));
        fs::write(&path, "one").unwrap();
        assert!(!files.have_changed());
        fs::write(&path, "one, and still being written").unwrap();
        assert!(is_seen(&mut files));
    }
}
