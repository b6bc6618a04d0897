//! The settings of the listeners, and the files of TLS: theirs, and those for Redis.

use std::fmt;
use std::path::PathBuf;

use serde::de::{Error as _, IntoDeserializer};
use serde::{Deserialize, Deserializer};

use crate::config::{RedisTlsSection, TlsSection};

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

/// The permissions of a unix socket, as bits of `chmod`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketMode(pub(crate) u32);

impl ListenOn {
    fn parse(text: &str) -> Result<Self, &'static str> {
        match text.strip_prefix(UNIX) {
            Some("") => Err("name a file: unix:/run/lockkeeper/lockkeeper.sock"),
            Some(path) => Ok(Self::Unix(path.into())),
            None if !has_host_and_port(text) => {
                Err("write ADDRESS:PORT, as in 127.0.0.1:8080, or unix:FILE")
            }
            None => Ok(Self::Address(text.to_owned())),
        }
    }

    /// Returns whether it is a unix socket.
    pub(crate) fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    /// Returns whether the system chooses the port.
    pub(super) fn is_any_port(&self) -> bool {
        matches!(self, Self::Address(address) if address.ends_with(":0"))
    }
}

fn has_host_and_port(text: &str) -> bool {
    let parts = text.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
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

/// A value, or nothing for an empty text.
pub(super) fn unless_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    (!text.is_empty()).then(|| T::deserialize(text.into_deserializer())).transpose()
}

impl TlsSection {
    /// Returns whether there is a certificate.
    pub(crate) fn is_used(&self) -> bool {
        self.certificate.is_some()
    }

    /// The files that are named.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        [&self.certificate, &self.key, &self.client_ca].into_iter().flatten().cloned().collect()
    }
}

impl RedisTlsSection {
    /// Returns whether any file is named.
    pub(crate) fn is_used(&self) -> bool {
        !self.files().is_empty()
    }

    /// The files that are named.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        [&self.ca, &self.certificate, &self.key].into_iter().flatten().cloned().collect()
    }
}
