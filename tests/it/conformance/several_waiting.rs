//! Several keys in one claim, of which a later one is awaited: the earlier ones are kept.

use crate::conformance::{on_every_store, on_routed_stores};

on_every_store!(tests:
    earlier_keys_are_kept_while_a_later_one_is_awaited,
    nothing_is_left_of_keys_that_were_kept_for_a_while,
    a_claim_ends_no_other_lease_of_its_token_after_a_lost_answer,
    a_lease_that_is_lost_at_last_leaves_those_that_may_have_been_told,
    an_end_that_the_instance_sees_ends_the_wait_at_once,
    what_another_request_may_be_told_of_is_not_taken_back,
    leases_are_told_with_what_is_left_of_them,
    a_lease_that_is_over_before_another_is_let_go_is_no_grant,
    a_key_that_is_lost_while_another_is_awaited_ends_the_claim,
    a_release_ends_the_wait_for_a_later_key,
    a_repeat_elsewhere_has_the_keys_once_the_earlier_request_is_gone,
    rule_9_the_newest_request_of_several_keys_counts,
    rule_9_a_request_that_asks_again_supersedes_no_newer_one,
    a_draining_instance_ends_the_wait_for_a_later_key,
    a_draining_instance_ends_the_wait_for_an_earlier_request,
);

on_routed_stores!(tests:
    earlier_keys_are_kept_while_a_later_one_is_awaited,
);

mod tests {
    use std::time::{Duration, Instant};

    use lockkeeper::lock::error::{Effect, LockError, Verb};
    use lockkeeper::lock::lease::Claim;
    use lockkeeper::lock::several::AllAcquired;
    use lockkeeper::lock::store::{Ended, Target};
    use lockkeeper::lock::time::{Ttl, millis_down};
    use lockkeeper::lock::token::FencingToken;

    use crate::conformance::keys::{
        FOR_EVER, LONG, Waiting, all, free, granted, held, holds, in_line, is_free, locks, made,
        number, release, toy,
    };
    use crate::conformance::toy::Way;
    use crate::conformance::{Stage, claim, key, token};
    use crate::support::{PATIENCE, eventually};

    pub(super) async fn earlier_keys_are_kept_while_a_later_one_is_awaited(stage: Stage) {
        let ((locks, toy), store) = (toy(&stage), &stage.store);
        let ttl = stage.soon_over() * 4;
        stage.granted(&claim("b", "other", LONG)).await;
        let claims = ["b", "a"].map(|on| claim(on, "one", ttl)).to_vec();
        let waiting = Waiting::of(&locks, claims);
        let first = holds(store, "a", "one").await;
        // Each a third of the TTL after the one before.
        for renewal in 0..5 {
            toy.called(Verb::Keep, renewal).await;
        }
        assert_eq!(number(store, "a", "one").await, Some(first));
        release(store, "b", "other").await;
        let grants = waiting.granted().await;
        assert_eq!(grants[1].lease.fencing_token.number(), first);
        for grant in grants {
            assert!(!grant.waited.is_zero() && stage.lasts(grant.lease.ttl, ttl), "{grant:?}");
        }
    }

    pub(super) async fn nothing_is_left_of_keys_that_were_kept_for_a_while(stage: Stage) {
        let ((locks, toy), store) = (toy(&stage), &stage.store);
        stage.granted(&claim("b", "other", LONG)).await;
        let ttl = Ttl::from_millis(stage.soon_over() * 4);
        let short = |claims: Vec<Claim>| -> Vec<Claim> {
            claims.into_iter().map(|one| Claim { ttl, ..one }).collect()
        };
        for claims in [all(&["a", "b"], "one"), made(&["a", "b"], "two")] {
            let before = toy.calls(Verb::Keep);
            let answer = locks.acquire_all(short(claims), ttl.as_duration() / 2).await;
            assert_eq!(held(answer), "b");
            assert!(toy.calls(Verb::Keep) > before);
            assert!(is_free(store, "a").await);
        }
        // Its client is gone, also while a renewal is under way.
        for (way, name) in [(Way::Straight, "three"), (Way::Before, "four")] {
            let (locks, toy) = self::toy(&stage);
            toy.let_go(Verb::Keep, way);
            let waiting = Waiting::of(&locks, short(all(&["a", "b"], name)));
            toy.called(Verb::Keep, 0).await;
            waiting.leave().await;
            toy.let_go(Verb::Keep, Way::Straight);
            assert!(locks.finish(PATIENCE).await);
            assert!(is_free(store, "a").await, "{name}");
        }
    }

