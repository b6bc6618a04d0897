//! Little histories of shared keys: each rule with one that breaks it, and its twin, which does not.

use super::*;
use crate::check::little::{
    ask, breaks, gone, grant, lines, look, no, refresh, release, rules, stopped, waited,
};
use crate::history::{NO_TOKEN, SHARED, Token};

/// A grant with this many slots, and the slot that it was told.
fn shared(slots: u16, slot: u16, grant: Operation) -> Operation {
    let mut grant = grant;
    grant.asked.slots = Some(slots);
    grant.said.slots = Some(slots.min(1_000)).filter(|slots| *slots > 1);
    grant.said.slot = Some(slot).filter(|slot| *slot > 0);
    grant
}

/// A grant with this many of its slots, and no slot.
fn units(units: u16, grant: Operation) -> Operation {
    let mut grant = grant;
    (grant.asked.units, grant.said.units, grant.said.slot) = (Some(units), Some(units), None);
    grant
}

/// A lease of one second, whose token and number are the first ones, from `at` milliseconds on.
fn holder(number: u64, slots: u16, slot: u16, at: u64) -> Operation {
    shared(slots, slot, grant(number, 10 + number, (at, at + 2), 1_000))
}

/// The same token once more.
fn again(number: u64, slots: u16, slot: u16, at: u64) -> Operation {
    Operation { status: 200, ..holder(number, slots, slot, at) }
}

/// The same token, which names its lease and has one of another number in its place.
fn anew(number: u64, fence: u64, slots: u16, slot: u16, at: u64) -> Operation {
    let mut anew = shared(slots, slot, grant(number, fence, (at, at + 2), 1_000));
    anew.asked.fencing_token = Some(10 + number);
    anew
}

/// A claim that was told that the others do not allow it the slots it asks for.
fn refused(number: u64, slots: u16, at: u64) -> Operation {
    let mut refused = no(holder(number, slots, 0, at), "lock_held");
    (refused.said.mine, refused.said.fencing_token) = (Some(true), Some(10 + number));
    refused
}

fn readers(count: u64) -> Vec<Operation> {
    (1..=count).map(|number| holder(number, SHARED, 0, number * 10)).collect()
}

#[test]
fn more_holders_than_one_of_them_allows_are_found() {
    let three = |third| vec![holder(1, 5, 1, 0), holder(2, 5, 2, 10), holder(3, third, 3, 20)];
    breaks("S1", [three(5), vec![holder(4, 3, 3, 30)]].concat(), three(3));
    // The one that allows the least came first.
    let first = |least| vec![holder(1, least, 1, 0), holder(2, 5, 2, 10), holder(3, 5, 3, 20)];
    breaks("S1", first(2), first(3));
    // A writer names no slots, and readers are any number.
    breaks("S1", [readers(3), vec![grant(9, 19, (100, 102), 1_000)]].concat(), readers(40));
}

#[test]
fn more_units_than_one_lease_allows_are_found() {
    let two = |second| vec![units(3, holder(1, 5, 0, 0)), units(second, holder(2, 5, 0, 10))];
    breaks("S1", two(3), two(2));
    let third = |slots| [two(2), vec![holder(3, slots, 1, 20)]].concat();
    assert_eq!(rules(&lines(third(6))), ["S1"]);
}

#[test]
fn a_grant_of_other_units_than_were_asked_for_is_found() {
    let with = |told| {
        let mut grant = units(3, holder(1, 5, 0, 0));
        grant.said.units = Some(told);
        vec![grant]
    };
    breaks("S1", with(2), with(3));
    let refreshed = |told| {
        let mut later = shared(5, 0, refresh(1, 11, (50, 52), 950));
        (later.asked.slots, later.said.units) = (None, Some(told));
        vec![units(3, holder(1, 5, 0, 0)), later]
    };
    breaks("S1", refreshed(2), refreshed(3));
    // Several units have no slot.
    let mut numbered = units(3, holder(1, 5, 0, 0));
    numbered.said.slot = Some(1);
    assert_eq!(rules(&lines(vec![numbered])), ["S2"]);
}

#[test]
fn a_lease_that_replaces_another_one_has_its_own_share() {
    let two = |second| vec![holder(1, 5, 1, 0), anew(1, 12, second, 1, 50), holder(3, 5, 2, 60)];
    let three = |second| [two(second), vec![holder(4, 5, 3, 70)]].concat();
    breaks("S1", three(2), three(3));
    let unknown = gone(anew(1, 0, 1, 0, 55), 58);
    assert_eq!(rules(&lines([two(2), vec![unknown]].concat())), [""; 0]);
}

