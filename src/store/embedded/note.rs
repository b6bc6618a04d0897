//! The number of the last answered commit, in a file beside the database.
//!
//! A damaged log of the database ends its recovery early, in silence: what comes out is an earlier
//! commit that is whole. This number tells. It is not synchronised: a crash of the process loses no
//! written data, and after a loss of power an older number does no harm.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The mark before the number.
const MARK: &[u8; 8] = b"commits\0";

/// The distance of two numbers: no disk damages more by one write.
const SECTOR: u64 = 4_096;

const RECORD: usize = 24;

/// The file has the last two numbers, so that one that is cut by a loss of power leaves the other.
pub(super) struct Note {
    file: File,
    last: Cell<u64>,
}

impl Note {
    /// The length of the file, and what a new one has.
    pub(super) const LENGTH: usize = 2 * SECTOR as usize;

    pub(super) fn new(file: File) -> Self {
        Self { file, last: Cell::default() }
    }

    /// Reads the number again; `None` if the file is damaged.
    pub(super) fn read(&self) -> io::Result<Option<u64>> {
        let number = self.number()?;
        self.last.set(number.unwrap_or_default());
        Ok(number)
    }

    pub(super) fn write(&self, number: u64) -> io::Result<()> {
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(MARK);
        record[8..16].copy_from_slice(&number.to_le_bytes());
        record[16..].copy_from_slice(&(!number).to_le_bytes());
        self.file.write_all_at(&record, number % 2 * SECTOR)?;
        self.last.set(number);
        Ok(())
    }

    /// Returns true if the file has what was read or written last.
    pub(super) fn is_as_left(&self) -> io::Result<bool> {
        Ok(self.number()? == Some(self.last.get()))
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    fn number(&self) -> io::Result<Option<u64>> {
        Ok(self.in_place(0)?.max(self.in_place(1)?))
    }

    /// The number in one of the two places; 0 if none was written.
    fn in_place(&self, place: u64) -> io::Result<Option<u64>> {
        let mut record = [0; RECORD];
        match self.file.read_exact_at(&mut record, place * SECTOR) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        if record == [0; RECORD] {
            return Ok(Some(0));
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| record[at + byte]));
        let is_whole = record.starts_with(MARK) && number(8) == !number(16);
        Ok(is_whole.then(|| number(8)))
    }
}
