//! The faults without each rule: the checks find them, and find none with the rule.

use std::time::Duration;

use fastrand::Rng;
use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::lock::lease::Origin;
use crate::lock::store::Store;
use crate::lock::time::Ttl;
use crate::store::redlock::simulation::history::Wrong;
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
fn without_the_order_of_attempts_two_hold_one_key() {
    is_missed(Rule::AttemptOrder, Wrong::TwoHolders, 60, |seed| Plan::rough(5, seed + 16));
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

#[test]
fn with_a_deadline_that_is_fixed_last_a_paused_instance_gives_an_old_number() {
    is_missed(Rule::DeadlineFirst, Wrong::NumberFell, 10_000, |seed| Plan {
        nodes: 1,
        keys: 1,
        loss: 0,
        pauses_every: 0,
        cuts_every: 0,
        restarts_every: 0,
        stalls_every: 1_000,
        ..Plan::short(seed)
    });
}

/// An instance is paused after a node has told it that it misses the lease that it refreshes; then
/// the lease ends, and another client has the key for a moment.
fn is_brought_back(without: Option<Rule>) -> bool {
    leave_out(without);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let world = World::new(Plan { served: true, ..Plan::calm(3, 1) });
        let [paused, other] = [0, 1].map(|instance| world.of(instance).store.expect("a store"));
        let ttl = Ttl::from_millis(1_000);
        let [claim, later] = [1, 2].map(|token| Wish::of(0, token, (Origin::Client, ttl)).claim);
        let refreshed = async {
            sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
            paused.try_acquire(&claim).await.expect("a lease");
            world.forget(2, Forgets::Empty, &mut Rng::with_seed(1));
            let refresh = paused.refresh(&claim.key, &claim.token, None, None);
            let meanwhile = async {
                world.state().instances[0].stands_until = world.now() + 1_300;
                sleep(Duration::from_millis(1_100)).await;
                other.try_acquire(&later).await.expect("a lease");
                other.release(&later.key, &later.token, None).await.expect("a release");
            };
            assert!(!matches!(tokio::join!(refresh, meanwhile).0, Ok(Some(_))), "it is over");
            other.refresh(&claim.key, &claim.token, None, None).await.expect("an answer").is_some()
        };
        tokio::select! {
            biased;
            () = world.carry() => unreachable!("it carries for ever"),
            is_back = refreshed => is_back,
        }
    })
}

#[test]
fn without_a_look_whether_it_lasts_a_refresh_brings_back_a_lease_that_is_over() {
    assert!(is_brought_back(Some(Rule::WhileItLasts)));
    assert!(!is_brought_back(None));
}
