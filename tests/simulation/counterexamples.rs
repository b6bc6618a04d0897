//! The faults without each rule: the checks find them, and find none with the rule.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::lock::lease::{Claim, Origin};
use crate::lock::store::{Answer, Ask, Ended, Renewed, Store, Target};
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::store::redlock::RedlockStore;
use crate::store::redlock::simulation::faults::{deliver, resume};
use crate::store::redlock::simulation::history::Wrong;
use crate::store::redlock::simulation::network::Message;
use crate::store::redlock::simulation::plan::Plan;
use crate::store::redlock::simulation::rule::{Rule, leave_out};
use crate::store::redlock::simulation::run;
use crate::store::redlock::simulation::wish::{Wish, unheard};
use crate::store::redlock::simulation::world::World;

/// Leaves a rule out, in one run after another, until a fault is found; the same run with the rule
/// has none.
fn is_missed(rule: Rule, wrong: Wrong, most_runs: u64, plan: impl Fn(u64) -> Plan) {
    let mut grants = 0;
    for seed in 0..most_runs {
        let weak = run(Plan { without: Some(rule), ..plan(seed) });
        grants += weak.counts.grants;
        if let Some(found) = weak.faults.iter().find(|fault| fault.wrong == wrong) {
            eprintln!("without {rule:?}: {grants} grants, seed {seed}: {}", found.story);
            return run(plan(seed)).has_nothing_wrong();
        }
    }
    panic!("{rule:?} is not missed in {grants} grants");
}

#[test]
fn where_a_node_votes_below_what_it_knows_a_number_falls() {
    is_missed(Rule::Above, Wrong::NumberFell, 60, |seed| Plan::rough(3, seed));
}

#[test]
fn where_old_votes_count_for_a_grant_two_hold_one_key() {
    is_missed(Rule::Fresh, Wrong::TwoHolders, 60, |seed| Plan::rough(3, seed));
}

#[test]
fn with_half_of_the_nodes_two_hold_one_key() {
    is_missed(Rule::MoreThanHalf, Wrong::TwoHolders, 60, |seed| Plan::rough(4, seed));
}

#[test]
fn where_an_attempt_takes_back_another_ones_votes_two_hold_one_key() {
    is_missed(Rule::ItsOwn, Wrong::TwoHolders, 60, |seed| Plan::rough(3, seed));
}

#[test]
fn with_a_refresh_that_makes_locks_a_lost_lease_is_revived() {
    is_missed(Rule::NoRevival, Wrong::Revived, 60, |seed| Plan::rough(3, seed));
}

#[test]
fn where_a_client_refreshes_what_a_stream_keeps_its_lease_ends_early() {
    is_missed(Rule::KeptAlone, Wrong::EndedEarly, 60, |seed| Plan {
        forgets_every: 0,
        ..Plan::rough(3, seed)
    });
}

#[test]
fn where_a_refresh_shortens_a_lease_ends_early() {
    is_missed(Rule::OnlyExtends, Wrong::EndedEarly, 60, |seed| Plan {
        forgets_every: 0,
        ..Plan::rough(3, seed)
    });
}

#[test]
fn without_the_run_id_two_hold_one_key() {
    is_missed(Rule::RunId, Wrong::TwoHolders, 60, |seed| Plan::rough(3, seed));
}

#[test]
fn with_half_of_the_wait_two_hold_one_key() {
    is_missed(Rule::WholeWait, Wrong::TwoHolders, 60, |seed| Plan::rough(3, seed));
}

#[test]
fn without_a_last_moment_what_was_undone_comes_back() {
    is_missed(Rule::NotAfter, Wrong::HadEffect, 60, |seed| Plan::rough(1, seed));
}

#[test]
fn without_a_last_look_at_the_time_two_hold_one_key() {
    is_missed(Rule::TimeIsLookedAt, Wrong::TwoHolders, 150, |seed| Plan {
        keys: 2,
        stalls_every: 2_000,
        steps_every: 0, // A request that outlasts a step of a clock is not promised.
        ..Plan::rough(3, seed)
    });
}

#[test]
fn without_a_look_at_the_settings_instances_with_two_lists_both_grant_a_key() {
    is_missed(Rule::Settings, Wrong::TwoHolders, 60, |seed| {
        Plan::that_is_seen_whole(Plan::with_two_lists(3, 5, seed))
    });
}

#[test]
fn where_nodes_change_their_settings_at_once_instances_with_two_lists_both_grant_a_key() {
    is_missed(Rule::Admitted, Wrong::TwoHolders, 60, |seed| {
        Plan::that_is_seen_whole(Plan::with_two_lists(3, 5, seed))
    });
}

#[test]
fn where_a_node_that_changes_its_settings_votes_at_once_two_hold_one_key() {
    is_missed(Rule::Outlives, Wrong::TwoHolders, 100, |seed| Plan {
        changes_every: 6_000,
        ..Plan::that_is_seen_whole(Plan::with_two_lists(3, 5, seed))
    });
}

