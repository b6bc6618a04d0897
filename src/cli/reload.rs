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

use crate::cli::live::{Live, reload_certificates};
use crate::config::MOST_OF_FILE;

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
    /// The last attempt to read them failed.
    failed: bool,
}

/// The outside of a file, which changes with its content: device, inode, size, and the times of the
/// last change of its content and of its inode.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

impl WatchedFiles {
    /// Watches these files from now on: call it before they are read for the first time.
    pub(super) fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let paths: Vec<_> = paths.into_iter().collect();
        let read = stamps(&paths);
        Self { seen: read.clone(), read, paths, failed: false }
    }

    /// Has the files read by `reload` if they have changed, or for a signal. Returns the outcome; a
    /// failure has changed nothing.
    fn read_again(
        &mut self,
        what: &str,
        cause: &str,
        reload: impl FnOnce() -> Result<(), String>,
    ) -> Option<&'static str> {
        if !self.have_changed() && cause == FILE {
            return None;
        }
        // Before they are read: a change during that is a change.
        self.are_read();
        let done = self.endless().map_or_else(reload, Err);
        self.failed = done.is_err();
        if let Err(error) = done {
            tracing::error!(
                target: "audit",
                audit = "reload",
                what,
                cause,
                error,
                "reload failed; what was in force stays in force"
            );
        }
        Some(if self.failed { "failed" } else { "ok" })
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
            let sound = file.is_file() && file.len() <= MOST_OF_FILE;
            (!sound).then(|| format!("{} is no file of up to {MOST_OF_FILE} bytes", path.display()))
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
    pub(super) settings: WatchedFiles,
    pub(super) tls: WatchedFiles,
    pub(super) live: Live,
}

impl Reloads {
    /// Reads files again for as long as the future is polled: those that have changed, and all of
    /// them when `asked`.
    pub(super) async fn run(self, asked: &Notify) -> Infallible {
        let reloads = Arc::new(Mutex::new(self));
        loop {
            let cause = tokio::select! {
                () = asked.notified() => SIGNAL,
                () = tokio::time::sleep(PAUSE) => FILE,
            };
            let reloads = reloads.clone();
            // A panic is in the log; the next look is a new try.
            let _ = tokio::task::spawn_blocking(move || {
                reloads.lock().unwrap_or_else(PoisonError::into_inner).look(cause);
            })
            .await;
        }
    }

    fn look(&mut self, cause: &str) {
        let Self { settings, tls, live } = self;
        let read = settings.read_again("settings", cause, || live.reload_settings(cause));
        let certificates = &live.certificates;
        let certificates = certificates
            .are_used()
            .then(|| tls.read_again("tls", cause, || reload_certificates(certificates, cause)));
        let failed = [&*settings, &*tls].into_iter().filter(|files| files.failed).count();
        for outcome in [read, certificates.flatten()].into_iter().flatten() {
            live.controls.reloaded(outcome, failed);
        }
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
