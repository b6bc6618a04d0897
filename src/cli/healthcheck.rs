//! `lockkeeper healthcheck`: for images without a shell or curl.

use crate::cli::runtime;
use crate::client::health::{HealthPlace, healthz};
use crate::config::{Config, ListenOn};

/// Requests `/healthz` from the service of these settings. A unix socket comes first: it needs
/// neither TLS nor a client certificate.
pub(super) fn healthcheck(config: &Config) -> Result<(), String> {
    let places = [Some(&config.listen), config.admin_listen.as_ref()];
    let unix = places.into_iter().flatten().find(|place| place.is_unix());
    let place = unix.unwrap_or(&config.listen);
    let asked = match place {
        ListenOn::Unix(path) => HealthPlace::Unix(path),
        ListenOn::Address(address) if config.tls.is_used() => HealthPlace::Secured(address),
        ListenOn::Address(address) => HealthPlace::Plain(address),
    };
    match runtime::run(healthz(asked))? {
        Ok(200) => Ok(()),
        Ok(status) => Err(format!("{place} answered {status}")),
        Err(error) => Err(format!("cannot reach {place}: {error}")),
    }
}
