//! What comes of leaving out a rule: the same checks find it, and find nothing where the rule stands.

use crate::store::redlock::simulation::history::Wrong;
use crate::store::redlock::simulation::plan::Plan;
use crate::store::redlock::simulation::rule::Rule;
use crate::store::redlock::simulation::run;

/// Leaves a rule out, in one run after another, until it is missed; the same runs with the rule
/// have nothing wrong.
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

/// Three nodes, of which any number but the last forget.
fn forgetful(seed: u64) -> Plan {
    Plan { any_number_forgets: true, ..Plan::rough(3, seed) }
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
fn without_a_nonce_two_hold_one_key() {
    is_missed(Rule::Nonce, Wrong::TwoHolders, 150, |seed| Plan {
        cuts_every: 2_000,
        stalls_every: 8_000,
        flushed: 100,
        twice: 100,
        forgets_every: 1_500,
        loss: 0,
        ..forgetful(seed)
    });
}

#[test]
fn without_the_run_id_two_hold_one_key() {
    is_missed(Rule::RunId, Wrong::TwoHolders, 60, forgetful);
}

#[test]
fn with_one_peer_asked_two_hold_one_key() {
    is_missed(Rule::EnoughPeers, Wrong::TwoHolders, 100, forgetful);
}

#[test]
fn with_a_new_set_of_a_blank_majority_two_hold_one_key() {
    is_missed(Rule::AllAreBlank, Wrong::TwoHolders, 100, forgetful);
}

#[test]
fn with_a_new_set_in_one_step_two_hold_one_key() {
    is_missed(Rule::TwoSteps, Wrong::TwoHolders, 2_500, |seed| Plan {
        length: 1_500,
        slow: 400,
        slow_most: 190,
        loss: 10,
        flushed: 100,
        forgets_every: 60,
        ..forgetful(seed)
    });
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
fn without_a_fence_base_a_number_falls_where_clocks_are_far_apart() {
    is_missed(Rule::FenceBase, Wrong::NumberFell, 400, |seed| Plan {
        keys: 12,
        workers: 6,
        loss: 150,
        instance_skew_us: 5_000_000,
        node_skew_us: 0,
        flushed: 100,
        twice: 0,
        forgets_every: 3_000,
        restarts_every: 1_000,
        cuts_every: 2_000,
        pauses_every: 0,
        stalls_every: 0,
        ..Plan::rough(3, seed + 70)
    });
}