    pub(super) async fn a_claim_ends_no_other_lease_of_its_token_after_a_lost_answer(stage: Stage) {
        let ((locks, toy), store) = (toy(&stage), &stage.store);
        let before = stage.granted(&claim("a", "one", LONG)).await.fencing_token.number();
        stage.granted(&claim("b", "other", LONG)).await;
        toy.let_go(Verb::TryAcquire, Way::Lost);
        let answer = locks.acquire_all(all(&["a", "b"], "one"), FOR_EVER).await;
        assert!(matches!(&answer, Err((on, LockError::Store(_))) if *on == key("a")), "{answer:?}");
        toy.let_go(Verb::TryAcquire, Way::Straight);
        assert_eq!(number(store, "a", "one").await, Some(before));
        // In line: another request of the token gets the key while no question is answered.
        let waiting = Waiting::of(&locks, all(&["b", "c"], "one"));
        in_line(store, "b").await;
        toy.all_go(Verb::WaitTurn, Way::Refused).await;
        release(store, "b", "other").await;
        let before = stage.granted(&claim("b", "one", LONG)).await.fencing_token.number();
        toy.called(Verb::WaitTurn, toy.calls(Verb::WaitTurn)).await;
        toy.let_go(Verb::WaitTurn, Way::Straight);
        let grants = waiting.granted().await;
        assert_eq!(grants[0].lease.fencing_token.number(), before);
        assert_eq!(number(store, "b", "one").await, Some(before));
    }

    pub(super) async fn a_lease_that_is_lost_at_last_leaves_those_that_may_have_been_told(
        stage: Stage,
    ) {
        let store = &stage.store;
        for (claims, name) in [(all(&["a", "b"], "one"), "one"), (made(&["a", "b"], "two"), "two")]
        {
            let (locks, toy) = toy(&stage);
            toy.let_go(Verb::LetGo, Way::Before);
            let waiting = Waiting::of(&locks, claims);
            toy.called(Verb::LetGo, 0).await;
            stage.forced("a").await.unwrap();
            toy.let_go(Verb::LetGo, Way::Straight);
            let answer = waiting.answer().await;
            let Err((on, LockError::Store(error))) = answer else { panic!("{answer:?}") };
            assert_eq!((on, error.effect), (key("a"), Effect::Unknown));
            if name == "one" {
                // The client repeats it.
                let before = number(store, "b", "one").await;
                let grants = granted(locks.acquire_all(all(&["a", "b"], "one"), FOR_EVER).await);
                let again = grants.iter().map(|(grant, fresh)| (grant.lease.fencing_token, fresh));
                let again: Vec<_> =
                    again.map(|(number, fresh)| (number.number(), *fresh)).collect();
                assert_eq!((again[0].1, Some(again[1].0), again[1].1), (true, before, false));
                release(store, "a", "one").await;
                release(store, "b", "one").await;
            }
            free(store, &["a", "b"]).await;
        }
    }

    pub(super) async fn an_end_that_the_instance_sees_ends_the_wait_at_once(stage: Stage) {
        let ((locks, toy), store) = (toy(&stage), &stage.store);
        stage.granted(&claim("b", "other", LONG)).await;
        // No renewal tells.
        toy.let_go(Verb::Keep, Way::Before);
        let waiting = Waiting::of(&locks, all(&["a", "b"], "one"));
        let number = holds(store, "a", "one").await;
        in_line(store, "b").await;
        let named = FencingToken::from_number(number);
        assert_eq!(locks.force_release(key("a"), named).await.unwrap().len(), 1);
        match waiting.answer().await {
            Ok(AllAcquired::Lost(lost, _)) => assert_eq!(lost, key("a")),
            other => panic!("not lost: {other:?}"),
        }
    }

