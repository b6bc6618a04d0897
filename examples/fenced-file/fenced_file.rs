//! A file that refuses late writers; `FencedFile.php` writes the very same files.
//!
//! Its first line has the greatest fencing token that it has seen and the SHA-256 of that lease's
//! token, its content follows. Both change by one rename, so neither is ever there without the
//! other. It needs nothing of this package: std and sha2.

use std::fs::File;
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Fencing tokens are below: JavaScript rounds from here on.
const END: u64 = 1 << 53;

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accepted,
    /// A later lease was here before. That is for good, not for a retry.
    Refused,
}

/// The file at a path; it need not be there yet.
#[derive(Clone, Debug)]
pub(crate) struct FencedFile {
    path: PathBuf,
}

impl FencedFile {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Makes the new content of the old one, unless a later lease has been here before.
    pub(crate) fn update(
        &self,
        fencing_token: u64,
        lease_token: &str,
        change: impl FnOnce(Vec<u8>) -> Vec<u8>,
    ) -> io::Result<Verdict> {
        if !(1..END).contains(&fencing_token) || lease_token.is_empty() {
            let why = format!("{fencing_token} and its lease token are not of a lease");
            return Err(invalid(why));
        }
        // Not the file itself: a rename puts another one in its place. It is free again when this
        // function ends, or the process.
        let lock = File::options().append(true).create(true).open(self.beside(".lock"))?;
        lock.lock()?;
        let (greatest, writer, content) = self.read()?;
        let lease = hash(lease_token);
        if fencing_token < greatest || (fencing_token == greatest && lease != writer) {
            return Ok(Verdict::Refused);
        }
        self.replace(&format!("{fencing_token} {lease}\n"), &change(content))?;
        Ok(Verdict::Accepted)
    }

    pub(crate) fn content(&self) -> io::Result<Vec<u8>> {
        Ok(self.read()?.2)
    }

    /// Fencing token, SHA-256 of the lease token, content.
    fn read(&self) -> io::Result<(u64, String, Vec<u8>)> {
        let bytes = match std::fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((0, String::new(), Vec::new()));
            }
            bytes => bytes?,
        };
        parse(&bytes).ok_or_else(|| invalid(format!("{} is no fenced file", self.path.display())))
    }

    fn replace(&self, first: &str, content: &[u8]) -> io::Result<()> {
        // Only who has the lock writes it, and what a killed process left is written over.
        let new = self.beside(".new");
        let mut file = File::create(&new)?;
        file.write_all(first.as_bytes())?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        let directory = self.path.parent().filter(|path| !path.as_os_str().is_empty());
        File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(ending);
        path.into()
    }
}

fn parse(bytes: &[u8]) -> Option<(u64, String, Vec<u8>)> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (fence, hash) = std::str::from_utf8(&bytes[..end]).ok()?.split_once(' ')?;
    let digits = (1..=16).contains(&fence.len()) && fence.bytes().all(|byte| byte.is_ascii_digit());
    let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let fits = digits && hash.len() == 64 && hash.bytes().all(hex);
    fits.then_some((fence.parse().ok()?, hash.to_owned(), bytes[end + 1..].to_vec()))
}

fn hash(lease_token: &str) -> String {
    Sha256::digest(lease_token).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
