//! Where the clocks of the instances are apart, only what the nodes know makes fencing tokens rise.

use std::time::Duration;

use futures_util::future::join_all;

use crate::redis_faults::clock::Clock;
use crate::redlock::{PATIENCE, PATIENT, Site, Way, acquire, held, look, release, serves};
use crate::support::{Http, Process, Redis, eventually};

/// What an instance lags behind, which is far more than a test takes.
const BEHIND_MS: i64 = 60_000;

/// An instance whose clock is behind, and that has seen no key yet.
async fn late_instance(site: &Site, clock: &Clock) -> Process {
    let urls: Vec<_> = site.proxies.iter().map(|proxy| proxy.url()).collect();
    let stores: Vec<_> = urls.iter().flat_map(|url| ["--store", url.as_str()]).collect();
    let clock = clock.environment();
    let mut variables: Vec<_> = clock.iter().map(|(name, value)| (*name, value.as_str())).collect();
    variables.extend_from_slice(PATIENT);
    let longest = format!("{}ms", site.longest.as_millis());
    variables.push(("LOCKKEEPER_REDLOCK_LONGEST_LEASE", &longest));
    variables.push(("LOCKKEEPER_TTL_DEFAULT", "1s"));
    let process = Process::start_with(&stores, &variables);
    serves(&process.http()).await;
    process
}

/// The fencing token of a lease that is granted by all nodes but one, and released.
async fn had_without(site: &mut Site, node: usize, http: &Http, token: &str) -> u64 {
    site.away(node, Way::Dropped);
    let granted = eventually(PATIENCE, async || {
        let granted = acquire(http, "number", token, site.longest).await;
        [200, 201].contains(&granted.status).then_some(granted)
    })
    .await;
    eventually(PATIENCE, async || {
        (release(http, "number", token).await.status != 503).then_some(())
    })
    .await;
    site.back(node, Way::Dropped);
    site.bare().await;
    granted.number("fencing_token")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_one_node_drew_is_known_to_a_majority_before_it_is_answered() {
    let clock = Clock::make();
    clock.step_ms(-BEHIND_MS);
    let mut site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let (second, third) = (late_instance(&site, &clock).await, late_instance(&site, &clock).await);
    let first = had_without(&mut site, 2, &service.http(), "token-of-the-first").await;
    // Of its two nodes only the first knows that number.
    let next = had_without(&mut site, 1, &second.http(), "token-of-the-second").await;
    assert!(next > first, "{next} after {first}");
    assert!(next < first + 1_000_000, "its clock was not behind: {next} after {first}");
    let last = had_without(&mut site, 0, &third.http(), "token-of-the-third").await;
    assert!(last > next, "{last} after {next}");
}

/// As long as the clocks are closer to one another than the longest lease, which a node waits for.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_forgot_draws_no_number_below_those_it_knew() {
    let clock = Clock::make();
    clock.step_ms(-1_500);
    let mut site = Site::lasting(3, Duration::from_secs(4)).await;
    let service = site.service().await;
    let late = late_instance(&site, &clock).await;
    let first = had_without(&mut site, 2, &service.http(), "token-of-the-first").await;
    site.nodes[1].run::<()>("FLUSHALL");
    site.all_vote().await;
    let next = had_without(&mut site, 0, &late.http(), "token-of-the-second").await;
    assert!(next > first, "{next} after {first}");
}

/// The second and the third node each miss one of the acquire and its repeat.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_keeps_its_number_whichever_nodes_its_repeat_reaches() {
    let mut site = Site::of(3).await;
    let (key, token) = ("number", "token-of-this-client");
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    site.away(1, Way::Dropped);
    let number = acquire(&http, key, token, site.longest).await.number("fencing_token");
    site.back(1, Way::Dropped);
    // The first refresh brings it to the node that missed it.
    eventually(PATIENCE, async || {
        let path = format!("/locks/{key}/refresh?fencing_token={number}");
        let named = http.token(token).put(&path, "").await;
        (named.status == 200 && number_on(&site.nodes[1], key) == Some(number)).then_some(())
    })
    .await;
    site.away(2, Way::Dropped);
    for _ in 0..10 {
        let repeated = acquire(&http, key, token, site.longest).await;
        assert_eq!(repeated.number("fencing_token"), number, "{repeated:?}");
    }
    let named = |number: u64| format!("/locks/{key}?fencing_token={number}");
    let holder = http.token(token);
    for other in [number - 1, number + 1] {
        let refused = holder.delete(&named(other)).await;
        assert_eq!((refused.status, refused.text("code").as_str()), (409, "lock_lost"));
    }
    assert_eq!(look(&http, key).await.field("fencing_token"), number);
    assert_eq!(holder.delete(&named(number)).await.status, 204);
    site.back(2, Way::Dropped);
    site.bare().await;
}

/// The fencing token that a node has for a lease.
fn number_on(node: &Redis, key: &str) -> Option<u64> {
    let names: Vec<String> = node.run(&format!("KEYS lk//{{*}}lock:{key}"));
    let record: Option<String> = node.run_words(&["GET", names.first()?]);
    record?.split(' ').nth(1)?.parse().ok()
}

/// A node that missed a lease votes for its repeat with a greater number. In some rounds it knew a
/// greater one before, of a rival that did not get the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_missed_a_lease_serves_it_by_its_number_after_a_repeat() {
    let mut site = Site::lasting(3, Duration::from_secs(60)).await;
    let (key, token) = ("number", "token-of-this-client");
    let service = site.service().await;
    let http = service.http();
    let holder = http.token(token);
    for round in 0..12 {
        site.all_vote().await;
        site.away(2, Way::Dropped);
        let first = acquire(&http, key, token, site.longest).await;
        assert_eq!(first.status, 201, "{first:?}");
        let number = first.number("fencing_token");
        site.back(2, Way::Dropped);
        if round % 3 > 0 {
            let refused = acquire(&http, key, "token-of-another-client", site.longest).await;
            assert_eq!(refused.told(), held(), "round {round}");
        }
        let has_it = || site.nodes[2].run::<i64>(&format!("EXISTS lock:{key}")) == 1;
        eventually(PATIENCE, async || {
            // Of two at once, the second is told of the first one's vote.
            let at_once = (0..=round / 6).map(|_| acquire(&http, key, token, site.longest));
            for repeated in join_all(at_once).await {
                assert_eq!(repeated.number("fencing_token"), number, "round {round}: {repeated:?}");
            }
            has_it().then_some(())
        })
        .await;
        let path = |verb: &str| format!("/locks/{key}{verb}?fencing_token={number}");
        // In the other rounds the release overtakes what the node is told.
        if round % 2 == 0 {
            let named = async || holder.put(&path("/refresh"), "").await;
            // The refresh brings the lease to the node that missed it.
            let has_the_number = || number_on(&site.nodes[2], key) == Some(number);
            eventually(PATIENCE, async || {
                (named().await.status == 200 && has_the_number()).then_some(())
            })
            .await;
            site.away(0, Way::Dropped);
            eventually(PATIENCE, async || (named().await.status == 200).then_some(())).await;
            site.back(0, Way::Dropped);
            site.all_vote().await;
        }
        assert_eq!(holder.delete(&path("")).await.status, 204, "round {round}");
        site.bare().await;
    }
}
