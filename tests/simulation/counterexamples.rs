//! The faults without each rule: the checks find them, and find none with the rule.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::lock::lease::{Claim, Origin};
use crate::lock::store::{Answer, Ask, Ended, Renewed, Store, Target, Win};
use crate::lock::time::Ttl;
use crate::store::redlock::RedlockStore;
use crate::store::redlock::simulation::faults::{deliver, resume};
use crate::store::redlock::simulation::history::Wrong;
use crate::store::redlock::simulation::network::Message;
use crate::store::redlock::simulation::plan::Plan;
use crate::store::redlock::simulation::redis::Forgets;
use crate::store::redlock::simulation::rule::{Rule, leave_out};
use crate::store::redlock::simulation::run;
use crate::store::redlock::simulation::wish::Wish;
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
fn without_the_write_back_a_later_lease_has_a_smaller_number() {
    is_missed(Rule::WriteBack, Wrong::NumberFell, 60, |seed| Plan {
        instance_skew_us: 500_000,
        ..Plan::rough(3, seed)
    });
}

#[test]
fn with_a_write_back_to_whoever_holds_the_key_a_lease_that_is_over_outranks_its_successor() {
    is_missed(Rule::HoldersConfirm, Wrong::OldOutranksNew, 60, |seed| Plan {
        stalls_every: 5_000,
        ..Plan::rough(3, seed)
    });
}

#[test]
fn without_a_last_look_at_the_time_two_hold_one_key() {
    is_missed(Rule::TimeIsLookedAt, Wrong::TwoHolders, 60, |seed| Plan {
        stalls_every: 5_000,
        ..Plan::rough(3, seed)
    });
}

