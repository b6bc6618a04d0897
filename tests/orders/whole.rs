//! The same with more requests: minutes instead of seconds.

use crate::lock::table::orders::model::Runs;
use crate::lock::table::orders::state::Spare;
use crate::lock::table::orders::{ALL, MIXED, NONE, PLAIN, STREAMS, WAITING, hold, runs};

#[test]
fn the_rules_hold_for_four_requests_that_do_not_wait_a_stop_and_a_forced_release() {
    hold(runs(PLAIN, [3, 4], Spare { give_ups: 1, stops: 1, forced: 1, ..NONE }));
}

#[test]
fn the_rules_hold_for_four_requests_of_claims_that_wait() {
    hold(runs(WAITING, [3, 4], Spare { give_ups: 2, ..NONE }));
}

#[test]
fn the_rules_hold_for_four_requests_beside_streams() {
    hold(runs(STREAMS, [3, 4], Spare { give_ups: 1, cuts: 1, ..NONE }));
}

#[test]
fn the_rules_hold_for_streams_whose_instance_stops() {
    hold(runs(STREAMS, [3, 3], Spare { give_ups: 2, cuts: 1, stops: 1, forced: 1 }));
}

#[test]
fn the_rules_hold_for_streams_that_wait() {
    hold(runs(MIXED, [3, 3], Spare { give_ups: 2, ..NONE }));
}

#[test]
fn the_rules_hold_for_three_requests_of_any_kind() {
    hold(runs(ALL, [3, 3], Spare { give_ups: 1, ..NONE }));
}

#[test]
fn the_rules_hold_for_two_requests_of_each_of_three_clients_in_line() {
    hold(Runs { clients: 3, ..runs(WAITING, [2, 4], Spare { give_ups: 1, ..NONE }) });
}
