//! The service as a whole: wires store, locks and HTTP edge together. It binds nothing and reads no
//! signal.

mod admission;
mod certificates;
mod connection;
mod connection_state;
mod controls;
mod head;
mod listener;
mod socket;
mod stores;
mod timed;
mod tls;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::system::uname;
use tokio::sync::Semaphore;

use crate::api::{Activity, Api, ApiLimits, App, Lists, Quota, Quotas, Routes};
use crate::auth::Keyring;
use crate::config::{Config, StoreUrl};
use crate::lock::lease::LockStatus;
use crate::lock::leases::Why;
use crate::lock::locks::Locks;
use crate::lock::watched;
use crate::metrics::Metrics;
use crate::server::admission::{Admission, MOST_WAITING};
use crate::server::certificates::nodes;
use crate::server::connection::Acceptor;
use crate::server::stores::store_settings;
use crate::store;
use crate::store::StoreSettings;

pub(crate) use crate::server::certificates::Certificates;
pub(crate) use crate::server::controls::Controls;
pub use crate::server::listener::{Address, Listener, SocketFile};
pub(crate) use crate::server::stores::operator;

/// Descriptors that are not for served clients: the store, the log, the listener, spares for
/// inspection, and the connections that wait for a place.
const RESERVED_DESCRIPTORS: u64 = 64 + MOST_WAITING as u64;

/// The connections at a time to a listener for operators: scrapers, dashboards and commands. They
/// have their own places, because they are needed most when the others are full.
const OPERATORS: usize = 256;

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
    certificates: Arc<Certificates>,
}

impl Server {
    /// Opens the store and makes the service, which will listen on these addresses.
    ///
    /// # Errors
    ///
    /// [`StartError`] says in one sentence what is wrong.
    pub fn open(mut config: Config, addresses: &[Address]) -> Result<Self, StartError> {
        let Foundation { connections, settings, metrics, certificates } =
            Foundation::new(&config, addresses)?;
        let metrics = Arc::new(metrics);
        let store = store::open(settings, metrics.clone())?;
        let held = metrics.clone();
        let observe =
            move |prefix: &str, why: Why, held_for| held.held(prefix, why.name(), held_for);
        let limits = &config.limits;
        metrics.limit("connections", connections);
        metrics.limit("waiters", limits.waiters_per_instance);
        metrics.limit("hold_streams", limits.hold_streams);
        let keyring = Keyring::new(std::mem::take(&mut config.api_keys));
        let app = Arc::new(App {
            locks: Locks::observed(
                store,
                config.wait_limits(),
                config.prefixes(),
                Box::new(observe),
            ),
            quotas: Arc::new(Quotas::new(quota(&config, keyring.callers()))),
            keyring,
            hosts: config.allowed_hosts.clone(),
            proxies: config.trusted_proxies.clone(),
            default_owner: config.default_owner,
            ttl: config.ttl_bounds(),
            tokens: config.token_maker(),
            metrics,
            hold_streams: Arc::new(Semaphore::new(config.limits.hold_streams)),
            lists: Lists::new(config.limits.lists),
            activity: Activity::new(instance(addresses.first())),
            limits: ApiLimits {
                body_bytes: config.limits.body_bytes,
                body_time: config.limits.body_time.get(),
                max_wait: config.limits.max_wait.get(),
            },
        });
        Ok(Self { app, config, connections, certificates })
    }

    /// Checks all that [`open`](Self::open) refuses, without a store's files or network: an embedded
    /// store may be in use. Called in a runtime, whose tasks need not run.
    pub(crate) fn check(config: &Config, addresses: &[Address]) -> Result<(), StartError> {
        let Foundation { settings, metrics, .. } = Foundation::new(config, addresses)?;
        if !matches!(settings, StoreSettings::Embedded(..)) {
            store::open(settings, Arc::new(metrics))?;
        }
        Ok(())
    }

