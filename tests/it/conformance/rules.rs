//! The rules of `docs/rules.md` that a client can see, one test for each by its number.

use crate::conformance::on_every_store;

on_every_store!(tests:
    rule_1_a_lease_has_one_number,
    rule_3_an_answer_tells_what_is_left,
    rule_4_a_repeat_never_shortens_a_lease,
    rule_5_a_repeat_changes_nothing_but_the_end,
    rule_6_a_replacement_is_a_new_lease_of_what_was_asked_for,
    rule_6_another_number_is_lost_and_begins_nothing,
    rule_8_a_grant_that_reaches_nobody_is_taken_back,
    rule_8_a_grant_in_line_that_reaches_nobody_is_taken_back,
    rule_8_what_its_client_was_heard_of_stays,
    rule_8_a_repeat_that_reaches_nobody_ends_no_lease,
    rule_8_a_replacement_that_reaches_nobody_ends_when_the_replaced_lease_would_have,
    rule_8_a_replacement_of_a_kept_lease_that_reaches_nobody_ends_at_once,
    rule_9_the_newest_waiting_request_counts,
    rule_9_a_try_supersedes_no_request_that_waits,
    rule_9_requests_that_are_given_up_in_a_stall_leave_nothing,
    rule_9_a_claim_has_one_question_under_way,
    rule_13_a_refresh_only_extends,
    rule_14_a_release_is_not_remembered,
    rule_17_a_lease_that_was_seen_to_end_is_told_as_lost,
);

mod tests {
    use std::time::Duration;

    use lockkeeper::lock::error::{LockError, Verb};
    use lockkeeper::lock::hold::{HoldEvent, HoldStart};
    use lockkeeper::lock::lease::{Acquired, Claim, LockStatus, Origin, Receipt};
    use lockkeeper::lock::leases::Why;
    use lockkeeper::lock::locks::Locks;
    use lockkeeper::lock::store::{Answer, Ask, Condition, Ended, Renewed, Target, Win};
    use lockkeeper::lock::time::Ttl;
    use lockkeeper::lock::token::FencingToken;
    use tokio::task::JoinSet;

    use crate::conformance::toy::{Toy, Way};
    use crate::conformance::waiting::{Request, chosen};
    use crate::conformance::{LIMITS, Stage, claim, key, next_number, token};
    use crate::support::{PATIENCE, eventually};

    const LONG: u64 = 60_000;
    const SHORT: Ttl = Ttl::from_millis(5_000);

    async fn won(stage: &Stage, claim: &Claim) -> Win {
        match stage.store.ask(claim, Ask::Once(None)).await.unwrap() {
            Answer::Won(win) => win,
            refused => panic!("{refused:?}"),
        }
    }

    async fn left(stage: &Stage) -> Option<Duration> {
        let status = stage.store.look(&key("a"), None, 0).await.unwrap();
        status.holder.map(|holder| holder.left.unwrap())
    }

    async fn is_free(stage: &Stage) {
        let free = async || left(stage).await.is_none().then_some(());
        eventually(PATIENCE, free).await;
    }

    pub(super) async fn rule_1_a_lease_has_one_number(stage: Stage) {
        let lease = stage.granted(&claim("a", "one", LONG)).await;
        let number = lease.fencing_token;
        assert_eq!(won(&stage, &claim("a", "one", LONG)).await.lease.fencing_token, number);
        let refreshed =
            stage.store.renew(&Target::of(&key("a"), &token("one"), Some(number)), None).await;
        assert_eq!(refreshed.unwrap().lease().unwrap().fencing_token, number);
        stage.store.end(&Target::of(&key("a"), &token("one"), Some(number))).await.unwrap();
        assert!(stage.granted(&claim("a", "one", LONG)).await.fencing_token > number);
    }

