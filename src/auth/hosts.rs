//! The host names under which browsers may call a service without API keys.
//!
//! A web page can point its own name at any address that the browser's machine reaches (DNS
//! rebinding); the browser then takes the service for part of that page. IP addresses and
//! `localhost` cannot be abused like that.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::auth::words;

/// The setting `allowed_hosts`: names without scheme and port, in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedHosts(Vec<String>);

impl AllowedHosts {
    /// Returns whether none is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a `Host` header may call: one of these, an IP address or `localhost`, with
    /// or without a port.
    pub fn admit(&self, host: &str) -> bool {
        let name = without_port(host);
        let v6 = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        v6.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
            || name.parse::<Ipv4Addr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.0.iter().any(|one| name.eq_ignore_ascii_case(one))
    }
}

impl<'de> Deserialize<'de> for AllowedHosts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = words(deserializer)?;
        for name in &names {
            let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
            if !name.chars().all(plain) {
                return Err(D::Error::custom(format!(
                    "`{name}` is not a host name: leave out scheme, port and wildcards, as in \
                     `locks.example`"
                )));
            }
        }
        Ok(Self(names))
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::AllowedHosts;

    #[test]
    fn a_service_without_api_keys_is_called_by_address_or_by_a_name_that_it_knows() {
        let hosts = AllowedHosts(vec!["locks.example".to_owned()]);
        let known = "127.0.0.1 127.0.0.1:8080 192.0.2.1:80 [::1] [::1]:8080 localhost \
                     LOCALHOST:8080 locks.example Locks.Example:443";
        for host in known.split(' ') {
            assert!(hosts.admit(host), "{host}");
        }
        let unknown = "evil.example evil.example:8080 localhost.evil.example \
                       127.0.0.1.evil.example 127.0.0.1:8080.evil.example evil.example:80:80 \
                       locks.example.evil ::1 [::1 [evil] 2130706433";
        for host in unknown.split(' ').chain([""]) {
            assert!(!hosts.admit(host), "{host}");
        }
    }
}
