//! What Redlock libraries got wrong, each in a test that would catch it here.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::conformance::nodes::admit;
use crate::redlock::{
    LONG, LONGEST, PATIENCE, SAFE, Site, Way, acquire, granted, held, look, lost, refresh, release,
    serves, unavailable,
};
use crate::support::{Redis, eventually};

const MINE: &str = "token-of-this-client";
const OTHER: &str = "token-of-another-client";

/// redlock-php, old redlock-py: half of the nodes as a fraction, so 3 of 3 or 4 of 5 are needed.
#[tokio::test(flavor = "multi_thread")]
async fn more_than_half_of_the_nodes_are_enough_and_half_of_them_are_not() {
    for (nodes, enough) in [(2, 2), (3, 2), (4, 3), (5, 3)] {
        let mut site = Site::of(nodes).await;
        let service = site.service().await;
        site.all_vote().await;
        let http = service.http();
        for node in enough..nodes {
            site.away(node, Way::Killed);
        }
        granted(&http, "enough", MINE, LONG).await;
        assert_eq!(acquire(&http, "enough", OTHER, LONG).await.told(), held());
        assert_eq!(refresh(&http, "enough", MINE).await.status, 200);
        assert_eq!(release(&http, "enough", MINE).await.status, 204);
        site.away(enough - 1, Way::Killed);
        assert_eq!(acquire(&http, "too-few", MINE, LONG).await.told(), unavailable());
    }
}

/// redlock-php: a node that cannot be reached throws from the constructor.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_starts_and_serves_while_a_minority_is_away() {
    for way in Way::ALL {
        let mut site = Site::of(3).await;
        drop(site.services(1).await);
        site.away(1, way);
        let service = site.service().await;
        granted(&service.http(), "started", MINE, LONG).await;
    }
}

/// redlock-php: a guessable token. malkusch: a different one on each node, and one key for all.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_one_random_token_on_all_nodes_under_its_own_key() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let mut tokens = HashSet::new();
    for number in 0..50 {
        let key = format!("own/{number}");
        let answer = service.http().post(&format!("/locks/{key}"), "").await;
        assert_eq!(answer.status, 201, "{answer:?}");
        let token = answer.text("token");
        assert_eq!(uuid::Uuid::parse_str(&token).unwrap().get_version_num(), 4);
        for node in &site.nodes {
            eventually(PATIENCE, async || {
                let there: Option<String> = node.run(&format!("GET lock:{key}"));
                there.map(|there| assert_eq!(there, token))
            })
            .await;
        }
        assert!(tokens.insert(token));
    }
}

/// redlock-py: with a majority and one node in error it raises, and the lock is held and lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_answers_with_an_error_does_not_lose_what_the_others_grant() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    site.nodes[0].run::<()>("CONFIG SET maxmemory 1");
    for _ in 0..20 {
        granted(&http, "in-error", MINE, LONG).await;
        assert_eq!(refresh(&http, "in-error", MINE).await.status, 200);
        assert_eq!(release(&http, "in-error", MINE).await.status, 204);
        site.bare().await;
    }
    // Nor does it leave what a minority granted.
    site.nodes[1].run::<()>("CONFIG SET maxmemory 1");
    let answer = http.post("/locks/in-error", "").await;
    assert_eq!(answer.told(), unavailable(), "{answer:?}");
    assert_eq!(answer.text("outcome"), "not_acquired", "they have said that they did not");
    assert_eq!(site.locks_on(2), [""; 0]);
}

