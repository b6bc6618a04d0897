//! The adapters to the seam. Only this module knows every store.

pub mod embedded;
pub mod redis;
pub mod redlock;

use std::path::PathBuf;
use std::sync::Arc;

use crate::lock::store::Store;
use crate::metrics::Metrics;
use crate::store::embedded::{EmbeddedSettings, EmbeddedStore};
use crate::store::redis::{RedisSettings, RedisStore};
use crate::store::redlock::{RedlockSettings, RedlockStore};

/// The settings of the chosen store.
pub enum StoreSettings {
    /// The embedded store in this directory.
    Embedded(PathBuf, EmbeddedSettings),
    /// One Redis.
    Redis(RedisSettings),
    /// Several independent Redis.
    Redlock(RedlockSettings),
}

impl StoreSettings {
    /// The metrics of the store, at zero.
    pub fn metrics(&self) -> Metrics {
        match self {
            Self::Embedded(..) => Metrics::for_embedded(),
            Self::Redis(_) => Metrics::for_redis(),
            Self::Redlock(_) => Metrics::for_redlock(),
        }
    }
}

/// The reason why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The embedded store.
    #[error(transparent)]
    Embedded(#[from] embedded::OpenError),
    /// A store on Redis.
    #[error(transparent)]
    Redis(#[from] redis::SettingsError),
}

/// Opens the store of the settings.
///
/// # Errors
///
/// [`OpenError`] says in one sentence what is wrong. An unreachable Redis is no error: the store
/// serves as soon as Redis answers.
pub fn open(settings: StoreSettings, metrics: Arc<Metrics>) -> Result<Arc<dyn Store>, OpenError> {
    Ok(match settings {
        StoreSettings::Embedded(directory, settings) => {
            Arc::new(EmbeddedStore::open(&directory, settings, metrics)?)
        }
        StoreSettings::Redis(settings) => Arc::new(RedisStore::new(settings, metrics)?),
        StoreSettings::Redlock(settings) => Arc::new(RedlockStore::new(settings, metrics)?),
    })
}
