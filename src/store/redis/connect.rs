//! New connections to Redis.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use deadpool_redis::{Manager, Pool, Runtime, Timeouts};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, RedisError};

use crate::store::redis::link::{Ear, Inner};

/// The pause between two attempts to connect: Redis is served again well within a second of its
/// return.
pub(super) const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// The time after which a vanished peer is noticed.
const VANISHED_AFTER: Duration = Duration::from_secs(3);

/// Subscribes to hints. Without the permission, waiters are still served, by their own questions.
pub(super) async fn listen(
    connection: &mut MultiplexedConnection,
    inner: &Inner,
) -> Result<(), RedisError> {
    match connection.subscribe(&inner.channel).await {
        Err(error) if matches!(error.kind(), redis::ErrorKind::Server(_)) => {
            tracing::warn!(
                redis = inner.name,
                %error,
                "cannot subscribe; waiters are served late until the ACL allows channels lk//*"
            );
            Ok(())
        }
        listening => listening,
    }
}

/// Takes a new connection from the pool, to a node that takes writes; reads its clock and its
/// settings.
pub(super) async fn connect(
    pool: &Pool,
    inner: &Inner,
    ear: Ear,
) -> Result<MultiplexedConnection, String> {
    let connection = pool.get().await.map_err(|error| error.to_string())?;
    let mut connection = deadpool_redis::Connection::take(connection);
    let asked = async {
        let sent = Instant::now();
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(&mut connection).await?;
        inner.clock.learn(sent, seconds.saturating_mul(1_000).saturating_add(micros / 1_000));
        if ear == Ear::Open {
            listen(&mut connection, inner).await?;
        }
        redis::cmd("INFO").query_async::<String>(&mut connection).await
    };
    let patience = pool.timeouts().create.unwrap_or(RECONNECT_PAUSE);
    let told = tokio::time::timeout(patience, asked)
        .await
        .map_err(|_| "no answer in time".to_owned())?
        .map_err(|error| error.to_string())?;
    if setting(&told, "role:") == Some("slave") {
        return Err("it is a replica and takes no writes".to_owned());
    }
    if setting(&told, "loading:") == Some("1") {
        return Err("it is loading its data".to_owned());
    }
    note_eviction(&told, inner);
    Ok(connection)
}

/// Checks whether Redis may evict locks; without an answer the last state stays.
pub(super) async fn look_at_eviction(connection: &mut MultiplexedConnection, inner: &Inner) {
    let told = redis::cmd("INFO").arg("memory").query_async::<String>(connection).await;
    if let Ok(told) = told {
        note_eviction(&told, inner);
    }
}

/// Notes whether Redis may evict locks, and logs a change.
fn note_eviction(info: &str, inner: &Inner) {
    let limited = setting(info, "maxmemory:").is_some_and(|limit| limit != "0");
    let policy = setting(info, "maxmemory_policy:").unwrap_or("noeviction");
    let evicts = limited && policy != "noeviction";
    inner.metrics.redis_evicts(&inner.name, evicts);
    if inner.evicts.swap(evicts, Ordering::Relaxed) == evicts {
        return;
    }
    let redis = &inner.name;
    if evicts {
        tracing::warn!(redis, policy, "may evict locks: set maxmemory-policy noeviction");
    } else {
        tracing::info!(redis, "no longer evicts locks");
    }
}

fn setting<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name))
}

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
    let tcp = TcpSettings::default()
        .set_nodelay(nodelay)
        .set_keepalive(keepalive)
        .set_user_timeout(VANISHED_AFTER);
    let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_tcp_settings(tcp).set_redis_settings(redis))
}

pub(super) fn pool(
    info: &ConnectionInfo,
    patience: Duration,
    size: usize,
    config: AsyncConnectionConfig,
) -> Result<Pool, RedisError> {
    // Each call has its own deadline, which is the one that counts.
    let config = config.set_connection_timeout(Some(patience)).set_response_timeout(None);
    let patience = Some(patience);
    let timeouts = Timeouts { wait: patience, create: patience, recycle: patience };
    let manager = Manager::new_with_config(info.clone(), config)?;
    let pool = Pool::builder(manager).max_size(size).timeouts(timeouts).runtime(Runtime::Tokio1);
    Ok(pool.build().expect("a runtime is given, so the timeouts are possible"))
}
