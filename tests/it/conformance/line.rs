//! The line at the level of the seam: who is next, and what of it stays.

use std::sync::Arc;

use lockkeeper::lock::lease::{Claim, Lease};
use lockkeeper::lock::store::{Answer, Ask, Store, Target, Waiting};

use crate::conformance::{claim, key, on_every_store, on_routed_stores, token};

/// Longer than any test takes.
const LONG: u64 = 600_000;

on_every_store!(tests:
    rule_2_a_claim_has_one_place_however_often_it_asks,
    places_are_in_the_order_of_the_joins,
    rule_7_a_free_key_that_nobody_waits_for_is_granted_at_once,
    a_holder_that_asks_again_has_its_lease_and_no_place,
    rule_20_a_release_hands_the_key_to_the_oldest_and_to_nobody_else,
    a_key_that_was_handed_over_is_nobodys_lease_until_it_is_confirmed,
    a_fencing_token_is_drawn_when_the_lease_is_confirmed,
    the_last_holder_has_a_new_number_when_it_comes_through_the_line,
    a_hand_off_rings_for_its_key_only,
    a_call_that_finds_the_lease_expired_gives_the_head_the_key,
    the_head_finds_the_key_over_and_has_it,
    a_forced_release_hands_the_key_on,
    a_forced_release_ends_no_hand_off,
    waiters_are_counted_while_they_are_there,
    waiters_of_one_key_are_nothing_to_another,
    rule_20_a_hundred_waiters_are_served_in_order,
);

on_routed_stores!(tests:
    rule_20_a_release_hands_the_key_to_the_oldest_and_to_nobody_else,
    a_hand_off_rings_for_its_key_only,
    a_forced_release_hands_the_key_on,
    rule_20_a_hundred_waiters_are_served_in_order,
);

/// The place of a claim that has to wait; anything else fails the test.
pub(crate) async fn waits(store: &Arc<dyn Store>, claim: &Claim) -> Waiting {
    match store.ask(claim, Ask::InLine(None)).await.unwrap() {
        Answer::Waiting(waiting) => waiting,
        other => panic!("not waiting: {other:?}"),
    }
}

/// The lease of a claim whose turn it is; anything else fails the test.
pub(crate) async fn confirmed(store: &Arc<dyn Store>, claim: &Claim) -> Lease {
    match store.ask(claim, Ask::InLine(None)).await.unwrap() {
        Answer::Won(win) if win.fresh => win.lease,
        other => panic!("not granted: {other:?}"),
    }
}

/// Fails the test if a claim that may not have the key gets it.
pub(crate) async fn refused(store: &Arc<dyn Store>, claim: &Claim) {
    let attempt = store.ask(claim, Ask::Once(None)).await.unwrap();
    assert!(matches!(attempt, Answer::Held(_)), "{claim:?} has it: {attempt:?}");
}

/// A long claim for the key of most tests.
pub(crate) fn long(name: &str) -> Claim {
    claim("a", name, LONG)
}

/// Lets `holder` have the key and the others stand in line for it, in this order.
pub(crate) async fn line_up<const N: usize>(
    store: &Arc<dyn Store>,
    names: [&str; N],
) -> [Claim; N] {
    let held = store.ask(&long("holder"), Ask::Once(None)).await.unwrap();
    assert!(matches!(&held, Answer::Won(win) if win.fresh), "{held:?}");
    let claims = names.map(long);
    for claim in &claims {
        assert!(waits(store, claim).await.new);
    }
    claims
}

pub(crate) async fn release(store: &Arc<dyn Store>, name: &str) {
    store.end(&Target::of(&key("a"), &token(name), None)).await.unwrap();
}

pub(crate) async fn waiters(store: &Arc<dyn Store>) -> u64 {
    store.look(&key("a"), None, 0).await.unwrap().waiters
}

mod tests {
    use std::time::Duration;

    use lockkeeper::lock::store::{Answer, Ask, Keep, Target, Win};
    use lockkeeper::lock::time::Ttl;

