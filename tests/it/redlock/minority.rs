//! Fewer than half of the nodes are away: nobody notices.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::redlock::contest::Contest;
use crate::redlock::{PATIENCE, Site, Way, acquire, granted, look, quantiles, refresh, release};
use crate::support::{Http, eventually};

/// Of each kind of day.
const CYCLES: usize = 120;

const CLIENTS: usize = 4;

/// Of each lease; so long a node that was killed does not vote. What one node may take is no more
/// than a twentieth of it.
const TTL: Duration = Duration::from_secs(8);

/// What one node may take.
const NODE_TIMEOUT: Duration = Duration::from_millis(400);

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_three_that_is_killed_is_missed_by_nobody_and_votes_again_by_itself() {
    missed_by_nobody(3, Way::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_three_that_is_stopped_is_missed_by_nobody_and_votes_again_by_itself() {
    missed_by_nobody(3, Way::Stopped).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_three_behind_a_silent_network_is_missed_by_nobody_and_votes_again_by_itself() {
    missed_by_nobody(3, Way::Dropped).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_of_five_that_are_stopped_are_missed_by_nobody_and_vote_again_by_themselves() {
    missed_by_nobody(5, Way::Stopped).await;
}

async fn missed_by_nobody(nodes: usize, way: Way) {
    let mut site = Site::lasting(nodes, TTL).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    let away = (nodes - 1) / 2;
    let healthy = cycles(&http, "healthy").await;
    for node in 0..away {
        site.away(node, way);
    }
    let without = cycles(&http, "without").await;
    eprintln!("{away} of {nodes} {way:?}: acquire, refresh, release p50/p99");
    for (verb, (healthy, without)) in healthy.into_iter().zip(without).enumerate() {
        eprintln!("  {verb}: healthy {healthy:?}, without {without:?}");
        // Who waits for each of the nodes waits for those that are away.
        assert!(without.0 < NODE_TIMEOUT, "{without:?}");
    }
    for node in 0..away {
        site.back(node, way);
    }
    let back = Instant::now();
    site.all_vote().await;
    eprintln!("  votes again after {:?}", back.elapsed());
    // Without as many others nothing would be granted, did those that came back not vote.
    for node in nodes - away..nodes {
        site.away(node, Way::Dropped);
    }
    eventually(PATIENCE, async || {
        let answer = acquire(&http, "back", "token-of-the-one-after", TTL).await;
        [200, 201].contains(&answer.status).then_some(())
    })
    .await;
    assert_eq!(look(&http, "back").await.field("held"), true);
}

/// The quantiles of each verb.
async fn cycles(http: &Http, name: &str) -> [(Duration, Duration); 3] {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (http, key) = (http.clone(), format!("{name}/{client}"));
        clients.spawn(async move {
            let mut took = Vec::new();
            for cycle in 0..CYCLES / CLIENTS {
                took.push(cycle_of(&http, &key, &format!("token-of-the-cycle-{cycle}")).await);
            }
            took
        });
    }
    let took = clients.join_all().await.concat();
    [0, 1, 2].map(|verb| quantiles(&mut took.iter().map(|took| took[verb]).collect::<Vec<_>>()))
}

/// How long acquire, refresh and release took.
async fn cycle_of(http: &Http, key: &str, token: &str) -> [Duration; 3] {
    let began = Instant::now();
    granted(http, key, token, TTL).await;
    let acquired = began.elapsed();
    // On a busy machine another node may be slow as well.
    let refreshed = eventually(PATIENCE, async || {
        let refreshed = refresh(http, key, token).await;
        (refreshed.status != 503).then_some(refreshed)
    })
    .await;
    assert_eq!(refreshed.status, 200, "{refreshed:?}");
    let kept = began.elapsed();
    let released = release(http, key, token).await;
    if released.status == 503 {
        // It may have ended the lease.
        eventually(PATIENCE, async || {
            let repeated = release(http, key, token).await;
            [204, 409].contains(&repeated.status).then_some(())
        })
        .await;
    } else {
        assert_eq!(released.status, 204, "{released:?}");
    }
    [acquired, kept - acquired, began.elapsed() - kept]
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_go_and_come_one_by_one_under_load_never_let_two_hold_a_key() {
    let mut site = Site::lasting(3, Duration::from_secs(2)).await;
    let services = site.services(2).await;
    let instances: Vec<_> = services.iter().map(|service| service.http()).collect();
    let contest = Contest::begin(&instances);
    for round in 0..9 {
        let (node, way) = (round % 3, Way::ALL[round / 3]);
        contest.goes_on(20).await;
        site.away(node, way);
        contest.goes_on(20).await;
        site.back(node, way);
        site.all_vote().await;
    }
    let (grants, unavailable) = contest.finish().await;
    eprintln!("a node of three away 9 times: {grants} grants, {unavailable} times 503");
}
