//! What is older than something that has happened since: requests that their client gave up, to go on
//! over another instance, and releases that reach a node late.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::lock::error::{Effect, StoreError};
use crate::lock::lease::Claim;
use crate::lock::store::{Answer, Ask, Ended, Renewed, Store, Target};
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::store::redlock::RedlockStore;
use crate::store::redlock::simulation::counterexamples::{claims, in_a_world, won};
use crate::store::redlock::simulation::faults::{deliver, resume};
use crate::store::redlock::simulation::world::World;

const SHORT: Ttl = Ttl::from_millis(2_000);

/// Returns true if another client gets the key after `SHORT`, while the client relies on a longer
/// TTL: the older request arrives after the refresh that asked for that, and after the nodes'
/// clocks have stepped back by so many microseconds.
async fn is_cut_short(
    world: &World,
    back_us: i64,
    older: impl AsyncFnOnce(&RedlockStore, &Claim),
) -> bool {
    let [one, other] = [0, 1].map(|instance| world.of(instance).store.expect("a store"));
    let [claim, later] = claims(4_000);
    sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
    won(&one, &claim).await;
    (0..3).for_each(|node| world.state().nodes[node].pauses = true);
    let meanwhile = async {
        sleep(Duration::from_millis(20)).await; // The older request is on its way.
        let held_up: Vec<_> = (0..3).map(|node| resume(world, node)).collect();
        let refreshed =
            other.renew(&Target::of(&claim.key, &claim.token, None), Some(claim.ttl)).await;
        assert!(matches!(refreshed, Ok(Renewed::Lease(_))), "{refreshed:?}");
        world.state().nodes.iter_mut().for_each(|node| node.offset_us -= back_us);
        held_up.into_iter().for_each(|messages| deliver(world, messages));
    };
    tokio::join!(older(&one, &claim), meanwhile);
    sleep(SHORT.as_duration() + Duration::from_millis(500)).await;
    matches!(other.ask(&later, Ask::Once(None)).await, Ok(Answer::Won(_)))
}

/// Returns true if a refresh that was given up cuts a newer one short.
fn refresh_is_cut_short(back_us: i64) -> bool {
    in_a_world(None, async |world| {
        is_cut_short(world, back_us, async |one, claim| {
            let refreshed =
                one.renew(&Target::of(&claim.key, &claim.token, None), Some(SHORT)).await;
            assert!(matches!(refreshed, Ok(Renewed::Lease(_))), "{refreshed:?}");
        })
        .await
    })
}

#[test]
fn a_refresh_that_was_given_up_does_not_cut_a_newer_one_short() {
    assert!(!refresh_is_cut_short(0));
}

#[test]
fn a_step_back_of_the_clocks_hides_no_renewal() {
    assert!(!refresh_is_cut_short(1_000_000));
}

#[test]
fn a_repeat_that_was_given_up_does_not_cut_a_refresh_short() {
    assert!(!in_a_world(None, async |world| {
        is_cut_short(world, 0, async |one, claim| {
            won(one, &Claim { ttl: SHORT, ..claim.clone() }).await;
        })
        .await
    }));
}

/// The stores of two instances, and a claim that the first has won on all nodes.
async fn on_all_nodes(world: &World) -> ([Arc<RedlockStore>; 2], Claim) {
    let stores = [0, 1].map(|instance| world.of(instance).store.expect("a store"));
    let [claim, _] = claims(4_000);
    sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
    won(&stores[0], &claim).await;
    sleep(Duration::from_millis(100)).await; // All nodes have it.
    (stores, claim)
}

/// Returns the number of nodes that have a lease after a release without one that did not reach the
/// first node, where it is still. The client may acquire again before that node is told.
async fn left_after_a_release(world: &World, again: bool) -> usize {
    let ([one, other], claim) = on_all_nodes(world).await;
    world.state().nodes[0].cut = vec![1];
    let released = other.end(&Target::of(&claim.key, &claim.token, None)).await;
    assert!(matches!(released, Ok(Ended::Lease(_))), "{released:?}");
    world.state().nodes[0].pauses = true;
    let released = one.end(&Target::of(&claim.key, &claim.token, None)).await;
    assert_eq!(released.ok(), Some(Ended::Nothing(None)));
    drop(resume(world, 0));
    if again {
        won(&one, &claim).await;
    }
    sleep(Duration::from_secs(2)).await; // It is told.
    world.at_the_end().1
}

#[test]
fn a_release_of_what_only_an_absent_node_has_reaches_it_unless_it_is_part_of_a_newer_lease() {
    let left = |again| in_a_world(None, async |world| left_after_a_release(world, again).await);
    assert_eq!(left(false), 0);
    assert_eq!(left(true), 3);
}

/// Returns the number of nodes that have a lease which its client refreshes, and whose token had
/// released another while the first node was away.
async fn nodes_of_the_next_lease(world: &World) -> usize {
    let ([one, _], claim) = on_all_nodes(world).await;
    world.state().nodes[0].pauses = true;
    let released = one.end(&Target::of(&claim.key, &claim.token, None)).await;
    assert!(matches!(released, Ok(Ended::Lease(_))), "{released:?}");
    won(&one, &claim).await;
    // Its vote for the next lease repeats the one for the first, and then it is told of the release.
    let held_up = resume(world, 0);
    deliver(world, held_up);
    for _ in 0..30 {
        sleep(Duration::from_millis(300)).await;
        let refreshed = one.renew(&Target::of(&claim.key, &claim.token, None), None).await;
        assert!(matches!(refreshed, Ok(Renewed::Lease(_))), "{refreshed:?}");
    }
    world.at_the_end().1
}