#[test]
fn a_lease_may_be_older_than_the_answer_that_tells_of_it_again() {
    // The service asked the store twice: it did not hear that the first question had been granted.
    let told = |status| {
        let mut late = shared(5, 1, waited(grant(1, 11, (0, 500), 1_000)));
        late.status = status;
        vec![late, holder(2, 5, 2, 300)]
    };
    breaks("S3", told(201), told(200));
    let mut suspended = lines(told(201));
    suspended.push(stopped(100, 200));
    assert_eq!(rules(&suspended), [""; 0]);
}

#[test]
fn a_slot_with_two_holders_is_found() {
    let two = |slot| vec![holder(1, 5, 1, 0), holder(2, 5, slot, 10)];
    breaks("S2", two(1), two(2));
    let next = |left| vec![holder(1, 5, 1, 0), release(1, 5, left), holder(2, 5, 1, 10)];
    assert_eq!(rules(&lines(next(8))), [""; 0], "a slot may have one holder after another");
}

#[test]
fn a_slot_that_does_not_fit_its_lease_is_found() {
    let one = |slots, slot| vec![holder(1, slots, slot, 0)];
    breaks("S2", one(5, 6), one(5, 5));
    breaks("S2", one(SHARED, 1), one(SHARED, 0));
    breaks("S2", [one(5, 0), readers(0)].concat(), one(1_000, 1));
    let fewer = |slot| vec![holder(1, 5, 4, 0), anew(1, 12, 3, slot, 10)];
    breaks("S2", fewer(4), fewer(3));
    let kept = |slot| vec![holder(1, 5, 4, 0), again(1, 5, slot, 10)];
    breaks("S2", kept(3), kept(4));
}

#[test]
fn a_grant_of_other_slots_than_were_asked_for_is_found() {
    let with = |told| {
        let mut grant = holder(1, 3, 1, 0);
        grant.said.slots = Some(told);
        vec![grant]
    };
    breaks("S1", with(5), with(3));
}

#[test]
fn a_lease_whose_share_changes_under_its_number_is_found() {
    let then = |next| vec![holder(1, SHARED, 0, 0), next];
    breaks("S1", then(again(1, 5, 1, 50)), then(anew(1, 12, 5, 1, 50)));
    let refreshed =
        |fence| vec![holder(1, 3, 1, 0), shared(3, 1, refresh(1, fence, (50, 52), 950))];
    breaks("S3", refreshed(12), refreshed(11));
}

#[test]
fn the_lease_that_a_promotion_ended_does_not_come_back() {
    let with = |fence| {
        let late = shared(5, 1, refresh(1, fence, (100, 102), 900));
        let late = Operation { asked: crate::history::Asked::default(), ..late };
        let alone = Operation { said: anew(1, 12, 1, 0, 50).said, ..late.clone() };
        vec![holder(1, 5, 1, 0), anew(1, 12, 1, 0, 50), if fence == 11 { late } else { alone }]
    };
    breaks("I7", with(11), with(12));
}

#[test]
fn a_change_that_may_not_be_refused_is_found() {
    let both = |change| vec![holder(1, 5, 1, 0), holder(2, 5, 2, 10), change];
    breaks("I8", both(refused(1, 5, 50)), both(refused(1, 1, 50)));
    let as_it_is = || {
        let mut same = refused(1, 5, 50);
        same.asked.slots = None;
        same
    };
    breaks("I8", both(as_it_is()), both(again(1, 5, 1, 50)));
    let silent = || {
        let mut silent = refused(1, 1, 50);
        silent.said.mine = None;
        silent
    };
    breaks("I8", both(silent()), both(refused(1, 1, 50)));
}

#[test]
fn a_change_that_is_refused_although_there_is_room_is_found() {
    let named = |slots, at| {
        let mut named = refused(1, slots, at);
        named.asked.fencing_token = Some(11);
        named
    };
    let change = |change| vec![holder(1, SHARED, 0, 0), holder(2, 5, 1, 10), change];
    breaks("S4", change(named(3, 600)), change(named(1, 600)));
    // More units than are free are no room.
    let more = |asked| {
        let mut named = units(asked, named(5, 600));
        named.said.units = None;
        vec![units(2, holder(1, 5, 0, 0)), holder(2, 5, 1, 10), named]
    };
    breaks("S4", more(4), more(5));
    // An unnamed repeat changes no share.
    breaks("S4", change(named(3, 600)), change(refused(1, 3, 600)));
    let left = || vec![holder(1, 5, 1, 0), holder(2, 5, 2, 10), release(2, 20, 25)];
    assert_eq!(rules(&lines([left(), vec![named(1, 900)]].concat())), ["S4"]);
    // Somebody of whom nobody was told may be there.
    let unknown = gone(holder(3, 5, 0, 500), 510);
    assert_eq!(rules(&lines([left(), vec![unknown, named(1, 900)]].concat())), [""; 0]);
}

