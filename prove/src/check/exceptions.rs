//! Little histories of what a store does not promise, or promises in its own way.

use super::*;
use crate::check::little::{
    MS, ask, breaks, code, flush, gone, grant, lines, lines_of, look, no, refresh, release, rules,
    stopped, waited,
};
use crate::history::NO_TOKEN;

fn unpromised(report: &Report) -> Vec<&'static str> {
    report.not_promised().into_keys().map(code).collect()
}

fn hold() -> Operation {
    Operation { kind: Kind::Hold, status: 200, ..grant(1, 10, (0, 2), 300) }
}

/// An event after which so many milliseconds are left.
fn alive(ttl: u64, sent: u64, to: u64) -> Operation {
    let mut alive = ask(Kind::Alive, 1, sent, to);
    (alive.asked.ttl_ms, alive.said.ttl_ms) = (Some(300), Some(ttl));
    alive.said.fencing_token = Some(10);
    alive
}

/// The end of a stream with this event, or by its client if there is none.
fn end(code: &str, sent: u64, at: u64) -> Operation {
    let mut end = ask(Kind::HoldEnd, 1, sent, at);
    (end.code, end.said.fencing_token) = (code.to_owned(), Some(10));
    if code.is_empty() {
        (end.answered, end.gone) = (None, end.answered);
    }
    end
}

#[test]
fn an_event_that_is_not_promised_is_counted_and_no_failure() {
    let mut two = lines(vec![grant(1, 10, (0, 2), 1_000), grant(2, 11, (500, 502), 1_000)]);
    two.push(flush(400));
    let report = check(&two);
    assert!(report.passed() && unpromised(&report) == ["I1", "I9"], "{report}");
    // A loss before the lease is no excuse.
    *two.last_mut().unwrap() = flush(600);
    let report = check(&two);
    assert!(!report.passed(), "the loss came later");
}

#[test]
fn a_lease_that_is_there_again_after_a_loss_may_be_released_again() {
    let mut twice =
        lines(vec![grant(1, 10, (0, 2), 1_000), release(1, 10, 12), release(1, 900, 902)]);
    assert_eq!(rules(&twice), ["I6"]);
    twice.push(flush(400));
    let report = check(&twice);
    assert!(report.passed() && unpromised(&report) == ["I6"], "{report}");
}

#[test]
fn a_stream_is_relied_on_from_event_to_event() {
    let end = |at| end("", 202, at);
    let next = || grant(2, 11, (380, 382), 100);
    let events = || vec![hold(), alive(300, 2, 102), alive(300, 102, 202)];
    breaks(
        "I1",
        [events(), vec![end(450), next()]].concat(),
        [events(), vec![end(350), next()]].concat(),
    );
    // Events that were kept back and came at once prove nothing.
    let late = vec![hold(), alive(300, 2, 202), alive(300, 202, 203), end(450), next()];
    assert_eq!(rules(&lines(late)), [""; 0]);
}

#[test]
fn the_end_of_a_stream_ends_its_own_lease_unless_that_is_kept_by_nobody_since() {
    let left = || vec![hold(), end("", 2, 50)];
    let again = |fence, status| Operation { status, ..grant(1, fence, (60, 62), 900) };
    let next = |fence| vec![grant(2, fence, (200, 202), 100)];
    // The lease is another one, or its token repeated the acquire within the linger.
    breaks("I1", [left(), vec![again(11, 201)], next(12)].concat(), [left(), next(12)].concat());
    breaks("I1", [left(), vec![again(10, 200)], next(12)].concat(), [left(), next(12)].concat());
    // Nobody keeps it any more.
    let waits = |until| vec![waited(grant(2, 11, (60, until), 50))];
    breaks("I9", [left(), waits(1_900)].concat(), [left(), waits(600)].concat());
    // Nobody saw the stream, and its connection was whole.
    let unseen = |until| [vec![gone(hold(), 50)], waits(until)].concat();
    breaks("I5", unseen(1_900), unseen(900));
}

