//! The service as a whole: store, locks and HTTP edge, wired together. Binds nothing itself and
//! reads no signal.

mod connection;
mod house;
mod timed;
mod turns;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::api::{Api, ApiLimits, App, Lists, Quota, Quotas};
use crate::auth::{HostNames, Keyring, Reach};
use crate::config::{Config, StoreUrl};
use crate::lock::lease::{Holder, LockStatus};
use crate::lock::locks::Locks;
use crate::lock::watched;
use crate::metrics::Metrics;
use crate::server::connection::Acceptor;
use crate::server::house::{Guests, HALL};
use crate::store;
use crate::store::StoreSettings;
use crate::store::embedded::EmbeddedSettings;
use crate::store::redis::RedisSettings;
use crate::store::redlock::operator::Operator;
use crate::store::redlock::{RedlockSettings, Restarted, Rules};

/// Descriptors that are not for clients with a place: the store, the log, the listener, room to be
/// looked at with, and the connections that wait for a place.
const RESERVED_DESCRIPTORS: u64 = 64 + HALL as u64;

/// How many leases are looked at in one call to the store.
const FOUND_AT_ONCE: usize = 1_000;

/// How long requests that are under way may take to be answered once the service has failed.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// How a service ended that was told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All that was under way was answered, and all that was owed was taken back.
    Well,
    /// Time was over before that.
    Early,
}

/// The service failed while it served; what is on disk, or on Redis, is as it was answered.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failed(String);

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
        let reach = match address.ip().to_canonical().is_loopback() {
            true => Reach::Loopback,
            false => Reach::Network,
        };
        let connections = connections(config.limits.connections)?;
        let settings = store_settings(&config);
        let metrics = Arc::new(Metrics::new(settings.name()));
        let store = store::open(settings, metrics.clone())?;
        let keyring = Keyring::new(std::mem::take(&mut config.api_keys));
        let app = Arc::new(App {
            locks: Locks::new(store, config.wait_limits()),
            quotas: Arc::new(Quotas::new(quota(&config, keyring.count()))),
            keyring,
            hosts: HostNames::of(config.allowed_hosts.clone(), reach),
            proxies: config.trusted_proxies.clone(),
            ttl: config.ttl_bounds(),
            tokens: config.token_maker(),
            metrics,
            hold_streams: Arc::new(Semaphore::new(config.limits.hold_streams)),
            lists: Lists::new(config.limits.lists),
            limits: ApiLimits {
                body_bytes: config.limits.body_bytes,
                body_time: config.limits.body_time.get(),
                max_wait: config.limits.max_wait.get(),
            },
        });
        Ok(Self { app, config, connections })
    }

    /// Has the log lines that were lost counted so among the metrics.
    pub fn count_lost_log_lines(&self, count: impl Fn() -> u64 + Send + Sync + 'static) {
        self.app.metrics.log_lines_dropped(count);
    }

    /// Serves the clients of `listener` until `shutdown`, and then ends: no new connections and
    /// no new leases; what is under way is answered, within the time of the settings.
    ///
    /// # Errors
    ///
    /// [`Failed`] if a part that the service cannot work without ended before that.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes all connections at once.
    pub async fn run(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Ended, Failed> {
        let limits = &self.config.limits;
        let (wanted, room) = (limits.connections, self.connections);
        if room < wanted {
            // Said only by a service that serves: who cannot start says just why.
            tracing::info!(wanted, room, "the limit of descriptors leaves room for fewer clients");
        }
        self.count_found_leases().await;
        let api = Api::new(self.app.clone());
        let house =
            Guests::new(room, limits.connections_per_address, self.config.trusted_proxies.clone());
        let mut acceptor = Acceptor::new(api, limits, house, self.app.metrics.clone());
        let patience = tokio::select! {
            () = acceptor.accept(&listener) => limits.shutdown_time.get(),
            () = shutdown => limits.shutdown_time.get(),
            reason = watched::failed() => {
                tracing::error!(reason, "the service has failed, and ends");
                LAST_ANSWERS.min(limits.shutdown_time.get())
            }
        };
        drop(listener);
        tracing::info!("going down: no new leases, answering what is under way");
        self.app.locks.drain();
        let began = Instant::now();
        let answered = acceptor.finish(patience).await;
        let left = patience.saturating_sub(began.elapsed());
        let settled = self.app.locks.settle(left).await;
        drop(self); // The store brings what is left to the disk.
        if let Some(reason) = watched::failure() {
            return Err(Failed(reason.to_owned()));
        }
        tracing::info!("ended");
        Ok(if answered && settled { Ended::Well } else { Ended::Early })
    }
}

impl Server {
    /// Counts the leases that the embedded store has on disk among those of the API keys that may
    /// have acquired them. On Redis other instances may have, and will see their end.
    async fn count_found_leases(&self) {
        if self.app.keyring.is_open() || !matches!(self.config.store, StoreUrl::Embedded(_)) {
            return;
        }
        let mut after = None;
        loop {
            let listing = self.app.locks.list(vec![String::new()], after, FOUND_AT_ONCE).await;
            let Ok(listing) = listing else { return };
            for LockStatus { key, holder, .. } in listing.locks {
                let Some(Holder { left: Some(left), fencing_token, .. }) = holder else { continue };
                if let Some(caller) = self.app.keyring.likely(key.as_str()) {
                    self.app.quotas.found(caller, key, fencing_token, left);
                }
            }
            match listing.cursor {
                Some(cursor) => after = Some(cursor),
                None => return,
            }
        }
    }
}

/// What one of so many API keys may have: of what one could take from the others, half at most.
fn quota(config: &Config, api_keys: usize) -> Quota {
    let (limits, quotas) = (&config.limits, &config.quotas);
    let share = |limit: usize| if api_keys > 1 { limit.div_ceil(2) } else { limit };
    Quota {
        leases: quotas.leases,
        waiters: quotas.waiters.min(share(limits.waiters_per_instance)),
        streams: quotas.streams.min(share(limits.hold_streams)),
        lists: share(limits.lists),
        call: config.embedded.command_timeout.get().max(config.redis.command_timeout.get()),
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
            let command_timeout = config.embedded.command_timeout.get();
            let position_kept = config.position_kept();
            let settings = EmbeddedSettings { position_kept, command_timeout };
            StoreSettings::Embedded(directory.clone(), settings)
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
