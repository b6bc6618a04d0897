//! The library that makes disk, clock and connections of a process fail.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SOURCE: &str = include_str!("../shim.c");

/// As in the source.
const WORDS: u64 = 16;

/// What can be set, in the order of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// By how many milliseconds a sync takes longer.
    SlowSync,
    /// The errno with which syncs fail.
    SyncErrno,
    /// How many syncs fail; -1 for all.
    Syncs,
    /// The errno with which files refuse to be written or to grow.
    Full,
    /// By how many nanoseconds the wall clock is ahead.
    Ahead,
    /// The port of the peer whose connections fail.
    Port,
    /// How many writes to it fail.
    Writes,
    /// How many reads from it fail.
    Reads,
    /// With which errno they do.
    LinkErrno,
}

/// The faults of one process, also when it has restarted.
#[derive(Debug)]
pub(crate) struct Shim {
    library: PathBuf,
    path: PathBuf,
    file: File,
}

impl Shim {
    /// Makes a process's own faults, all of them off.
    pub(crate) fn new(library: &Path, path: PathBuf) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        file.set_len(WORDS * 8)?;
        Ok(Self { library: library.to_owned(), path, file })
    }

    /// Has a command run under it.
    pub(crate) fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("SHIM_FILE", &self.path);
    }

    pub(crate) fn set(&self, word: Word, value: i64) {
        // The file is as long as it has to be; a write to it cannot fail for want of room.
        let _ = self.file.write_all_at(&value.to_ne_bytes(), word as u64 * 8);
    }

    /// Has so many syncs fail, or all if it is -1.
    pub(crate) fn fail_syncs(&self, times: i64, errno: i64) {
        self.set(Word::Syncs, times);
        self.set(Word::SyncErrno, errno);
    }

    pub(crate) fn heal(&self) {
        let _ = self.file.write_all_at(&[0; WORDS as usize * 8], 0);
    }
}

/// Builds the library into this directory.
pub(crate) fn build(directory: &Path) -> io::Result<PathBuf> {
    let (source, library) = (directory.join("shim.c"), directory.join("shim.so"));
    std::fs::write(&source, SOURCE)?;
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .stdin(Stdio::null())
        .status()?;
    if built.success() { Ok(library) } else { Err(io::Error::other("cc does not build the shim")) }
}
