//! Certificates and private keys in files: PEM, as authorities and `openssl` write them.

use std::io;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// It cannot be read.
    #[error("cannot read {}: {source}; name a PEM file that this user may read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// It holds something else.
    #[error("{} {what}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// Its fault, with the remedy.
        what: &'static str,
    },
}

/// The bytes of a file.
///
/// # Errors
///
/// [`PemError::Unreadable`].
pub fn read(path: &Path) -> Result<Vec<u8>, PemError> {
    std::fs::read(path).map_err(|source| PemError::Unreadable { path: path.to_owned(), source })
}

/// The certificates in `text`, the bytes of the file at `path`, at least one.
///
/// # Errors
///
/// [`PemError::Unfit`] if there is none, or one is damaged.
pub fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let unfit = |what| PemError::Unfit { path: path.to_owned(), what };
    let found: Result<Vec<_>, Error> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unfit("has no certificate: it needs a part -----BEGIN CERTIFICATE-----")),
        Err(_) => Err(unfit("is not whole: copy the PEM file again")),
    }
}

/// The private key in `text`, the bytes of the file at `path`.
///
/// # Errors
///
/// [`PemError::Unfit`] if there is none that is readable without a password.
pub fn private_key(path: &Path, text: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    let what = "has no private key in PEM; remove the password of a protected one with \
                `openssl pkey`";
    PrivateKeyDer::from_pem_slice(text).map_err(|_| PemError::Unfit { path: path.to_owned(), what })
}

/// The authorities in `text`, the bytes of the file at `path`.
///
/// # Errors
///
/// [`PemError::Unfit`] if one of them is no certificate.
pub fn authorities(path: &Path, text: &[u8]) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, text)? {
        let what = "has a part that is no certificate of an authority: name those that sign";
        roots.add(certificate).map_err(|_| PemError::Unfit { path: path.to_owned(), what })?;
    }
    Ok(roots)
}
