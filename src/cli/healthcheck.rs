//! `lockkeeper healthcheck`: for images without a shell or curl.

use clap::Args;

use crate::cli::{SettingFlags, runtime, settings};
use crate::client::{Client, Trust};
use crate::config::{Config, ListenOn};

#[derive(Args, Debug)]
pub(super) struct Healthcheck {
    /// URL of the service, or unix:FILE [default: where the settings let it listen].
    #[arg(short, long, env = "LOCKKEEPER_URL")]
    url: Option<String>,
    #[command(flatten)]
    settings: SettingFlags,
}

impl Healthcheck {
    /// Requests `/healthz` from the service at the URL, or from that of the settings.
    pub(super) fn run(self) -> Result<(), String> {
        let (url, place) = match self.url {
            Some(url) if self.settings.listen.is_none() => (url.clone(), url),
            _ => {
                let (_, config) = settings(&self.settings.found())?;
                let place = place(&config);
                (url(place, &config), place.to_string())
            }
        };
        let client = Client::new(&url, None, Trust::Unseen, None)?;
        match runtime::run(client.health())? {
            Ok(200) => Ok(()),
            Ok(status) => Err(format!("{place} answered {status}")),
            Err(error) => Err(format!("cannot reach {place}: {error}")),
        }
    }
}

/// The place where the service of these settings is asked. A unix socket comes first: it needs
/// neither TLS nor a client certificate.
fn place(config: &Config) -> &ListenOn {
    let places = [Some(&config.listen), config.admin_listen.as_ref()];
    let unix = places.into_iter().flatten().find(|place| place.is_unix());
    unix.unwrap_or(&config.listen)
}

fn url(place: &ListenOn, config: &Config) -> String {
    match place {
        ListenOn::Unix(path) => format!("unix:{}", path.display()),
        ListenOn::Address(address) if config.tls.is_used() => format!("https://{address}"),
        ListenOn::Address(address) => format!("http://{address}"),
    }
}
