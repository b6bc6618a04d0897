//! New connections to Redis: their settings, and the pools that make them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_redis::{Connection, Manager, Pool, PoolError, Runtime, Timeouts};
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, RedisError};

use crate::lock::backoff::Backoff;
use crate::platform::sockets::giving_up_after;
use crate::store::redis::tls::{NodeCertificates, NodeTls};

/// The pauses between attempts to reach a node, a sentinel or a Cluster: Redis is served again well
/// within a second of its return.
pub(super) const RETRIES: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_millis(400));

/// The time after which a vanished peer is noticed.
const VANISHED_AFTER: Duration = Duration::from_secs(3);

pub(super) fn connection_info(url: &str) -> Result<ConnectionInfo, RedisError> {
    let info = redis::IntoConnectionInfo::into_connection_info(url)?;
    // On the loopback, requests in flight are sent together; over a network waiting for them costs
    // more than it saves.
    let nodelay = match info.addr() {
        ConnectionAddr::Tcp(host, _) => !matches!(host.as_str(), "127.0.0.1" | "localhost" | "::1"),
        _ => true,
    };
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(VANISHED_AFTER)
        .with_interval(VANISHED_AFTER / 3)
        .with_retries(3);
    let tcp = TcpSettings::default().set_nodelay(nodelay).set_keepalive(keepalive);
    let tcp = giving_up_after(tcp, VANISHED_AFTER);
    let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_tcp_settings(tcp).set_redis_settings(redis))
}

/// Why there is no connection, in the words of Redis or the system.
pub(super) fn unconnected(error: PoolError) -> String {
    match error {
        PoolError::Backend(error) => error.to_string(),
        PoolError::Timeout(_) => "it does not answer in time".to_owned(),
        error => error.to_string(),
    }
}

/// A pool of connections to a node. Once there are other certificates it is made anew; connections
/// that were taken from it go on.
pub(super) struct Connector {
    info: ConnectionInfo,
    tls: NodeTls,
    patience: Duration,
    size: usize,
    config: AsyncConnectionConfig,
    made: Mutex<(Arc<NodeCertificates>, Pool)>,
}

impl Connector {
    /// At most `size` connections that are not taken; `patience` limits the making of one.
    pub(super) fn new(
        info: &ConnectionInfo,
        tls: &NodeTls,
        patience: Duration,
        size: usize,
        config: AsyncConnectionConfig,
    ) -> Result<Self, RedisError> {
        // Each call has its own deadline, which is the one that counts.
        let config = config.set_connection_timeout(Some(patience)).set_response_timeout(None);
        let certificates = tls.current();
        let made = pool(certificates.on(info)?, patience, size, config.clone())?;
        let (info, tls, made) = (info.clone(), tls.clone(), Mutex::new((certificates, made)));
        Ok(Self { info, tls, patience, size, config, made })
    }

    /// A connection, which goes back to the pool unless it is taken.
    pub(super) async fn get(&self) -> Result<Connection, PoolError> {
        let pool = self.pool().map_err(PoolError::Backend)?;
        pool.get().await
    }

    /// The time limit of making a connection.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    fn pool(&self) -> Result<Pool, RedisError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let certificates = self.tls.current();
        if !Arc::ptr_eq(&made.0, &certificates) {
            let info = certificates.on(&self.info)?;
            let pool = pool(info, self.patience, self.size, self.config.clone())?;
            *made = (certificates, pool);
        }
        Ok(made.1.clone())
    }
}

fn pool(
    info: ConnectionInfo,
    patience: Duration,
    size: usize,
    config: AsyncConnectionConfig,
) -> Result<Pool, RedisError> {
    let patience = Some(patience);
    let timeouts = Timeouts { wait: patience, create: patience, recycle: patience };
    let manager = Manager::new_with_config(info, config)?;
    let pool = Pool::builder(manager).max_size(size).timeouts(timeouts).runtime(Runtime::Tokio1);
    Ok(pool.build().expect("a runtime is given, so the timeouts are possible"))
}
