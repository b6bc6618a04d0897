//! Leases that are refreshed through restarts of all nodes, one after another.

use std::time::Duration;

use crate::hold::Listener;
use crate::redlock::{LONG, PATIENCE, Site, Way, acquire, granted, held, refresh, release, votes};
use crate::support::eventually;

const MINE: &str = "token-of-this-client";
const OTHER: &str = "token-of-another-client";

/// The longest lease here: 20 times what a node may take on a busy machine, or that would be shorter.
const LONGEST: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_refreshed_survives_restarts_of_all_nodes() {
    let mut site = Site::lasting(3, LONGEST).await;
    let service = site.service().await;
    let http = service.http();
    let lease = granted(&http, "survives", MINE, LONGEST).await;
    for node in 0..3 {
        site.away(node, Way::Killed);
        site.back(node, Way::Killed);
        eventually(PATIENCE, async || {
            let kept = refresh(&http, "survives", MINE).await;
            assert_eq!(kept.status, 200, "{kept:?} after the restart of {node}");
            assert_eq!(kept.number("fencing_token"), lease.number("fencing_token"));
            assert_eq!(acquire(&http, "survives", OTHER, LONGEST).await.told(), held());
            site.nodes.iter().all(votes).then_some(())
        })
        .await;
    }
    assert_eq!(release(&http, "survives", MINE).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_survives_restarts_of_all_nodes() {
    let mut site = Site::lasting(3, LONGEST).await;
    let service = site.service().await;
    let mut listener = Listener::open(&service.http(), "survives?ttl=4s").await;
    listener.hears("acquired").await;
    for node in 0..3 {
        site.away(node, Way::Killed);
        site.back(node, Way::Killed);
        while !site.nodes.iter().all(votes) {
            listener.hears("alive").await;
        }
    }
    listener.hears("alive").await;
    assert_eq!(acquire(&service.http(), "survives", OTHER, LONGEST).await.told(), held());
}

/// One failure, where another node had missed the lease long before.
#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_brings_a_lease_to_a_node_that_missed_it() {
    let mut site = Site::of(3).await;
    let service = site.service().await;
    let http = service.http();
    site.away(2, Way::Stopped);
    let lease = granted(&http, "missed", MINE, LONG).await;
    site.back(2, Way::Stopped);
    eventually(PATIENCE, async || {
        let kept = refresh(&http, "missed", MINE).await;
        assert_eq!(kept.status, 200, "{kept:?}");
        (site.locks_on(2) == ["lock:missed"]).then_some(())
    })
    .await;
    site.away(0, Way::Killed);
    let kept = refresh(&http, "missed", MINE).await;
    assert_eq!(kept.status, 200, "{kept:?}");
    assert_eq!(kept.number("fencing_token"), lease.number("fencing_token"));
    assert_eq!(release(&http, "missed", MINE).await.status, 204);
    assert_eq!(site.locks_on(2), [""; 0]);
}
