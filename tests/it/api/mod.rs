//! The HTTP contract, row by row, on a service in this process. Every answer is held against
//! openapi.yaml on the way.

mod acquire;
mod bodies;
mod contract;
pub(crate) mod dashboard;
mod docs;
mod ending;
mod figures;
mod keys;
mod lease_times;
mod leases;
mod look;
mod numbers;
mod pages;
mod panicking;
mod problems;
mod quotas;
mod refused;
mod rights;
mod rules;
mod schemathesis;
pub(crate) mod sdk;
mod secrets;
mod several;
mod sharing;
mod terraform;
mod tokens;

use std::ops::Deref;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::support::{Answer, Checked, Service};

/// A token that a client chose.
const TOKEN: &str = "a-token-of-mine-0001";
/// Another one.
const OTHER: &str = "a-token-of-another-2";

/// A port on which no Redis ever is: a store call ends in 503.
const AWAY: &str = "redis://127.0.0.1:1";

/// A service for one test; it answers like its client, [`Checked`].
struct Lockkeeper {
    http: Checked,
    service: Service,
    directory: TempDir,
}

impl Lockkeeper {
    /// One on an embedded store.
    async fn start() -> Self {
        Self::with_settings("").await
    }

    /// One on an embedded store, with these settings.
    async fn with_settings(settings: &str) -> Self {
        Self::on("embedded", settings).await
    }

    /// One on a Redis that is away: it answers 503 to whatever costs a store call.
    async fn without_store(settings: &str) -> Self {
        Self::on(AWAY, settings).await
    }

    async fn on(store: &str, settings: &str) -> Self {
        // In memory: what is looked at here is not for a slow disk to change.
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let embedded = format!("embedded:{}", directory.path().display());
        let store = if store == "embedded" { &embedded } else { store };
        let service = Service::start(&[("LOCKKEEPER_STORE", store)], settings).await;
        Self { http: Checked(service.http()), service, directory }
    }

    /// The same service, asked with this token.
    fn holding(self, token: &str) -> Self {
        Self { http: self.http.token(token), ..self }
    }
}

impl Deref for Lockkeeper {
    type Target = Checked;

    fn deref(&self) -> &Checked {
        &self.http
    }
}

/// Settings with an API key for each `(secret, prefixes, permissions)`, the lists as in TOML.
pub(crate) fn api_keys(keys: &[(&str, &str, &str)]) -> String {
    let mut settings = String::new();
    for (secret, prefixes, permissions) in keys {
        let digest: String =
            Sha256::digest(secret).iter().map(|byte| format!("{byte:02x}")).collect();
        settings.push_str(&format!(
            "[[api_keys]]\nname = \"key of {secret}\"\nsha256 = \"{digest}\"\n\
             prefixes = {prefixes}\npermissions = {permissions}\n"
        ));
    }
    settings
}

/// Fails unless the body is a JSON object of just these members, in this order.
fn assert_members(answer: &Answer, names: &[&str]) {
    let text = std::str::from_utf8(&answer.body).unwrap();
    let places: Vec<_> = names.iter().map(|name| text.find(&format!("\"{name}\":"))).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{names:?}: {text}");
    assert_eq!(answer.json().as_object().unwrap().len(), names.len(), "{names:?}: {text}");
}