#[test]
fn a_token_without_a_lease_that_is_told_of_one_is_found() {
    let other = |token| vec![holder(1, 5, 1, 0), holder(2, 5, 2, 5), refused(token, 1, 50)];
    breaks("S4", other(3), other(2));
    let left = |at| vec![holder(1, 5, 1, 0), holder(2, 5, 2, 5), release(1, 10, at)];
    let late = vec![holder(4, 5, 1, 2_900), refused(1, 1, 3_000)];
    assert_eq!(rules(&lines([left(20), late].concat())), ["S4"]);
}

#[test]
fn a_look_that_denies_a_holder_its_lease_is_found() {
    let sees = |mine| {
        let mut look = look(1, (50, 52), Some(11).filter(|_| mine), mine);
        (look.said.held, look.said.holders) = (Some(true), Some(2));
        vec![holder(1, 5, 1, 0), holder(2, 5, 2, 10), look]
    };
    breaks("I9", sees(false), sees(true));
}

#[test]
fn a_look_that_counts_other_holders_is_found() {
    let counts = |holders| {
        let mut look = look(NO_TOKEN, (50, 52), None, false);
        (look.said.held, look.said.holders) = (Some(true), Some(holders));
        vec![holder(1, 5, 1, 0), holder(2, 5, 2, 10), look]
    };
    breaks("S4", counts(1), counts(2));
    breaks("S4", counts(3), counts(2));
    let unknown = gone(holder(3, 5, 0, 20), 30);
    assert_eq!(rules(&lines([counts(3), vec![unknown]].concat())), [""; 0]);
    let counts = |all| {
        let mut look = look(NO_TOKEN, (50, 52), None, false);
        (look.said.held, look.said.holders, look.said.units) = (Some(true), Some(2), Some(all));
        vec![holder(1, 5, 1, 0), units(3, holder(2, 5, 0, 10)), look]
    };
    breaks("S4", counts(3), counts(4));
    breaks("S4", counts(5), counts(4));
}

#[test]
fn one_lease_of_several_is_ended_by_its_number() {
    let force = |named: Option<u64>, holders: u16| {
        let mut force = ask(Kind::ForceRelease, NO_TOKEN, 100, 101);
        force.asked.fencing_token = named;
        force.said.fencing_token = Some(11);
        force.said.holders = Some(holders);
        force
    };
    let two = |force| vec![holder(1, 2, 1, 0), holder(2, 2, 2, 10), force];
    let next = |token: Token, slot| holder(token, 2, slot, 200);
    let all = || [two(force(None, 2)), vec![next(3, 1), next(4, 2)]].concat();
    assert_eq!(rules(&lines(all())), [""; 0]);
    let one = [two(force(Some(11), 1)), vec![next(3, 1)]].concat();
    assert_eq!(rules(&lines(one.clone())), [""; 0]);
    assert_eq!(rules(&lines([one, vec![next(4, 2)]].concat())), ["S1", "S2"]);
}

#[test]
fn a_claim_that_passes_another_one_is_found() {
    let waits = |number, slot, from: u64, until| {
        shared(2, slot, waited(grant(number, 20 - number, (from, until), 1_000)))
    };
    let full = || vec![holder(1, 2, 1, 0), holder(2, 2, 2, 10)];
    let over = || vec![release(1, 900, 903), release(2, 930, 933)];
    let passed = |first, second| {
        let two = vec![waits(4, 1, first, 910), waits(3, 2, second, 940)];
        [full(), over(), two].concat()
    };
    breaks("I3", passed(500, 200), passed(200, 500));
    // Its place was given up while it was asked for.
    let given_up = vec![release(3, 210, 215)];
    assert_eq!(rules(&lines([passed(500, 200), given_up].concat())), [""; 0]);
}

#[test]
fn a_claim_that_waits_while_there_is_room_is_found() {
    let waits = |number, slot, until| {
        shared(3, slot, waited(grant(number, 10 + number, (100, until), 1_000)))
    };
    let two = || vec![holder(1, 3, 1, 0), holder(2, 3, 2, 10)];
    let third = |until| [two(), vec![waits(3, 3, until)]].concat();
    breaks("S5", third(900), third(250));
    // One of those who wait needs more units than are free.
    let large = units(2, shared(3, 0, gone(waited(holder(4, 3, 0, 50)), 800)));
    assert_eq!(rules(&lines([third(900), vec![large]].concat())), [""; 0]);
    // One of those who wait has to wait for all others.
    let writer = shared(1, 0, gone(waited(holder(4, 1, 0, 50)), 800));
    assert_eq!(rules(&lines([third(900), vec![writer]].concat())), [""; 0]);
    // The key is full until a lease is given back, or over.
    let full = |until| [two(), vec![holder(3, 3, 3, 20), waits(4, 1, until)]].concat();
    assert_eq!(rules(&lines(full(1_100))), [""; 0]);
    let given = |until| {
        let release = release(1, 300, 305);
        [full(until), vec![release]].concat()
    };
    breaks("S5", given(900), given(450));
}