#[test]
fn without_its_return_a_lease_is_lost_node_by_node() {
    is_missed(Rule::Brings, Wrong::EndedEarly, 10, |seed| Plan::rolling(3, seed));
}

/// Runs a story on three nodes, without a rule if one is given.
pub(super) fn in_a_world<T>(without: Option<Rule>, story: impl AsyncFnOnce(&World) -> T) -> T {
    in_a_world_of(Plan { without, served: true, ..Plan::calm(3, 1) }, story)
}

/// Runs a story in the world of a plan.
pub(super) fn in_a_world_of<T>(plan: Plan, story: impl AsyncFnOnce(&World) -> T) -> T {
    leave_out(plan.without);
    fastrand::seed(plan.seed);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let world = World::new(plan);
        tokio::select! {
            biased;
            () = world.carry() => unreachable!("it carries for ever"),
            told = story(&world) => told,
        }
    })
}

/// The claims of two clients on one key.
pub(super) fn claims(ttl_ms: u64) -> [Claim; 2] {
    [1, 2].map(|token| Wish::of(0, token, (Origin::Client, Ttl::from_millis(ttl_ms))).claim)
}

pub(super) async fn won(store: &RedlockStore, claim: &Claim) -> u64 {
    match store.ask(claim, Ask::Once(None)).await {
        Ok(Answer::Won(win)) => win.lease.fencing_token.number(),
        other => panic!("{other:?}"),
    }
}

/// Releases the first lease, which these nodes do not hear; then the second claim has the key for a
/// moment. Returns its number.
async fn half_released(world: &World, deaf: &[usize]) -> u64 {
    let other = world.of(1).store.expect("a store");
    let [claim, later] = claims(4_000);
    let cut = |by: &[usize]| {
        for &node in deaf {
            world.state().nodes[node].cut = by.to_vec();
        }
    };
    cut(&[1]);
    let between = async {
        sleep(Duration::from_millis(10)).await; // The release has reached the others.
        cut(&[]);
        let number = won(&other, &later).await;
        other.end(&Target::of(&later.key, &later.token, None)).await.expect("an answer");
        number
    };
    // What it leaves on the deaf nodes is released once more when it is over.
    let lease = Target::of(&claim.key, &claim.token, None);
    let released = other.end(&lease);
    tokio::select! {
        biased;
        released = released => panic!("{released:?}"),
        number = between => number,
    }
}

/// A lease of the first claim that the third node missed, and its number.
pub(super) async fn missed_by_the_third(world: &World) -> (Arc<RedlockStore>, Claim, u64) {
    let one = world.of(0).store.expect("a store");
    let [claim, _] = claims(4_000);
    sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
    world.state().nodes[2].cut = vec![0];
    let number = won(&one, &claim).await;
    sleep(Duration::from_millis(500)).await; // The vote is given up.
    world.state().nodes[2].cut.clear();
    (one, claim, number)
}

/// A lease of the first claim, whose vote on the third node is on its way for a long time.
async fn with_a_late_vote(world: &World) -> (Arc<RedlockStore>, Claim, Vec<Message>) {
    let one = world.of(0).store.expect("a store");
    let [claim, _] = claims(4_000);
    sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
    world.state().nodes[2].pauses = true;
    won(&one, &claim).await;
    (one, claim, resume(world, 2))
}

/// A vote on the third node comes after the release. Returns the locks that are left.
async fn late_after_its_end(world: &World) -> usize {
    let (one, claim, late) = with_a_late_vote(world).await;
    let other = world.of(1).store.expect("a store");
    let released = other.end(&Target::of(&claim.key, &claim.token, None)).await;
    assert!(matches!(released, Ok(Ended::Lease(_))), "{released:?}");
    sleep(Duration::from_millis(50)).await; // The third node is told.
    deliver(world, late);
    let (_, locks) = world.at_the_end();
    // The token may be used again at once.
    won(&one, &claim).await;
    locks
}

#[test]
fn where_a_late_vote_of_an_ended_lease_is_not_refused_a_lock_is_left() {
    assert_eq!(in_a_world(Some(Rule::HasEnded), late_after_its_end), 1);
    assert_eq!(in_a_world(None, late_after_its_end), 0);
}