    use super::{LONG, confirmed, line_up, long, refused, release, waiters, waits};
    use crate::conformance::{Stage, claim, key, token};
    use crate::support::{PATIENCE, eventually};

    pub(super) async fn rule_2_a_claim_has_one_place_however_often_it_asks(stage: Stage) {
        let [one, two] = line_up(&stage.store, ["one", "two"]).await;
        let first = waits(&stage.store, &one).await;
        for _ in 0..5 {
            let again = waits(&stage.store, &one).await;
            assert_eq!((again.place, again.ahead, again.new), (first.place, 0, false));
        }
        assert_eq!(waits(&stage.store, &two).await.ahead, 1);
        assert_eq!(waiters(&stage.store).await, 2);
    }

    pub(super) async fn places_are_in_the_order_of_the_joins(stage: Stage) {
        stage.granted(&long("holder")).await;
        let mut last = None;
        for number in 0..20 {
            let waiting = waits(&stage.store, &long(&format!("waiter-{number}"))).await;
            assert!(waiting.new);
            assert_eq!(waiting.ahead, number);
            assert!(Some(waiting.place) > last, "{last:?} before {waiting:?}");
            let turn = (!stage.hands_over() && number > 0).then(|| token("waiter-0"));
            assert_eq!(waiting.handed, turn);
            assert!(waiting.recheck_after <= Duration::from_millis(LONG));
            last = Some(waiting.place);
        }
    }

    pub(super) async fn rule_7_a_free_key_that_nobody_waits_for_is_granted_at_once(stage: Stage) {
        let lease = confirmed(&stage.store, &long("one")).await;
        assert!(stage.lasts(lease.ttl, LONG), "{lease:?}");
        assert_eq!(lease.owner.unwrap().as_str(), "one@host");
        let status = stage.store.look(&key("a"), Some(&token("one")), 0).await.unwrap();
        assert_eq!((status.mine, status.waiters), (Some(true), 0));
    }

    pub(super) async fn a_holder_that_asks_again_has_its_lease_and_no_place(stage: Stage) {
        let lease = stage.granted(&long("one")).await;
        let again = stage.store.ask(&claim("a", "one", 7_000), Ask::InLine(None)).await.unwrap();
        let Answer::Won(Win { lease: again, fresh: false, .. }) = again else {
            panic!("{again:?}")
        };
        assert_eq!(again.fencing_token, lease.fencing_token);
        assert_eq!(waiters(&stage.store).await, 0);
    }

    pub(super) async fn rule_20_a_release_hands_the_key_to_the_oldest_and_to_nobody_else(
        stage: Stage,
    ) {
        let [one, two] = line_up(&stage.store, ["one", "two"]).await;
        release(&stage.store, "holder").await;
        refused(&stage.store, &two).await;
        refused(&stage.store, &long("other")).await;
        refused(&stage.store, &long("holder")).await;
        let behind = waits(&stage.store, &two).await;
        assert_eq!(behind.handed.as_ref(), Some(&one.token), "{behind:?}");
        let granted = stage.store.ask(&one, Ask::Once(None)).await.unwrap();
        assert!(matches!(&granted, Answer::Won(win) if win.fresh), "{granted:?}");
        assert_eq!(waits(&stage.store, &two).await.handed, None);
        release(&stage.store, "one").await;
        refused(&stage.store, &one).await;
        confirmed(&stage.store, &two).await;
    }

