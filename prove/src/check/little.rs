//! Little histories: one that breaks a rule, and its twin, which does not. Those of the rules of one
//! exclusive lease are in `tests`.

use super::*;
use crate::history::{Asked, Fault, Left, NO_TOKEN, Nanos, Run, Said, Token};

pub(crate) const MS: Nanos = 1_000_000;

/// A question of the client with the number of its token, chosen by the client, sent and answered at
/// these milliseconds.
pub(crate) fn ask(kind: Kind, token: Token, sent: u64, answered: u64) -> Operation {
    Operation {
        client: token as u32,
        instance: 0,
        kind,
        key: 1,
        sent: sent * MS,
        answered: Some(answered * MS),
        gone: None,
        late: None,
        outcome: Outcome::Yes,
        status: 200,
        code: String::new(),
        token,
        chosen: true,
        asked: Asked::default(),
        said: Said::default(),
    }
}

pub(crate) fn grant(token: Token, fence: u64, (sent, answered): (u64, u64), ttl: u64) -> Operation {
    let mut grant = ask(Kind::Acquire, token, sent, answered);
    grant.status = 201;
    grant.asked.ttl_ms = Some(ttl);
    grant.said.ttl_ms = Some(ttl);
    grant.said.fencing_token = Some(fence);
    grant
}

pub(super) fn refresh(
    token: Token,
    fence: u64,
    (sent, answered): (u64, u64),
    ttl: u64,
) -> Operation {
    Operation { kind: Kind::Refresh, status: 200, ..grant(token, fence, (sent, answered), ttl) }
}

/// A grant to somebody who waited from `sent` to `answered`.
pub(super) fn waited(grant: Operation) -> Operation {
    let mut grant = grant;
    grant.asked.wait_ms = 10_000;
    grant.said.waited_ms = grant.answered.map(|answered| (answered - grant.sent) / MS);
    grant
}

pub(crate) fn release(token: Token, sent: u64, answered: u64) -> Operation {
    Operation { status: 204, ..ask(Kind::Release, token, sent, answered) }
}

pub(crate) fn no(operation: Operation, code: &str) -> Operation {
    let said = Said::default();
    Operation { outcome: Outcome::No, status: 409, code: code.to_owned(), said, ..operation }
}

pub(super) fn gone(operation: Operation, at: u64) -> Operation {
    let (answered, gone) = (None, Some(at * MS));
    let (outcome, said) = (Outcome::Unknown, Said::default());
    Operation { outcome, answered, gone, status: 0, said, ..operation }
}

pub(crate) fn look(
    token: Token,
    (sent, answered): (u64, u64),
    fence: Option<u64>,
    mine: bool,
) -> Operation {
    let mut look = ask(Kind::Look, token, sent, answered);
    look.said.held = Some(fence.is_some());
    look.said.fencing_token = fence;
    look.said.mine = Some(mine).filter(|_| token != NO_TOKEN);
    look
}

pub(super) fn run(store: &str) -> Line {
    let drift_ppm = if store == "redlock" { 10_000 } else { 0 };
    let (store, deadline) = (store.to_owned(), 100 * MS);
    Line::Run(Run { store, seed: 0, deadline, drift_ppm })
}

pub(super) fn lines(operations: Vec<Operation>) -> Vec<Line> {
    lines_of("redis", operations)
}

/// On Redlock grants tell a little less than was asked for.
pub(super) fn lines_of(store: &str, operations: impl IntoIterator<Item = Operation>) -> Vec<Line> {
    let asked = |mut operation: Operation| {
        if store == "redlock" {
            operation.asked.ttl_ms = operation.asked.ttl_ms.map(|ttl| ttl + ttl / 50);
        }
        Line::Operation(operation)
    };
    std::iter::once(run(store)).chain(operations.into_iter().map(asked)).collect()
}

pub(super) fn rules(lines: &[Line]) -> Vec<&'static str> {
    let mut rules: Vec<_> = check(lines).broken().map(|violation| code(violation.rule)).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

