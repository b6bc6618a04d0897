//! Nodes that come back with old data, cut data or another time, and late writers.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::redis_faults::clock::Clock;
use crate::redlock::{
    LONG, LONGEST, PATIENCE, Site, Way, acquire, granted, lost, refresh, release, votes,
};
use crate::support::fenced::{FencedFile, Verdict};
use crate::support::{Redis, eventually};

/// The longest lease where nodes forget, and are to vote again.
const SHORT: Duration = Duration::from_secs(2);

/// One that writes a snapshot only when it is told to.
const SNAPSHOTS: &[&str] = &["--save", "", "--appendonly", "no", "--dbfilename", "old.rdb"];

const EVERY_WRITE: &[&str] = &[
    "--save",
    "",
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--aof-load-truncated",
    "yes",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_from_an_old_snapshot_grants_nothing_twice() {
    nothing_twice(SNAPSHOTS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_without_the_end_of_its_log_grants_nothing_twice() {
    nothing_twice(EVERY_WRITE).await;
}

/// A node forgets a lease that one more of three knows, and nothing else.
async fn nothing_twice(arguments: &[&str]) {
    let nodes = (0..3).map(|_| Redis::start_with(arguments)).collect();
    let mut site = Site::on(nodes, Duration::from_secs(4)).await;
    let services = site.services(2).await;
    let (http, second) = (services[0].http(), services[1].http());
    let mut last = 0;
    for round in 0..2 {
        let (node, beside) = (round % 3, (round + 1) % 3);
        let (token, other) =
            (format!("token-of-the-round-{round}"), format!("token-of-other-{round}"));
        // What it comes back with shows the key free, and a node that votes.
        let length = match arguments {
            SNAPSHOTS => {
                site.nodes[node].run::<()>("SAVE");
                None
            }
            _ => Some(std::fs::metadata(log_of(&site.nodes[node])).unwrap().len()),
        };
        site.away(beside, Way::Dropped);
        let lease = granted(&http, "old", &token, Duration::from_secs(4)).await;
        assert!(lease.number("fencing_token") > last, "{lease:?} after {last}");
        last = lease.number("fencing_token");
        let began = Instant::now();
        site.away(node, Way::Killed);
        if let Some(length) = length {
            let log = OpenOptions::new().write(true).open(log_of(&site.nodes[node]));
            log.unwrap().set_len(length).unwrap();
        }
        site.back(node, Way::Killed);
        site.back(beside, Way::Dropped);
        // Two of three show a free key; one of them is from before.
        let next = eventually(PATIENCE, async || {
            let next = acquire(&second, "old", &other, Duration::from_secs(2)).await;
            (next.status == 201).then_some(next)
        })
        .await;
        let lasts = Duration::from_millis(lease.number("ttl_ms"));
        assert!(began.elapsed() + Duration::from_millis(100) > lasts, "{:?}", began.elapsed());
        assert!(next.number("fencing_token") > last, "{next:?} after {last}");
        last = next.number("fencing_token");
        site.all_vote().await;
        site.bare().await;
    }
}

/// The newest part of a node's append-only file.
fn log_of(node: &Redis) -> PathBuf {
    let files = std::fs::read_dir(node.directory().join("appendonlydir")).unwrap();
    let mut logs: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    logs.retain(|path| path.to_string_lossy().ends_with(".incr.aof"));
    logs.sort();
    logs.pop().unwrap()
}

/// What the guarantees do not promise, and what protects there.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_the_clock_under_a_bare_majority_gives_the_key_away_and_the_late_are_refused() {
    let clock = Clock::make();
    let nodes = vec![Redis::start(), clock.redis(), Redis::start()];
    let mut site = Site::on(nodes, LONGEST).await;
    let service = site.service().await;
    site.all_vote().await;
    let (http, file) = (service.http(), FencedFile::new());
    site.away(2, Way::Dropped);
    let (first, second) = ("token-of-the-first-one", "token-of-the-second-one");
    let lease = granted(&http, "stepped", first, LONG).await.number("fencing_token");
    site.back(2, Way::Dropped);
    clock.step_ms(3_600_000);
    let next = eventually(PATIENCE, async || {
        let next = acquire(&http, "stepped", second, LONG).await;
        [200, 201].contains(&next.status).then(|| next.number("fencing_token"))
    })
    .await;
    assert!(next > lease, "{next} after {lease}");
    assert_eq!(file.submit(next, second, "in time"), Verdict::Accepted);
    assert_eq!(file.submit(lease, first, "late"), Verdict::Refused);
    assert_eq!(refresh(&http, "stepped", first).await.told(), lost());
}

/// Clients that go to sleep with a lease and write when they wake up.
#[tokio::test(flavor = "multi_thread")]
async fn every_write_of_a_client_that_slept_past_its_lease_is_refused() {
    let site = Site::lasting(3, SHORT).await;
    let services = site.services(2).await;
    let file = FencedFile::new();
    let (mut late, mut written) = (Vec::new(), Vec::new());
    for round in 0..40 {
        let http = services[round % 2].http();
        let (token, line) = (format!("token-of-the-writer-{round}"), format!("line {round}"));
        let sleeps = round % 2 == 0;
        let ttl = if sleeps { Duration::from_millis(150) } else { SHORT };
        let lease = eventually(PATIENCE, async || {
            let lease = acquire(&http, "file", &token, ttl).await;
            (lease.status == 201).then_some(lease)
        })
        .await;
        let fencing_token = lease.number("fencing_token");
        if sleeps {
            late.push((fencing_token, token, line));
            if round % 8 == 0 {
                site.nodes[round / 8 % 3].run::<()>("FLUSHALL");
            }
            continue;
        }
        assert_eq!(file.submit(fencing_token, &token, &line), Verdict::Accepted);
        written.push(line);
        for (fencing_token, token, line) in &late {
            assert_eq!(file.submit(*fencing_token, token, line), Verdict::Refused, "{line}");
        }
        assert_eq!(release(&http, "file", &token).await.status, 204);
        if !site.nodes.iter().all(votes) {
            site.all_vote().await;
        }
    }
    assert_eq!(file.accepted(), written);
    eprintln!("{} writers slept past their leases, all refused", late.len());
}
