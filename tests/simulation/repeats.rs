//! Votes for repeats of a lease, and for claims that are refused, on a node that missed the lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::lock::error::Effect;
use crate::lock::lease::Claim;
use crate::lock::store::{Answer, Ask, Ended, Renewed, Store, Target};
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::store::redlock::RedlockStore;
use crate::store::redlock::simulation::counterexamples::{
    claims, in_a_world, missed_by_the_third, won,
};
use crate::store::redlock::simulation::faults::{deliver, resume};
use crate::store::redlock::simulation::redis;
use crate::store::redlock::simulation::world::World;

pub(super) fn store(world: &World, instance: usize) -> Arc<RedlockStore> {
    world.of(instance).store.expect("a store")
}

/// The third node misses the lease, and then knows a greater number, of a rival that did not get the
/// key. Returns the number of the lease, and that of a repeat without the first node.
async fn above_a_rivals(world: &World) -> (u64, u64) {
    let (one, claim, number) = missed_by_the_third(world).await;
    let [_, rival] = claims(4_000);
    let refused = store(world, 1).ask(&rival, Ask::Once(None)).await;
    assert!(matches!(refused, Ok(Answer::Held(_))), "{refused:?}");
    sleep(Duration::from_millis(200)).await; // Its vote is given up.
    assert_eq!(won(&one, &claim).await, number);
    sleep(Duration::from_millis(200)).await; // The lease is brought there.
    world.state().nodes[0].cut = vec![0];
    (number, won(&one, &claim).await)
}

#[test]
fn a_node_that_knew_a_greater_number_serves_a_lease_by_its_own() {
    let (number, later) = in_a_world(None, above_a_rivals);
    assert_eq!(number, later);
}

/// A lease that the third node votes for with a number of its own, of which no attempt has heard; a
/// second repeat is told of it.
async fn unheard(world: &World) -> (Arc<RedlockStore>, Claim, FencingToken) {
    let (one, claim, number) = missed_by_the_third(world).await;
    world.state().nodes[2].pauses = true;
    assert_eq!(won(&one, &claim).await, number);
    let vote = resume(world, 2);
    world.state().nodes[2].cut = vec![0];
    deliver(world, vote);
    world.state().nodes[2].cut.clear();
    assert_eq!(won(&one, &claim).await, number);
    sleep(Duration::from_secs(1)).await;
    (one, claim, FencingToken::from_number(number).expect("a number"))
}

#[test]
fn a_vote_that_nobody_has_heard_of_is_given_up_with_its_lease() {
    let left = in_a_world(None, async |world| {
        let (one, Claim { key, token, .. }, number) = unheard(world).await;
        let released = one.end(&Target::of(&key, &token, Some(number))).await;
        assert!(matches!(released, Ok(Ended::Lease(_))), "{released:?}");
        sleep(Duration::from_millis(200)).await; // The third node is told.
        world.at_the_end().1
    });
    assert_eq!(left, 0);
}

#[test]
fn a_vote_that_nobody_has_heard_of_becomes_part_of_its_lease() {
    let (number, refreshed) = in_a_world(None, async |world| {
        let (one, Claim { key, token, .. }, number) = unheard(world).await;
        world.state().nodes[0].cut = vec![0];
        (number, one.renew(&Target::of(&key, &token, None), None).await)
    });
    assert_eq!(
        refreshed.ok().and_then(Renewed::lease).map(|lease| lease.fencing_token),
        Some(number)
    );
}

/// A refresh of which only the third node hears the end.
async fn half_confirmed_by_a_refresh(world: &World, Claim { key, token, .. }: &Claim) {
    let other = store(world, 1);
    world.state().nodes[0].cut = vec![1];
    let meanwhile = async {
        sleep(Duration::from_millis(30)).await; // The nodes have answered the refresh.
        world.state().nodes[1].pauses = true;
    };
    let lease = Target::of(key, token, None);
    let (failed, ()) = tokio::join!(other.renew(&lease, None), meanwhile);
    assert!(failed.is_err(), "{failed:?}");
    drop(resume(world, 1));
    world.state().nodes[0].cut.clear();
    sleep(Duration::from_secs(1)).await;
}