    /// What can be changed while the service runs.
    pub(crate) fn controls(&self) -> Controls {
        Controls {
            keyring: self.app.keyring.clone(),
            quotas: self.app.quotas.clone(),
            metrics: self.app.metrics.clone(),
            alone: quota(&self.config, 1),
            shared: quota(&self.config, 2),
        }
    }

    /// Adds the log's counter of lost lines to the metrics.
    pub(crate) fn count_lost_log_lines(&self, count: fn() -> u64) {
        self.app.metrics.log_lines_dropped(count);
    }

    /// The certificates, to be read again when their files have changed.
    pub(crate) fn certificates(&self) -> Arc<Certificates> {
        self.certificates.clone()
    }

    /// Serves the clients of `listeners`, of which a second one is for operators, until `shutdown`.
    /// Then it accepts no connections, grants no leases, and answers the requests under way within
    /// the time limit of the settings.
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
        listeners: Vec<Listener>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Ended, Failed> {
        let limits = &self.config.limits;
        let wanted = limits.connections;
        let room = self.connections;
        if room < wanted {
            // Only a service that serves logs this: a failed start shows only its reason.
            tracing::info!(
                wanted,
                room,
                "open-file limit allows fewer connections than configured"
            );
        }
        if let Some(tls) = self.certificates.own() {
            tls.remind();
        }
        self.note_found_leases().await;
        let acceptors: Vec<_> =
            (0..).zip(&listeners).map(|(at, one)| self.acceptor(at, one)).collect();
        let pairs = acceptors.iter().zip(&listeners);
        let accept = join_all(pairs.map(|(acceptor, listener)| acceptor.accept(listener)));
        let working = join(accept, self.app.locks.look_for_ends());
        let patience = tokio::select! {
            _ = working => limits.shutdown_time.get(),
            () = shutdown => limits.shutdown_time.get(),
            reason = watched::failed() => {
                tracing::error!(
                    target: "audit",
                    audit = "stop",
                    reason,
                    "the service failed; shutting down"
                );
                LAST_ANSWERS.min(limits.shutdown_time.get())
            }
        };
        drop(listeners);
        tracing::info!("shutting down; no new leases, answering requests under way");
        self.app.locks.drain();
        let began = Instant::now();
        let finish = acceptors.into_iter().map(|acceptor| acceptor.finish(patience));
        let answered = join_all(finish).await.iter().all(|all| *all);
        let left = patience.saturating_sub(began.elapsed());
        let finished = self.app.locks.finish(left).await;
        drop(self); // The store writes the rest to disk.
        if let Some(reason) = watched::failure() {
            return Err(Failed(reason.to_owned()));
        }
        tracing::info!("shutdown complete");
        Ok(if answered && finished { Ended::Well } else { Ended::Early })
    }

    /// What accepts and serves the connections of a listener, the first or the one for operators.
    fn acceptor(&self, number: usize, listener: &Listener) -> Acceptor {
        let limits = &self.config.limits;
        let proxies = self.config.trusted_proxies.clone();
        let admission = match number {
            0 => Admission::new(self.connections, limits.connections_per_address, proxies),
            _ => Admission::new(OPERATORS, OPERATORS, proxies),
        };
        let routes = match number {
            0 if self.config.admin_listen.is_some() => Routes::Clients,
            _ => Routes::All,
        };
        let api = Api::new(self.app.clone()).serving(routes);
        let tls = self.certificates.own().filter(|_| listener.is_network());
        Acceptor::new(api, limits, admission, self.app.metrics.clone(), tls)
    }

