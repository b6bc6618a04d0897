//! A lease that some nodes miss, and what somebody else has there.

use futures_util::future::join_all;

use crate::redlock::majority::{MINE, on_all_nodes};
use crate::redlock::{
    LONG, PATIENCE, Site, Way, acquire, granted, held, look, lost, refresh, release, unavailable,
};
use crate::support::eventually;

const KEY: &str = "part";
const OTHER: &str = "token-of-another-client";

/// Takes the key on one node, as a client does that locks there directly.
fn take(site: &Site, node: usize) {
    site.nodes[node].run::<()>(&format!("SET lock:{KEY} {OTHER} PX 60000"));
}

fn free(site: &Site, node: usize) {
    assert_eq!(site.nodes[node].run::<u64>(&format!("DEL lock:{KEY}")), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_release_leaves_what_another_has_on_a_node_that_missed_the_lease() {
    let (site, service) = on_all_nodes(KEY).await;
    let http = service.http();
    let forced = async || http.delete(&format!("/admin/locks/{KEY}")).await;
    let number = look(&http, KEY).await.number("fencing_token");
    free(&site, 0);
    take(&site, 0);
    let ended = forced().await;
    assert_eq!((ended.status, ended.number("fencing_token")), (200, number), "{ended:?}");
    let there: Vec<_> = (0..3).map(|node| site.locks_on(node).len()).collect();
    assert_eq!(there, [1, 0, 0]);
    // Nobody has the key now, but for what is left there, which may become more.
    assert_eq!(forced().await.status, 503);
    site.bare().await;
    assert_eq!(forced().await.told(), lost());
}

/// As another release does that crosses this one.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_finds_a_part_of_a_lease_does_not_say_that_there_was_none() {
    let (site, service) = on_all_nodes(KEY).await;
    let http = service.http();
    (0..2).for_each(|node| free(&site, node));
    let released = release(&http, KEY, MINE).await;
    assert_eq!(released.told(), unavailable(), "{released:?}");
    assert_eq!(released.text("outcome"), "unknown");
    assert_eq!(release(&http, KEY, MINE).await.told(), lost());
    site.bare().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_says_whether_a_token_has_the_key_only_if_a_majority_knows() {
    let (mut site, service) = on_all_nodes(KEY).await;
    let http = service.http().token(MINE);
    let looked = async || {
        let looked = http.get(&format!("/locks/{KEY}")).await;
        (looked.status, looked.json()["mine"].as_bool())
    };
    free(&site, 0);
    assert_eq!(looked().await, (200, Some(true)));
    site.away(1, Way::Dropped);
    assert_eq!(looked().await, (503, None));
    site.back(1, Way::Dropped);
    eventually(PATIENCE, async || (looked().await == (200, Some(true))).then_some(())).await;
    free(&site, 1);
    assert_eq!(looked().await, (200, Some(false)));
}

/// Each of them meets the vote of the claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_refused_beside_many_refreshes_leaves_no_vote() {
    let site = Site::of(3).await;
    let services = site.services(3).await;
    granted(&services[0].http(), KEY, OTHER, LONG).await;
    eventually(PATIENCE, async || (0..3).all(|node| site.locks_on(node).len() == 1).then_some(()))
        .await;
    for round in 0..20 {
        free(&site, 0);
        let claims =
            services.iter().map(async |service| acquire(&service.http(), KEY, MINE, LONG).await);
        let refreshes = services
            .iter()
            .cycle()
            .take(6)
            .map(async |service| refresh(&service.http(), KEY, MINE).await);
        let (claims, refreshes) = tokio::join!(join_all(claims), join_all(refreshes));
        for refused in claims {
            assert_eq!(refused.told(), held(), "round {round}");
        }
        for refused in refreshes {
            assert!(
                [lost(), unavailable()].contains(&refused.told()),
                "round {round}: {refused:?}"
            );
        }
        let mine = || {
            site.nodes[0].run::<Option<String>>(&format!("GET lock:{KEY}")).as_deref() == Some(MINE)
        };
        eventually(PATIENCE, async || (!mine()).then_some(())).await;
        site.nodes[0].run::<()>(&format!("SET lock:{KEY} {OTHER} PX 600000"));
    }
}
