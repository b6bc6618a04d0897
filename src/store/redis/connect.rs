//! New connections to Redis: their settings, and what makes them. Connections that carry the calls,
//! hints or confirmations are made one by one, and kept by their tasks; those for rare commands are
//! pooled.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_redis::{Connection, Manager, Pool, PoolError, Runtime, Timeouts};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ProtocolVersion, RedisError,
};

use crate::lock::backoff::Backoff;
use crate::platform::sockets::giving_up_after;
use crate::store::redis::tls::{NodeCertificates, NodeTls};

/// The pauses between attempts to reach a node, a sentinel or a Cluster: Redis is served again well
/// within a second of its return.
pub(super) const RETRIES: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_millis(400));

/// The time after which a vanished peer is noticed.
const VANISHED_AFTER: Duration = Duration::from_secs(3);

/// The reason why there is no connection, after a time limit.
const TIMED_OUT: &str = "it does not answer in time";

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

/// Makes connections to a node, each with the certificates of its time.
pub(super) struct Connector {
    info: ConnectionInfo,
    tls: NodeTls,
    config: AsyncConnectionConfig,
}

impl Connector {
    /// `patience` limits the making of a connection.
    pub(super) fn new(
        info: &ConnectionInfo,
        tls: &NodeTls,
        patience: Duration,
        config: AsyncConnectionConfig,
    ) -> Result<Self, RedisError> {
        tls.current().on(info)?;
        // Each call has its own deadline, which is the one that counts.
        let config = config.set_connection_timeout(Some(patience)).set_response_timeout(None);
        Ok(Self { info: info.clone(), tls: tls.clone(), config })
    }

    /// Makes a connection; the error says why there is none.
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, String> {
        let made = async {
            let client = Client::open(self.tls.current().on(&self.info)?)?;
            client.get_multiplexed_async_connection_with_config(&self.config).await
        };
        made.await.map_err(unconnected)
    }
}

/// A pool of one connection to a node, for commands that are rare: it is made when it is needed, and
/// checked before it is used again. Once there are other certificates, so is the pool.
pub(super) struct RarePool {
    connector: Connector,
    patience: Duration,
    made: Mutex<(Arc<NodeCertificates>, Pool)>,
}

impl RarePool {
    /// `patience` limits the making and the check of the connection.
    pub(super) fn new(
        info: &ConnectionInfo,
        tls: &NodeTls,
        patience: Duration,
    ) -> Result<Self, RedisError> {
        let connector = Connector::new(info, tls, patience, AsyncConnectionConfig::new())?;
        let certificates = tls.current();
        let made = Mutex::new((certificates.clone(), pool(&connector, patience, &certificates)?));
        Ok(Self { connector, patience, made })
    }

    /// The connection, as soon as no other caller has it.
    pub(super) async fn get(&self) -> Result<Connection, String> {
        let pool = self.pool().map_err(unconnected)?;
        pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => unconnected(error),
            PoolError::Timeout(_) => TIMED_OUT.to_owned(),
            error => error.to_string(),
        })
    }

    fn pool(&self) -> Result<Pool, RedisError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let certificates = self.connector.tls.current();
        if !Arc::ptr_eq(&made.0, &certificates) {
            let pool = pool(&self.connector, self.patience, &certificates)?;
            *made = (certificates, pool);
        }
        Ok(made.1.clone())
    }
}

fn pool(
    connector: &Connector,
    patience: Duration,
    certificates: &NodeCertificates,
) -> Result<Pool, RedisError> {
    let info = certificates.on(&connector.info)?;
    let manager = Manager::new_with_config(info, connector.config.clone())?;
    let timeouts = Timeouts { wait: None, create: Some(patience), recycle: Some(patience) };
    let pool = Pool::builder(manager).max_size(1).timeouts(timeouts).runtime(Runtime::Tokio1);
    Ok(pool.build().expect("a runtime is given, so the timeouts are possible"))
}

/// Why there is no connection, in the words of Redis or the system.
fn unconnected(error: RedisError) -> String {
    if error.is_timeout() { TIMED_OUT.to_owned() } else { error.to_string() }
}
