//! The token of a lease in a file.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::lock::token::LeaseToken;

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
        Some("-") => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map(|_| text)
        }
        _ => std::fs::read_to_string(path),
    };
    let text = text.map_err(|error| format!("no token in {}: {error}", path.display()))?;
    LeaseToken::parse(text.trim()).map_err(|error| error.to_string())
}
