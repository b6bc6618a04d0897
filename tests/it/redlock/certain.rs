//! What is said of a claim that was not granted is so.

use std::time::Duration;

use lockkeeper::lock::error::Effect;
use lockkeeper::lock::lease::{Claim, Origin};
use lockkeeper::lock::store::{Answer, Ask, Keep};
use lockkeeper::metrics::Metrics;
use lockkeeper::store::{StoreSettings, open};
use tokio::task::JoinSet;

use crate::conformance::claim;
use crate::hold::Listener;
use crate::redlock::{
    LASTING, LONG, PATIENCE, PATIENT, Site, Way, acquire, granted, held, look, release, serves,
    unavailable,
};
use crate::support::{Process, Redis, eventually};

/// More than there is room for.
const RELEASES: usize = 10_500;
const CLIENTS: usize = 15;

const MINE: &str = "token-of-this-client";
const OTHER: &str = "token-of-another-client";

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_holds_the_key_is_never_told_that_it_does_not() {
    for way in Way::ALL {
        let mut site = Site::of(3).await;
        let service = site.service().await;
        let http = service.http();
        granted(&http, "mine", MINE, LONG).await;
        for node in 0..2 {
            site.away(node, way);
        }
        for _ in 0..3 {
            let again = acquire(&http, "mine", MINE, LONG).await;
            assert_eq!(again.told(), unavailable());
            assert_eq!(again.text("outcome"), "unknown", "{way:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_acquire_without_an_answer_says_what_came_of_it() {
    let mut site = Site::of(3).await;
    let service = site.service().await;
    let http = service.http();
    granted(&http, "waited", OTHER, LONG).await;
    let mut waits = JoinSet::new();
    waits.spawn({
        let http = http.clone();
        async move { http.post("/locks/waited?wait=20s", "").await }
    });
    eventually(PATIENCE, async || {
        // On a busy machine a look may not hear of two nodes in time.
        (look(&http, "waited").await.field("waiters") == 1).then_some(())
    })
    .await;
    site.away(0, Way::Killed);
    site.away(1, Way::Killed);
    // Behind the one that waits it is only looked at.
    eventually(PATIENCE, async || {
        let answer = http.post("/locks/waited", "").await;
        assert_eq!(answer.told(), unavailable());
        (answer.text("outcome") == "not_acquired").then_some(())
    })
    .await;
    let answer = acquire(&http, "waited", MINE, LONG).await;
    assert_eq!(answer.text("outcome"), "unknown", "{answer:?}");
    waits.abort_all();
}

/// A waiter that could not join.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_could_not_join_leaves_no_place_in_line() {
    let mut site = Site::of(3).await;
    let metrics = std::sync::Arc::new(Metrics::for_redlock());
    let store = open(StoreSettings::Redlock(site.settings()), metrics).unwrap();
    eventually(PATIENCE, async || store.contacted().ok()).await;
    let of_service = |name: &str| Claim { origin: Origin::Service, ..claim("ghost", name, 10_000) };
    for node in 0..2 {
        site.away(node, Way::Killed);
    }
    // Until the connections are known to be gone nobody knows what became of it.
    eventually(PATIENCE, async || {
        let claim = of_service(&format!("waiter-{}", fastrand::u32(..)));
        let error = store.ask(&claim, Ask::InLine(None)).await.unwrap_err();
        if error.effect == Effect::None {
            return Some(());
        }
        store.leave(&claim.key, &[(claim.token.clone(), Keep::Nothing)]).await.unwrap();
        None
    })
    .await;
    for node in 0..2 {
        site.back(node, Way::Killed);
    }
    crate::conformance::nodes::admit(&site.settings()).await;
    eventually(PATIENCE, async || match store.ask(&of_service("another"), Ask::Once(None)).await {
        Ok(Answer::Won(win)) => Some(win),
        Ok(refused) => panic!("a ghost: {refused:?}"),
        Err(_) => None,
    })
    .await;
    let turn = store.ask(&of_service("next"), Ask::InLine(None)).await.unwrap();
    assert!(matches!(turn, Answer::Waiting(waiting) if waiting.ahead == 0));
}

/// A repeat with the token of a hold reaches one node only, and is not granted.
#[tokio::test(flavor = "multi_thread")]
async fn the_word_of_one_node_never_ends_a_hold() {
    let mut site = Site::of(3).await;
    let services = [site.service().await, site.service().await];
    let http = services[0].http();
    let mut listener = Listener::open_as(&http, "held?ttl=3s", MINE).await;
    listener.hears("acquired").await;
    for node in 1..3 {
        site.away(node, Way::Dropped);
    }
    let again = acquire(&services[1].http(), "held", MINE, Duration::from_secs(3)).await;
    assert_eq!(again.told(), unavailable());
    for node in 1..3 {
        site.back(node, Way::Dropped);
    }
    for _ in 0..4 {
        listener.hears("alive").await;
    }
    assert_eq!(acquire(&http, "held", OTHER, LONG).await.told(), held());
}

/// Those that are too many stay on the node for their TTL.
#[tokio::test(flavor = "multi_thread")]
async fn above_ten_thousand_releases_without_one_node_the_log_says_so_once() {
    let mut site = Site::of(3).await;
    let urls: Vec<_> = site.nodes.iter().map(Redis::url).collect();
    let stores: Vec<_> = urls.iter().flat_map(|url| ["--store", url.as_str()]).collect();
    let process = Process::start_with(&stores, &[PATIENT, &[LASTING]].concat());
    let http = process.http();
    serves(&http).await;
    site.away(2, Way::Killed);
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let http = http.clone();
        clients.spawn(async move {
            for round in 0..RELEASES / CLIENTS {
                let key = format!("owed/{client}/{round}");
                let token = format!("token-of-{client}-{round:06}");
                // On a busy machine a second node may be slow as well, and the outcome unknown.
                eventually(PATIENCE, async || {
                    let answer = acquire(&http, &key, &token, LONG).await;
                    [200, 201].contains(&answer.status).then_some(())
                })
                .await;
                eventually(PATIENCE, async || {
                    let answer = release(&http, &key, &token).await;
                    [204, 409].contains(&answer.status).then_some(())
                })
                .await;
            }
        });
    }
    clients.join_all().await;
    let log = process.log();
    let warnings = log.lines().filter(|line| line.contains("undo queue full")).count();
    assert_eq!(warnings, 1, "{warnings} warnings");
}
