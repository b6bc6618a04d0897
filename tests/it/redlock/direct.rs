//! Applications that do Redlock themselves, on the same nodes and keys as the service.

use std::time::{Duration, Instant};

use crate::redlock::{
    LASTING, LONG, PATIENCE, PATIENT, Site, Way, acquire, granted, held, look, lost, refresh,
    release, serves,
};
use crate::support::peers::{counted, step};
use crate::support::{Process, Redis, eventually};
use crate::waiting::until_waiters;

const MINE: &str = "token-of-this-client";

fn ports(site: &Site) -> String {
    site.nodes.iter().map(|node| node.port().to_string()).collect::<Vec<_>>().join(",")
}

/// What a client that does Redlock itself has to show for the lock, if it got it.
fn taken(site: &Site, key: &str, ttl_ms: u64) -> Option<String> {
    let taken = step("redlock", &ports(site), &["acquire", key, &ttl_ms.to_string()]);
    Some(taken).filter(|proof| proof != "held")
}

fn given_back(site: &Site, key: &str, proof: &str) -> String {
    step("redlock", &ports(site), &["release", key, proof])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_by_redlock_code_excludes_the_services_clients() {
    for nodes in [2, 3, 5] {
        let site = Site::of(nodes).await;
        let service = site.service().await;
        site.all_vote().await;
        let http = service.http();
        let proof = taken(&site, "theirs", 60_000).unwrap();
        let answer = acquire(&http, "theirs", MINE, LONG).await;
        assert_eq!(answer.told(), held(), "{answer:?}");
        assert!((50_000..=60_000).contains(&answer.number("retry_after_ms")), "{answer:?}");
        assert!(answer.field("owner").is_null());
        let seen = look(&http, "theirs").await;
        assert_eq!(
            (seen.field("held"), seen.field("held_ms")),
            (true.into(), answer.field("held_ms"))
        );
        assert!(seen.field("held_ms").is_null(), "{seen:?}");
        assert_eq!(release(&http, "theirs", MINE).await.told(), lost());
        assert_eq!(refresh(&http, "theirs", MINE).await.told(), lost());
        assert_eq!(given_back(&site, "theirs", &proof), "released");
        granted(&http, "theirs", MINE, LONG).await;
    }
}

/// It has no number, and a record that began on some nodes only could be lost while it works.
#[tokio::test(flavor = "multi_thread")]
async fn the_lock_of_redlock_code_is_no_lease_whoever_names_its_value() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    for node in &site.nodes {
        node.run::<()>(&format!("SET lock:theirs {MINE} NX PX 60000"));
    }
    assert_eq!(refresh(&http, "theirs", MINE).await.told(), lost());
    let answer = acquire(&http, "theirs", MINE, LONG).await;
    assert_eq!(answer.told(), held(), "{answer:?}");
    let seen = http.token(MINE).get("/locks/theirs").await;
    assert_eq!((seen.field("held"), seen.field("mine")), (true.into(), false.into()), "{seen:?}");
    for node in &site.nodes {
        let left: u64 = node.run("PTTL lock:theirs");
        assert!((30_000..=60_000).contains(&left), "{left}");
    }
    assert_eq!(release(&http, "theirs", MINE).await.status, 204);
    site.bare().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_the_service_excludes_redlock_code() {
    for nodes in [2, 3, 5] {
        let site = Site::of(nodes).await;
        let service = site.service().await;
        site.all_vote().await;
        let http = service.http();
        granted(&http, "ours", MINE, LONG).await;
        assert_eq!(taken(&site, "ours", 60_000), None);
        // Its attempt has taken nothing away, and left nothing.
        assert_eq!(refresh(&http, "ours", MINE).await.status, 200);
        assert_eq!(release(&http, "ours", MINE).await.status, 204);
        site.bare().await;
        let proof = taken(&site, "ours", 60_000).unwrap();
        assert_eq!(release(&http, "ours", MINE).await.told(), lost());
        assert_eq!(given_back(&site, "ours", &proof), "released");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_follows_the_other_when_its_lease_runs_out() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    let proof = taken(&site, "short", 2_000).unwrap();
    let began = Instant::now();
    let waits = http.token(MINE).post("/locks/short?wait=20s&ttl=4s", "").await;
    assert_eq!(waits.status, 201, "{waits:?}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(given_back(&site, "short", &proof), "lost");
    let proof = eventually(PATIENCE, async || taken(&site, "short", 60_000)).await;
    assert_eq!(refresh(&http, "short", MINE).await.told(), lost());
    assert_eq!(given_back(&site, "short", &proof), "released");
}

/// A direct client has half of the nodes, as after a crash in the middle of its round.
#[tokio::test(flavor = "multi_thread")]
async fn votes_of_a_crashed_client_on_a_minority_keep_nobody_from_the_key() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    site.nodes[1].run::<()>("SET lock:left uniqid-of-the-crashed NX PX 60000");
    granted(&http, "left", MINE, LONG).await;
    assert_eq!(look(&http, "left").await.field("held"), true);
    assert_eq!(release(&http, "left", MINE).await.status, 204);
    let there: String = site.nodes[1].run("GET lock:left");
    assert_eq!(there, "uniqid-of-the-crashed");
    assert_eq!(look(&http, "left").await.field("held"), false);
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_code_and_the_services_clients_never_count_over_one_another() {
    let site = Site::of(3).await;
    let urls: Vec<_> = site.nodes.iter().map(Redis::url).collect();
    let stores: Vec<_> = urls.iter().flat_map(|url| ["--store", url.as_str()]).collect();
    let variables = [PATIENT, &[LASTING]].concat();
    let instances = [(); 2].map(|()| Process::start_with(&stores, &variables));
    for instance in &instances {
        serves(&instance.http()).await;
    }
    site.all_vote().await;
    let [here, there] = instances.each_ref().map(|one| one.http().url());
    let ports = ports(&site);
    let workers =
        [("http", here.as_str()), ("http", &there), ("redlock", &ports), ("redlock", &ports)];
    let began = Instant::now();
    assert_eq!(counted(&workers, 80), 320);
    eprintln!("2 x 80 rounds over HTTP and 2 x 80 by Redlock code in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_direct_lock_is_respected_with_a_minority_away() {
    let mut site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    for node in &site.nodes {
        node.run::<()>("SET lock:direct its-own-value NX PX 60000");
    }
    for way in [Way::Dropped, Way::Stopped] {
        site.away(0, way);
        assert_eq!(acquire(&http, "direct", MINE, LONG).await.told(), held());
        site.back(0, way);
    }
}

/// A direct Redis client sends no hint, so who waits asks a while later.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_behind_others_is_told_that_the_key_is_free() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    eventually(PATIENCE * 4, async || {
        for node in &site.nodes {
            node.run::<()>("SET lock:direct its-own-value NX PX 60000");
        }
        let body = format!(r#"{{"token":"{MINE}","ttl_ms":1000,"wait_ms":9000}}"#);
        let behind = async {
            until_waiters(&http, "direct", 1).await;
            // A majority is free at once, before the claim in line asks again.
            for node in &site.nodes[..2] {
                node.run::<()>("DEL lock:direct");
            }
            http.post("/locks/direct", "").await
        };
        let (granted, refused) = tokio::join!(http.post("/locks/direct", &body), behind);
        assert_eq!(granted.status, 201, "{granted:?}");
        assert_eq!(refused.status, 409, "{refused:?}");
        assert_eq!(release(&http, "direct", MINE).await.status, 204);
        (refused.text("detail") == "'direct' is free, but others come first").then_some(())
    })
    .await;
}
