//! The rules of `docs/rules.md` that a client can see, one test for each by its number.

use crate::conformance::on_every_store;

on_every_store!(tests:
    rule_1_a_lease_has_one_number,
    rule_3_an_answer_tells_what_is_left,
    rule_4_an_acquire_never_shortens_a_lease,
    rule_5_another_number_is_lost_and_begins_nothing,
    rule_7_a_grant_that_reaches_nobody_is_taken_back,
    rule_7_a_grant_in_line_that_reaches_nobody_is_taken_back,
    rule_7_what_its_token_has_acquired_again_stays,
    rule_7_a_repeat_that_reaches_nobody_ends_no_lease,
    rule_11_a_refresh_extends_and_shortens_only_by_number,
    rule_12_a_release_is_not_remembered,
    rule_16_a_lease_that_was_seen_to_end_is_told_as_lost,
);

mod tests {
    use std::time::Duration;

    use lockkeeper::lock::error::Verb;
    use lockkeeper::lock::hold::{HoldEvent, HoldStart, HoldWish};
    use lockkeeper::lock::lease::{Acquired, Claim, Origin, Receipt};
    use lockkeeper::lock::leases::Why;
    use lockkeeper::lock::locks::Locks;
    use lockkeeper::lock::store::{Answer, Ask, Ended, If, Target, Win};
    use lockkeeper::lock::time::Ttl;
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

    pub(super) async fn rule_4_an_acquire_never_shortens_a_lease(stage: Stage) {
        stage.granted(&claim("a", "one", LONG)).await;
        let again = won(&stage, &claim("a", "one", SHORT.as_millis())).await;
        assert!(!again.fresh);
        let is_longer = again.lease.ttl > SHORT && left(&stage).await > Some(SHORT.as_duration());
        assert!(is_longer, "{again:?}");
    }

    pub(super) async fn rule_5_another_number_is_lost_and_begins_nothing(stage: Stage) {
        let named = |number| Claim { named: Some(number), ..claim("a", "one", LONG) };
        let lease = stage.granted(&claim("a", "one", LONG)).await;
        let other =
            stage.store.ask(&named(next_number(lease.fencing_token)), Ask::Once(None)).await;
        assert_eq!(other.unwrap(), Answer::Gone);
        let same = won(&stage, &named(lease.fencing_token)).await;
        assert_eq!((same.fresh, same.lease.fencing_token), (false, lease.fencing_token));
        stage.store.end(&Target::of(&key("a"), &token("one"), None)).await.unwrap();
        let over = stage.store.ask(&named(lease.fencing_token), Ask::Once(None)).await.unwrap();
        assert_eq!(over, Answer::Gone);
        assert_eq!(left(&stage).await, None);
    }

    pub(super) async fn rule_7_a_grant_that_reaches_nobody_is_taken_back(stage: Stage) {
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
    fn unheard(Win { lease, by, .. }: &Win) -> Target {
        let (renewals, origin) = (lease.renewals, Origin::Client);
        let receipt = Receipt { renewals, origin, place: None, by: *by };
        Target::of(&lease.key, &token("one"), Some(lease.fencing_token)).only(If::Unheard(receipt))
    }

    pub(super) async fn rule_7_a_grant_in_line_that_reaches_nobody_is_taken_back(stage: Stage) {
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

    pub(super) async fn rule_7_what_its_token_has_acquired_again_stays(stage: Stage) {
        let win = won(&stage, &claim("a", "one", LONG)).await;
        assert!(!won(&stage, &claim("a", "one", LONG)).await.fresh);
        stage.store.end(&unheard(&win)).await.unwrap();
        assert!(left(&stage).await.is_some(), "the second was told of it");
    }

    pub(super) async fn rule_7_a_repeat_that_reaches_nobody_ends_no_lease(stage: Stage) {
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

    pub(super) async fn rule_11_a_refresh_extends_and_shortens_only_by_number(stage: Stage) {
        let lease = stage.granted(&claim("a", "one", LONG)).await;
        let refresh = async |named| {
            let refreshed =
                stage.store.renew(&Target::of(&key("a"), &token("one"), named), Some(SHORT)).await;
            refreshed.unwrap().lease().unwrap().ttl
        };
        assert!(refresh(None).await > SHORT);
        assert!(refresh(Some(lease.fencing_token)).await <= SHORT);
        assert!(left(&stage).await.unwrap() <= SHORT.as_duration());
    }

    pub(super) async fn rule_12_a_release_is_not_remembered(stage: Stage) {
        let locks = Locks::new(stage.store.clone(), LIMITS);
        let released = locks.release(Target::of(&key("a"), &token("one"), None)).await.unwrap();
        assert_eq!(released, Ended::Nothing);
        let answer = locks.acquire(claim("a", "one", LONG), Duration::ZERO).await.unwrap();
        assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
    }

    pub(super) async fn rule_16_a_lease_that_was_seen_to_end_is_told_as_lost(stage: Stage) {
        let toy = Toy::over(stage.store.clone());
        let locks = Locks::new(toy.clone(), LIMITS);
        toy.let_go(Verb::TryAcquire, Way::After);
        let wish = HoldWish { claim: claim("a", "one", LONG), patience: None, linger: None };
        let (mut asking, on) = (JoinSet::new(), locks.clone());
        asking.spawn(async move { on.hold(wish).await });
        toy.called(Verb::TryAcquire, 0).await;
        let ended = locks.force_release(key("a"), None).await.unwrap();
        assert_eq!(ended.len(), 1, "it is granted");
        toy.let_go(Verb::TryAcquire, Way::Straight);
        let started = asking.join_next().await.unwrap().unwrap();
        let Ok(HoldStart::Hold(mut hold)) = started else { panic!("no stream") };
        let event = hold.next().await;
        assert!(matches!(event, Some(HoldEvent::Lost(Why::Forced))), "{event:?}");
        assert!(hold.next().await.is_none());
    }
}
