//! More than half of the nodes are away: a clear no, at once, and nothing left behind.

use std::time::{Duration, Instant};

use crate::redlock::{
    LONG, PATIENCE, Site, Way, acquire, granted, look, lost, refresh, release, serves, unavailable,
};
use crate::support::{Answer, Http, Service, eventually};

const MINE: &str = "token-of-the-holder";

/// So short that nodes which forgot come back within a test.
const SHORT: Duration = Duration::from_secs(2);

/// Within what everything is answered on a machine that is busy; nobody waits for the nodes.
const AT_ONCE: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn without_two_nodes_of_three_that_were_killed_nothing_is_granted_and_nothing_is_left() {
    nothing_is_granted(3, Way::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_two_nodes_of_three_that_are_stopped_nothing_is_granted_and_nothing_is_left() {
    nothing_is_granted(3, Way::Stopped).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_two_nodes_of_three_behind_a_silent_network_nothing_is_granted_or_left() {
    nothing_is_granted(3, Way::Dropped).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_two_nodes_of_four_nothing_is_granted_and_nothing_is_left() {
    nothing_is_granted(4, Way::Stopped).await;
}

async fn nothing_is_granted(nodes: usize, way: Way) {
    let mut site = Site::lasting(nodes, SHORT).await;
    let service = site.service_with(&[]).await;
    site.all_vote().await;
    let http = service.http();
    for node in 0..2 {
        site.away(node, way);
    }
    let mut slowest = Duration::ZERO;
    for number in 0..10 {
        let (key, token) = (format!("never/{number}"), format!("token-of-nobody-{number}"));
        let began = Instant::now();
        let answer = acquire(&http, &key, &token, SHORT).await;
        slowest = slowest.max(began.elapsed());
        assert_eq!(answer.told(), unavailable(), "{answer:?}");
        // An earlier call with the client's token may have got a lease.
        assert_eq!(answer.text("outcome"), "unknown", "{answer:?}");
        assert!(answer.text("detail").starts_with("no majority of nodes: "), "{answer:?}");
        // With a token of the service's own.
        let answer = http.post(&format!("/locks/{key}?wait=100ms"), "").await;
        assert_eq!(answer.told(), unavailable(), "{answer:?}");
        // Who refuses a connection has not got the request; who is silent may act on it.
        let certain = way == Way::Killed && number > 0;
        let outcome = answer.text("outcome");
        assert!(!certain || outcome == "not_acquired", "{answer:?}");
        assert!(way == Way::Killed || outcome == "unknown", "{answer:?}");
    }
    for verb in 0..4 {
        // Half of the nodes know for certain that a token has no majority, once both answer in time.
        if nodes == 4 && verb < 2 {
            eventually(PATIENCE, async || (ask(&http, verb).await.told() == lost()).then_some(()))
                .await;
            continue;
        }
        let began = Instant::now();
        let answer = ask(&http, verb).await;
        slowest = slowest.max(began.elapsed());
        assert_eq!(answer.told(), unavailable(), "{answer:?}");
    }
    assert!(slowest < AT_ONCE, "{slowest:?}");
    for node in 0..2 {
        site.back(node, way);
    }
    let back = Instant::now();
    let bare = site.bare().await;
    eprintln!("2 of {nodes} {way:?}: answers within {slowest:?}, nothing left {bare:?} on");
    serves(&http).await;
    eprintln!("  served again after {:?}", back.elapsed());
    site.all_vote().await;
    // A vote that was only on its way would show by now.
    site.bare().await;
}

async fn ask(http: &Http, verb: usize) -> Answer {
    match verb {
        0 => refresh(http, "never", "token-of-nobody-at-all").await,
        1 => release(http, "never", "token-of-nobody-at-all").await,
        2 => look(http, "never").await,
        _ => http.get("/locks").await,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_outlives_the_absence_of_a_majority_that_keeps_its_data() {
    for way in [Way::Stopped, Way::Dropped] {
        let mut site = Site::of(3).await;
        let service = site.service().await;
        site.all_vote().await;
        let http = service.http();
        let lease = granted(&http, "outlives", "token-of-the-holder", LONG).await;
        for node in 0..2 {
            site.away(node, way);
        }
        // Nobody knows: a refresh that fails deletes nothing.
        let refreshed = refresh(&http, "outlives", "token-of-the-holder").await;
        assert_eq!(refreshed.told(), unavailable());
        assert_eq!(refreshed.text("outcome"), "unknown");
        let other = acquire(&http, "outlives", "token-of-another", LONG).await;
        assert_eq!(other.told(), unavailable());
        for node in 0..2 {
            site.back(node, way);
        }
        let kept = eventually(PATIENCE, async || {
            let kept = refresh(&http, "outlives", "token-of-the-holder").await;
            (kept.status != 503).then_some(kept)
        })
        .await;
        assert_eq!(kept.status, 200, "{kept:?}");
        assert_eq!(kept.number("fencing_token"), lease.number("fencing_token"));
        let other = acquire(&http, "outlives", "token-of-another", LONG).await;
        assert_eq!(other.status, 409, "{other:?}");
        assert_eq!(release(&http, "outlives", "token-of-the-holder").await.status, 204);
        site.bare().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_a_majority_did_not_hear_is_repeated_when_it_is_back() {
    for way in [Way::Stopped, Way::Dropped] {
        let (mut site, service) = on_all_nodes("owed").await;
        let http = service.http();
        for node in 0..2 {
            site.away(node, way);
        }
        let began = Instant::now();
        let released = release(&http, "owed", MINE).await;
        assert!(began.elapsed() < AT_ONCE);
        assert_eq!(released.told(), unavailable(), "{released:?}");
        assert_eq!(released.text("outcome"), "unknown");
        for node in 0..2 {
            site.back(node, way);
        }
        // Nobody knows, so the client asks again; the service must not, for the token may be used
        // again meanwhile.
        let repeated = eventually(PATIENCE, async || {
            let repeated = release(&http, "owed", MINE).await;
            (repeated.status != 503).then_some(repeated)
        })
        .await;
        // A node that goes on in that very moment may still have done as it was told at first.
        assert!([204, 409].contains(&repeated.status), "{repeated:?}");
        granted(&http, "owed", "token-of-another", LONG).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_was_repeated_with_a_node_away_leaves_nothing_there() {
    for way in [Way::Stopped, Way::Dropped] {
        let (mut site, service) = on_all_nodes("repeated").await;
        let http = service.http();
        (0..2).for_each(|node| site.away(node, way));
        assert_eq!(release(&http, "repeated", MINE).await.told(), unavailable());
        site.back(1, way);
        let repeated = eventually(PATIENCE, async || {
            let repeated = release(&http, "repeated", MINE).await;
            (repeated.status != 503).then_some(repeated)
        })
        .await;
        assert!([204, 409].contains(&repeated.status), "{repeated:?}");
        site.back(0, way);
        site.bare().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_release_with_a_node_away_leaves_nothing_there() {
    for way in [Way::Stopped, Way::Dropped] {
        let (mut site, service) = on_all_nodes("forced").await;
        let http = service.http();
        let number = look(&http, "forced").await.number("fencing_token");
        site.away(0, way);
        let path = format!("/admin/locks/forced?fencing_token={number}");
        assert_eq!(http.delete(&path).await.status, 200);
        site.back(0, way);
        site.bare().await;
    }
}

/// Three nodes that all have a lease of the key.
async fn on_all_nodes(key: &str) -> (Site, Service) {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    granted(&service.http(), key, MINE, LONG).await;
    // Only what a majority answered is certain; the others may have it a moment later.
    eventually(PATIENCE, async || (0..3).all(|node| site.locks_on(node).len() == 1).then_some(()))
        .await;
    (site, service)
}
