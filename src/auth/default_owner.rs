//! The owner of a claim that names none.

use std::net::IpAddr;

use serde::Deserialize;

use crate::lock::lease::Owner;

/// The setting `default_owner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefaultOwner {
    /// The API key's name, if there is one, and the client's address.
    Client,
    /// No owner.
    None,
}

impl DefaultOwner {
    /// The owner of a claim by the API key of this name, from this address.
    pub fn of(self, name: &str, client: IpAddr) -> Option<Owner> {
        if self == Self::None {
            return None;
        }
        // A long name leaves room for the address.
        let address = client.to_string();
        let room = Owner::MAX_BYTES - address.len() - 1;
        let name = &name[..name.floor_char_boundary(room)];
        Owner::shortened(format!("{name} {address}").trim_start())
    }
}

#[cfg(test)]
mod tests {
    use super::DefaultOwner;
    use crate::lock::lease::Owner;

    #[test]
    fn an_owner_is_the_name_of_the_api_key_and_the_address_of_the_client() {
        let owner = |of: DefaultOwner, name: &str, client: &str| {
            of.of(name, client.parse().unwrap()).map(|owner| owner.as_str().to_owned())
        };
        let client = |name, client| owner(DefaultOwner::Client, name, client).unwrap();
        assert_eq!(client("ci-runner", "10.0.3.7"), "ci-runner 10.0.3.7");
        assert_eq!(client("", "2001:db8::1"), "2001:db8::1");
        assert_eq!(client("a\nb", "10.0.3.7"), "ab 10.0.3.7");
        let long = client(&"é".repeat(300), "10.0.3.7");
        assert!(long.len() <= Owner::MAX_BYTES && long.ends_with("é 10.0.3.7"), "{long}");
        assert_eq!(owner(DefaultOwner::None, "ci-runner", "10.0.3.7"), None);
    }
}