/// Returns a rule without its words.
pub(super) fn code(rule: &'static str) -> &'static str {
    rule.split(' ').next().unwrap()
}

/// The first history breaks the rule, and the second one none.
pub(super) fn breaks(rule: &str, broken: Vec<Operation>, twin: Vec<Operation>) {
    let found = rules(&lines(broken));
    assert!(found.contains(&rule), "{rule} is not found, but {found:?}");
    let report = check(&lines(twin));
    assert!(report.passed(), "the twin of {rule}: {report}");
}

pub(super) fn fault(kind: &str, target: &str, (from, until): (u64, u64)) -> Fault {
    let (kind, target) = (kind.to_owned(), target.to_owned());
    Fault { kind, target, from: from * MS, until: until * MS, forgets: false }
}

pub(super) fn flush(at: u64) -> Line {
    Line::Fault(Fault { forgets: true, ..fault("flushall", "redis", (at, at + 1)) })
}

/// A process of the service that stands still, and loses nothing.
pub(super) fn stopped(from: u64, until: u64) -> Line {
    Line::Fault(fault("instance_stop", "instance-0", (from, until)))
}

#[test]
fn a_refresh_counts_from_its_question_and_shortens_nothing() {
    let with = |at, ttl, next| {
        let next = grant(2, 11, (next, next + 2), 1_000);
        vec![grant(1, 10, (0, 2), 1_000), refresh(1, 10, (at, at + 10), ttl), next]
    };
    breaks("I1", with(900, 1_000, 1_895), with(900, 1_000, 1_905));
    breaks("I9", with(500, 300, 1_002), with(500, 495, 1_002));
}

/// Names the first lease of its token.
fn naming(operation: Operation) -> Operation {
    let mut naming = operation;
    naming.asked.fencing_token = Some(10);
    naming
}

#[test]
fn a_request_that_names_a_lease_gives_it_up_as_it_is_sent() {
    let with =
        |named: Operation| vec![grant(1, 10, (0, 2), 1_000), named, grant(3, 12, (80, 82), 50)];
    let mut refused = naming(no(grant(1, 0, (50, 60), 900), "lock_held"));
    refused.said.mine = Some(true);
    let lost = gone(naming(grant(1, 0, (50, 60), 900)), 70);
    // Refused it has the lease again, if each one before it was answered.
    breaks("I1", with(refused.clone()), with(lost.clone()));
    let both = vec![gone(naming(grant(1, 0, (45, 0), 900)), 48), refused];
    assert_eq!(rules(&lines([with(lost), both].concat())), ["S4"], "the others allow it");
    let anew = |fence| naming(grant(1, fence, (50, 60), 20));
    breaks("I13", with(anew(10)), with(anew(11)));
    breaks("I13", with(Operation { status: 200, ..anew(11) }), with(anew(11)));
    breaks("I1", with(naming(grant(1, 11, (50, 60), 900))), with(anew(11)));
}

#[test]
fn a_repeat_tells_the_lease_that_its_token_has() {
    let again = |fence| Operation { status: 200, ..grant(1, fence, (50, 52), 1_000) };
    let with = |operation| vec![grant(1, 10, (0, 2), 1_000), operation];
    breaks("I2", with(again(11)), with(again(10)));
    let lost = |fence| {
        let mut lost = no(refresh(1, 0, (60, 62), 900), "lock_lost");
        (lost.said.fencing_token, lost.asked.fencing_token) = (fence, Some(9));
        with(lost)
    };
    breaks("I2", lost(Some(11)), lost(Some(10)));
    breaks("I2", lost(None), lost(Some(10)));
    let mine = |kind, told| {
        let mut mine = no(Operation { kind, ..grant(1, 0, (60, 62), 900) }, "lock_held");
        (mine.said.mine, mine.said.fencing_token) = (Some(true), told);
        with(mine)
    };
    breaks("I8", mine(Kind::Acquire, Some(10)), mine(Kind::Hold, Some(10)));
    breaks("I8", mine(Kind::Hold, None), mine(Kind::Hold, Some(10)));
    breaks("I9", mine(Kind::Refresh, Some(10)), mine(Kind::Hold, Some(10)));
}

#[test]
fn a_late_request_may_act_until_its_connection_has_ended() {
    let late = |until| Operation { late: Some(until * MS), ..gone(grant(1, 0, (0, 5), 20_000), 5) };
    let refused = |at| no(grant(2, 0, (at, at + 2), 50), "lock_held");
    breaks("I10", vec![late(400), refused(22_000)], vec![late(1_500), refused(22_000)]);
}

#[test]
fn a_request_that_nothing_supersedes_is_found() {
    let with = |other| {
        let told = no(waited(grant(2, 0, (50, 80), 100)), "superseded");
        vec![
            grant(1, 10, (0, 2), 1_000),
            told,
            no(waited(grant(other, 0, (70, 90), 50)), "lock_held"),
        ]
    };
    breaks("I13", with(3), with(2));
}

#[test]
fn a_ghost_that_keeps_a_key_is_found() {
    let ghost = || {
        let mut ghost = grant(1, 10, (0, 2), 20_000);
        (ghost.token, ghost.chosen) = (NO_TOKEN, false);
        gone(ghost, 2)
    };
    let with = |at| vec![ghost(), waited(grant(2, 11, (100, at), 50))];
    breaks("I5", with(9_000), with(900));
    // Answers take longer just then: its own may have been on its way.
    let slow = no(grant(3, 0, (4, 9), 50), "lock_held");
    let raced = [vec![slow], with(9_000)].concat();
    assert_eq!(rules(&lines(raced.clone())), [""; 0]);
    // Another client went later: nobody knows which of them had the key.
    let left = gone(waited(grant(4, 0, (100, 150), 50)), 150);
    assert_eq!(rules(&lines([raced, vec![left]].concat())), [""; 0]);
}

#[test]
fn a_grant_on_redlock_that_tells_more_than_is_safe_is_found() {
    let with = |told| {
        let mut granted = grant(1, 10, (0, 2), 1_000);
        granted.said.ttl_ms = Some(told);
        lines_of("redlock", [granted])
    };
    assert_eq!(rules(&with(1_010)), ["I1"]);
    assert_eq!(rules(&with(1_009)), [""; 0]);
}

#[test]
fn a_claim_that_is_counted_and_that_nobody_waits_with_is_found() {
    let with = |at: u64, waiters| {
        let ghost = gone(waited(grant(2, 0, (100, 150), 50)), 150);
        let mut seen = look(1, (at, at + 1), Some(10), true);
        seen.said.waiters = Some(waiters);
        vec![grant(1, 10, (0, 2), 20_000), ghost, seen]
    };
    breaks("I5", with(9_000, 1), with(9_000, 0));
    breaks("I5", with(200, 2), with(200, 1));
}

#[test]
fn a_claim_that_is_granted_after_it_was_cancelled_is_found() {
    let then = |fence| {
        let cancelled = no(waited(grant(2, 0, (10, 40), 900)), "wait_cancelled");
        let shown = look(2, (80, 90), fence, fence.is_some());
        vec![grant(1, 10, (0, 2), 5_000), cancelled, release(1, 50, 60), shown]
    };
    breaks("no", then(Some(11)), then(None));
}

#[test]
fn a_lease_that_no_claim_began_is_found() {
    let nowhere = |fence| vec![grant(1, 10, (0, 2), 200), refresh(1, fence, (150, 151), 200)];
    breaks("I7", nowhere(11), nowhere(10));
}

#[test]
fn a_lease_that_is_told_when_it_is_over_is_found() {
    let with = |told| {
        let late = Operation { answered: Some(told * MS), ..grant(1, 10, (0, 2), 100) };
        vec![late, grant(2, 11, (150, 152), 5_000)]
    };
    breaks("I9", with(500), with(240));
    let mut suspended = lines(with(500));
    suspended.push(stopped(100, 490));
    assert_eq!(rules(&suspended), [""; 0]);
}

#[test]
fn answers_that_no_sequence_explains_are_found() {
    // Each two of the three fit: the second one had to begin after the first, and lasts beyond the third.
    let with = |ttl| {
        let mut second = grant(2, 11, (0, 300), ttl);
        second.status = 200;
        vec![grant(1, 10, (0, 1), 100), second, grant(3, 12, (100, 150), 10)]
    };
    breaks("I11", with(100), with(40));
}

#[test]
fn a_secret_and_a_question_without_the_right_are_found() {
    let with = |unauthorized, leaked| {
        let mut grant = grant(1, 10, (0, 2), 100);
        grant.asked.unauthorized = unauthorized;
        grant.said.leaked = leaked;
        vec![grant]
    };
    breaks("I12", with(true, false), with(false, false));
    breaks("I12", with(false, true), with(false, false));
}

#[test]
fn too_many_waiters_left_at_the_end_are_found() {
    let with = |count| {
        let left = Left { what: "waiters".to_owned(), count, allowed: 2 };
        [lines(Vec::new()), vec![Line::Left(left)]].concat()
    };
    assert_eq!(rules(&with(3)), ["left"]);
    assert_eq!(rules(&with(2)), [""; 0]);
}

#[test]
fn a_lease_that_was_given_up_twice_while_the_store_stood_still_is_found() {
    let with = |at, instance| {
        let twice =
            [(150, 170), (200, 260)].map(|(sent, left)| gone(grant(1, 0, (sent, 0), 9_000), left));
        let twice = twice.map(|asked| Operation { instance, ..asked });
        let [first, second] = twice;
        let first = Operation { instance: 0, ..first };
        let mut lines = lines(vec![first, second, look(1, (at, at + 2), Some(10), true)]);
        lines.push(Line::Fault(fault("server_stop", "server-0", (100, 900))));
        rules(&lines)
    };
    assert_eq!(with(2_100, 0), ["I12"]);
    assert_eq!(with(1_900, 0), [""; 0]);
    // A repeat over another instance may keep it.
    assert_eq!(with(2_100, 1), [""; 0]);
}
