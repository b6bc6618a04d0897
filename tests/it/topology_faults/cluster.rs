//! A Cluster whose masters die, and keys that would choose their slot themselves.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::redis_faults::{LONG, PATIENCE, acquire, refresh, release};
use crate::support::fleet::Clustered;
use crate::support::{Http, Redis, eventually, fleet};
use crate::topology_faults::service;

const TOKEN: &str = "token-of-the-client";

/// Far more than a Cluster with a node timeout of a second needs to elect another master.
const ELECTED: Duration = Duration::from_secs(10);

/// Grants on each master, by the keys that are there.
async fn spread_keys(http: &Http, clustered: &Clustered) -> Vec<String> {
    let mut keys = vec![None; clustered.masters.len()];
    for number in 0.. {
        let key = format!("spread/{number}");
        let answer = acquire(http, &key, TOKEN, LONG).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        let on = clustered.masters.iter().position(|master| {
            let there: Vec<String> = master.run("KEYS lock:spread/*");
            there.contains(&format!("lock:{key}"))
        });
        keys[on.unwrap()].get_or_insert(key);
        if keys.iter().all(Option::is_some) {
            break;
        }
    }
    keys.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_slots_of_a_master_that_was_killed_are_served_by_its_replica() {
    let mut clustered = Clustered::replicated().await;
    let services = [service(&clustered.url(), &[]).await, service(&clustered.url(), &[]).await];
    let (http, other) = (services[0].http(), services[1].http());
    let keys = spread_keys(&http, &clustered).await;
    assert_eq!(release(&http, &keys[1], TOKEN).await.status, 204);
    let mut last = 0;
    for round in 0..20 {
        let token = format!("token-of-the-round-{round}");
        let granted = acquire(&http, &keys[1], &token, LONG).await;
        assert_eq!(granted.status, 201, "{granted:?}");
        assert!(granted.number("fencing_token") > last);
        last = granted.number("fencing_token");
        assert_eq!(release(&http, &keys[1], &token).await.status, 204);
    }
    clustered.masters[1].kill();
    let (began, refused) = (Instant::now(), Cell::new(0));
    // Another instance, which has given none of these numbers.
    let next = eventually(PATIENCE, async || {
        let answer = acquire(&other, &keys[1], TOKEN, LONG).await;
        refused.set(refused.get() + usize::from(answer.status == 503));
        (answer.status != 503).then_some(answer)
    })
    .await;
    let took = began.elapsed();
    eprintln!(
        "a master of the Cluster killed: granted after {took:?}, {} times 503",
        refused.get()
    );
    assert!(took < ELECTED, "{took:?}");
    assert_eq!(next.status, 201, "{next:?}");
    assert!(next.number("fencing_token") > last, "{next:?}");
    for key in &keys {
        eventually(PATIENCE, async || {
            let refreshed = refresh(&http, key, TOKEN).await;
            assert!([200, 503].contains(&refreshed.status), "{key}: {refreshed:?}");
            (refreshed.status == 200).then_some(())
        })
        .await;
    }
    let listed = eventually(PATIENCE, async || {
        let listed = http.get("/locks?prefix=spread&limit=1000").await;
        (listed.status == 200).then_some(listed)
    })
    .await;
    let names = listed.field("locks").to_string();
    assert!(keys.iter().all(|key| names.contains(key)), "{names}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_on_a_cluster_is_on_the_replica_of_its_master_or_is_none() {
    let clustered = Clustered::replicated().await;
    let service = service(&clustered.url(), &[("LOCKKEEPER_REDIS_MIN_REPLICAS", "1")]).await;
    let http = service.http();
    let keys = spread_keys(&http, &clustered).await;
    let on_replicas = |key: &str| {
        let name = format!("lock:{key}");
        let has = |node: &Redis| node.run::<Vec<String>>(&format!("KEYS {name}")).contains(&name);
        clustered.replicas.iter().filter(|node| has(node)).count()
    };
    for key in &keys {
        assert_eq!(on_replicas(key), 1, "{key}");
        assert_eq!(release(&http, key, TOKEN).await.status, 204);
    }
    clustered.replicas[0].pause();
    let answers = [&keys[0], &keys[1]].map(|key| acquire(&http, key, TOKEN, LONG));
    let [cut_off, whole] = futures_util::future::join_all(answers).await.try_into().unwrap();
    assert_eq!((cut_off.status, &*cut_off.text("outcome")), (503, "not_acquired"), "{cut_off:?}");
    assert_eq!(whole.status, 201, "{whole:?}");
    clustered.replicas[0].resume();
    eventually(PATIENCE, async || {
        (acquire(&http, &keys[0], TOKEN, LONG).await.status == 201).then_some(())
    })
    .await;
    assert_eq!(on_replicas(&keys[0]), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_stands_still_holds_up_only_its_own_keys_and_those_for_their_deadline() {
    let clustered = Clustered::masters().await;
    let deadline = ("LOCKKEEPER_REDIS_COMMAND_TIMEOUT", "300ms");
    let service = service(&clustered.url(), &[deadline]).await;
    let http = service.http();
    let keys = spread_keys(&http, &clustered).await;
    clustered.masters[0].pause();
    let began = Instant::now();
    let answer = acquire(&http, &keys[0], TOKEN, LONG).await;
    assert_eq!((answer.status, &*answer.text("outcome")), (503, "unknown"), "{answer:?}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    clustered.masters[0].resume();
    eventually(PATIENCE, async || {
        (refresh(&http, &keys[0], TOKEN).await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_with_braces_have_all_that_belongs_to_them_in_their_slot() {
    let prefix = fleet::prefix();
    let variables = [("LOCKKEEPER_REDIS_KEY_PREFIX", prefix.as_str())];
    let service = service(fleet::cluster(), &variables).await;
    let http = service.http();
    for key in ["{a}b", "a{}b", "}{", "{{x}}", "{", "x}y{z", "{}{tag}", "b{c", "plain"] {
        let key = key.replace('{', "%7B").replace('}', "%7D");
        let first = acquire(&http, &key, TOKEN, LONG).await;
        assert_eq!(first.status, 201, "{key}: {first:?}");
        let path = format!("/locks/{key}?wait=10s");
        let handing = async {
            eventually(PATIENCE, async || {
                let seen = http.get(&format!("/locks/{key}")).await;
                (seen.number("waiters") == 1).then_some(())
            })
            .await;
            assert_eq!(refresh(&http, &key, TOKEN).await.status, 200);
            assert_eq!(release(&http, &key, TOKEN).await.status, 204);
        };
        let (next, ()) = tokio::join!(http.post(&path, ""), handing);
        assert_eq!(next.status, 201, "{key}: {next:?}");
        assert!(next.number("fencing_token") > first.number("fencing_token"), "{key}");
        assert_eq!(release(&http, &key, &next.text("token")).await.status, 204);
    }
}
