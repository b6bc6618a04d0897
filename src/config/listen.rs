//! The settings of the listeners: where they are, and the files of TLS.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::config::TlsSection;

/// The beginning of the place of a unix socket.
const UNIX: &str = "unix:";

/// A place to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenOn {
    /// An address or a name, and a port.
    Address(String),
    /// A unix socket.
    Unix(PathBuf),
}

/// The permissions of a unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(u32);

impl ListenOn {
    fn parse(text: &str) -> Result<Self, &'static str> {
        match text.strip_prefix(UNIX) {
            Some("") => Err("name a file: unix:/run/lockkeeper/lockkeeper.sock"),
            Some(path) => Ok(Self::Unix(path.into())),
            None => Ok(Self::Address(text.to_owned())),
        }
    }

    /// Returns whether it is a unix socket.
    pub fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    /// Returns whether the system chooses the port.
    pub(super) fn is_any_port(&self) -> bool {
        matches!(self, Self::Address(address) if address.ends_with(":0"))
    }
}

impl fmt::Display for ListenOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl<'de> Deserialize<'de> for ListenOn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// A place, or nothing for an empty text.
pub(super) fn unless_empty<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ListenOn>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let place = (!text.is_empty()).then(|| ListenOn::parse(&text));
    place.transpose().map_err(D::Error::custom)
}

impl SocketMode {
    /// The bits as in `chmod`.
    pub fn bits(self) -> u32 {
        self.0
    }
}

impl<'de> Deserialize<'de> for SocketMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_mode = (3..=4).contains(&text.len()) && text.bytes().all(|digit| digit < b'8');
        let bits = u32::from_str_radix(&text, 8).ok().filter(|bits| is_mode && *bits <= 0o777);
        bits.map(Self).ok_or_else(|| {
            D::Error::custom(format!("`{text}` are no permissions: use three digits, as in 660"))
        })
    }
}

impl TlsSection {
    /// The files of the certificate and of its key.
    pub fn certificate_and_key(&self) -> Option<(PathBuf, PathBuf)> {
        self.is_used().then(|| (self.certificate.clone(), self.key.clone()))
    }

    /// The file of the authorities of client certificates.
    pub fn client_ca(&self) -> Option<PathBuf> {
        is_named(&self.client_ca).then(|| self.client_ca.clone())
    }

    /// The files that are named.
    pub fn files(&self) -> Vec<PathBuf> {
        let all = [&self.certificate, &self.key, &self.client_ca];
        all.into_iter().filter(|path| is_named(path)).cloned().collect()
    }

    /// Returns whether there is a certificate.
    pub fn is_used(&self) -> bool {
        is_named(&self.certificate)
    }

    /// Returns whether certificate and key are both set, or neither.
    pub(super) fn is_whole(&self) -> bool {
        is_named(&self.certificate) == is_named(&self.key)
    }

    /// Returns whether client certificates are required of a service without its own.
    pub(super) fn has_only_authorities(&self) -> bool {
        is_named(&self.client_ca) && !is_named(&self.certificate)
    }
}

fn is_named(path: &Path) -> bool {
    !path.as_os_str().is_empty()
}

#[cfg(test)]
mod tests {
    use super::ListenOn;

    #[test]
    fn a_place_is_an_address_or_a_unix_socket() {
        let unix = ListenOn::parse("unix:/run/a.sock").unwrap();
        assert_eq!(unix, ListenOn::Unix("/run/a.sock".into()));
        assert_eq!(unix.to_string(), "unix:/run/a.sock");
        let address = ListenOn::parse("localhost:1").unwrap();
        assert_eq!(address, ListenOn::Address("localhost:1".to_owned()));
        assert!(ListenOn::parse("unix:").is_err());
    }
}