    pub(super) async fn rule_3_an_answer_tells_what_is_left(stage: Stage) {
        let first = stage.granted(&claim("a", "one", LONG)).await;
        let waited = async || {
            let over =
                |left: &Duration| *left + Duration::from_millis(50) < first.ttl.as_duration();
            left(&stage).await.filter(over)
        };
        eventually(PATIENCE, waited).await;
        let again = won(&stage, &claim("a", "one", 1_000)).await.lease;
        assert!(again.ttl < first.ttl, "{again:?} after {first:?}");
        assert!(stage.lasts(first.ttl, LONG), "{first:?}");
    }

    pub(super) async fn rule_4_a_repeat_never_shortens_a_lease(stage: Stage) {
        stage.granted(&claim("a", "one", LONG)).await;
        let again = won(&stage, &claim("a", "one", SHORT.as_millis())).await;
        assert!(!again.fresh);
        let is_longer = again.lease.ttl > SHORT && left(&stage).await > Some(SHORT.as_duration());
        assert!(is_longer, "{again:?}");
    }

    /// The number of the token's own lease, by which a claim is refused.
    async fn mine(stage: &Stage, claim: &Claim) -> FencingToken {
        match stage.store.ask(claim, Ask::Once(None)).await.unwrap() {
            Answer::Held(LockStatus { mine: Some(true), holder: Some(own), .. }) => {
                own.fencing_token.unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    fn stream() -> Claim {
        Claim { kept: true, ..claim("a", "one", LONG) }
    }

    fn named(number: FencingToken) -> Claim {
        Claim { named: Some(number), ..claim("a", "one", LONG) }
    }

    pub(super) async fn rule_5_a_repeat_changes_nothing_but_the_end(stage: Stage) {
        let plain = stage.granted(&claim("a", "one", LONG)).await.fencing_token;
        assert_eq!(mine(&stage, &stream()).await, plain, "a stream takes no lease over");
        stage.store.end(&Target::of(&key("a"), &token("one"), None)).await.unwrap();
        let kept = stage.granted(&stream()).await.fencing_token;
        for late in [stream(), claim("a", "one", LONG)] {
            assert_eq!(mine(&stage, &late).await, kept);
        }
        let of = Target::of(&key("a"), &token("one"), Some(kept)).only(Condition::Kept);
        let goes_on = stage.store.renew(&of, None).await.unwrap();
        assert!(matches!(goes_on, Renewed::Lease(_)), "{goes_on:?}");
    }

    pub(super) async fn rule_6_a_replacement_is_a_new_lease_of_what_was_asked_for(stage: Stage) {
        let first = stage.granted(&stream()).await.fencing_token;
        let short = Claim { ttl: SHORT, ..named(first) };
        let win = won(&stage, &short).await;
        let second = win.lease.fencing_token;
        assert!(win.fresh && second > first, "{win:?}");
        assert_eq!(win.replaces.map(|before| before.number), Some(first));
        assert!(left(&stage).await.unwrap() <= SHORT.as_duration(), "it may be shorter");
        let of = |number| Target::of(&key("a"), &token("one"), Some(number));
        let kept = stage.store.renew(&of(first).only(Condition::Kept), None).await.unwrap();
        assert_eq!(kept, Renewed::Lost(Some(second)), "its stream is told");
        let refreshed = stage.store.renew(&of(second), None).await.unwrap();
        assert!(matches!(refreshed, Renewed::Lease(_)), "it is a plain one: {refreshed:?}");
        let third = won(&stage, &Claim { kept: true, ..named(second) }).await.lease;
        assert_eq!(mine(&stage, &claim("a", "one", LONG)).await, third.fencing_token);
    }

    pub(super) async fn rule_6_another_number_is_lost_and_begins_nothing(stage: Stage) {
        let number = stage.granted(&claim("a", "one", LONG)).await.fencing_token;
        let ask = async |number| stage.store.ask(&named(number), Ask::Once(None)).await.unwrap();
        assert_eq!(ask(next_number(number)).await, Answer::Lost(Some(number)));
        stage.store.end(&Target::of(&key("a"), &token("one"), None)).await.unwrap();
        assert_eq!(ask(number).await, Answer::Lost(None));
        assert_eq!(left(&stage).await, None);
        stage.granted(&claim("a", "two", LONG)).await;
        assert_eq!(ask(number).await, Answer::Lost(None));
    }

    pub(super) async fn rule_8_a_grant_that_reaches_nobody_is_taken_back(stage: Stage) {
        let toy = Toy::over(stage.store.clone());
        let locks = Locks::new(toy.clone(), LIMITS);
        for origin in [Origin::Client, Origin::Service] {
            toy.let_go(Verb::TryAcquire, Way::After);
            let before = toy.calls(Verb::TryAcquire);
            let request = Request::of(&locks, Claim { origin, ..chosen("one") });
            toy.called(Verb::TryAcquire, before).await;
            assert!(left(&stage).await.is_some(), "it is granted");
            assert!(!request.gone().await);
            toy.let_go(Verb::TryAcquire, Way::Straight);
            is_free(&stage).await;
        }
    }

    /// The grant of a lease that nobody has heard of.
    fn unheard(Win { lease, replaces: replaced, by, .. }: &Win) -> Target {
        let (origin, place, replaced, by) = (Origin::Client, None, *replaced, *by);
        let receipt = Receipt { origin, place, replaced, by };
        Target::of(&lease.key, &token("one"), Some(lease.fencing_token))
            .only(Condition::Unheard(receipt))
    }

    pub(super) async fn rule_8_a_grant_in_line_that_reaches_nobody_is_taken_back(stage: Stage) {
        let locks = Locks::new(stage.store.clone(), LIMITS);
        for round in 0..40 {
            // A late grant to the last round's request may just be taken back.
            let holder = claim("a", "holder", LONG);
            eventually(PATIENCE, async || {
                let attempt = stage.store.ask(&holder, Ask::Once(None)).await.unwrap();
                matches!(attempt, Answer::Won(_)).then_some(())
            })
            .await;
            let request = Request::of(&locks, chosen("one"));
            let waits = async || {
                let status = stage.store.look(&key("a"), None, 0).await.unwrap();
                (status.waiters == 1).then_some(())
            };
            eventually(PATIENCE, waits).await;
            locks.release(Target::of(&key("a"), &token("holder"), None)).await.unwrap();
            tokio::time::sleep(Duration::from_micros(150 * round)).await;
            if request.gone().await {
                locks.release(Target::of(&key("a"), &token("one"), None)).await.unwrap();
            }
            is_free(&stage).await;
        }
    }

    pub(super) async fn rule_8_what_its_client_was_heard_of_stays(stage: Stage) {
        for refreshes in [false, true] {
            let win = won(&stage, &claim("a", "one", LONG)).await;
            if refreshes {
                stage.refresh("a", "one", None).await.unwrap();
            } else {
                assert!(!won(&stage, &claim("a", "one", LONG)).await.fresh);
            }
            stage.store.end(&unheard(&win)).await.unwrap();
            assert!(left(&stage).await.is_some(), "its client was told of it");
            stage.store.end(&Target::of(&key("a"), &token("one"), None)).await.unwrap();
        }
    }

    pub(super) async fn rule_8_a_replacement_that_reaches_nobody_ends_when_the_replaced_lease_would_have(
        stage: Stage,
    ) {
        let short = Claim { ttl: SHORT, ..claim("a", "one", LONG) };
        let first = stage.granted(&short).await.fencing_token;
        let win = won(&stage, &Claim { kept: true, ..named(first) }).await;
        assert!(left(&stage).await.unwrap() > SHORT.as_duration());
        stage.store.end(&unheard(&win)).await.unwrap();
        if stage.counts_votes() {
            assert_eq!(left(&stage).await, None, "there it ends at once");
            return;
        }
        assert!(left(&stage).await.unwrap() <= SHORT.as_duration());
        let repeat = won(&stage, &short).await;
        assert_eq!(repeat.lease.fencing_token, win.lease.fencing_token);
        assert!(!repeat.fresh, "its client finds it, and no stream keeps it");
        stage.store.end(&unheard(&win)).await.unwrap();
        assert!(left(&stage).await.is_some());
    }

    /// It stayed for the TTL of a lease that would have ended with its connection.
    pub(super) async fn rule_8_a_replacement_of_a_kept_lease_that_reaches_nobody_ends_at_once(
        stage: Stage,
    ) {
        for kept in [false, true] {
            let first = stage.granted(&stream()).await.fencing_token;
            let win = won(&stage, &Claim { kept, ..named(first) }).await;
            stage.store.end(&unheard(&win)).await.unwrap();
            assert_eq!(left(&stage).await, None);
        }
    }

    async fn stand_in_line(stage: &Stage, locks: &Locks, claim: Claim) -> Request {
        let request = Request::of(locks, claim);
        let waits = async || {
            let status = stage.store.look(&key("a"), None, 0).await.unwrap();
            (status.waiters == 1).then_some(())
        };
        eventually(PATIENCE, waits).await;
        request
    }

    pub(super) async fn rule_9_the_newest_waiting_request_counts(stage: Stage) {
        let locks = Locks::new(stage.store.clone(), LIMITS);
        stage.granted(&claim("a", "holder", LONG)).await;
        let older = stand_in_line(&stage, &locks, chosen("one")).await;
        let newer = Request::of(&locks, chosen("one"));
        let told = older.answer().await;
        assert!(matches!(told, Err(LockError::Superseded(_))), "{told:?}");
        locks.release(Target::of(&key("a"), &token("holder"), None)).await.unwrap();
        let told = newer.answer().await;
        assert!(matches!(told, Ok(Acquired::Granted(_))), "{told:?}");
    }

    pub(super) async fn rule_9_a_try_supersedes_no_request_that_waits(stage: Stage) {
        let locks = Locks::new(stage.store.clone(), LIMITS);
        stage.granted(&claim("a", "holder", LONG)).await;
        let waits = stand_in_line(&stage, &locks, chosen("one")).await;
        let tried = locks.acquire(chosen("one"), Duration::ZERO).await;
        assert!(matches!(tried, Ok(Acquired::Held(..))), "{tried:?}");
        locks.release(Target::of(&key("a"), &token("holder"), None)).await.unwrap();
        let told = waits.answer().await;
        assert!(matches!(told, Ok(Acquired::Granted(_))), "{told:?}");
    }

    pub(super) async fn rule_9_requests_that_are_given_up_in_a_stall_leave_nothing(stage: Stage) {
        let toy = Toy::over(stage.store.clone());
        let locks = Locks::new(toy.clone(), LIMITS);
        toy.let_go(Verb::TryAcquire, Way::Before);
        for _ in 0..3 {
            let asked = toy.begun(Verb::TryAcquire);
            let request = Request::of(&locks, chosen("one"));
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(asked == 0 || toy.begun(Verb::TryAcquire) == asked, "one question at a time");
            assert!(!request.gone().await);
        }
        toy.let_go(Verb::TryAcquire, Way::Straight);
        assert!(locks.finish(PATIENCE).await);
        assert_eq!(left(&stage).await, None);
    }

    pub(super) async fn rule_9_a_claim_has_one_question_under_way(stage: Stage) {
        let toy = Toy::over(stage.store.clone());
        let locks = Locks::new(toy.clone(), LIMITS);
        stage.granted(&claim("a", "holder", LONG)).await;
        let older = stand_in_line(&stage, &locks, chosen("one")).await;
        toy.let_go(Verb::WaitTurn, Way::After);
        let asked = toy.calls(Verb::WaitTurn);
        stage.store.end(&Target::of(&key("a"), &token("holder"), None)).await.unwrap();
        let is_granted = async || {
            let status = stage.store.look(&key("a"), Some(&token("one")), 0).await.unwrap();
            (status.mine == Some(true)).then_some(())
        };
        eventually(PATIENCE, is_granted).await;
        toy.called(Verb::WaitTurn, asked).await;
        let held = stage.store.look(&key("a"), None, 0).await.unwrap().holder.unwrap();
        let tried = toy.begun(Verb::TryAcquire);
        let newer = Claim { ttl: SHORT, owner: None, ..chosen("one") };
        let newer = Request::of(&locks, newer);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(toy.begun(Verb::TryAcquire), tried, "it asks after that");
        toy.let_go(Verb::WaitTurn, Way::Straight);
        let told = older.answer().await;
        assert!(matches!(told, Ok(Acquired::Granted(_))), "{told:?}");
        let told = newer.answer().await;
        let Ok(Acquired::Again(grant)) = told else { panic!("{told:?}") };
        assert_eq!(Some(grant.lease.fencing_token), held.fencing_token);
    }

    pub(super) async fn rule_8_a_repeat_that_reaches_nobody_ends_no_lease(stage: Stage) {
        let toy = Toy::over(stage.store.clone());
        let locks = Locks::new(toy.clone(), LIMITS);
        stage.granted(&chosen("one")).await;
        toy.let_go(Verb::TryAcquire, Way::After);
        let repeat = Request::of(&locks, chosen("one"));
        toy.called(Verb::TryAcquire, 0).await;
        assert!(!repeat.gone().await);
        toy.let_go(Verb::TryAcquire, Way::Straight);
        assert!(locks.finish(PATIENCE).await);
        assert!(left(&stage).await.is_some(), "its client was told of it before");
    }

    pub(super) async fn rule_13_a_refresh_only_extends(stage: Stage) {
        let lease = stage.granted(&claim("a", "one", LONG)).await;
        for named in [None, Some(lease.fencing_token)] {
            let of = Target::of(&key("a"), &token("one"), named);
            let refreshed = stage.store.renew(&of, Some(SHORT)).await.unwrap().lease().unwrap();
            assert!(refreshed.ttl > SHORT, "{refreshed:?}");
        }
        assert!(left(&stage).await.unwrap() > SHORT.as_duration());
    }

    pub(super) async fn rule_14_a_release_is_not_remembered(stage: Stage) {
        let locks = Locks::new(stage.store.clone(), LIMITS);
        let released = locks.release(Target::of(&key("a"), &token("one"), None)).await.unwrap();
        assert_eq!(released, Ended::Nothing(None));
        let answer = locks.acquire(claim("a", "one", LONG), Duration::ZERO).await.unwrap();
        assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
    }

    pub(super) async fn rule_17_a_lease_that_was_seen_to_end_is_told_as_lost(stage: Stage) {
        let toy = Toy::over(stage.store.clone());
        let locks = Locks::new(toy.clone(), LIMITS);
        toy.let_go(Verb::TryAcquire, Way::After);
        let wish = crate::conformance::wish(claim("a", "one", LONG));
        let (mut asking, on) = (JoinSet::new(), locks.clone());
        asking.spawn(async move { on.hold(wish).await });
        toy.called(Verb::TryAcquire, 0).await;
        let holder = stage.store.look(&key("a"), None, 0).await.unwrap().holder.unwrap();
        let ended = locks.force_release(key("a"), holder.fencing_token).await.unwrap();
        assert_eq!(ended.len(), 1, "it is granted");
        toy.let_go(Verb::TryAcquire, Way::Straight);
        let started = asking.join_next().await.unwrap().unwrap();
        let Ok(HoldStart::Hold(mut hold)) = started else { panic!("no stream") };
        let event = hold.next().await;
        assert!(matches!(event, Some(HoldEvent::Lost(Why::Forced))), "{event:?}");
        assert!(hold.next().await.is_none());
    }
}
