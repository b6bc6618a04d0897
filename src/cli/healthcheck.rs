//! `lockkeeper healthcheck`: for images without a shell or curl.

use crate::cli::runtime;
use crate::client::{Client, Trust};
use crate::config::{Config, ListenOn};

/// Requests `/healthz` from the service of these settings. A unix socket comes first: it needs
/// neither TLS nor a client certificate.
pub(super) fn healthcheck(config: &Config) -> Result<(), String> {
    let places = [Some(&config.listen), config.admin_listen.as_ref()];
    let unix = places.into_iter().flatten().find(|place| place.is_unix());
    let place = unix.unwrap_or(&config.listen);
    let url = match place {
        ListenOn::Unix(path) => format!("unix:{}", path.display()),
        ListenOn::Address(address) if config.tls.is_used() => format!("https://{address}"),
        ListenOn::Address(address) => format!("http://{address}"),
    };
    let client = Client::new(&url, None, Trust::Unseen, None)?;
    match runtime::run(client.health())? {
        Ok(200) => Ok(()),
        Ok(status) => Err(format!("{place} answered {status}")),
        Err(error) => Err(format!("cannot reach {place}: {error}")),
    }
}