    /// Notes the leases on disk, and counts them among those of the API keys that may have acquired
    /// them. Not on Redis, where other instances may have acquired them and will see their end.
    async fn note_found_leases(&self) {
        if !matches!(self.config.store, StoreUrl::Embedded(_)) {
            return;
        }
        let mut after = None;
        loop {
            let listing = self.app.locks.list(vec![String::new()], after, FOUND_AT_ONCE).await;
            let Ok(listing) = listing else { return };
            for LockStatus { key, holder, sharers, .. } in listing.locks {
                let caller = self.app.keyring.likely(key.as_str());
                let mut holders = Vec::from_iter(holder);
                if sharers.is_some() {
                    let Ok(status) = self.app.locks.inspect(&key, None, 0).await else { return };
                    holders = status.sharers.map_or_else(Vec::new, |all| all.leases);
                }
                for holder in &holders {
                    let permit = caller.as_ref().and_then(|one| self.app.quotas.permit_anyway(one));
                    let has_room = self.app.locks.leases().found(&key, holder, permit);
                    if !has_room && self.app.keyring.is_open() {
                        return;
                    }
                }
            }
            match listing.cursor {
                Some(cursor) => after = Some(cursor),
                None => return,
            }
        }
    }
}

/// The parts of a service that only its settings and this machine decide.
struct Foundation {
    connections: usize,
    settings: StoreSettings,
    metrics: Metrics,
    certificates: Arc<Certificates>,
}

impl Foundation {
    fn new(config: &Config, addresses: &[Address]) -> Result<Self, StartError> {
        let distant = addresses.iter().find(|address| !address.is_local());
        if let Some(address) = distant
            && config.api_keys.is_empty()
            && (!config.allow_anonymous || config.allowed_hosts.is_empty())
        {
            let set = match config.allow_anonymous {
                true => "",
                false => "`allow_anonymous = true` and ",
            };
            return Err(StartError::Setting(format!(
                "{address} can be reached from other machines, and there are no [[api_keys]]: \
                 add some, listen on 127.0.0.1, or set {set}`allowed_hosts`, against web pages, to \
                 the host names that clients use (\"localhost\" if only IP addresses)"
            )));
        }
        let operators = if config.admin_listen.is_some() { OPERATORS } else { 0 };
        let connections = connections(config.limits.connections, operators)?;
        let tls = nodes(&config.redis.tls).map_err(StartError::Setting)?;
        let settings = store_settings(config, &tls);
        let mut metrics = settings.metrics();
        let certificates = Certificates::load(config, tls, &mut metrics);
        let certificates = Arc::new(certificates.map_err(StartError::Setting)?);
        Ok(Self { connections, settings, metrics, certificates })
    }
}

/// The quota of one caller: at most half of a limit of the instance if there are several callers.
fn quota(config: &Config, callers: usize) -> Quota {
    let (limits, quotas) = (&config.limits, &config.quotas);
    let share = |limit: usize| if callers > 1 { limit.div_ceil(2) } else { limit };
    Quota {
        leases: quotas.leases,
        waiters: quotas.waiters.min(share(limits.waiters_per_instance)),
        streams: quotas.streams.min(share(limits.hold_streams)),
        lists: share(limits.lists),
    }
}

/// The name of this instance for people: its host, and its port or unix socket.
fn instance(address: Option<&Address>) -> String {
    let system = uname();
    let host = system.nodename().to_string_lossy();
    match address {
        Some(Address::Network(address)) => format!("{host}:{}", address.port()),
        Some(Address::Unix(path)) => format!("{host}:{}", path.display()),
        None => host.into_owned(),
    }
}

/// The number of connections: as configured, within the open-file limit, which is raised to its
/// maximum.
fn connections(wanted: usize, operators: usize) -> Result<usize, StartError> {
    let reserved = RESERVED_DESCRIPTORS + u64::try_from(operators).unwrap_or(u64::MAX);
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let Some(descriptors) = current else { return Ok(wanted) };
    let room = descriptors.saturating_sub(reserved);
    if room == 0 {
        return Err(StartError::Setting(format!(
            "the open-file limit is {descriptors}, but {reserved} are needed beside \
             those of clients; raise it with `ulimit -n`"
        )));
    }
    Ok(usize::try_from(room).unwrap_or(usize::MAX).min(wanted))
}