/// node-redlock: no unlock between tries, and one's own votes are counted as taken, so that votes
/// stay split.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_without_a_majority_leaves_no_vote_and_the_next_one_is_not_in_its_way() {
    for nodes in [2, 3, 4] {
        let site = Site::of(nodes).await;
        let service = site.service().await;
        site.all_vote().await;
        let http = service.http();
        // As many as keep a majority from being had.
        let foreign = nodes - nodes / 2;
        for node in &site.nodes[..foreign] {
            node.run::<()>("SET lock:split of-somebody-else PX 600000");
        }
        for _ in 0..5 {
            assert_eq!(acquire(&http, "split", MINE, LONG).await.told(), held());
            for node in foreign..nodes {
                assert_eq!(site.locks_on(node), [""; 0], "votes are given back before the answer");
            }
        }
        site.nodes[0].run::<()>("DEL lock:split");
        if foreign > 1 {
            site.nodes[1].run::<()>("DEL lock:split");
        }
        granted(&http, "split", MINE, LONG).await;
        // It holds the key, so its own votes are no rival's.
        assert_eq!(acquire(&http, "split", MINE, LONG).await.status, 200);
    }
}

/// node-redlock: extend and release are tried ten times where the lock is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_gone_is_told_so_every_time() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    for _ in 0..20 {
        assert_eq!(refresh(&http, "gone", MINE).await.told(), lost());
        assert_eq!(release(&http, "gone", MINE).await.told(), lost());
    }
}

/// rslock, Symfony: without a quorum, extend deletes. redlock-rb, RedLock.net: it re-creates.
#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_deletes_nothing_and_revives_nothing() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    granted(&http, "lost", MINE, LONG).await;
    eventually(PATIENCE, async || (0..3).all(|node| site.locks_on(node).len() == 1).then_some(()))
        .await;
    for node in &site.nodes[..2] {
        node.run::<()>("DEL lock:lost");
    }
    assert_eq!(refresh(&http, "lost", MINE).await.told(), lost());
    assert_eq!(site.locks_on(0), [""; 0]);
    assert_eq!(site.locks_on(1), [""; 0]);
    assert_eq!(site.locks_on(2), ["lock:lost"]);
    let owner: String = site.nodes[2].run("GET lock:lost");
    assert_eq!(owner, MINE);
    // What is left of it does not keep another from the key, and is not counted as a majority.
    granted(&http, "lost", OTHER, LONG).await;
    assert_eq!(refresh(&http, "lost", MINE).await.told(), lost());
    // What it gives up on one node may have been a vote of a claim under way.
    let released = release(&http, "lost", MINE).await;
    assert_eq!((released.status, released.text("outcome").as_str()), (503, "unknown"));
    assert_eq!(release(&http, "lost", MINE).await.told(), lost());
    assert_eq!(look(&http, "lost").await.field("held"), true);
}

/// RedLock.net: lost, taken by another, released by it, and extended as if nothing had happened.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_another_had_in_between_is_lost() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    granted(&http, "aba", MINE, Duration::from_secs(4)).await;
    let taken = eventually(PATIENCE, async || {
        let taken = acquire(&http, "aba", OTHER, LONG).await;
        (taken.status == 201).then_some(taken)
    })
    .await;
    assert_eq!(refresh(&http, "aba", MINE).await.told(), lost());
    assert_eq!(release(&http, "aba", OTHER).await.status, 204);
    assert_eq!(refresh(&http, "aba", MINE).await.told(), lost());
    site.bare().await;
    // The same token may come again; it is another lease then.
    let again = granted(&http, "aba", MINE, LONG).await;
    assert!(again.number("fencing_token") > taken.number("fencing_token"));
}

/// redlock-rb: N dead nodes cost N deadlines, one after another.
#[tokio::test(flavor = "multi_thread")]
async fn two_dead_nodes_cost_no_more_time_than_one() {
    let mut site = Site::of(5).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    site.away(0, Way::Stopped);
    site.away(1, Way::Dropped);
    let (mut grants, mut releases) = (Vec::new(), Vec::new());
    for number in 0..8 {
        let key = format!("dead/{number}");
        let began = Instant::now();
        granted(&http, &key, MINE, LONG).await;
        grants.push(began.elapsed());
        let began = Instant::now();
        // It goes to all nodes, and hears each out.
        assert_eq!(release(&http, &key, MINE).await.status, 204);
        releases.push(began.elapsed());
    }
    // One after another each would take twice the deadline of a node, on a machine of any speed.
    let [granted, released] = [grants, releases].map(|took| took.into_iter().min().unwrap());
    assert!(granted < Duration::from_millis(400), "{granted:?}");
    assert!(released < Duration::from_millis(780), "{released:?}");
}