/// Returns what a refresh by number finds without the first node, after one with all nodes: the third
/// node had voted for a crossing repeat that failed, and was counted by another, or by a refresh whose
/// confirmation failed.
async fn refreshed_after_a_crossing(world: &World, half_confirmed: bool) -> bool {
    let (one, claim, number) = missed_by_the_third(world).await;
    (0..2).for_each(|node| world.state().nodes[node].cut = vec![1]);
    let crossing = async {
        sleep(Duration::from_millis(30)).await; // The third node has voted.
        assert_eq!(won(&one, &claim).await, number);
    };
    let other = store(world, 1);
    let (failed, ()) = tokio::join!(other.ask(&claim, Ask::Once(None)), crossing);
    assert!(failed.is_err(), "{failed:?}");
    sleep(Duration::from_secs(1)).await;
    (0..2).for_each(|node| world.state().nodes[node].cut.clear());
    if half_confirmed {
        half_confirmed_by_a_refresh(world, &claim).await;
    }
    let Claim { key, token, .. } = claim;
    let refreshed = one.renew(&Target::of(&key, &token, None), None).await;
    assert!(matches!(refreshed, Ok(Renewed::Lease(_))), "{refreshed:?}");
    world.state().nodes[0].cut = vec![0];
    let refreshed =
        one.renew(&Target::of(&key, &token, FencingToken::from_number(number)), None).await;
    matches!(refreshed, Ok(Renewed::Lease(_)))
}

#[test]
fn a_refresh_makes_the_vote_of_a_crossing_repeat_part_of_the_lease() {
    for half_confirmed in [false, true] {
        assert!(in_a_world(None, async |world| {
            refreshed_after_a_crossing(world, half_confirmed).await
        }));
    }
}

/// Returns the number of nodes that have a lock, once a rival was refused twice: on the third node
/// the first clean-up came before its vote, and its second attempt renewed that.
async fn left_by_a_refused_claim(world: &World) -> usize {
    let (one, ..) = missed_by_the_third(world).await;
    let [_, rival] = claims(4_000);
    let refuse = async || {
        let refused = one.ask(&rival, Ask::Once(None)).await;
        assert!(matches!(refused, Ok(Answer::Held(_))), "{refused:?}");
    };
    world.state().nodes[2].pauses = true;
    let crossing = async {
        sleep(Duration::from_millis(30)).await; // The clean-up is on its way.
        let mut messages = resume(world, 2);
        messages.reverse();
        deliver(world, messages);
    };
    tokio::join!(refuse(), crossing);
    refuse().await;
    sleep(Duration::from_secs(1)).await;
    world.at_the_end().1
}

#[test]
fn a_claim_that_is_refused_leaves_no_vote_of_its_earlier_attempts() {
    assert_eq!(in_a_world(None, left_by_a_refused_claim), 2);
}

/// Returns the number of nodes that have a lock, once a rival was refused whose vote on the third node
/// a refresh had renewed.
async fn left_by_a_refresh_of_a_refused_claim(world: &World) -> usize {
    let (one, ..) = missed_by_the_third(world).await;
    let [_, rival] = claims(4_000);
    world.state().nodes[2].pauses = true;
    let crossing = async {
        sleep(Duration::from_millis(30)).await; // The clean-up is on its way.
        let mut messages = resume(world, 2);
        let clean_up = messages.split_off(1);
        deliver(world, messages);
        let Claim { key, token, .. } = &rival;
        let refreshed = store(world, 1).renew(&Target::of(key, token, None), None).await;
        assert!(matches!(refreshed, Ok(Renewed::Lost(_))), "{refreshed:?}");
        deliver(world, clean_up);
    };
    let (refused, ()) = tokio::join!(one.ask(&rival, Ask::Once(None)), crossing);
    assert!(matches!(refused, Ok(Answer::Held(_))), "{refused:?}");
    sleep(Duration::from_secs(1)).await;
    world.at_the_end().1
}

#[test]
fn a_refresh_keeps_no_vote_of_a_claim_that_is_refused() {
    assert_eq!(in_a_world(None, left_by_a_refresh_of_a_refused_claim), 2);
}

