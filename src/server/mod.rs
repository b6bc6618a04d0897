//! The service as a whole: wires store, locks and HTTP edge together. It binds nothing and reads no
//! signal.

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
use crate::auth::{Exposure, HostNames, Keyring};
use crate::config::{Config, StoreUrl};
use crate::lock::lease::{Holder, LockStatus};
use crate::lock::locks::Locks;
use crate::lock::watched;
use crate::server::connection::Acceptor;
use crate::server::house::{Guests, HALL};
use crate::store;
use crate::store::StoreSettings;
use crate::store::embedded::EmbeddedSettings;
use crate::store::redis::RedisSettings;
use crate::store::redlock::operator::Operator;
use crate::store::redlock::{RedlockSettings, Restarted, Rules};

/// Descriptors that are not for served clients: the store, the log, the listener, spares for
/// inspection, and the connections that wait for a place.
const RESERVED_DESCRIPTORS: u64 = 64 + HALL as u64;

/// Leases per call to the store when they are counted.
const FOUND_AT_ONCE: usize = 1_000;

/// The time to answer requests under way once the service has failed.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The end of a service that was told to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All requests were answered, and all undelivered grants undone.
    Well,
    /// The time limit came first.
    Early,
}

/// The service failed while it served; the store has what was answered.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failed(String);

/// The reason why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting that is wrong on this machine.
    #[error("{0}")]
    Setting(String),
    /// The store cannot be opened.
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
    /// Opens the store and makes the service, which will listen on `address`.
    ///
    /// # Errors
    ///
    /// [`StartError`] says in one sentence what is wrong.
    pub fn open(mut config: Config, address: SocketAddr) -> Result<Self, StartError> {
        if config.api_keys.is_empty() && !config.allow_anonymous && !address.ip().is_loopback() {
            return Err(StartError::Setting(format!(
                "{address} can be reached from other machines, and there are no [[api_keys]]: \
                 add some, listen on 127.0.0.1, or set `allow_anonymous = true`"
            )));
        }
        let reach = match address.ip().to_canonical().is_loopback() {
            true => Exposure::Loopback,
            false => Exposure::Network,
        };
        let connections = connections(config.limits.connections)?;
        let settings = store_settings(&config);
        let metrics = Arc::new(settings.metrics());
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

    /// Adds the log's counter of lost lines to the metrics.
    pub fn count_lost_log_lines(&self, count: impl Fn() -> u64 + Send + Sync + 'static) {
        self.app.metrics.log_lines_dropped(count);
    }

    /// Serves the clients of `listener` until `shutdown`. Then it accepts no connections, grants no
    /// leases, and answers the requests under way within the time limit of the settings.
    ///
    /// # Errors
    ///
    /// [`Failed`] if an essential part of the service ended before that.
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
            // Only a service that serves logs this: a failed start shows only its reason.
            tracing::info!(
                wanted,
                room,
                "open-file limit allows fewer connections than configured"
            );
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
                tracing::error!(reason, "the service failed; shutting down");
                LAST_ANSWERS.min(limits.shutdown_time.get())
            }
        };
        drop(listener);
        tracing::info!("shutting down; no new leases, answering requests under way");
        self.app.locks.drain();
        let began = Instant::now();
        let answered = acceptor.finish(patience).await;
        let left = patience.saturating_sub(began.elapsed());
        let finished = self.app.locks.finish(left).await;
        drop(self); // The store writes the rest to disk.
        if let Some(reason) = watched::failure() {
            return Err(Failed(reason.to_owned()));
        }
        tracing::info!("shutdown complete");
        Ok(if answered && finished { Ended::Well } else { Ended::Early })
    }

    /// Counts the leases on disk among those of the API keys that may have acquired them. Not on
    /// Redis, where other instances may have acquired them and will see their end.
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

/// The quota of one API key: at most half of a limit of the instance if there are several keys.
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
            "`store` is not several redis:// nodes, which this command needs".to_owned(),
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

/// The number of connections: as configured, within the open-file limit, which is raised to its
/// maximum.
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
            "the open-file limit is {descriptors}, but {RESERVED_DESCRIPTORS} are needed beside \
             those of clients; raise it with `ulimit -n`"
        )));
    }
    Ok(usize::try_from(room).unwrap_or(usize::MAX).min(wanted))
}
