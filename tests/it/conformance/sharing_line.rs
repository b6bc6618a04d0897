//! Claims that wait for a shared key: one line for all kinds, in the order of arrival.

use crate::conformance::{on_every_store_that_shares, on_routed_stores};

on_every_store_that_shares!(tests:
    rule_7_nobody_passes_a_claim_that_waits,
    rule_7_nobody_passes_a_claim_of_more_units_than_are_free,
    rule_8_a_place_that_was_given_back_goes_with_the_next_grant,
    readers_behind_a_writer_come_in_together,
    waiting_claims_fill_the_slots_that_come_free,
    a_claim_that_leaves_makes_room_for_those_behind_it,
    a_waiting_promotion_is_refused_at_once,
    a_claim_of_several_keys_does_not_wait_for_another_share,
    a_claim_in_line_whose_token_comes_to_share_the_key_is_refused,
    a_claim_that_stood_in_line_changes_no_lease_that_its_token_was_granted_meanwhile,
    claims_in_line_of_two_holders_do_not_wait_for_each_other,
    a_crowd_of_readers_comes_in_in_order,
    a_holder_of_a_slot_keeps_it_by_its_stream,
);

on_routed_stores!(tests:
    readers_behind_a_writer_come_in_together,
);

mod tests {
    use std::time::{Duration, Instant};

    use futures_util::future::join_all;
    use lockkeeper::lock::hold::{HoldEvent, HoldStart};
    use lockkeeper::lock::lease::{Acquired, Claim, Grant, Origin, Receipt};
    use lockkeeper::lock::locks::Locks;
    use lockkeeper::lock::several::AllAcquired;
    use lockkeeper::lock::store::{Answer, Ask, Condition, Ended, Keep, Target, Win};

    use crate::conformance::sharing::{READER, holders, lease, of, refusal, release};
    use crate::conformance::units::units;
    use crate::conformance::waiting::{AT_ONCE, Request};
    use crate::conformance::{LIMITS, Stage, claim, key, token};
    use crate::support::{PATIENCE, eventually};

    const LONG: u64 = 60_000;

    fn locks(stage: &Stage) -> Locks {
        Locks::new(stage.store.clone(), LIMITS)
    }

    async fn waiters(stage: &Stage) -> u64 {
        stage.store.look(&key("a"), None, 0).await.unwrap().waiters
    }

    /// Claims that wait in line in this order.
    async fn line_up(stage: &Stage, claims: &[Claim]) -> Vec<Request> {
        let (locks, before) = (locks(stage), waiters(stage).await);
        let mut requests = Vec::new();
        for (number, claim) in claims.iter().cloned().enumerate() {
            requests.push(Request::with(&locks, claim, PATIENCE));
            let stands = before + number as u64 + 1;
            eventually(PATIENCE, async || (waiters(stage).await == stands).then_some(())).await;
        }
        requests
    }

