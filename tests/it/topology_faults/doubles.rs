//! How often a failover gives a key to a second holder, with and without replicas that have to have
//! each grant. What was granted before and is granted again after it, to another token within the
//! first one's TTL, has two holders.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;

use crate::redis_faults::{LONG, PATIENCE, acquire};
use crate::support::eventually;
use crate::support::fenced::{FencedFile, Verdict};
use crate::support::fleet::{Watch, Watched};
use crate::topology_faults::{service, wired};

/// Failovers of a kind; `FAILOVERS` in the environment says more, for figures.
const FAILOVERS: usize = 6;

/// Failovers at a time: most of each is waiting.
const AT_ONCE: usize = 6;

const CLIENTS: usize = 8;

/// Whose lease a failover may forget, and who gets the key then.
const FIRST: &str = "token-of-the-first-one";
const SECOND: &str = "token-of-the-second-one";

/// Whether the replica is cut off from the master before it dies.
#[derive(Clone, Copy, Debug)]
enum Link {
    Whole,
    Cut,
}

/// What came of some failovers.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    failovers: usize,
    /// Those with at least one key that had two holders.
    doubled: usize,
    grants: usize,
    doubles: usize,
}

/// Kills a master under load, and counts the keys with two holders.
async fn failover(least: &'static str, link: Link) -> Tally {
    let (mut watched, wire) = match link {
        Link::Whole => (Watched::start(Watch { sentinels: 1, down_after: 500 }).await, None),
        Link::Cut => {
            let (watched, wire) = wired(500).await;
            (watched, Some(wire))
        }
    };
    let service = service(&watched.url(), &[("LOCKKEEPER_REDIS_MIN_REPLICAS", least)]).await;
    let granted = Arc::new(Mutex::new(Vec::new()));
    let over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (http, granted, over) = (service.http(), granted.clone(), over.clone());
        clients.spawn(async move {
            for number in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let key = format!("key/{client}/{number}");
                let answer = acquire(&http, &key, FIRST, LONG).await;
                if answer.status == 201 {
                    granted.lock().unwrap().push((key, answer.number("fencing_token")));
                }
            }
        });
    }
    let grants = || granted.lock().unwrap().len();
    eventually(PATIENCE, async || (grants() > 100).then_some(())).await;
    if let Some(wire) = &wire {
        wire.cut();
        let (before, http) = (grants(), service.http());
        // Some grants more, or the word that there are none.
        eventually(PATIENCE, async || {
            let asked = acquire(&http, "asked", FIRST, LONG).await;
            (asked.status == 503 || grants() > before + 50).then_some(())
        })
        .await;
    }
    watched.master.kill();
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    // The new master has no replica, so it is asked as one that needs none.
    let after = super::service(&watched.url(), &[]).await;
    let http = after.http();
    eventually(PATIENCE, async || {
        let answer = acquire(&http, "after", SECOND, LONG).await;
        (answer.status == 201).then_some(())
    })
    .await;
    let keys = granted.lock().unwrap().clone();
    let mut doubles = 0;
    for (key, first) in &keys {
        let answer = acquire(&http, key, SECOND, LONG).await;
        assert!([201, 409].contains(&answer.status), "{answer:?}");
        if answer.status == 201 {
            doubles += 1;
            refuses_the_first(*first, answer.number("fencing_token"));
        }
    }
    let doubled = usize::from(doubles > 0);
    Tally { failovers: 1, doubled, grants: keys.len(), doubles }
}

/// What the lock protects takes the write of the second holder, and then none of the first, who
/// still believes in its lease.
fn refuses_the_first(first: u64, second: u64) {
    let file = FencedFile::new();
    assert_eq!(file.submit(first, FIRST, "before"), Verdict::Accepted);
    assert_eq!(file.submit(second, SECOND, "after"), Verdict::Accepted, "{first} {second}");
    assert_eq!(file.submit(first, FIRST, "late"), Verdict::Refused, "{first} {second}");
    assert_eq!(file.accepted(), ["before", "after"]);
}

async fn failovers(least: &'static str, link: Link) -> Tally {
    let wanted = std::env::var("FAILOVERS").map_or(FAILOVERS, |text| text.parse().unwrap());
    let (mut sum, mut running) = (Tally::default(), JoinSet::new());
    for begun in 0..wanted + AT_ONCE {
        if begun < wanted {
            running.spawn(failover(least, link));
        }
        if begun + 1 >= AT_ONCE
            && let Some(ended) = running.join_next().await
        {
            let one = ended.unwrap();
            sum.failovers += one.failovers;
            sum.doubled += one.doubled;
            sum.grants += one.grants;
            sum.doubles += one.doubles;
        }
    }
    eprintln!("min_replicas {least}, link {link:?}: {sum:?}");
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_forgets_what_no_replica_has_and_nothing_that_one_has() {
    let cut = failovers("0", Link::Cut).await;
    assert_eq!(cut.doubled, cut.failovers, "nothing was forgotten: the wire was not cut");
    for link in [Link::Cut, Link::Whole] {
        let kept = failovers("1", link).await;
        assert!(kept.grants > 50 * kept.failovers, "{kept:?}");
        assert_eq!(kept.doubles, 0, "{kept:?}");
    }
    // Whatever it is; nothing is promised.
    failovers("0", Link::Whole).await;
}