    pub(super) async fn what_another_request_may_be_told_of_is_not_taken_back(stage: Stage) {
        let elsewhere = locks(&stage);
        for (way, name) in [(Way::Before, "one"), (Way::After, "two")] {
            let (here, toy) = toy(&stage);
            toy.let_go(Verb::LetGo, way);
            let first = Waiting::of(&here, all(&["a", "b", "c"], name));
            toy.called(Verb::LetGo, 2).await;
            if way == Way::After {
                let told = elsewhere.acquire_all(all(&["b", "c"], name), Duration::ZERO).await;
                assert!(granted(told).iter().all(|(_, fresh)| !fresh));
            }
            first.leave().await;
            toy.let_go(Verb::LetGo, Way::Straight);
            assert!(here.finish(PATIENCE).await);
            let repeat = elsewhere.acquire_all(all(&["a", "b", "c"], name), FOR_EVER).await;
            for (grant, fresh) in granted(repeat) {
                assert!(!fresh, "{name}: {grant:?}");
                release(&stage.store, grant.lease.key.as_str(), name).await;
            }
        }
    }

    pub(super) async fn leases_are_told_with_what_is_left_of_them(stage: Stage) {
        let (locks, toy) = toy(&stage);
        stage.granted(&claim("b", "one", LONG)).await;
        // The answer to the last call for the other key takes long.
        toy.let_go(Verb::LetGo, Way::After);
        let waiting = Waiting::of(&locks, all(&["a", "b"], "one"));
        toy.called(Verb::LetGo, 0).await;
        toy.called(Verb::Refresh, 0).await;
        let began = Instant::now();
        let passed = eventually(PATIENCE, async || {
            Some(began.elapsed()).filter(|passed| *passed > Duration::from_millis(300))
        })
        .await;
        toy.let_go(Verb::LetGo, Way::Straight);
        let grant = &waiting.granted().await[1];
        let left = grant.lease.ttl.as_millis() + millis_down(passed);
        assert!(left <= LONG, "{grant:?} after {passed:?}");
    }

    pub(super) async fn a_lease_that_is_over_before_another_is_let_go_is_no_grant(stage: Stage) {
        let ((locks, toy), store) = (toy(&stage), &stage.store);
        let ttl = 5_000; // Not over before it is renewed, on a busy machine too.
        stage.granted(&claim("b", "one", ttl)).await;
        toy.let_go(Verb::LetGo, Way::After);
        let waiting = Waiting::of(&locks, vec![claim("a", "one", LONG), claim("b", "one", ttl)]);
        toy.called(Verb::LetGo, 0).await;
        toy.called(Verb::Refresh, 0).await;
        free(store, &["b"]).await;
        toy.let_go(Verb::LetGo, Way::Straight);
        let answer = waiting.answer().await;
        let Err((on, LockError::Store(error))) = answer else { panic!("{answer:?}") };
        assert_eq!((on, error.effect), (key("b"), Effect::Unknown));
        release(store, "a", "one").await;
    }

    pub(super) async fn a_key_that_is_lost_while_another_is_awaited_ends_the_claim(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        stage.granted(&claim("c", "other", LONG)).await;
        let claims = ["a", "b", "c"].map(|on| claim(on, "one", 3_000)).to_vec();
        let waiting = Waiting::of(&locks, claims);
        in_line(store, "c").await;
        stage.forced("b").await.unwrap();
        match waiting.answer().await {
            Ok(AllAcquired::Lost(lost, _)) => assert_eq!(lost, key("b")),
            other => panic!("not lost: {other:?}"),
        }
        free(store, &["a", "b"]).await;
    }

    pub(super) async fn a_release_ends_the_wait_for_a_later_key(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        stage.granted(&claim("b", "other", LONG)).await;
        let waiting = Waiting::of(&locks, all(&["a", "b"], "one"));
        in_line(store, "b").await;
        let ended = locks.release(Target::of(&key("b"), &token("one"), None)).await.unwrap();
        assert_eq!(ended, Ended::Place);
        let answer = waiting.answer().await;
        assert!(
            matches!(&answer, Err((on, LockError::WaitCancelled(_))) if *on == key("b")),
            "{answer:?}"
        );
        free(store, &["a"]).await;
    }

