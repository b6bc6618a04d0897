//! Sentinels replace a master that was killed, or stood still and comes back.

use std::time::{Duration, Instant};

use crate::redis_faults::{LONG, PATIENCE, acquire, lost, refresh};
use crate::support::fleet::{MASTER, Watch, Watched};
use crate::support::{Http, Process, Redis, eventually};
use crate::topology_faults::{figure, is_master, service, wired};

const WATCH: Watch = Watch { sentinels: 3, down_after: 1_000 };

/// How soon a grant is to be had: when the sentinels call the master down, and what they need to
/// agree and to promote the replica, on a machine that is busy.
const SOON: Duration = Duration::from_secs(10);

const TOKEN: &str = "token-of-the-client";

/// Asks until a key of its own is granted, and says how long that took.
async fn until_granted(http: &Http, key: &str) -> Duration {
    let began = Instant::now();
    eventually(PATIENCE, async || {
        let answer = acquire(http, key, TOKEN, LONG).await;
        assert!([201, 200, 503].contains(&answer.status), "{answer:?}");
        (answer.status != 503).then_some(())
    })
    .await;
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_replica_of_a_master_that_was_killed_is_served_within_seconds() {
    let mut watched = Watched::start(WATCH).await;
    let service = service(&watched.url(), &[]).await;
    let http = service.http();
    until_granted(&http, "before").await;
    watched.master.kill();
    let took = until_granted(&http, "after").await;
    eprintln!("master killed: first grant after {took:?}");
    assert!(took < SOON, "granted only after {took:?}");
    assert_eq!(watched.replica.run::<String>("GET lock:after"), TOKEN);
    assert_eq!(figure(&http, "lockkeeper_redis_rerouted_total{kind=\"master\"}").await, 1);
    let up = format!("lockkeeper_redis_up{{node=\"{}\"}}", watched.replica.address());
    assert_eq!(figure(&http, &up).await, 1);
    assert_eq!(refresh(&http, "before", TOKEN).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_master_that_goes_on_is_not_written_to() {
    let watched = Watched::start(WATCH).await;
    let service = service(&watched.url(), &[]).await;
    let http = service.http();
    until_granted(&http, "before").await;
    watched.master.pause();
    let took = until_granted(&http, "after").await;
    eprintln!("master stood still: first grant after {took:?}");
    assert!(took < SOON, "granted only after {took:?}");
    watched.master.resume();
    // For seconds it takes itself for the master, until a sentinel tells it otherwise.
    let mut rounds = 0;
    while is_master(&watched.master) {
        let key = format!("since/{rounds}");
        let answer = acquire(&http, &key, TOKEN, LONG).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        let written = watched.master.try_words::<Vec<String>>(&["KEYS", "lock:since/*"]);
        // What it has once it is a replica, it has from the new master.
        if is_master(&watched.master) {
            assert_eq!(written.unwrap(), Vec::<String>::new(), "written to the old master");
            rounds += 1;
        }
    }
    eprintln!("the old master was one for {rounds} more grants");
    assert!(rounds > 10, "it was never one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_under_way_to_a_master_that_is_replaced_is_answered_then_and_not_later() {
    let watched = Watched::start(Watch { sentinels: 1, down_after: 500 }).await;
    let patient = ("LOCKKEEPER_REDIS_COMMAND_TIMEOUT", "10s");
    let service = service(&watched.url(), &[patient]).await;
    let http = service.http();
    until_granted(&http, "before").await;
    watched.master.pause();
    let began = Instant::now();
    let answer = acquire(&http, "under-way", TOKEN, LONG).await;
    assert_eq!((answer.status, &*answer.text("outcome")), (503, "unknown"), "{answer:?}");
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    until_granted(&http, "under-way").await;
    assert_eq!(watched.replica.run::<String>("GET lock:under-way"), TOKEN);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_served_after_a_failover_by_whoever_is_the_master_then() {
    let mut watched = Watched::start(WATCH).await;
    let services = [service(&watched.url(), &[]).await, service(&watched.url(), &[]).await];
    let (http, other) = (services[0].http(), services[1].http());
    assert_eq!(acquire(&http, "waited", TOKEN, LONG).await.status, 201);
    let waiting = async { other.post("/locks/waited?wait=20s", "").await };
    let failing = async {
        eventually(PATIENCE, async || {
            let seen = http.get("/locks/waited").await;
            (seen.number("waiters") == 1).then_some(())
        })
        .await;
        watched.master.kill();
        until_granted(&http, "after").await;
        // The waiter asks again by itself.
        eventually(PATIENCE, async || {
            let released = http.token(TOKEN).delete("/locks/waited").await;
            (released.status != 503).then_some(())
        })
        .await;
        Instant::now()
    };
    let (granted, released) = tokio::join!(waiting, failing);
    assert_eq!(granted.status, 201, "{granted:?}");
    let took = released.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fencing_tokens_rise_over_failovers_that_forget_grants() {
    let (mut watched, wire) = wired(500).await;
    let services = [service(&watched.url(), &[]).await, service(&watched.url(), &[]).await];
    let (http, other) = (services[0].http(), services[1].http());
    let mut last = 0;
    let mut once = async |rounds: usize| {
        for round in 0..rounds {
            let token = format!("token-of-round-{last}-{round}");
            let granted = acquire(&http, "fenced", &token, LONG).await;
            assert_eq!(granted.status, 201, "{granted:?}");
            assert!(granted.number("fencing_token") > last);
            last = granted.number("fencing_token");
            assert_eq!(http.token(&token).delete("/locks/fenced").await.status, 204);
        }
        last
    };
    once(20).await;
    // The replica has the last release as well, or that lease would be what the new master has.
    watched.master.run::<()>("SET released yes");
    eventually(PATIENCE, async || watched.replica.run::<Option<String>>("GET released").map(drop))
        .await;
    wire.cut();
    let released = once(20).await;
    let forgotten = acquire(&http, "fenced", TOKEN, LONG).await;
    assert!(forgotten.number("fencing_token") > released);
    watched.master.kill();
    // Another instance, which has given none of these, finds the key free on the new master.
    let next = eventually(PATIENCE, async || {
        let answer = acquire(&other, "fenced", "token-of-the-next-one", LONG).await;
        (answer.status != 503).then_some(answer)
    })
    .await;
    assert_eq!(next.status, 201, "the grant was not forgotten: {next:?}");
    assert!(next.number("fencing_token") > forgotten.number("fencing_token"), "{next:?}");
    // What is lost stays lost.
    assert_eq!(refresh(&http, "fenced", TOKEN).await.told(), lost());
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_and_nodes_each_have_their_own_password() {
    let watched = Watched::start(Watch { sentinels: 1, down_after: 60_000 }).await;
    for node in [&watched.master, &watched.replica] {
        node.run::<()>("ACL SETUSER shop on >p@ss ~lock:* ~lk//* &lk//* +@all");
    }
    let sentinel = &watched.sentinels[0];
    sentinel.run::<()>("ACL SETUSER watcher on >s3cret allchannels +@all");
    sentinel.run::<()>("ACL SETUSER default off");
    let hosts = sentinel.address();
    let url =
        |login: &str, query: &str| format!("redis-sentinel://{login}@{hosts}/{MASTER}{query}");
    let right = "?sentinel_user=watcher&sentinel_password=s3cret";
    let process = Process::start(&url("shop:p%40ss", right), &[("LOCKKEEPER_LOG_LEVEL", "trace")]);
    until_granted(&process.http(), "guarded").await;
    assert!(!process.log().contains("s3cret") && !process.log().contains("p%40ss"));
    for (login, query, said) in
        [("shop:p%40ss", "", "cannot query a sentinel"), ("shop:wrong", right, "cannot connect")]
    {
        let process = Process::start(&url(login, query), &[]);
        eventually(PATIENCE, async || process.log().contains(said).then_some(())).await;
        let refused = acquire(&process.http(), "guarded", TOKEN, LONG).await;
        assert_eq!(refused.text("outcome"), "unknown", "{refused:?}");
    }
}

/// As after a partition: those that count from the beginning may be behind.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_of_a_lower_epoch_are_followed_only_once_the_master_is_down() {
    let (mut first, second) = (Redis::start(), Redis::start());
    let monitored = |redis: &Redis| format!("monitor {MASTER} 127.0.0.1 {} 1", redis.port());
    let epoch = format!("sentinel config-epoch {MASTER} 5");
    let sentinel = Redis::sentinel(&format!("sentinel {}\n{epoch}\n", monitored(&first)));
    let service = service(&format!("redis-sentinel://{}/{MASTER}", sentinel.address()), &[]).await;
    let http = service.http();
    until_granted(&http, "before").await;
    sentinel.run::<()>(&format!("SENTINEL remove {MASTER}"));
    sentinel.run::<()>(&format!("SENTINEL {}", monitored(&second)));
    // It is asked once a second.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        assert_eq!(refresh(&http, "before", TOKEN).await.status, 200);
    }
    assert_eq!(second.run::<u64>("DBSIZE"), 0);
    first.kill();
    until_granted(&http, "after").await;
    assert_eq!(second.run::<String>("GET lock:after"), TOKEN);
}
