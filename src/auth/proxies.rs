//! The proxies that are trusted to name the client's address.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::auth::words;

/// The setting `trusted_proxies`: addresses, and networks as in `10.0.0.0/8`.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// The address of the client behind a connection from `peer`, according to `X-Forwarded-For`.
    /// Each proxy appends the address that called it, so the last one that is not a trusted proxy
    /// is the client; the text before it can be forged.
    pub fn client(&self, peer: IpAddr, forwarded: &[&str]) -> IpAddr {
        let mut client = peer.to_canonical();
        for hop in forwarded.iter().rev().flat_map(|line| line.rsplit(',')) {
            if !self.trust(client) {
                break;
            }
            let Some(address) = address(hop.trim()) else { break };
            client = address.to_canonical();
        }
        client
    }

    /// Returns whether this is the address of a trusted proxy.
    pub fn trust(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

impl<'de> Deserialize<'de> for TrustedProxies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let network = |word: String| {
            let address = || word.parse::<IpAddr>().map(IpNet::from);
            word.parse::<IpNet>().or_else(|_| address()).map_err(|_| {
                let detail = "is neither an address nor a network such as `10.0.0.0/8`";
                D::Error::custom(format!("`{word}` {detail}"))
            })
        };
        words(deserializer)?.into_iter().map(network).collect::<Result<_, _>>().map(Self)
    }
}

/// An address as proxies write it: with or without a port, with or without brackets.
fn address(text: &str) -> Option<IpAddr> {
    let plain = text.trim_start_matches('[').trim_end_matches(']');
    plain.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|with_port| with_port.ip()))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::TrustedProxies;

    #[test]
    fn the_client_is_the_last_address_that_is_no_trusted_proxy() {
        let trusted =
            TrustedProxies(["10.0.0.0/8", "::1/128"].map(|one| one.parse().unwrap()).into());
        for (peer, forwarded, client) in [
            ("192.0.2.1", &["198.51.100.7"][..], "192.0.2.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.7"], "198.51.100.7"),
            ("::ffff:10.0.0.1", &["198.51.100.7"], "198.51.100.7"),
            ("::1", &["198.51.100.7:443"], "198.51.100.7"),
            ("::1", &["[2001:db8::7]:443"], "2001:db8::7"),
            ("::1", &["[2001:db8::7]"], "2001:db8::7"),
            ("10.0.0.1", &["127.0.0.1, 198.51.100.7, 10.0.0.2"], "198.51.100.7"),
            ("10.0.0.1", &["127.0.0.1", "198.51.100.7", "10.0.0.2"], "198.51.100.7"),
            ("10.0.0.1", &["198.51.100.7, unknown, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &[""], "10.0.0.1"),
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ] {
            let [peer, client]: [IpAddr; 2] = [peer, client].map(|text| text.parse().unwrap());
            assert_eq!(trusted.client(peer, forwarded), client, "{peer} {forwarded:?}");
        }
    }
}