    pub(super) async fn a_key_that_was_handed_over_is_nobodys_lease_until_it_is_confirmed(
        stage: Stage,
    ) {
        let [one] = line_up(&stage.store, ["one"]).await;
        release(&stage.store, "holder").await;
        assert_eq!(
            stage
                .store
                .renew(&Target::of(&key("a"), &one.token, None), None)
                .await
                .unwrap()
                .lease(),
            None
        );
        let long_ttl = Some(Ttl::from_millis(LONG));
        assert_eq!(
            stage
                .store
                .renew(&Target::of(&key("a"), &one.token, None), long_ttl)
                .await
                .unwrap()
                .lease(),
            None
        );
        let status = stage.store.look(&key("a"), Some(&one.token), 0).await.unwrap();
        assert_eq!(status.mine, Some(false));
        if stage.hands_over() {
            let holder = status.holder.unwrap();
            assert_eq!((status.waiters, holder.owner, holder.fencing_token), (0, None, None));
            assert!(holder.left.unwrap() <= Duration::from_secs(3), "{:?}", holder.left);
        } else {
            assert_eq!((status.waiters, status.holder), (1, None));
        }
        let lease = confirmed(&stage.store, &one).await;
        let status = stage.store.look(&key("a"), Some(&one.token), 0).await.unwrap();
        assert_eq!(status.mine, Some(true));
        let holder = status.holder.unwrap();
        assert_eq!((holder.owner, holder.fencing_token), (one.owner, Some(lease.fencing_token)));
        assert!(holder.left.unwrap() > Duration::from_secs(300), "{:?}", holder.left);
        let refreshed = stage
            .store
            .renew(&Target::of(&key("a"), &one.token, None), None)
            .await
            .unwrap()
            .lease()
            .unwrap();
        assert_eq!(refreshed.fencing_token, lease.fencing_token);
    }

    pub(super) async fn a_fencing_token_is_drawn_when_the_lease_is_confirmed(stage: Stage) {
        let [one] = line_up(&stage.store, ["one"]).await;
        release(&stage.store, "holder").await;
        let between = stage.granted(&claim("b", "other", LONG)).await.fencing_token;
        let lease = confirmed(&stage.store, &one).await;
        assert!(lease.fencing_token > between, "{lease:?} was drawn before {between:?}");
    }

    pub(super) async fn the_last_holder_has_a_new_number_when_it_comes_through_the_line(
        stage: Stage,
    ) {
        let first = stage.granted(&long("one")).await.fencing_token;
        waits(&stage.store, &long("two")).await;
        release(&stage.store, "one").await;
        waits(&stage.store, &long("one")).await;
        let second = confirmed(&stage.store, &long("two")).await.fencing_token;
        release(&stage.store, "two").await;
        let third = confirmed(&stage.store, &long("one")).await.fencing_token;
        assert!(first < second && second < third, "{first:?} {second:?} {third:?}");
    }

    pub(super) async fn a_hand_off_rings_for_its_key_only(stage: Stage) {
        let (mine, other) = (stage.store.listen(&key("a")), stage.store.listen(&key("b")));
        stage.granted(&claim("b", "holder", LONG)).await;
        waits(&stage.store, &claim("b", "one", LONG)).await;
        line_up(&stage.store, ["one"]).await;
        // A new connection rings for all, since hints may have been lost.
        let rung = async || {
            let rung = tokio::time::timeout(Duration::from_millis(50), other.rung());
            rung.await.is_err().then_some(())
        };
        eventually(PATIENCE, rung).await;
        release(&stage.store, "holder").await;
        tokio::time::timeout(PATIENCE, mine.rung()).await.unwrap();
        let silent = tokio::time::timeout(Duration::from_millis(50), other.rung()).await;
        assert!(silent.is_err(), "it rang for a key that nobody released");
    }

    pub(super) async fn a_call_that_finds_the_lease_expired_gives_the_head_the_key(stage: Stage) {
        for round in ["try", "ask", "look"] {
            stage.granted(&claim("a", "holder", 600)).await;
            let (one, two) = (long(&format!("{round}-one")), long(&format!("{round}-two")));
            waits(&stage.store, &one).await;
            waits(&stage.store, &two).await;
            let over = async || {
                match round {
                    "try" => refused(&stage.store, &long("other")).await,
                    "ask" => _ = waits(&stage.store, &two).await,
                    _ => (),
                }
                let status = stage.store.look(&key("a"), None, 0).await.unwrap();
                let holder = status.holder.unwrap_or_default();
                (holder.fencing_token.is_none()).then_some(())
            };
            eventually(PATIENCE, over).await;
            refused(&stage.store, &long("other")).await;
            refused(&stage.store, &two).await;
            confirmed(&stage.store, &one).await;
            stage.store.end(&Target::of(&key("a"), &two.token, None)).await.unwrap();
            stage.store.end(&Target::of(&key("a"), &one.token, None)).await.unwrap();
        }
    }