/// Refreshes an ended lease by its number. Returns true if the next lease of its token is there.
async fn is_there_after_a_stale_refresh(world: &World) -> bool {
    let [one, other] = [0, 1].map(|instance| store(world, instance));
    let [claim, _] = claims(4_000);
    sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
    let number = FencingToken::from_number(won(&one, &claim).await);
    let (any, ended) =
        (Target::of(&claim.key, &claim.token, None), Target::of(&claim.key, &claim.token, number));
    let released = one.end(&any).await;
    assert!(matches!(released, Ok(Ended::Lease(_))), "{released:?}");
    let next = FencingToken::from_number(won(&one, &claim).await);
    sleep(Duration::from_secs(1)).await; // Its votes are no longer those of an attempt under way.
    assert!(matches!(other.renew(&ended, None).await, Ok(Renewed::Lost(_))));
    sleep(Duration::from_secs(1)).await;
    let kept = one.renew(&any, None).await.ok().and_then(Renewed::lease);
    kept.map(|lease| lease.fencing_token) == next
}

#[test]
fn a_refresh_by_the_number_of_an_ended_lease_leaves_the_next_one() {
    assert!(in_a_world(None, is_there_after_a_stale_refresh));
}

/// A lease of a claim with this TTL, whose votes are told.
pub(super) async fn told(world: &World, ttl_ms: u64) -> (Arc<RedlockStore>, Claim, Target) {
    let [claim, _] = claims(ttl_ms);
    sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
    let one = store(world, 0);
    won(&one, &claim).await;
    let refreshed = one.renew(&Target::of(&claim.key, &claim.token, None), None).await;
    let lease = refreshed.ok().and_then(Renewed::lease).expect("a lease");
    let named = Target::of(&claim.key, &claim.token, Some(lease.fencing_token));
    (one, claim, named)
}

#[test]
fn a_refresh_without_a_ttl_has_that_of_the_last_refresh() {
    let ttl = in_a_world(None, async |world| {
        let (one, claim, _) = told(world, 2_000).await;
        let lease = Target::of(&claim.key, &claim.token, None);
        let renew = async |without: usize, ttl| {
            world.state().nodes[without].cut = vec![0];
            let renewed = one.renew(&lease, ttl).await;
            world.state().nodes[without].cut.clear();
            renewed.ok().and_then(Renewed::lease).expect("a lease").ttl
        };
        let longer = renew(0, Some(Ttl::from_millis(4_000))).await;
        (longer, renew(1, None).await)
    });
    assert!(ttl.0.as_millis() > 3_500 && ttl.1.as_millis() > 3_500, "{ttl:?}");
}

/// A rival has the third node. The answer of the second one is lost, and the undo on both others.
async fn refused_with_votes_left(world: &World) -> Effect {
    let [claim, rival] = claims(4_000);
    sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
    let us = world.state().nodes[2].clock(world.now());
    assert!(redis::lock(2, us, claim.key.as_str(), rival.token.expose(), 4_000));
    world.state().nodes[1].pauses = true;
    let meanwhile = async {
        sleep(Duration::from_millis(30)).await; // The others have answered.
        let vote = resume(world, 1);
        (0..2).for_each(|node| world.state().nodes[node].cut = vec![0]);
        deliver(world, vote);
    };
    let one = store(world, 0);
    let (refused, ()) = tokio::join!(one.ask(&claim, Ask::Once(None)), meanwhile);
    refused.expect_err("votes of a majority are left").effect
}

#[test]
fn a_claim_is_not_refused_for_certain_while_its_votes_may_be_on_a_majority() {
    assert_eq!(in_a_world(None, refused_with_votes_left), Effect::Unknown);
}

/// Another token has nothing to release, and cannot ask the third node, which missed the lease.
#[test]
fn a_release_of_nothing_does_not_keep_a_lease_from_a_node() {
    assert!(in_a_world(None, async |world| {
        let (one, claim, _) = missed_by_the_third(world).await;
        let [_, stranger] = claims(4_000);
        world.state().nodes[2].cut = vec![1];
        let released = store(world, 1).end(&Target::of(&claim.key, &stranger.token, None)).await;
        assert!(matches!(released, Ok(Ended::Nothing(None))), "{released:?}");
        world.state().nodes[2].cut.clear();
        sleep(Duration::from_secs(1)).await; // It is told of the release.
        let renew = async || one.renew(&Target::of(&claim.key, &claim.token, None), None).await;
        assert!(matches!(renew().await, Ok(Renewed::Lease(_))));
        world.state().nodes[0].cut = vec![0];
        matches!(renew().await, Ok(Renewed::Lease(_)))
    }));
}