#[test]
fn what_a_stream_keeps_is_its_own() {
    let last = || vec![alive(300, 60, 160), end("", 160, 200)];
    let with = |then: Vec<Operation>| [vec![hold()], then, last()].concat();
    let mine = |kind| {
        let mut mine = no(Operation { kind, ..grant(1, 0, (50, 52), 100) }, "lock_held");
        (mine.said.mine, mine.said.fencing_token) = (Some(true), Some(10));
        with(vec![mine])
    };
    let again = Operation { status: 200, ..grant(1, 10, (50, 52), 300) };
    breaks("I13", with(vec![refresh(1, 10, (50, 52), 300)]), mine(Kind::Refresh));
    breaks("I13", with(vec![again]), mine(Kind::Acquire));
    // A stream that names nothing does not get what its token has.
    let taken = |fence| {
        let mut stream = Operation { kind: Kind::Hold, status: 200, ..grant(1, 10, (5, 7), 300) };
        stream.asked.fencing_token = Some(9);
        vec![grant(1, fence, (0, 1), 300), stream, end("", 7, 50)]
    };
    breaks("I13", taken(10), taken(9));
}

#[test]
fn a_forced_release_ends_the_lease_that_it_tells() {
    let forced = |fence, until| {
        let mut forced = ask(Kind::ForceRelease, NO_TOKEN, 300, until);
        forced.said.fencing_token = Some(fence);
        forced
    };
    let first = || grant(1, 10, (0, 2), 1_000);
    let with = |fence| vec![first(), forced(fence, 301), grant(2, 12, (300, 302), 100)];
    breaks("I1", with(11), with(10));
    let late = || refresh(1, 10, (400, 401), 700);
    let ended = |until| vec![first(), forced(10, until), late()];
    breaks("I7", ended(301), ended(500));
}

#[test]
fn a_stream_that_hears_late_of_its_forced_release_is_found() {
    let heard = |at, instance| {
        let mut forced = ask(Kind::ForceRelease, NO_TOKEN, 1, 3);
        (forced.said.fencing_token, forced.instance) = (Some(10), instance);
        vec![Operation { answered: Some(5 * MS), ..hold() }, forced, end("lost/forced", 5, at)]
    };
    breaks("I9", heard(400, 0), heard(6, 0));
    assert_eq!(rules(&lines(heard(400, 1))), [""; 0], "it hears at its next refresh");
}

#[test]
fn on_redis_nothing_comes_after_an_answer_that_nobody_knows() {
    let with = |store, named| {
        let asked = Operation { status: 503, ..no(grant(1, 0, (0, 20), 900), "unknown") };
        let asked = Operation { outcome: Outcome::Unknown, ..asked };
        let mut released = no(release(1, 30, 40), "lock_lost");
        released.asked.fencing_token = named;
        rules(&lines_of(store, [asked, released, look(1, (60, 70), Some(10), true)]))
    };
    assert_eq!(with("redis", None), ["I12"]);
    assert_eq!(with("redis", Some(9)), [""; 0], "another lease was meant");
    assert_eq!(with("embedded", None), [""; 0]);
}

#[test]
fn a_client_that_leaves_a_far_store_before_any_answer_has_no_lease() {
    let with = |left| {
        let ghost = gone(grant(1, 0, (0, left), 20_000), left);
        lines_of("redis-far", [ghost, waited(grant(2, 11, (100, 9_000), 50))])
    };
    assert_eq!(rules(&with(39)), ["I5"]);
    assert_eq!(rules(&with(41)), [""; 0], "its answer was on its way");
}

#[test]
fn order_on_redlock_is_promised_where_one_instance_is_asked() {
    let with = |instance, elsewhere| {
        let first = [grant(1, 10, (0, 2), 1_000), release(1, 600, 601)];
        let passed = waited(grant(2, 12, (100, 700), 50));
        let newer = waited(grant(3, 11, (300, 602), 50));
        let other = no(newer.clone(), "store_unavailable/unknown");
        let other = Operation { instance: elsewhere, outcome: Outcome::Unknown, ..other };
        let newer = Operation { instance, ..newer };
        let all = first.into_iter().chain([newer, other, release(3, 610, 611), passed]);
        lines_of("redlock", all)
    };
    assert_eq!(rules(&with(0, 0)), ["I3"]);
    for (instance, elsewhere) in [(1, 1), (0, 1)] {
        let report = check(&with(instance, elsewhere));
        assert!(report.passed() && unpromised(&report) == ["I3"], "{report}");
    }
}

#[test]
fn a_stream_goes_on_in_an_outage_though_its_lease_was_released() {
    let released = |code| {
        let other = Operation { status: 503, ..no(ask(Kind::Acquire, 2, 180, 190), code) };
        vec![hold(), alive(200, 2, 102), release(1, 10, 20), alive(200, 102, 202), other]
    };
    breaks("I7", released("draining"), released("store_unavailable/not_acquired"));
}

