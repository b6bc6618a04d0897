//! The directory of a store and its files: the database, its log, and the note. They are locked
//! against other processes, and none of them may be moved, deleted, replaced or cut while it is served.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::store::embedded::error::LogError;
use crate::store::embedded::note::Note;
use crate::store::embedded::tables::EARLIER;

const FILE: &str = "locks.sqlite";
/// The name of an unfinished file. A file with the final name is whole.
const UNFINISHED: &str = "locks.sqlite.new";

// What the names of the files beside the database end with. The database chooses the first two.
const LOG: &str = "-wal";
const INDEX: &str = "-shm";
const NOTE: &str = "-note";

/// The first bytes of a file, which tell what it is and never change.
const HEAD: usize = 12;

/// Only the owner has access, because the files contain the tokens.
const FILE_MODE: u32 = 0o600;

/// A locked directory and its files.
pub(super) struct Home {
    path: PathBuf,
    database: Watched,
    log: Option<Watched>,
    /// The file of the index. It is not opened here: to close it would end the database's locks.
    index: Option<FileId>,
    /// The note of the last answered commit.
    pub(super) note: Note,
    /// Its lock keeps other processes out, even if the files are gone.
    _directory: File,
}

/// The device and the number of a file.
type FileId = (u64, u64);

/// An open file, whatever its name is by now. That of the database is never closed before the
/// database is: to close any handle of a file ends the locks of a process on it.
struct Watched {
    path: PathBuf,
    file: File,
    /// The length and the head that were seen last.
    seen: Cell<(u64, [u8; HEAD])>,
}

impl Home {
    /// Locks a directory, which is created if missing. `make` writes a new database.
    pub(super) fn take(
        directory: &Path,
        make: impl FnOnce(&Path) -> Result<(), LogError>,
    ) -> Result<Self, LogError> {
        let unusable = unusable(directory);
        make_directory(directory).map_err(&unusable)?;
        let in_use = || LogError::InUse(directory.to_owned());
        let handle = File::open(directory).map_err(&unusable)?;
        // On a file system without such locks, that of the note remains.
        if let Err(fs::TryLockError::WouldBlock) = handle.try_lock() {
            return Err(in_use());
        }
        let path = directory.join(FILE);
        // A link that leads nowhere is the name of a file too: that of leases which are missing.
        if is_missing(fs::symlink_metadata(&path)).map_err(&unusable)? {
            refuse_leftovers(&path)?;
            let unfinished = directory.join(UNFINISHED);
            is_missing(fs::remove_file(&unfinished)).map_err(&unusable)?;
            let file = new_file(&unfinished).map_err(&unusable)?;
            make(&unfinished)?;
            file.sync_all().map_err(&unusable)?;
            fs::rename(&unfinished, &path).map_err(&unusable)?;
            // The new name survives a loss of power.
            handle.sync_all().map_err(&unusable)?;
        }
        // The log is beside the file itself, also if this is a link.
        let real = path.canonicalize().map_err(self::unusable(&path))?;
        let note = open_note(&real, &handle)?;
        let database = Watched::open(real)?;
        if let Err(fs::TryLockError::WouldBlock) = note.file().try_lock() {
            return Err(in_use());
        }
        Ok(Self { path, database, log: None, index: None, note, _directory: handle })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The database itself, also if its name is a link.
    pub(super) fn database(&self) -> &Path {
        &self.database.path
    }

    /// Removes other users' access to files that were copied here, or made otherwise.
    pub(super) fn keep_private(&self) {
        let files = ["", LOG, INDEX, NOTE].map(|ending| beside(&self.database.path, ending));
        files.iter().for_each(|file| keep_private(file));
    }

    /// Prepares the files for a reader. What it finds is on disk, also if an earlier process has only
    /// written it.
    pub(super) fn settle(&self) -> Result<(), LogError> {
        self.check(|| {
            let log = self.log.as_ref().map_or(Ok(true), Watched::has_its_name)?;
            Ok(log && self.database.has_its_name()? && self.note_has_its_name()?)
        })?;
        let settle = || {
            self.database.file.sync_all()?;
            match File::open(beside(&self.database.path, LOG)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                log => log?.sync_all(),
            }
        };
        settle().map_err(unusable(&self.path))
    }

    /// Expects the files to stay as the reader of the database has left them.
    pub(super) fn watch(&mut self) -> Result<(), LogError> {
        self.database.seen.take();
        self.log = Some(Watched::open(beside(&self.database.path, LOG))?);
        self.index = self.index_now().map_err(unusable(&self.path))?;
        self.check_place()
    }

    /// Fails if a file no longer has its name, or is not as it was left.
    pub(super) fn check_place(&self) -> Result<(), LogError> {
        self.check(|| {
            let log = self.log.as_ref().map_or(Ok(true), Watched::is_as_left)?;
            let note = self.note.is_as_left()? && self.note_has_its_name()?;
            Ok(log && self.database.is_as_left()? && note && self.index == self.index_now()?)
        })
    }

    fn check(&self, is_whole: impl FnOnce() -> io::Result<bool>) -> Result<(), LogError> {
        match is_whole().map_err(unusable(&self.path))? {
            true => Ok(()),
            false => Err(LogError::Misplaced(self.path.clone())),
        }
    }

    fn note_has_its_name(&self) -> io::Result<bool> {
        has_name(self.note.file(), &beside(&self.database.path, NOTE))
    }

    fn index_now(&self) -> io::Result<Option<FileId>> {
        id_of(&beside(&self.database.path, INDEX))
    }
}

impl Watched {
    fn open(path: PathBuf) -> Result<Self, LogError> {
        let file = open(&path).map_err(unusable(&path))?;
        Ok(Self { path, file, seen: Cell::default() })
    }

