//! Little histories of exclusive leases: one that breaks a rule, and its twin, which does not.

use super::little::{breaks, grant, look, no, refresh, release, waited};
use super::*;

#[test]
fn two_holders_of_a_key_are_found() {
    let with = |next| vec![grant(1, 10, (0, 2), 1_000), grant(2, 11, (next, next + 2), 1_000)];
    breaks("I1", with(50), with(1_050));
}

#[test]
fn a_number_that_falls_is_found() {
    let with = |fence| vec![grant(1, 10, (0, 2), 50), grant(2, fence, (100, 102), 50)];
    breaks("I2", with(9), with(11));
    breaks("I2", with(10), with(11));
}

#[test]
fn a_claim_that_passes_an_older_one_is_found() {
    let with = |older, newer| {
        vec![
            grant(1, 10, (0, 2), 20_000),
            release(1, 1_000, 1_002),
            waited(grant(2, 11, (older, 1_010), 20_000)),
            release(2, 1_100, 1_102),
            waited(grant(3, 12, (newer, 1_110), 20_000)),
        ]
    };
    breaks("I3", with(500, 100), with(100, 500));
}

#[test]
fn a_key_that_is_given_up_and_reaches_no_waiter_is_found() {
    let with = |at| {
        let waits = waited(grant(2, 11, (100, at), 50));
        vec![grant(1, 10, (0, 2), 20_000), release(1, 200, 202), waits]
    };
    breaks("I4", with(5_000), with(230));
}

#[test]
fn a_lease_that_ends_late_is_found() {
    let with = |at| vec![grant(1, 10, (0, 2), 500), waited(grant(2, 11, (100, at), 50))];
    breaks("I9", with(5_000), with(530));
}

#[test]
fn a_lease_that_is_lost_without_a_reason_is_found() {
    let with = |at| {
        let lost = no(refresh(1, 0, (at, at + 2), 1_000), "lock_lost");
        vec![grant(1, 10, (0, 2), 1_000), lost]
    };
    breaks("I9", with(500), with(1_100));
}

#[test]
fn a_release_that_ends_the_lease_of_another_token_is_found() {
    let with = |token, at| {
        let next = grant(3, 11, (at, at + 2), 50);
        vec![grant(1, 10, (0, 2), 1_000), release(token, 50, 52), next]
    };
    breaks("I6", with(2, 60), with(1, 60));
}

#[test]
fn a_repeat_that_begins_another_lease_is_found() {
    let with = |status, fence| {
        let repeat = Operation { status, ..grant(1, fence, (50, 52), 1_000) };
        vec![grant(1, 10, (0, 2), 1_000), repeat]
    };
    breaks("I8", with(201, 11), with(200, 10));
}

#[test]
fn a_refusal_without_a_holder_is_found() {
    let with =
        |ttl| vec![grant(1, 10, (0, 2), ttl), no(grant(2, 0, (3_000, 3_002), 50), "lock_held")];
    breaks("I10", with(100), with(20_000));
}

#[test]
fn a_look_that_gives_a_lease_to_another_token_is_found() {
    let with =
        |token, mine| vec![grant(1, 10, (0, 2), 1_000), look(token, (50, 52), Some(10), mine)];
    breaks("I12", with(2, true), with(1, true));
}
