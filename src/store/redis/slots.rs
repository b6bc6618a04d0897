//! The map from the slots of a Cluster to their masters, as its nodes report it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use redis::Value;

use crate::store::redis::connect::{RarePool, connection_info};
use crate::store::redis::place::Scheme;
use crate::store::redis::tls::NodeTls;

/// One node's view of its Cluster's slots.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SlotView {
    /// True if the node takes calls.
    pub(super) serving: bool,
    pub(super) epoch: u64,
    /// First slot, last slot, and the address of their master.
    pub(super) ranges: Vec<(usize, usize, String)>,
    /// The addresses of the replicas, which may have to be asked next time.
    pub(super) replicas: Vec<String>,
}

impl SlotView {
    /// The highest counts: a node that takes calls first, because failed elections raise the epoch
    /// of a node that is cut off; then the higher epoch.
    pub(super) fn rank(&self) -> (bool, u64) {
        (self.serving, self.epoch)
    }
}

/// One connection to each node of a Cluster, to read its slots; separate from those of the calls,
/// because a node may never have been called, or no longer be.
pub(super) struct Lookouts {
    scheme: Scheme,
    tls: NodeTls,
    patience: Duration,
    pools: BTreeMap<String, RarePool>,
}

impl Lookouts {
    /// Starts without a connection; `patience` limits the answer of a node.
    pub(super) fn new(scheme: Scheme, tls: NodeTls, patience: Duration) -> Self {
        Self { scheme, tls, patience, pools: BTreeMap::new() }
    }

    /// Sets the nodes to ask; connections to others end.
    pub(super) fn turn_to(&mut self, addresses: BTreeSet<String>) {
        self.pools.retain(|address, _| addresses.contains(address));
        for address in addresses {
            if self.pools.contains_key(&address) {
                continue;
            }
            let info = connection_info(&self.scheme.url(&address));
            match info.and_then(|info| RarePool::new(&info, &self.tls, self.patience)) {
                Ok(pool) => drop(self.pools.insert(address, pool)),
                Err(error) => tracing::warn!(redis = address, %error, "invalid node address"),
            }
        }
    }

    /// Asks all nodes; yields their views as they arrive.
    pub(super) fn look(&self) -> FuturesUnordered<impl Future<Output = Result<SlotView, String>>> {
        let look = async |address: &String, pool: &RarePool| {
            let view = look(pool, address, self.patience).await;
            view.map_err(|reason| format!("{address}: {reason}"))
        };
        self.pools.iter().map(|(address, pool)| look(address, pool)).collect()
    }
}

async fn look(pool: &RarePool, address: &str, patience: Duration) -> Result<SlotView, String> {
    let mut both = redis::pipe();
    both.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
    let asked = async {
        let mut connection = pool.get().await?;
        let answer = both.query_async::<(String, Value)>(&mut connection).await;
        answer.map_err(|error| {
            drop(deadpool_redis::Connection::take(connection)); // It may be broken.
            error.to_string()
        })
    };
    let answered = tokio::time::timeout(patience, asked).await;
    let (info, slots) = answered.map_err(|_| "no answer in time")??;
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let view = read(&info, slots, host).ok_or("malformed answer")?;
    if view.ranges.is_empty() {
        return Err("it knows no slots".to_owned());
    }
    Ok(view)
}

/// Parses the answer of a node at `host`.
fn read(info: &str, slots: Value, host: &str) -> Option<SlotView> {
    let line = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    let epoch = line("cluster_current_epoch:")?.trim().parse().ok()?;
    let serving = line("cluster_state:")?.trim() == "ok";
    let mut view = SlotView { serving, epoch, ..SlotView::default() };
    let Value::Array(ranges) = slots else { return None };
    for range in ranges {
        let Value::Array(range) = range else { return None };
        let mut items = range.into_iter();
        let (Value::Int(first), Value::Int(last)) = (items.next()?, items.next()?) else {
            return None;
        };
        let mut addresses = items.filter_map(|node| address_of(node, host));
        let master = addresses.next()?;
        view.ranges.push((usize::try_from(first).ok()?, usize::try_from(last).ok()?, master));
        view.replicas.extend(addresses);
    }
    Some(view)
}

/// The address of a node; its host is empty if it is the host that was asked.
fn address_of(node: Value, asked: &str) -> Option<String> {
    let Value::Array(items) = node else { return None };
    let mut items = items.into_iter();
    let host = match items.next()? {
        Value::BulkString(host) => String::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        Value::Nil => String::new(),
        _ => return None,
    };
    let Value::Int(port) = items.next()? else { return None };
    Some(whole(&format!("{host}:{port}"), asked))
}

/// Completes the address of a redirection, which leaves out the host that was asked.
pub(super) fn whole(address: &str, asked: &str) -> String {
    match address.rsplit_once(':') {
        Some(("" | "?", port)) => format!("{asked}:{port}"),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::{SlotView, read};

    const INFO: &str = "cluster_state:ok\r\ncluster_slots_assigned:16384\r\n\
                        cluster_current_epoch:7\r\n";

    fn node(host: Value, port: i64) -> Value {
        let id = Value::BulkString(b"id".to_vec());
        Value::Array(vec![host, Value::Int(port), id, Value::Array(vec![])])
    }

    fn host(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_node_says_who_has_which_slots() {
        let slots = Value::Array(vec![
            Value::Array(vec![
                Value::Int(0),
                Value::Int(9),
                node(host("a"), 1),
                node(host("b"), 2),
            ]),
            Value::Array(vec![Value::Int(10), Value::Int(11), node(Value::Nil, 3)]),
            Value::Array(vec![Value::Int(12), Value::Int(12), node(host(""), 4)]),
        ]);
        let expected = SlotView {
            serving: true,
            epoch: 7,
            ranges: vec![
                (0, 9, "a:1".to_owned()),
                (10, 11, "asked:3".to_owned()),
                (12, 12, "asked:4".to_owned()),
            ],
            replicas: vec!["b:2".to_owned()],
        };
        assert_eq!(read(INFO, slots, "asked"), Some(expected));
    }

    #[test]
    fn a_node_that_is_cut_off_comes_behind_one_that_serves() {
        // Each election that it fails to win raises its epoch.
        let cut_off = INFO.replace("ok", "fail").replace("epoch:7", "epoch:9");
        let newer = INFO.replace("epoch:7", "epoch:8");
        let views = [&newer, INFO, &cut_off];
        let views = views.map(|info| read(info, Value::Array(vec![]), "a").unwrap());
        assert!(views[0].rank() > views[1].rank() && views[1].rank() > views[2].rank());
        assert!(read("", Value::Array(vec![]), "a").is_none());
        assert!(read(INFO, Value::Nil, "a").is_none());
        assert!(read(INFO, Value::Array(vec![Value::Int(1)]), "a").is_none());
    }
}