/// A refresh brings the lease to the third node after that. Returns true if the lease is there.
async fn brought_late(world: &World) -> bool {
    let (one, claim, _) = missed_by_the_third(world).await;
    world.state().nodes[2].cut = vec![0];
    let told = one.renew(&Target::of(&claim.key, &claim.token, None), None).await;
    assert!(matches!(told, Ok(Renewed::Lease(_))), "{told:?}");
    world.state().nodes[2].cut.clear();
    let meanwhile = async {
        let until = world.now() + 70;
        world.state().instances[0].stands_until = until;
        sleep(Duration::from_millis(20)).await; // The other nodes have refreshed it.
        half_released(world, &[1, 2]).await
    };
    let lease = Target::of(&claim.key, &claim.token, None);
    let refresh = one.renew(&lease, None);
    let (crossed, _) = tokio::join!(refresh, meanwhile);
    drop(crossed);
    matches!(
        one.renew(&Target::of(&claim.key, &claim.token, None), None).await,
        Ok(Renewed::Lease(_))
    )
}

#[test]
fn where_a_node_changes_that_has_had_another_lease_the_old_one_is_back_after_that() {
    assert!(in_a_world(Some(Rule::Unchanged), brought_late));
    assert!(!in_a_world(None, brought_late));
}

/// A repeat is told of a grant, which is taken back then. Returns true if the lease is there.
async fn told_and_taken_back(world: &World) -> bool {
    let [one, other] = [0, 1].map(|instance| world.of(instance).store.expect("a store"));
    let [claim, _] = claims(4_000);
    sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
    let Ok(Answer::Won(win)) = one.ask(&claim, Ask::Once(None)).await else { panic!("it is free") };
    won(&other, &claim).await;
    let grant = Target::of(&claim.key, &claim.token, Some(win.lease.fencing_token));
    let grant = grant.only(unheard(claim.origin, win.by));
    one.end(&grant).await.expect("an answer");
    let lease = Target::of(&claim.key, &claim.token, None);
    matches!(one.renew(&lease, None).await, Ok(Renewed::Lease(_)))
}

#[test]
fn where_a_vote_stays_open_that_a_repeat_was_told_of_its_lease_is_taken_back() {
    assert!(!in_a_world(Some(Rule::Told), told_and_taken_back));
    assert!(in_a_world(None, told_and_taken_back));
}

/// An instance ends while its attempt has reached the first node only; a rival has the third. Returns
/// true if a repeat gets the lease.
async fn is_granted_over_old_votes(world: &World) -> bool {
    let [one, other, third] = [0, 1, 2].map(|instance| world.of(instance).store.expect("a store"));
    let [claim, rival] = claims(4_000);
    sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
    let ends = async |instance: usize, store: &RedlockStore, claim: &Claim, reached: usize| {
        let deaf = (0..3).filter(|node| *node != reached);
        deaf.clone().for_each(|node| world.state().nodes[node].cut = vec![instance]);
        let reaches = sleep(Duration::from_millis(30));
        tokio::select! {
            biased;
            answer = store.ask(claim, Ask::Once(None)) => panic!("{answer:?}"),
            () = reaches => world.state().nodes[reached].cut = vec![instance],
        }
        deaf.for_each(|node| world.state().nodes[node].cut.clear());
    };
    ends(0, &one, &claim, 0).await;
    world.state().nodes[0].cut = vec![0];
    ends(1, &other, &rival, 2).await;
    sleep(Duration::from_millis(1_000)).await; // All calls are over.
    matches!(third.ask(&claim, Ask::Once(None)).await, Ok(Answer::Won(_)))
}

#[test]
fn where_old_votes_of_a_token_stay_it_gets_no_lease() {
    assert!(!in_a_world(Some(Rule::Leftovers), is_granted_over_old_votes));
    assert!(in_a_world(None, is_granted_over_old_votes));
}

/// A node that missed the lease has a vote for a repeat that is under way, when a refresh finds it.
/// Returns true if a refresh cannot tell whether that vote is a lease: it is there.
async fn young_vote_stays(world: &World) -> bool {
    let (one, claim, number) = missed_by_the_third(world).await;
    let [other, third] = [1, 2].map(|instance| world.of(instance).store.expect("a store"));
    (0..2).for_each(|node| world.state().nodes[node].cut = vec![1]);
    let voted = async {
        sleep(Duration::from_millis(30)).await; // The third node has voted.
        world.state().nodes[2].cut = vec![1];
        let lease = Target::of(&claim.key, &claim.token, FencingToken::from_number(number));
        let refreshed = one.renew(&lease, None).await;
        assert!(matches!(refreshed, Ok(Renewed::Lease(_))), "{refreshed:?}");
    };
    let (failed, ()) = tokio::join!(other.ask(&claim, Ask::Once(None)), voted);
    assert!(failed.is_err(), "{failed:?}");
    world.state().nodes[0].cut = vec![2];
    let lease = Target::of(&claim.key, &claim.token, FencingToken::from_number(number));
    third.renew(&lease, None).await.is_err()
}

#[test]
fn where_a_young_vote_is_lowered_an_attempt_loses_it() {
    assert!(!in_a_world(Some(Rule::Older), young_vote_stays));
    assert!(in_a_world(None, young_vote_stays));
}