    pub(super) async fn a_repeat_elsewhere_has_the_keys_once_the_earlier_request_is_gone(
        stage: Stage,
    ) {
        let (here, elsewhere, store) = (locks(&stage), locks(&stage), &stage.store);
        stage.granted(&claim("b", "other", LONG)).await;
        let first = Waiting::of(&here, all(&["a", "b"], "one"));
        in_line(store, "b").await;
        let before = holds(store, "a", "one").await;
        // Without a wait it is told that its token has the key.
        let refused = elsewhere.acquire_all(all(&["a", "b"], "one"), Duration::ZERO).await;
        assert_eq!(held(refused), "a");
        let second = Waiting::of(&elsewhere, all(&["a", "b"], "one"));
        drop(first);
        in_line(store, "b").await;
        let again = async || number(store, "a", "one").await.filter(|number| *number > before);
        eventually(PATIENCE, again).await;
        release(store, "b", "other").await;
        for grant in second.granted().await {
            let on = grant.lease.key.as_str();
            assert_eq!(number(store, on, "one").await, Some(grant.lease.fencing_token.number()));
        }
    }

    pub(super) async fn rule_9_the_newest_request_of_several_keys_counts(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        stage.granted(&claim("b", "other", LONG)).await;
        let older = Waiting::of(&locks, all(&["a", "b"], "one"));
        in_line(store, "b").await;
        // Without a wait it supersedes none, and is answered at once.
        let refused = locks.acquire_all(all(&["a", "b"], "one"), Duration::ZERO).await;
        assert_eq!(held(refused), "a");
        let newest = Waiting::of(&locks, all(&["a", "b"], "one"));
        let told = older.answer().await;
        assert!(
            matches!(&told, Err((on, LockError::Superseded(_))) if *on == key("b")),
            "{told:?}"
        );
        in_line(store, "b").await;
        release(store, "b", "other").await;
        assert_eq!(newest.granted().await.len(), 2);
    }

    pub(super) async fn rule_9_a_request_that_asks_again_supersedes_no_newer_one(stage: Stage) {
        let ((here, toy), elsewhere, store) = (toy(&stage), locks(&stage), &stage.store);
        stage.granted(&claim("b", "other", LONG)).await;
        let oldest = Waiting::of(&elsewhere, all(&["a", "b"], "one"));
        in_line(store, "b").await;
        // It asks again and again, because it cannot supersede one on another instance.
        let older = Waiting::of(&here, all(&["a", "b"], "one"));
        toy.called(Verb::TryAcquire, 1).await;
        oldest.leave().await;
        free(store, &["a"]).await;
        let newest = Waiting::of(&here, all(&["a", "b"], "one"));
        in_line(store, "b").await;
        let asked = toy.calls(Verb::TryAcquire);
        tokio::select! {
            () = toy.called(Verb::TryAcquire, asked + 1) => (),
            _ = older.answer() => (), // It came before the newest one all the same.
        }
        release(store, "b", "other").await;
        assert_eq!(newest.granted().await.len(), 2);
    }

    pub(super) async fn a_draining_instance_ends_the_wait_for_a_later_key(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        stage.granted(&claim("b", "other", LONG)).await;
        let waiting = Waiting::of(&locks, all(&["a", "b"], "one"));
        in_line(store, "b").await;
        locks.drain();
        let answer = waiting.answer().await;
        assert!(matches!(answer, Err((_, LockError::Draining))), "{answer:?}");
        free(store, &["a"]).await;
    }

    pub(super) async fn a_draining_instance_ends_the_wait_for_an_earlier_request(stage: Stage) {
        let ((here, toy), elsewhere, store) = (toy(&stage), locks(&stage), &stage.store);
        stage.granted(&claim("b", "other", LONG)).await;
        let _earlier = Waiting::of(&elsewhere, all(&["a", "b"], "one"));
        in_line(store, "b").await;
        let waiting = Waiting::of(&here, all(&["a", "b"], "one"));
        toy.called(Verb::TryAcquire, 1).await;
        here.drain();
        assert_eq!(held(waiting.answer().await), "a");
    }
}