/// redsync: no 2 ms for the server's precision. malkusch, Symfony, Redisson: no drift at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_granted_ttl_is_the_one_asked_for_less_the_drift_and_the_time_spent() {
    let site = Site::lasting(3, Duration::from_secs(86_400)).await;
    let service = site.service().await;
    let http = service.http();
    for ttl in [4_000, 10_000, 60_000, 86_400_000] {
        let key = format!("drift/{ttl}");
        let answer = granted(&http, &key, MINE, Duration::from_millis(ttl)).await;
        let most = ttl - ttl / 100 - 2;
        assert!((ttl / 2..=most).contains(&answer.number("ttl_ms")), "{answer:?}");
        let again = refresh(&http, &key, MINE).await;
        assert!((ttl / 2..=most).contains(&again.number("ttl_ms")), "{again:?}");
        for node in &site.nodes {
            // Symfony: 300 s first, and the real TTL by a second round. Redisson: none at all.
            let left: i64 = node.run(&format!("PTTL lock:{key}"));
            assert!(left <= ttl as i64, "{left} ms of {ttl}");
        }
    }
}

/// Redisson: the answer to the new TTL is ignored.
#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_that_is_confirmed_stands_on_a_majority() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    granted(&http, "longer", MINE, Duration::from_secs(5)).await;
    let longer = http.token(MINE).put("/locks/longer/refresh", r#"{"ttl_ms":600000}"#).await;
    assert_eq!(longer.status, 200, "{longer:?}");
    let left = site.nodes.iter().map(|node| node.run::<i64>("PTTL lock:longer"));
    assert!(left.filter(|left| *left > 500_000).count() >= 2);
}

/// malkusch: released only where it believes it acquired.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_reaches_the_node_whose_vote_was_never_heard() {
    let mut site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    site.proxies[0].set(crate::redlock::proxy::Flow::Mute);
    granted(&http, "unheard", MINE, LONG).await;
    eventually(PATIENCE, async || (site.locks_on(0).len() == 1).then_some(())).await;
    assert_eq!(release(&http, "unheard", MINE).await.status, 204);
    assert!(site.bare().await < Duration::from_secs(3));
    site.back(0, Way::Dropped);
    serves(&http).await;
}

/// No library: what a node has said stays true for it after `kill -9`, if it syncs every write.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_outlives_a_node_that_is_killed_and_restarted_with_its_data() {
    let mut site = Site::on((0..3).map(|_| Redis::start_with(SAFE)).collect(), LONGEST).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    let first = granted(&http, "kept", MINE, LONG).await;
    for node in 0..2 {
        site.away(node, Way::Killed);
        // Where a busy node answers late nobody is sure, and the client repeats it.
        eventually(PATIENCE, async || {
            let refreshed = refresh(&http, "kept", MINE).await;
            assert_ne!(refreshed.status, 409, "{refreshed:?}");
            (refreshed.status == 200).then_some(())
        })
        .await;
        site.back(node, Way::Killed);
        assert_eq!(acquire(&http, "kept", OTHER, LONG).await.told().0 / 100, 4);
        assert_eq!(release(&http, "kept", MINE).await.status, 204);
        // What the restarted node has of it would count against the next lease.
        site.bare().await;
        // It may have forgotten, for all that is known: an operator knows better.
        admit(&site.settings()).await;
        let next = granted(&http, "kept", MINE, LONG).await;
        assert!(next.number("fencing_token") > first.number("fencing_token"));
        // All are connected to again.
        eventually(PATIENCE, async || {
            refresh(&http, "kept", MINE).await;
            (0..3).all(|node| site.locks_on(node).len() == 1).then_some(())
        })
        .await;
    }
}