    pub(super) async fn the_head_finds_the_key_over_and_has_it(stage: Stage) {
        stage.granted(&claim("a", "holder", stage.soon_over())).await;
        let one = long("one");
        let lease = eventually(PATIENCE, async || {
            match stage.store.ask(&one, Ask::InLine(None)).await {
                Ok(Answer::Won(win)) if win.fresh || stage.counts_votes() => Some(win.lease),
                Ok(Answer::Waiting(_)) => None,
                // Of several nodes too few may answer in time on a busy machine.
                Err(_) if stage.counts_votes() => None,
                other => panic!("{other:?}"),
            }
        });
        assert!(stage.lasts(lease.await.ttl, LONG));
        assert_eq!(waiters(&stage.store).await, 0);
    }

    pub(super) async fn a_forced_release_hands_the_key_on(stage: Stage) {
        let [one, two] = line_up(&stage.store, ["one", "two"]).await;
        let bell = stage.store.listen(&key("a"));
        let taken = stage.forced("a").await.unwrap();
        assert_eq!(taken.owner.unwrap().as_str(), "holder@host");
        tokio::time::timeout(PATIENCE, bell.rung()).await.unwrap();
        refused(&stage.store, &two).await;
        confirmed(&stage.store, &one).await;
    }

    pub(super) async fn a_forced_release_ends_no_hand_off(stage: Stage) {
        let [one] = line_up(&stage.store, ["one"]).await;
        release(&stage.store, "holder").await;
        assert_eq!(stage.forced("a").await, None);
        confirmed(&stage.store, &one).await;
    }

    pub(super) async fn waiters_are_counted_while_they_are_there(stage: Stage) {
        let [one, two, three] = line_up(&stage.store, ["one", "two", "three"]).await;
        let counted = async || {
            let attempt = stage.store.ask(&long("other"), Ask::Once(None)).await.unwrap();
            let Answer::Held(status) = attempt else { panic!("{attempt:?}") };
            assert_eq!(status.waiters, waiters(&stage.store).await);
            status.waiters
        };
        assert_eq!(counted().await, 3);
        stage.store.leave(&key("a"), &[(three.token.clone(), Keep::Place)]).await.unwrap();
        assert_eq!(counted().await, 2);
        release(&stage.store, "holder").await;
        assert_eq!(counted().await, if stage.hands_over() { 1 } else { 2 });
        confirmed(&stage.store, &one).await;
        assert_eq!(counted().await, 1);
        stage.store.end(&Target::of(&key("a"), &two.token, None)).await.unwrap();
        assert_eq!(counted().await, 0);
    }

    pub(super) async fn waiters_of_one_key_are_nothing_to_another(stage: Stage) {
        line_up(&stage.store, ["one"]).await;
        stage.granted(&claim("b", "one", LONG)).await;
        release(&stage.store, "holder").await;
        stage.granted(&claim("c", "one", LONG)).await;
        let both = stage.refresh("b", "one", None).await;
        assert!(both.is_some());
    }

    pub(super) async fn rule_20_a_hundred_waiters_are_served_in_order(stage: Stage) {
        stage.granted(&long("holder")).await;
        let claims: Vec<_> = (0..100).map(|number| long(&format!("waiter-{number}"))).collect();
        for claim in &claims {
            waits(&stage.store, claim).await;
        }
        let mut last = ("holder".to_owned(), None);
        for (number, claim) in claims.iter().enumerate() {
            release(&stage.store, &last.0).await;
            if let Some(behind) = claims.get(number + 1) {
                let handed = waits(&stage.store, behind).await.handed;
                assert_eq!(handed.as_ref(), Some(&claim.token));
            }
            let lease = confirmed(&stage.store, claim).await;
            assert!(Some(lease.fencing_token) > last.1);
            last = (format!("waiter-{number}"), Some(lease.fencing_token));
        }
    }
}
