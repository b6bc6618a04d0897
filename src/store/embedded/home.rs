//! The directory and the file of a store, locked against other processes. Neither may be moved,
//! deleted, replaced or written to while it is served.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use crate::platform::sockets;
use crate::store::embedded::error::LogError;

const FILE: &str = "locks.redb";

/// The name of an unfinished file. A file with the final name is whole.
const UNFINISHED: &str = "locks.redb.new";

/// Only the owner has access, because the file contains the tokens.
const FILE_MODE: u32 = 0o600;

/// The offset of the number of the last answered commit: its own sector in the first page, of which
/// the database uses 320 bytes.
const WITNESS_AT: u64 = 2_048;
/// The mark before the number.
const WITNESS: &[u8; 8] = b"commits\0";

/// A locked directory and its file.
pub(super) struct Home {
    path: PathBuf,
    /// The open file, whatever its name is by now.
    file: File,
    /// The noted number of the last answered commit.
    noted: Cell<u64>,
    /// The length that the database gave the file.
    length: Arc<AtomicU64>,
    /// Its lock keeps other processes out, even if the file is gone.
    _directory: File,
    /// Keeps other processes out if the directory was moved. The name ends with the process.
    _name: Option<UnixListener>,
}

impl Home {
    /// Locks a directory, which is created if missing. `make` writes a new file.
    pub(super) fn take(
        directory: &Path,
        make: impl FnOnce(File) -> Result<(), LogError>,
    ) -> Result<Self, LogError> {
        let unusable = |source| LogError::Unusable { path: directory.to_owned(), source };
        make_directory(directory).map_err(unusable)?;
        let in_use = || LogError::InUse(directory.to_owned());
        let handle = File::open(directory).map_err(unusable)?;
        // On a file system without such locks, the lock of the file remains.
        if let Err(fs::TryLockError::WouldBlock) = handle.try_lock() {
            return Err(in_use());
        }
        let name = match take_name(directory) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(in_use()),
            taken => taken.ok(),
        };
        let path = directory.join(FILE);
        // A link that leads nowhere is the name of a file too: that of leases which are missing.
        if is_missing(fs::symlink_metadata(&path)).map_err(unusable)? {
            let unfinished = directory.join(UNFINISHED);
            is_missing(fs::remove_file(&unfinished)).map_err(unusable)?;
            let mut options = fs::OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(FILE_MODE);
            make(options.open(&unfinished).map_err(unusable)?)?;
            fs::rename(&unfinished, &path).map_err(unusable)?;
            // The new name must survive a loss of power as well.
            handle.sync_all().map_err(unusable)?;
        }
        let file = open(&path)?;
        Ok(Self {
            path,
            file,
            noted: Cell::default(),
            length: Arc::default(),
            _directory: handle,
            _name: name,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes other users' access to a file that was copied here, or made otherwise.
    pub(super) fn keep_private(&self) {
        let mode =
            self.file.metadata().map_or(FILE_MODE, |found| found.permissions().mode() & 0o777);
        if mode & !FILE_MODE == 0 {
            return;
        }
        let path = self.path.display();
        match self.file.set_permissions(fs::Permissions::from_mode(FILE_MODE)) {
            Ok(()) => {
                tracing::warn!(%path, "file was open to others; now only its owner may use it")
            }
            Err(error) => tracing::warn!(%path, %error, "file is open to others"),
        }
    }

    /// Opens the file again. Never creates it.
    pub(super) fn open(&self) -> Result<File, LogError> {
        let file = open(&self.path)?;
        self.check(&file.metadata().map_err(|source| self.unusable(source))?)?;
        Ok(file)
    }

    /// Fails if the file no longer has its name, or is not as it was left.
    pub(super) fn check_place(&self) -> Result<(), LogError> {
        match fs::metadata(&self.path) {
            Ok(found) => self.check(&found)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(self.misplaced()),
            Err(error) => return Err(self.unusable(error)),
        }
        self.check_note()
    }

    /// Fails if the file was cut, or the note overwritten.
    pub(super) fn check_note(&self) -> Result<(), LogError> {
        let found = || Ok((self.witnessed()?, self.file.metadata()?.len()));
        let (note, length) = found().map_err(|source| self.unusable(source))?;
        let is_whole = length >= self.length.load(Ordering::Relaxed);
        if is_whole && note == Some(self.noted.get()) { Ok(()) } else { Err(self.misplaced()) }
    }

    /// Notes the number of an answered commit, without a sync: a crash of the process loses no
    /// written data, and after a loss of power an older number does no harm.
    pub(super) fn witness(&self, commits: u64) -> io::Result<()> {
        let mut record = [0; 24];
        record[..8].copy_from_slice(WITNESS);
        record[8..16].copy_from_slice(&commits.to_le_bytes());
        record[16..].copy_from_slice(&(!commits).to_le_bytes());
        self.file.write_all_at(&record, WITNESS_AT)?;
        self.expect(commits);
        Ok(())
    }

    /// Expects the file to have this note.
    pub(super) fn expect(&self, commits: u64) {
        self.noted.set(commits);
    }

    /// Where the database notes the length that it gives the file.
    pub(super) fn length(&self) -> Arc<AtomicU64> {
        self.length.clone()
    }

    /// The noted number of the last answered commit. `None` if the note itself is damaged.
    pub(super) fn witnessed(&self) -> io::Result<Option<u64>> {
        let mut record = [0; 24];
        self.file.read_exact_at(&mut record, WITNESS_AT)?;
        if record == [0; 24] {
            return Ok(Some(0));
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| record[at + byte]));
        let is_whole = record.starts_with(WITNESS) && number(8) == !number(16);
        Ok(is_whole.then(|| number(8)))
    }

    fn check(&self, found: &fs::Metadata) -> Result<(), LogError> {
        let ours = self.file.metadata().map_err(|source| self.unusable(source))?;
        let same = (found.dev(), found.ino()) == (ours.dev(), ours.ino());
        if same { Ok(()) } else { Err(self.misplaced()) }
    }

    fn misplaced(&self) -> LogError {
        LogError::Misplaced(self.path.clone())
    }

    fn unusable(&self, source: io::Error) -> LogError {
        LogError::Unusable { path: self.path.clone(), source }
    }
}

/// Returns whether something has failed because the file is missing.
fn is_missing<T>(done: io::Result<T>) -> io::Result<bool> {
    match done {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

fn open(path: &Path) -> Result<File, LogError> {
    let opened = fs::OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|source| LogError::Unusable { path: path.to_owned(), source })
}

/// Creates a directory and its parents, each of which survives a loss of power.
fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or_else(|| Path::new("."));
    make_directory(parent)?;
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => (),
    }
    if !directory.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    File::open(parent)?.sync_all()
}

/// Takes a name in the kernel that identifies this directory, even after a move.
fn take_name(directory: &Path) -> io::Result<UnixListener> {
    let directory = directory.canonicalize()?;
    let parent = directory.parent().unwrap_or(&directory).metadata()?;
    let mut name = format!("lockkeeper/{:x}/{:x}/", parent.dev(), parent.ino()).into_bytes();
    let own = directory.file_name().unwrap_or_default().as_encoded_bytes();
    // There is room for 107 bytes; two long names with the same end still have different locks.
    name.extend_from_slice(&own[own.len().saturating_sub(48)..]);
    sockets::take_name(&name)
}
