//! The token of a lease in a file.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::config::{read_text, read_up_to};
use crate::lock::token::LeaseToken;

/// The longest file: far longer than any token. A device may have no end.
const MOST_BYTES: u64 = 4_096;

/// Writes a new token to a file that only the user can read. Returns false if there is one already.
pub(super) fn written(path: &Path, token: &LeaseToken) -> Result<bool, String> {
    if path.to_str() == Some("-") {
        return Ok(false);
    }
    let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        Err(error) => return Err(format!("cannot write to {}: {error}", path.display())),
    };
    let written = writeln!(file, "{}", token.expose());
    written.map(|()| true).map_err(|error| {
        // An error means that the file stays, without a token.
        let _ = std::fs::remove_file(path);
        format!("cannot write to {}: {error}", path.display())
    })
}

/// Reads a token; `-` is standard input.
pub(super) fn token_in(path: &Path) -> Result<LeaseToken, String> {
    let text = match path.to_str() {
        Some("-") => read_up_to(io::stdin(), MOST_BYTES),
        _ => read_text(path, MOST_BYTES),
    };
    let text = text.map_err(|error| format!("no token in {}: {error}", path.display()))?;
    LeaseToken::parse(text.trim()).map_err(|error| error.to_string())
}