#[test]
fn with_half_of_the_nodes_two_hold_one_key() {
    is_missed(Rule::MoreThanHalf, Wrong::TwoHolders, 60, |seed| Plan::rough(4, seed));
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
fn without_the_name_of_an_attempt_a_clean_up_ends_the_lease_of_a_repeat() {
    is_missed(Rule::AttemptName, Wrong::TwoHolders, 60, |seed| Plan::rough(3, seed));
}

#[test]
fn without_a_last_moment_what_was_undone_comes_back() {
    is_missed(Rule::NotAfter, Wrong::HadEffect, 60, |seed| Plan::rough(1, seed));
}

#[test]
fn with_a_refresh_that_makes_locks_a_lost_lease_is_revived() {
    is_missed(Rule::NoRevival, Wrong::Revived, 60, |seed| Plan::rough(3, seed));
}

#[test]
fn without_a_look_at_the_settings_instances_with_two_lists_both_grant_a_key() {
    is_missed(Rule::Settings, Wrong::TwoHolders, 60, |seed| {
        Plan::that_is_seen_whole(Plan::with_two_lists(3, 5, seed))
    });
}

#[test]
fn where_nodes_change_their_settings_at_once_instances_with_two_lists_both_grant_a_key() {
    is_missed(Rule::Unused, Wrong::TwoHolders, 60, |seed| {
        Plan::that_is_seen_whole(Plan::with_two_lists(3, 5, seed))
    });
}

#[test]
fn without_a_look_for_rivals_instances_whose_lists_differ_by_two_nodes_both_grant_a_key() {
    is_missed(Rule::Rivals, Wrong::TwoHolders, 100, |seed| {
        Plan::that_is_seen_whole(Plan::with_two_lists(3, 5, seed))
    });
}

#[test]
fn without_its_return_a_lease_is_lost_node_by_node() {
    is_missed(Rule::BringBack, Wrong::EndedEarly, 10, |seed| Plan::rolling(3, seed));
}

#[test]
fn without_the_names_of_all_attempts_two_hold_one_key() {
    // Messages often come late, and before their deadline.
    is_missed(Rule::AllAttempts, Wrong::TwoHolders, 60, |seed| Plan {
        slow: 200,
        slow_most: 190,
        keys: 2,
        ..Plan::calm(5, seed)
    });
}

#[test]
fn in_short_runs_a_rule_is_missed_as_well() {
    for (rule, wrong) in [
        (Rule::MoreThanHalf, Wrong::TwoHolders),
        (Rule::RunId, Wrong::TwoHolders),
        (Rule::WholeWait, Wrong::TwoHolders),
        (Rule::AttemptName, Wrong::TwoHolders),
        (Rule::NoRevival, Wrong::Revived),
    ] {
        is_missed(rule, wrong, 400, Plan::short);
    }
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

/// A lease that its client refreshes, and that ends before the refresh is over.
struct Crossed {
    ttl_ms: u64,
    /// The instance of the refresh is paused for so long after a node has told it that it misses
    /// the lease.
    paused_ms: u64,
    /// The lease ends so long after `end`.
    ends_ms: u64,
}

impl Crossed {
    /// Returns true if the lease is there again after another client has had the key.
    fn is_brought_back(
        &self,
        without: Option<Rule>,
        end: impl AsyncFnOnce(&RedlockStore, &Claim),
    ) -> bool {
        in_a_world(without, async |world| self.run(world, end).await)
    }

    async fn run(&self, world: &World, end: impl AsyncFnOnce(&RedlockStore, &Claim)) -> bool {
        let [paused, other] = [0, 1].map(|instance| world.of(instance).store.expect("a store"));
        let [claim, later] = claims(self.ttl_ms);
        let (key, token) = (&claim.key, &claim.token);
        sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
        paused.ask(&claim, Ask::Once(None)).await.expect("a lease");
        world.forget(2, Forgets::Empty, &mut Rng::with_seed(1));
        let meanwhile = async {
            let until = world.now() + self.paused_ms;
            world.state().instances[0].stands_until = until;
            sleep(Duration::from_millis(20)).await; // The other nodes have refreshed it.
            end(&other, &claim).await;
            sleep(Duration::from_millis(self.ends_ms + 100)).await;
            let had = other.ask(&later, Ask::Once(None)).await.expect("an answer");
            other.end(&Target::of(key, &later.token, None)).await.expect("an answer");
            matches!(had, Answer::Won(_))
        };
        let lease = Target::of(key, token, None);
        let (_, had) = tokio::join!(paused.renew(&lease, None), meanwhile);
        let is_there = other
            .renew(&Target::of(key, token, None), None)
            .await
            .expect("an answer")
            .lease()
            .is_some();
        had && is_there
    }
}

#[test]
fn without_a_look_whether_it_lasts_a_refresh_brings_back_a_lease_that_is_over() {
    let crossed = Crossed { ttl_ms: 1_000, paused_ms: 1_300, ends_ms: 1_000 };
    let is_brought_back = |without| crossed.is_brought_back(without, async |_, _| ());
    assert!(is_brought_back(Some(Rule::WhileItLasts)));
    assert!(!is_brought_back(None));
}

#[test]
fn where_a_shortened_lease_ends_at_once_a_refresh_brings_it_back() {
    let crossed = Crossed { ttl_ms: 4_000, paused_ms: 700, ends_ms: 400 };
    let is_brought_back = |without| {
        crossed.is_brought_back(without, async |other, claim| {
            let ttl = Some(Ttl::from_millis(crossed.ends_ms));
            let shortened = other.renew(&Target::of(&claim.key, &claim.token, None), ttl).await;
            assert!(shortened.expect("an answer").lease().is_some());
        })
    };
    assert!(is_brought_back(Some(Rule::ShortenedStays)));
    assert!(!is_brought_back(None));
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

/// A vote on the third node comes after that. Returns the number of a repeat, and that of the other.
async fn late_vote(world: &World) -> (u64, u64) {
    let (one, claim, late) = with_a_late_vote(world).await;
    let before = half_released(world, &[1]).await;
    deliver(world, late);
    sleep(Duration::from_millis(200)).await; // The attempt has heard of the vote.
    world.state().nodes[0].cut = vec![0]; // It would draw a greater number.
    (won(&one, &claim).await, before)
}

#[test]
fn where_a_vote_is_leveled_below_what_its_node_knew_a_number_falls() {
    let (number, before) = in_a_world(Some(Rule::LeveledUnseen), late_vote);
    assert!(number < before);
    let (number, before) = in_a_world(None, late_vote);
    assert!(number > before);
}

/// A vote on the third node comes after the release. Returns the locks that are left.
async fn late_after_its_end(world: &World) -> usize {
    let (one, claim, late) = with_a_late_vote(world).await;
    let other = world.of(1).store.expect("a store");
    let released = other.end(&Target::of(&claim.key, &claim.token, None)).await;
    assert!(matches!(released, Ok(Ended::Lease(_))), "{released:?}");
    deliver(world, late);
    let (_, locks) = world.at_the_end();
    // The token may be used again at once.
    won(&one, &claim).await;
    locks
}

#[test]
fn where_a_vote_may_come_after_the_release_of_its_token_a_lock_is_left() {
    assert_eq!(in_a_world(Some(Rule::EndedSince), late_after_its_end), 1);
    assert_eq!(in_a_world(None, late_after_its_end), 0);
}

/// A refresh brings the lease to the third node after that. Returns true if the lease is there.
async fn brought_late(world: &World) -> bool {
    let (one, claim, _) = missed_by_the_third(world).await;
    let meanwhile = async {
        let until = world.now() + 100;
        world.state().instances[0].stands_until = until;
        sleep(Duration::from_millis(20)).await; // The other nodes have refreshed it.
        half_released(world, &[1, 2]).await
    };
    let lease = Target::of(&claim.key, &claim.token, None);
    let refresh = one.renew(&lease, None);
    let (refreshed, _) = tokio::join!(refresh, meanwhile);
    assert!(refreshed.is_ok(), "{refreshed:?}");
    matches!(
        one.renew(&Target::of(&claim.key, &claim.token, None), None).await,
        Ok(Renewed::Lease(_))
    )
}

#[test]
fn where_a_refresh_brings_a_lease_to_a_node_that_has_had_another_it_is_back_after_that() {
    assert!(in_a_world(Some(Rule::BroughtUnseen), brought_late));
    assert!(!in_a_world(None, brought_late));
}

#[test]
fn where_the_last_word_of_a_hold_leaves_no_mark_a_refresh_brings_back_its_lease() {
    let crossed = Crossed { ttl_ms: 4_000, paused_ms: 700, ends_ms: 200 };
    let is_brought_back = |without| {
        crossed.is_brought_back(without, async |other, claim| {
            let Ok(Answer::Won(Win { lease, .. })) = other.ask(claim, Ask::Once(None)).await else {
                panic!("it is the token's");
            };
            let linger = Some(Ttl::from_millis(crossed.ends_ms));
            let last = Target::kept(&claim.token, &lease).last_word();
            other.renew(&last, linger).await.expect("an answer");
        })
    };
    assert!(is_brought_back(Some(Rule::LastWordMarks)));
    assert!(!is_brought_back(None));
}