    async fn grant(request: Request) -> Grant {
        match request.answer().await.unwrap() {
            Acquired::Granted(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn rule_7_nobody_passes_a_claim_that_waits(stage: Stage) {
        lease(&stage, "one", READER).await;
        let requests = line_up(&stage, &[of("writer", 1), of("behind", READER)]).await;
        assert_eq!(refusal(&stage, &of("late", READER)).await.waiters, 2);
        release(&stage, "one").await;
        let mut granted = Vec::new();
        for (request, name) in requests.into_iter().zip(["writer", "behind"]) {
            granted.push(grant(request).await.lease.fencing_token);
            release(&stage, name).await;
        }
        assert!(granted[0] < granted[1]);
    }

    pub(super) async fn rule_7_nobody_passes_a_claim_of_more_units_than_are_free(stage: Stage) {
        let all = ["one", "two", "three", "four"];
        for name in all {
            stage.granted(&units(name, 8, 2)).await;
        }
        let claims = [units("six", 8, 6), units("two-more", 8, 2), of("one-more", 8)];
        let mut requests = line_up(&stage, &claims).await.into_iter();
        let mut next = async || grant(requests.next().unwrap()).await.lease;
        for name in &all[..3] {
            assert_eq!(refusal(&stage, &of("late", READER)).await.waiters, 3);
            release(&stage, name).await;
        }
        // Two units were free, then four, and nobody behind the first has got them.
        let six = next().await;
        assert_eq!((six.share.units, waiters(&stage).await), (6, 2));
        release(&stage, "four").await;
        let two = next().await;
        assert_eq!((two.share.units, waiters(&stage).await), (2, 1));
        release(&stage, "six").await;
        assert_eq!(next().await.share.slot, Some(1));
        assert!(six.fencing_token < two.fencing_token);
    }

    pub(super) async fn rule_8_a_place_that_was_given_back_goes_with_the_next_grant(stage: Stage) {
        let store = &stage.store;
        lease(&stage, "holder", 2).await;
        store.ask(&of("one", 1), Ask::InLine(None)).await.unwrap();
        let asked = store.ask(&of("one", 2), Ask::Once(None)).await.unwrap();
        let Answer::Won(Win { lease: unheard, place, by, .. }) = asked else { panic!("{asked:?}") };
        let origin = Origin::Client;
        let receipt = Receipt { origin, place, replaced: None, by };
        let grant = Target::of(&key("a"), &token("one"), Some(unheard.fencing_token));
        let taken_back = store.end(&grant.only(Condition::Unheard(receipt))).await.unwrap();
        assert!(place.is_some() && matches!(taken_back, Ended::Lease(_)), "{place:?}");
        lease(&stage, "one", READER).await;
        release(&stage, "one").await;
        let claim = Target::of(&key("a"), &token("one"), None);
        assert_eq!(store.end(&claim).await.unwrap(), Ended::Nothing(None));
    }

    pub(super) async fn readers_behind_a_writer_come_in_together(stage: Stage) {
        stage.granted(&claim("a", "writer", LONG)).await;
        let names: Vec<_> = (0..20).map(|number| format!("reader-{number}")).collect();
        let readers: Vec<_> = names.iter().map(|name| of(name, READER)).collect();
        let requests = line_up(&stage, &readers).await;
        release(&stage, "writer").await;
        let grants = join_all(requests.into_iter().map(grant)).await;
        assert!(grants.is_sorted_by_key(|grant| grant.lease.fencing_token));
        assert_eq!(holders(&stage).await, Some((20, 1_001)), "all of them hold it at once");
    }

    pub(super) async fn waiting_claims_fill_the_slots_that_come_free(stage: Stage) {
        for name in ["one", "two", "three"] {
            lease(&stage, name, 3).await;
        }
        let claims = ["four", "five", "six"].map(|name| of(name, 3));
        let mut requests = line_up(&stage, &claims).await.into_iter();
        for (gone, slot) in [("two", 2), ("three", 3), ("one", 1)] {
            let released = Instant::now();
            release(&stage, gone).await;
            assert_eq!(grant(requests.next().unwrap()).await.lease.share.slot, Some(slot));
            assert!(released.elapsed() < AT_ONCE, "{:?}", released.elapsed());
        }
        assert_eq!(holders(&stage).await, Some((3, 3)));
    }

    pub(super) async fn a_claim_that_leaves_makes_room_for_those_behind_it(stage: Stage) {
        lease(&stage, "one", READER).await;
        let writer = of("writer", 1);
        stage.store.ask(&writer, Ask::InLine(None)).await.unwrap();
        let requests = line_up(&stage, &[of("two", READER), of("three", READER)]).await;
        stage.store.leave(&key("a"), &[(writer.token, Keep::Nothing)]).await.unwrap();
        join_all(requests.into_iter().map(grant)).await;
        assert_eq!(holders(&stage).await, Some((3, 1_001)));
    }

    pub(super) async fn a_waiting_promotion_is_refused_at_once(stage: Stage) {
        for name in ["one", "two"] {
            lease(&stage, name, READER).await;
        }
        let locks = locks(&stage);
        // Both would wait for the other: PATIENCE is far longer than this test may take.
        let patience = Duration::from_secs(3_600);
        for name in ["one", "two"] {
            let acquired = tokio::time::timeout(PATIENCE, locks.acquire(of(name, 1), patience));
            let Acquired::Held(status, _) = acquired.await.unwrap().unwrap() else {
                panic!("two hold it");
            };
            assert_eq!(status.mine, Some(true));
            let wish = crate::conformance::wish(of(name, 1));
            assert!(matches!(locks.hold(wish).await.unwrap(), HoldStart::Held(_)));
        }
    }

    pub(super) async fn a_claim_of_several_keys_does_not_wait_for_another_share(stage: Stage) {
        let locks = locks(&stage);
        lease(&stage, "one", READER).await;
        let claims = vec![of("one", 4), claim("before", "one", LONG), claim("A", "one", LONG)];
        let patience = Duration::from_secs(3_600);
        let answer = tokio::time::timeout(PATIENCE, locks.acquire_all(claims, patience)).await;
        let Ok(AllAcquired::Held(status, _)) = answer.unwrap() else { panic!("it shares") };
        assert_eq!((status.key, status.mine), (key("a"), Some(true)));
        let first = stage.store.look(&key("A"), None, 0).await.unwrap();
        assert!(first.holder.is_none(), "{first:?}");
    }

    pub(super) async fn a_claim_in_line_whose_token_comes_to_share_the_key_is_refused(
        stage: Stage,
    ) {
        lease(&stage, "one", 4).await;
        let waiting = line_up(&stage, &[of("two", 1)]).await;
        let shared = lease(&stage, "two", 5).await;
        let told = Instant::now();
        for request in waiting {
            let answer = request.answer().await.unwrap();
            let Acquired::Held(status, _) = answer else { panic!("{answer:?}") };
            assert_eq!(status.mine, Some(true));
        }
        assert!(told.elapsed() < AT_ONCE, "it hears of it only after {:?}", told.elapsed());
        assert_eq!(waiters(&stage).await, 0);
        lease(&stage, "three", 5).await;
        release(&stage, "one").await;
        let named = Some(shared.fencing_token);
        let kept = stage
            .store
            .renew(&Target::of(&key("a"), &token("two"), named), None)
            .await
            .unwrap()
            .lease();
        assert_eq!(kept.unwrap().share.slot, shared.share.slot);
    }

    pub(super) async fn a_claim_that_stood_in_line_changes_no_lease_that_its_token_was_granted_meanwhile(
        stage: Stage,
    ) {
        for (older, newer) in [(READER, 1), (3, 1), (1, 3), (READER, 3), (3, READER), (1, READER)] {
            stage.granted(&claim("a", "holder", LONG)).await;
            let older = of("two", older);
            let Answer::Waiting(waiting) =
                stage.store.ask(&older, Ask::InLine(None)).await.unwrap()
            else {
                panic!("the key is held")
            };
            release(&stage, "holder").await;
            let granted = lease(&stage, "two", newer).await;
            let turn = stage.store.ask(&older, Ask::InLine(Some(waiting.place))).await.unwrap();
            let Answer::Held(status) = turn else { panic!("{turn:?}") };
            assert_eq!((status.mine, status.waiters), (Some(true), 0));
            let same = of("two", newer);
            let turn = stage.store.ask(&same, Ask::InLine(Some(waiting.place))).await.unwrap();
            let Answer::Won(win) = turn else { panic!("{turn:?}") };
            assert_eq!((win.fresh, win.lease.share), (false, granted.share));
            assert_eq!(win.lease.fencing_token, granted.fencing_token);
            release(&stage, "two").await;
        }
    }

    pub(super) async fn claims_in_line_of_two_holders_do_not_wait_for_each_other(stage: Stage) {
        lease(&stage, "one", 4).await;
        let waiting = line_up(&stage, &[of("two", 1), of("three", 1)]).await;
        lease(&stage, "two", READER).await;
        // The other one is first in line by now.
        eventually(PATIENCE, async || (waiters(&stage).await == 1).then_some(())).await;
        lease(&stage, "three", READER).await;
        for request in waiting {
            assert!(matches!(request.answer().await, Ok(Acquired::Held(..))));
        }
        lease(&stage, "four", READER).await;
    }

    pub(super) async fn a_crowd_of_readers_comes_in_in_order(stage: Stage) {
        stage.granted(&claim("a", "writer", LONG)).await;
        let mut claims: Vec<_> = (0..60).map(|number| of(&format!("{number}"), READER)).collect();
        claims.extend([of("sixty", 60), of("last", READER)]);
        let mut requests = line_up(&stage, &claims).await;
        let behind = requests.split_off(60);
        release(&stage, "writer").await;
        let grants = join_all(requests.into_iter().map(grant)).await;
        assert!(grants.is_sorted_by_key(|grant| grant.lease.fencing_token));
        assert_eq!(waiters(&stage).await, 2, "no room for 61, and nobody passes");
        for (request, (gone, slot)) in behind.into_iter().zip([("7", Some(1)), ("8", None)]) {
            release(&stage, gone).await;
            assert_eq!(grant(request).await.lease.share.slot, slot);
        }
        assert_eq!(holders(&stage).await, Some((60, 60)));
    }

    pub(super) async fn a_holder_of_a_slot_keeps_it_by_its_stream(stage: Stage) {
        let locks = locks(&stage);
        let hold = async |name| {
            let wish = crate::conformance::wish(of(name, 2));
            match locks.hold(wish).await.unwrap() {
                HoldStart::Hold(hold) => hold,
                HoldStart::Held(status) => panic!("{status:?}"),
                HoldStart::Lost(_) => panic!("it names no lease"),
            }
        };
        let mut first = hold("one").await;
        let Some(HoldEvent::Acquired(grant)) = first.next().await else { panic!("not granted") };
        assert_eq!(grant.lease.share.slot, Some(1));
        let mut second = hold("two").await;
        assert!(matches!(second.next().await, Some(HoldEvent::Acquired(_))));
        // The release of one is no word to the other.
        release(&stage, "two").await;
        let lost = tokio::time::timeout(PATIENCE, async {
            loop {
                match second.next().await {
                    Some(HoldEvent::Lost(_)) => return,
                    Some(HoldEvent::Alive(_)) => (),
                    other => panic!("{other:?}"),
                }
            }
        });
        lost.await.unwrap();
        let told = tokio::time::timeout(Duration::from_millis(300), first.next()).await;
        assert!(!matches!(told, Ok(Some(HoldEvent::Lost(_)))), "{told:?}");
        drop(first);
        eventually(PATIENCE, async || holders(&stage).await.is_none().then_some(())).await;
    }
}
