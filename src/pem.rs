//! Certificates and private keys in files: PEM, as authorities and `openssl` write them. An error
//! names the file, its fault and the remedy.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The bytes of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| {
        let path = path.display();
        format!("cannot read {path}: {error}; name a PEM file that this user may read")
    })
}

/// The certificates in `text`, the bytes of the file at `path`, at least one.
pub(crate) fn certificates(
    path: &Path,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, Error> = CertificateDer::pem_slice_iter(text).collect();
    let what = match found {
        Ok(found) if !found.is_empty() => return Ok(found),
        Ok(_) => "has no certificate: it needs a part -----BEGIN CERTIFICATE-----",
        Err(_) => "is not whole: copy the PEM file again",
    };
    Err(format!("{} {what}", path.display()))
}

/// The private key in `text`, the bytes of the file at `path`, readable without a password.
pub(crate) fn private_key(path: &Path, text: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let what = "has no private key in PEM; remove the password of a protected one with \
                `openssl pkey`";
    PrivateKeyDer::from_pem_slice(text).map_err(|_| format!("{} {what}", path.display()))
}

/// The authorities in `text`, the bytes of the file at `path`.
pub(crate) fn authorities(path: &Path, text: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, text)? {
        let what = "has a part that is no certificate of an authority: name those that sign";
        roots.add(certificate).map_err(|_| format!("{} {what}", path.display()))?;
    }
    Ok(roots)
}
