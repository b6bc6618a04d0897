//! Grants that replicas have to have: refused, and taken back, where the replicas are cut off.

use std::time::{Duration, Instant};

use crate::redis_faults::{LONG, PATIENCE, acquire, refresh, unavailable};
use crate::support::fleet::{data, in_step};
use crate::support::wire::Wire;
use crate::support::{Http, Redis, eventually};
use crate::topology_faults::service;

const REPLICATED: (&str, &str) = ("LOCKKEEPER_REDIS_MIN_REPLICAS", "1");
const TOKEN: &str = "token-of-the-client";

/// A master, and a replica behind a wire.
async fn pair() -> (Redis, Redis, Wire) {
    let master = data(&[]);
    let wire = Wire::to(master.port()).await;
    let replica = data(&["--replicaof", "127.0.0.1", &wire.port().to_string()]);
    eventually(PATIENCE, async || in_step(&master).then_some(())).await;
    (master, replica, wire)
}

async fn until_granted(http: &Http, key: &str) {
    eventually(PATIENCE, async || {
        (acquire(http, key, TOKEN, LONG).await.status == 201).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_no_replica_has_is_taken_back() {
    let (master, replica, wire) = pair().await;
    let service = service(&master.url(), &[REPLICATED]).await;
    let http = service.http();
    for number in 0..50 {
        let answer = acquire(&http, &format!("kept/{number}"), TOKEN, LONG).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        // Not soon: now.
        assert_eq!(replica.run::<String>(&format!("GET lock:kept/{number}")), TOKEN);
    }
    wire.cut();
    for (path, body) in [
        ("/locks/cut?ttl=10m", format!(r#"{{"token":"{TOKEN}"}}"#)),
        ("/locks/cut?ttl=10m", String::new()),
        ("/locks/cut?ttl=10m&wait=1s", String::new()),
    ] {
        let began = Instant::now();
        let answer = http.post(path, &body).await;
        assert_ne!(answer.status, 201, "{answer:?}");
        if !path.contains("wait") {
            assert_eq!(answer.told(), unavailable());
            assert_eq!(answer.text("outcome"), "not_acquired");
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        eventually(PATIENCE, async || (master.run::<u8>("EXISTS lock:cut") == 0).then_some(()))
            .await;
    }
    wire.mend();
    until_granted(&http, "cut").await;
    assert_eq!(replica.run::<String>("GET lock:cut"), TOKEN);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_its_token_asks_for_again_is_never_taken_back() {
    let (master, _replica, wire) = pair().await;
    let service = service(&master.url(), &[REPLICATED]).await;
    let http = service.http();
    until_granted(&http, "again").await;
    wire.cut();
    let again = acquire(&http, "again", TOKEN, LONG).await;
    assert_eq!((again.told(), &*again.text("outcome")), (unavailable(), "unknown"));
    assert_eq!(refresh(&http, "again", TOKEN).await.status, 200, "it was taken back");

    // Nor is one whose share is changed: what it replaces does not come back.
    wire.mend();
    let shared = async |share: &str| {
        let path = format!("/locks/shared?ttl=10m&{share}");
        http.token(TOKEN).post(&path, "").await
    };
    eventually(PATIENCE, async || (shared("shared=true").await.status == 201).then_some(())).await;
    wire.cut();
    for share in ["slots=3", "slots=1"] {
        let lease = http.token(TOKEN).get("/locks/shared").await.number("fencing_token");
        let changed = shared(&format!("{share}&fencing_token={lease}")).await;
        assert_eq!((changed.told(), &*changed.text("outcome")), (unavailable(), "unknown"));
        assert_eq!(refresh(&http, "shared", TOKEN).await.status, 200, "{share}: it was taken back");
    }

    // A repeat comes while the first request waits for the replica, and is asked after that: what
    // the first was granted is taken back by then.
    let first = acquire(&http, "repeated", TOKEN, LONG);
    let began = Instant::now();
    let repeat = async {
        eventually(PATIENCE, async || {
            // Late, so that it still waits once the first has given up.
            let is_late = began.elapsed() > Duration::from_millis(250);
            (is_late && master.run::<u8>("EXISTS lock:repeated") == 1).then_some(())
        })
        .await;
        acquire(&http, "repeated", TOKEN, LONG).await
    };
    let mending = async {
        let first = first.await;
        wire.mend();
        first
    };
    let (first, repeat) = tokio::join!(mending, repeat);
    assert_eq!((first.told(), &*first.text("outcome")), (unavailable(), "not_acquired"));
    assert_eq!(repeat.status, 201, "{repeat:?}");
    assert_eq!(refresh(&http, "repeated", TOKEN).await.status, 200, "it was taken back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_reaches_the_replica_where_the_master_has_no_memory() {
    let (master, replica, _wire) = pair().await;
    let service = service(&master.url(), &[REPLICATED]).await;
    let http = service.http();
    until_granted(&http, "full").await;
    let (next, key) = ("token-of-the-next-client", "/locks/full?ttl=10m&wait=20s");
    let its = http.token(next);
    let waits = its.post(key, "");
    let hands_over = async {
        eventually(PATIENCE, async || {
            (http.get("/locks/full").await.number("waiters") == 1).then_some(())
        })
        .await;
        master.run::<()>("CONFIG SET maxmemory 1");
        assert_eq!(http.token(TOKEN).delete("/locks/full").await.status, 204);
    };
    let (granted, ()) = tokio::join!(waits, hands_over);
    assert_eq!(granted.status, 201, "{granted:?}");
    assert_eq!(replica.run::<String>("GET lock:full"), next);
}

/// The connections of the service to this server, by their numbers, each with what it sent last.
fn connections(of: &Redis) -> Vec<(u64, String)> {
    let told: String = of.run("CLIENT LIST");
    let field = |line: &str, name: &str| {
        let word = line.split(' ').find_map(|word| word.strip_prefix(name));
        word.unwrap().to_owned()
    };
    let theirs = |line: &&str| !line.contains("cmd=client|list") && !line.contains("flags=S");
    let lines = told.lines().filter(theirs);
    lines.map(|line| (field(line, "id=").parse().unwrap(), field(line, "cmd="))).collect()
}

/// Which of them asks the replicas.
fn asker(of: &Redis) -> Option<u64> {
    connections(of).into_iter().find(|(_, command)| command == "wait").map(|(number, _)| number)
}

/// The number of the newest connection.
fn newest(of: &Redis) -> u64 {
    connections(of).into_iter().map(|(number, _)| number).max().unwrap()
}

/// Done when so many connections were made after this one that the service looks after each.
async fn until_in_use(of: &Redis, after: u64, wanted: usize) {
    eventually(PATIENCE, async || {
        let mut new = connections(of);
        let looked_after = |command: &str| ["time", "ping"].contains(&command);
        new.retain(|(number, command)| *number > after && looked_after(command));
        (new.len() == wanted).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_that_asks_replicas_is_made_anew_before_a_grant_needs_it() {
    let (master, _replica, _wire) = pair().await;
    let service = service(&master.url(), &[REPLICATED]).await;
    let http = service.http();
    until_granted(&http, "before").await;
    let asker = asker(&master).unwrap();
    let last = newest(&master);
    assert_eq!(master.run::<i64>(&format!("CLIENT KILL ID {asker}")), 1);
    until_in_use(&master, last, 1).await;
    let answer = acquire(&http, "after", TOKEN, LONG).await;
    assert_eq!(answer.status, 201, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_ask_replicas_that_is_silent_for_ever_is_given_up_while_nobody_asks() {
    let (master, _replica, _wire) = pair().await;
    let wire = Wire::to(master.port()).await;
    let service = service(&format!("redis://127.0.0.1:{}", wire.port()), &[REPLICATED]).await;
    let http = service.http();
    until_granted(&http, "before").await;
    let last = newest(&master);
    wire.break_connections();
    until_in_use(&master, last, 3).await;
    let answer = acquire(&http, "after", TOKEN, LONG).await;
    assert_eq!(answer.status, 201, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_that_wait_at_once_share_one_question_to_the_replicas() {
    const CLIENTS: usize = 200;
    let (master, _replica, _wire) = pair().await;
    let service = service(&master.url(), &[REPLICATED]).await;
    let http = service.http();
    until_granted(&http, "first").await;
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let http = http.clone();
        clients.spawn(async move {
            for round in 0..5 {
                let key = format!("shared/{number}/{round}");
                assert_eq!(acquire(&http, &key, TOKEN, LONG).await.status, 201);
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    let calls = waits(&master);
    eprintln!("{} grants on replicas: {calls} times WAIT", 5 * CLIENTS);
    assert!(calls <= 5 * CLIENTS / 2, "{calls} times WAIT for {} grants", 5 * CLIENTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_renewal_of_several_keys_has_to_reach_the_replicas_too() {
    let (master, _replica, _wire) = pair().await;
    let service = service(&master.url(), &[REPLICATED]).await;
    let http = service.http();
    until_granted(&http, "first").await;
    let before = waits(&master);
    let answer = http.token(TOKEN).post("/locks?key=a&key=b&wait=5s", "").await;
    assert_eq!(answer.status, 201, "{answer:?}");
    // A question for each grant, and for each lease that is let go: one after another.
    assert_eq!(waits(&master) - before, 4);
}

/// How often the replicas were asked for.
fn waits(master: &Redis) -> usize {
    let stats: String = master.run("INFO commandstats");
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls="));
    calls.unwrap().split(',').next().unwrap().parse().unwrap()
}
