//! The faults without each rule: the checker finds them.

use stateright::{Checker, HasDiscoveries, Model};

use crate::lock::table::orders::model::Runs;
use crate::lock::table::orders::state::{Fault, LONG, Spare, Wish};
use crate::lock::table::orders::{MIXED, NONE, Rule, all, plain, runs, streams, waiting};

/// The shortest way to a fault, one step a line; empty if there is none.
pub(super) fn story(found: &impl Checker<Runs>) -> String {
    let way = found.discoveries().into_values().next();
    let steps = way.into_iter().flat_map(|way| way.into_vec()).map(|(world, step)| {
        let step = step.map_or(String::new(), |step| format!("\n  {step:?}"));
        format!("{world:?}{step}\n")
    });
    steps.collect()
}

/// Leaves a rule out, and finds this fault first.
fn is_missed(rule: Rule, fault: Fault, runs: Runs) {
    let runs = Runs { without: Some(rule), ..runs };
    let found = runs.checker().threads(1).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let states = found.unique_state_count();
    let story = story(&found);
    eprintln!("without {rule:?}, {states} states:\n{story}");
    assert!(story.contains(&format!("{fault:?}")), "{fault:?} without {rule:?}: {story}");
}

/// Nobody refreshes, so that a release is the first to do harm.
fn releases() -> Runs {
    Runs { wishes: &[Wish::Acquire(LONG), Wish::Release], ..plain() }
}

/// A newer request of a claim asks for something else than the older one.
fn mixed() -> Runs {
    runs(MIXED, [3, 3], Spare { give_ups: 2, ..NONE })
}

macro_rules! missed {
    ($($name:ident: $rule:ident, $fault:ident, $runs:expr;)*) => {
        $(#[test]
        fn $name() {
            is_missed(Rule::$rule, Fault::$fault, $runs);
        })*
    };
}

missed! {
    rule_2_two_hold_a_key_that_has_room_for_any_lease: Room, Overlap, plain();
    rule_3_a_lease_that_does_not_end_keeps_the_key: Time, Blocked, plain();
    rule_4_a_repeat_with_a_new_number_ends_a_lease: RepeatNumber, EndedEarly, plain();
    rule_5_a_repeat_that_meets_a_stream: RepeatPlain, EndedEarly, streams();
    rule_6_a_late_replacement_ends_another_lease: ReplaceNamed, EndedEarly, plain();
    rule_6_a_replacement_that_keeps_the_number: ReplaceNumber, NumberFell, plain();
    rule_7_a_claim_that_takes_what_was_handed_to_another: Handed, PassedOver, waiting();
    rule_8_a_lease_that_was_heard_of_is_taken_back: Heard, EndedEarly, plain();
    rule_8_a_replacement_that_reached_nobody: PutBack, LeftOver, plain();
    rule_8_a_grant_that_reached_nobody: TakenBack, LeftOver, plain();
    rule_9_a_newer_request_of_another_kind: SameOptions, NotAsAsked, mixed();
    rule_9_a_superseded_request_that_wins: Superseded, LeftOver, mixed();
    rule_9_two_questions_of_one_claim: OneQuestion, FalseNo, waiting();
    rule_10_a_claim_that_stays_in_line: Leaves, Blocked, waiting();
    rule_10_a_departure_that_overtakes_a_question: NoOvertaking, Blocked, waiting();
    rule_10_a_place_that_stays_reserved: Reserved, Blocked, waiting();
    rule_13_a_refresh_that_shortens: OnlyExtends, EndedEarly, plain();
    rule_13_a_refresh_that_revives: NoRevival, Revived, plain();
    rule_13_a_client_that_refreshes_the_lease_of_its_stream: KeptAlone, EndedEarly, streams();
    rule_14_a_release_of_the_lease_of_another: OwnToken, EndedEarly, releases();
    rule_14_a_release_of_an_older_lease: OnlyNamed, EndedEarly, streams();
    rule_14_a_released_claim_that_is_granted: ReleasedFirst, FalseNo, waiting();
    rule_16_a_hang_up_of_an_older_stream: LastWordNames, EndedEarly, streams();
    rule_16_a_last_word_after_a_time_out: TimedOut, EndedEarly, streams();
    rule_17_a_stream_that_is_told_of_an_ended_lease: Registered, ToldEnded, all();
    rule_20_a_hand_off_that_does_not_lapse: Lapses, PassedOver, waiting();
    a_restart_that_forgets_the_greatest_number: NumberOnDisk, NumberFell, all();
    a_restart_that_forgets_leases: LeasesOnDisk, EndedEarly, all();
    clients_a_token_that_is_used_after_its_release: NewToken, EndedEarly, plain();
    clients_a_named_lease_that_is_relied_on: NamingGivesUp, EndedEarly, plain();
    clients_a_lease_that_is_relied_on_after_another_was_named: UntilNamed, EndedEarly, plain();
    clients_a_ttl_that_counts_from_the_answer: FromTheSending, EndedEarly, plain();
}