#[test]
fn in_an_outage_the_refresh_of_a_stream_may_have_crossed_its_release() {
    let told = |left, code| {
        let next = [release(1, 104, 108), grant(2, 11, (109, 115), 300), alive(left, 110, 180)];
        let other = Operation { status: 503, ..no(ask(Kind::Acquire, 3, 160, 170), code) };
        [vec![hold(), alive(300, 2, 102)], next.to_vec(), vec![other]].concat()
    };
    let outage = "store_unavailable/unknown";
    breaks("I7", told(240, "draining"), told(240, outage));
}

#[test]
fn a_run_with_too_little_of_what_it_is_about_is_refused() {
    let history = lines(vec![grant(1, 10, (0, 2), 100), grant(2, 11, (200, 202), 100)]);
    assert!(check_wanted(&history, &vec![("grants", 2), ("expiries", 2)]).passed());
    assert_eq!(check_wanted(&history, &vec![("handoffs", 1)]).refused, ["handoffs: 0 of 1"]);
    let exclusive = vec![("shared_grants", 1), ("unknowns", 1)];
    assert!(check_wanted(&history, &exclusive).passed(), "nothing is shared, and nothing failed");
    assert!(!check(&history[1..]).passed(), "nobody knows of which store it is");
}

#[test]
fn a_place_that_a_draining_instance_leaves_may_be_released() {
    let refused = |code| {
        let mut refused = no(grant(2, 0, (10, 20), 1_000), code);
        refused.asked.wait_ms = 1_000;
        vec![grant(1, 10, (0, 2), 5_000), refused, release(2, 30, 31)]
    };
    breaks("I6", refused("wait_cancelled"), refused("draining"));
}

#[test]
fn a_look_on_redlock_may_show_the_vote_of_a_rival() {
    let shown = |store, fence| {
        let shown = look(2, (50, 60), Some(fence), false);
        rules(&lines_of(store, [grant(1, 10, (0, 2), 1_000), shown]))
    };
    assert_eq!(shown("redlock", 11), [""; 0]);
    assert_eq!(shown("redlock", 9), ["I2"]);
    assert_eq!(shown("redis", 11), ["I2"]);
}

#[test]
fn a_lease_that_the_nodes_of_redlock_lost_has_no_number() {
    let mut lost = no(refresh(1, 0, (60, 62), 900), "lock_lost");
    lost.asked.fencing_token = Some(10);
    let mut history = lines_of("redlock", [grant(1, 10, (0, 2), 1_000), lost]);
    let found = rules(&history);
    assert!(found.contains(&"I2"), "{found:?}");
    history.push(flush(30));
    assert_eq!(rules(&history), [""; 0]);
}

#[test]
fn beside_a_fault_a_lost_lease_on_redlock_may_be_told_without_the_number_that_the_token_has() {
    let told = |store, faults: &[Line]| {
        let mut lost = no(refresh(1, 0, (60, 62), 900), "lock_lost");
        lost.asked.fencing_token = Some(9);
        rules(&[&lines_of(store, [grant(1, 10, (0, 2), 1_000), lost]), faults].concat())
    };
    assert!(told("redlock", &[]).contains(&"I2"));
    assert_eq!(told("redlock", &[stopped(10, 20)]), [""; 0]);
    assert!(told("redis", &[stopped(10, 20)]).contains(&"I2"));
}

#[test]
fn beside_a_fault_a_refresh_on_redlock_may_tell_less() {
    let told = |store, faults: &[Line]| {
        let all = [grant(1, 10, (0, 2), 1_000), refresh(1, 10, (500, 510), 300)];
        rules(&[&lines_of(store, all), faults].concat())
    };
    assert_eq!(told("redlock", &[]), ["I9"]);
    assert_eq!(told("redlock", &[stopped(100, 110)]), [""; 0]);
    assert_eq!(told("redis", &[stopped(100, 110)]), ["I9"]);
}

#[test]
fn a_lease_on_redlock_keeps_its_number() {
    let all = [grant(1, 10, (0, 2), 990), refresh(1, 12, (100, 110), 990)];
    assert_eq!(rules(&lines_of("redlock", all)), ["I1", "I2", "I7", "I8", "I9"]);
}