#[test]
fn a_refresh_brings_a_lease_to_a_node_that_was_told_of_an_earlier_release() {
    assert_eq!(in_a_world(None, nodes_of_the_next_lease), 3);
}

/// Returns the number of nodes that have a lease after its release, by its number or by its token,
/// without the third node: the first one has a smaller number, drawn for an attempt that failed.
async fn left_behind_a_smaller_number(world: &World, named: bool) -> usize {
    let [one, other] = [0, 1].map(|instance| world.of(instance).store.expect("a store"));
    let [claim, _] = claims(4_000);
    sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
    (1..3).for_each(|node| world.state().nodes[node].cut = vec![0]);
    let crossing = async {
        sleep(Duration::from_millis(30)).await; // The first node has voted.
        world.state().nodes[0].cut = vec![0];
        won(&other, &claim).await
    };
    let (failed, number) = tokio::join!(one.ask(&claim, Ask::Once(None)), crossing);
    assert!(failed.is_err(), "{failed:?}");
    (0..3).for_each(|node| world.state().nodes[node].cut.clear());
    sleep(Duration::from_millis(500)).await;
    world.state().nodes[2].cut = vec![1];
    let number = FencingToken::from_number(number).filter(|_| named);
    // Only one of those that answer has the lease by its number: it is released again.
    let lease = Target::of(&claim.key, &claim.token, number);
    while other.end(&lease).await.is_err() {}
    world.state().nodes[2].cut.clear();
    sleep(Duration::from_secs(1)).await;
    world.at_the_end().1
}

#[test]
fn a_release_reaches_an_absent_node_also_if_another_has_a_smaller_number() {
    for named in [true, false] {
        let left = async |world: &World| left_behind_a_smaller_number(world, named).await;
        assert_eq!(in_a_world(None, left), 0, "named: {named}");
    }
}

/// Returns the number of nodes that have a lease whose token had released another: the first node
/// hears of that release after a refresh.
async fn nodes_after_a_late_release(world: &World) -> usize {
    let ([one, other], claim) = on_all_nodes(world).await;
    world.state().nodes[0].cut = vec![1];
    let released = other.end(&Target::of(&claim.key, &claim.token, None)).await;
    assert!(matches!(released, Ok(Ended::Lease(_))), "{released:?}");
    won(&one, &claim).await;
    let refreshed = one.renew(&Target::of(&claim.key, &claim.token, None), None).await;
    assert!(matches!(refreshed, Ok(Renewed::Lease(_))), "{refreshed:?}");
    world.state().nodes[0].cut.clear();
    sleep(Duration::from_secs(3)).await;
    world.at_the_end().1
}

#[test]
fn a_release_that_reaches_a_node_late_leaves_it_the_next_lease_once_that_was_refreshed() {
    assert_eq!(in_a_world(None, nodes_after_a_late_release), 3);
}

/// Returns the answer to a release that met the first vote of a claim, while a rival had the other
/// nodes, and to its repeat: the nodes are freed before the claim reaches them, and it is granted.
async fn released_as_it_is_granted(world: &World) -> [Result<Ended, StoreError>; 2] {
    let [one, other] = [0, 1].map(|instance| world.of(instance).store.expect("a store"));
    let [claim, rival] = claims(4_000);
    sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
    world.state().nodes[0].cut = vec![0];
    won(&one, &rival).await;
    sleep(Duration::from_millis(500)).await;
    world.state().nodes[0].cut.clear();
    (1..3).for_each(|node| world.state().nodes[node].pauses = true);
    let freed = async {
        sleep(Duration::from_millis(20)).await; // The claim and its release are on their way.
        let mut votes = Vec::new();
        for node in 1..3 {
            let mut held_up = resume(world, node);
            let release = held_up.split_off(1);
            votes.append(&mut held_up);
            deliver(world, release);
        }
        sleep(Duration::from_millis(20)).await; // The rival had these nodes.
        let freed = one.end(&Target::of(&rival.key, &rival.token, None)).await;
        assert!(matches!(freed, Ok(Ended::Lease(_))), "{freed:?}");
        deliver(world, votes);
    };
    let released = async {
        sleep(Duration::from_millis(10)).await; // The first node has voted.
        let lease = Target::of(&claim.key, &claim.token, None);
        tokio::join!(one.end(&lease), freed).0
    };
    let (granted, released) = tokio::join!(other.ask(&claim, Ask::Once(None)), released);
    assert!(matches!(granted, Ok(Answer::Won(_))), "{granted:?}");
    [released, other.end(&Target::of(&claim.key, &claim.token, None)).await]
}

#[test]
fn a_release_that_met_a_part_of_a_claim_is_unknown_and_its_repeat_ends_the_lease() {
    let [released, again] = in_a_world(None, released_as_it_is_granted);
    assert_eq!(released.expect_err("it met a part").effect, Effect::Unknown);
    assert!(matches!(again, Ok(Ended::Lease(_))), "{again:?}");
}
