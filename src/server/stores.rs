//! The settings of the store, from the configuration.

use crate::config::{Config, StoreUrl};
use crate::server::StartError;
use crate::server::certificates::nodes;
use crate::store;
use crate::store::StoreSettings;
use crate::store::embedded::EmbeddedSettings;
use crate::store::redis::{NodeTls, RedisSettings};
use crate::store::redlock::operator::Operator;
use crate::store::redlock::{RedlockSettings, Restarted, Rules};

/// The nodes of a Redlock store, for an operator. Fails if `store` names no such nodes.
pub(crate) fn operator(config: &Config) -> Result<Operator, StartError> {
    let tls = nodes(&config.redis.tls).map_err(StartError::Setting)?;
    match store_settings(config, &tls) {
        StoreSettings::Redlock(settings) => {
            Ok(Operator::new(&settings).map_err(store::OpenError::from)?)
        }
        _ => Err(StartError::Setting(
            "`store` is not several redis:// nodes, which this command needs".to_owned(),
        )),
    }
}

/// The settings of the store that the configuration names.
pub(super) fn store_settings(config: &Config, tls: &NodeTls) -> StoreSettings {
    match &config.store {
        StoreUrl::Embedded(directory) => {
            let settings = EmbeddedSettings {
                position_kept: config.position_kept(),
                command_timeout: config.embedded.command_timeout.get(),
                prefixes: config.prefixes(),
            };
            StoreSettings::Embedded(directory.clone(), settings)
        }
        StoreUrl::Redis(url) => StoreSettings::Redis(redis_settings(config, url, tls)),
        StoreUrl::Redlock(urls) => StoreSettings::Redlock(RedlockSettings {
            nodes: urls
                .iter()
                .map(|url| RedisSettings { min_replicas: 0, ..redis_settings(config, url, tls) })
                .collect(),
            restarted: match config.redlock.trust_restarted {
                true => Restarted::Trusted,
                false => Restarted::Doubted,
            },
            rules: Rules {
                node_timeout: config.redlock.node_timeout.get(),
                longest_lease: config.longest_lease(),
            },
        }),
    }
}

fn redis_settings(config: &Config, url: &str, tls: &NodeTls) -> RedisSettings {
    RedisSettings {
        url: url.to_owned(),
        key_prefix: config.redis.key_prefix.clone(),
        command_timeout: config.redis.command_timeout.get(),
        connect_timeout: config.redis.connect_timeout.get(),
        tls: tls.clone(),
        min_replicas: config.redis.min_replicas,
        default_ttl: config.ttl_bounds().default,
        position_kept: config.position_kept(),
        prefixes: config.prefixes(),
    }
}
