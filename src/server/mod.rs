//! The service as a whole: store, locks and HTTP edge, wired together. Binds nothing itself and
//! reads no signal.

mod connection;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rustix::process::Resource;
use rustix::process::Rlimit;
use rustix::process::getrlimit;
use rustix::process::setrlimit;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::api::Api;
use crate::api::ApiLimits;
use crate::api::App;
use crate::auth::Keyring;
use crate::config::Config;
use crate::config::StoreUrl;
use crate::lock::locks::Locks;
use crate::metrics::Metrics;
use crate::server::connection::Acceptor;
use crate::store;
use crate::store::StoreSettings;
use crate::store::redis::RedisSettings;
use crate::store::redlock::RedlockSettings;
use crate::store::redlock::Restarted;
use crate::store::redlock::Rules;
use crate::store::redlock::operator::Operator;

/// Descriptors that are not for clients: the store, the log, the listener, and room to be looked
/// at with.
const RESERVED_DESCRIPTORS: u64 = 64;

/// Why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting that only shows to be wrong now.
    #[error("{0}")]
    Setting(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] store::OpenError),
}

/// A service that is wired together and serves once it is [run](Server::run).
#[derive(Debug)]
pub struct Server {
    app: Arc<App>,
    config: Config,
    connections: usize,
}

impl Server {
    /// Opens the store and makes the service. `address` is where it will listen.
    ///
    /// # Errors
    ///
    /// [`StartError`] says in one sentence what is wrong.
    pub fn open(mut config: Config, address: SocketAddr) -> Result<Self, StartError> {
        if config.api_keys.is_empty() && !config.allow_anonymous && !address.ip().is_loopback() {
            return Err(StartError::Setting(format!(
                "{address} can be reached from other machines, and without [[api_keys]] anybody \
                 could do anything: add some, listen on 127.0.0.1, or set `allow_anonymous = true`"
            )));
        }
        let connections = connections(config.limits.connections)?;
        let settings = store_settings(&config);
        let metrics = Arc::new(Metrics::new(settings.name()));
        let store = store::open(settings, metrics.clone())?;
        let app = Arc::new(App {
            locks: Locks::new(store, config.wait_limits()),
            keyring: Keyring::new(std::mem::take(&mut config.api_keys)),
            ttl: config.ttl_bounds(),
            tokens: config.token_maker(),
            metrics,
            hold_streams: Arc::new(Semaphore::new(config.limits.hold_streams)),
            limits: ApiLimits {
                body_bytes: config.limits.body_bytes,
                body_time: config.limits.body_time.get(),
                max_wait: config.limits.max_wait.get(),
            },
        });
        Ok(Self { app, config, connections })
    }

    /// Serves the clients of `listener` until `shutdown`, and then ends: no new connections and
    /// no new leases; what is under way is answered, within the time of the settings.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes all connections at once.
    pub async fn run(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let limits = &self.config.limits;
        let (wanted, room) = (limits.connections, self.connections);
        if room < wanted {
            // Said only by a service that serves: who cannot start says just why.
            tracing::info!(wanted, room, "the limit of descriptors leaves room for fewer clients");
        }
        let api = Api::new(self.app.clone());
        let mut acceptor = Acceptor::new(api, limits, self.connections, self.app.metrics.clone());
        tokio::select! {
            () = acceptor.accept(&listener) => (),
            () = shutdown => (),
        }
        drop(listener);
        tracing::info!("going down: no new leases, answering what is under way");
        self.app.locks.drain();
        let began = Instant::now();
        acceptor.finish(limits.shutdown_time.get()).await;
        let left = limits.shutdown_time.get().saturating_sub(began.elapsed());
        self.app.locks.settle(left).await;
        tracing::info!("ended");
    }
}

/// The nodes of a Redlock store, for an operator.
///
/// # Errors
///
/// [`StartError`] if `store` names no such nodes.
pub fn operator(config: &Config) -> Result<Operator, StartError> {
    match store_settings(config) {
        StoreSettings::Redlock(settings) => {
            Ok(Operator::new(&settings).map_err(store::OpenError::from)?)
        }
        _ => Err(StartError::Setting(
            "`store` names no several redis:// nodes, so there is nothing to look at".to_owned(),
        )),
    }
}

fn store_settings(config: &Config) -> StoreSettings {
    match &config.store {
        StoreUrl::Embedded(directory) => {
            StoreSettings::Embedded(directory.clone(), config.position_kept())
        }
        StoreUrl::Redis(url) => StoreSettings::Redis(redis_settings(config, url)),
        StoreUrl::Redlock(urls) => StoreSettings::Redlock(RedlockSettings {
            nodes: urls
                .iter()
                .map(|url| RedisSettings { min_replicas: 0, ..redis_settings(config, url) })
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

fn redis_settings(config: &Config, url: &str) -> RedisSettings {
    RedisSettings {
        url: url.to_owned(),
        key_prefix: config.redis.key_prefix.clone(),
        command_timeout: config.redis.command_timeout.get(),
        connect_timeout: config.redis.connect_timeout.get(),
        min_replicas: config.redis.min_replicas,
        default_ttl: config.ttl_bounds().default,
        position_kept: config.position_kept(),
    }
}

/// How many clients there is room for: what the settings say, within the limit of descriptors,
/// which is raised as far as it goes.
fn connections(wanted: usize) -> Result<usize, StartError> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let Some(descriptors) = current else { return Ok(wanted) };
    let room = descriptors.saturating_sub(RESERVED_DESCRIPTORS);
    if room == 0 {
        return Err(StartError::Setting(format!(
            "the limit of descriptors is {descriptors}: {RESERVED_DESCRIPTORS} are needed beside \
             those of clients; raise it with `ulimit -n`"
        )));
    }
    Ok(usize::try_from(room).unwrap_or(usize::MAX).min(wanted))
}