    fn has_its_name(&self) -> io::Result<bool> {
        has_name(&self.file, &self.path)
    }

    /// Returns true if the file has its name and its head, and was not cut.
    fn is_as_left(&self) -> io::Result<bool> {
        let length = self.file.metadata()?.len();
        let mut head = [0; HEAD];
        self.file.read_at(&mut head, 0)?;
        let (before, known) = self.seen.replace((length, head));
        let is_whole = length >= before && (before == 0 || head == known);
        Ok(is_whole && self.has_its_name()?)
    }
}

/// Returns whether this is the name of the file.
fn has_name(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    Ok(id_of(path)? == Some((own.dev(), own.ino())))
}

fn id_of(path: &Path) -> io::Result<Option<FileId>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        named => named.map(|named| Some((named.dev(), named.ino()))),
    }
}

/// A name in the directory of a file that begins like that of the file.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Refuses what is left of a database that is missing, and the file of an earlier version.
fn refuse_leftovers(path: &Path) -> Result<(), LogError> {
    let earlier = path.with_file_name(EARLIER.0);
    if earlier.exists() {
        return Err(LogError::Format { path: earlier, format: EARLIER.1 });
    }
    match [LOG, NOTE].map(|ending| beside(path, ending)).into_iter().find(|left| left.exists()) {
        Some(path) => Err(LogError::Damaged { path, what: format!("{FILE} beside it is missing") }),
        None => Ok(()),
    }
}

/// Opens the note beside a database. Only a database without a log can be without one: it is new, or
/// a copy that was made of one that was closed.
fn open_note(database: &Path, directory: &File) -> Result<Note, LogError> {
    let path = beside(database, NOTE);
    match open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => (),
        opened => return Ok(Note::new(opened.map_err(unusable(&path))?)),
    }
    let log = beside(database, LOG);
    if log.metadata().is_ok_and(|log| log.len() > 0) {
        let what = format!("{FILE}{NOTE} beside it is missing");
        return Err(LogError::Damaged { path: log, what });
    }
    let make = || {
        let file = new_file(&path)?;
        file.write_all_at(&[0; Note::LENGTH], 0)?;
        file.sync_all()?;
        directory.sync_all()?;
        Ok(Note::new(file))
    };
    make().map_err(unusable(&path))
}

fn unusable(path: &Path) -> impl Fn(io::Error) -> LogError {
    move |source| LogError::Unusable { path: path.to_owned(), source }
}

fn open(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().read(true).write(true).open(path)
}

fn new_file(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().read(true).write(true).create_new(true).mode(FILE_MODE).open(path)
}

fn keep_private(path: &Path) {
    let Ok(found) = fs::metadata(path) else { return };
    if found.permissions().mode() & 0o777 & !FILE_MODE == 0 {
        return;
    }
    let file = path.display();
    match fs::set_permissions(path, fs::Permissions::from_mode(FILE_MODE)) {
        Ok(()) => tracing::warn!(%file, "file was open to others; now only its owner may use it"),
        Err(error) => tracing::warn!(%file, %error, "file is open to others"),
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
