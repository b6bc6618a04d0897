//! Several keys in one claim: all of them, or none.

use crate::conformance::{on_every_store, on_routed_stores};

on_every_store!(tests:
    a_claim_of_several_keys_has_plain_leases_in_the_order_asked,
    a_repeat_of_several_keys_gets_the_same_leases,
    nothing_is_left_of_a_claim_that_one_key_refuses,
    leases_that_the_token_had_before_stay_when_another_key_is_refused,
    a_claim_of_several_keys_that_is_cut_short_at_any_moment_leaves_nothing,
    nothing_is_left_of_two_requests_of_a_claim_that_one_key_refuses,
    a_claim_whose_last_renewal_has_no_answer_is_unknown,
    a_token_of_the_service_without_an_answer_is_undone_on_all_keys,
    a_refusal_is_not_definite_while_leases_are_being_taken_back,
    the_undo_of_a_token_tells_which_lease_it_has_ended,
    a_hundred_clients_over_five_keys_in_random_orders_come_to_an_end,
);

on_routed_stores!(tests:
    a_hundred_clients_over_five_keys_in_random_orders_come_to_an_end,
);

mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use lockkeeper::lock::error::{Effect, LockError, Verb};
    use lockkeeper::lock::lease::Grant;
    use lockkeeper::lock::store::{Condition, Ended, Renewed, Target};
    use tokio::task::JoinSet;

    use crate::conformance::keys::{
        FOR_EVER, LONG, all, free, granted, held, is_free, locks, made, number, release, toy,
    };
    use crate::conformance::toy::Way;
    use crate::conformance::{Stage, claim, polled_and_gone, token};
    use crate::support::{PATIENCE, eventually};

    pub(super) async fn a_claim_of_several_keys_has_plain_leases_in_the_order_asked(stage: Stage) {
        let locks = locks(&stage);
        for patience in [Duration::ZERO, FOR_EVER] {
            let answer = locks.acquire_all(all(&["c", "a", "b"], "one"), patience).await;
            let grants = granted(answer);
            let keys: Vec<_> = grants.iter().map(|(one, _)| one.lease.key.as_str()).collect();
            assert_eq!(keys, ["c", "a", "b"]);
            for (Grant { lease, token, waited }, is_new) in grants {
                assert!(is_new && waited.is_zero() && stage.lasts(lease.ttl, LONG), "{lease:?}");
                let of = Target::of(&lease.key, &token, Some(lease.fencing_token));
                let refreshed = locks.refresh(of, None).await.unwrap();
                assert!(matches!(refreshed, Renewed::Lease(_)), "{refreshed:?}");
                release(&stage.store, lease.key.as_str(), "one").await;
            }
        }
    }

    pub(super) async fn a_repeat_of_several_keys_gets_the_same_leases(stage: Stage) {
        let locks = locks(&stage);
        let mut numbers = Vec::new();
        for (patience, news) in
            [(FOR_EVER, [true; 2]), (FOR_EVER, [false; 2]), (Duration::ZERO, [false; 2])]
        {
            let grants = granted(locks.acquire_all(all(&["a", "b"], "one"), patience).await);
            assert_eq!(grants.iter().map(|(_, is_new)| *is_new).collect::<Vec<_>>(), news);
            let each = grants.iter().map(|(one, _)| one.lease.fencing_token);
            numbers.push(each.collect::<Vec<_>>());
        }
        assert!(numbers.iter().all(|one| *one == numbers[0]), "{numbers:?}");
        let more = locks.acquire_all(all(&["b", "c"], "one"), FOR_EVER).await;
        let news: Vec<_> = granted(more).iter().map(|(_, is_new)| *is_new).collect();
        assert_eq!(news, [false, true]);
    }

    pub(super) async fn nothing_is_left_of_a_claim_that_one_key_refuses(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        for taken in ["a", "b", "c"] {
            stage.granted(&claim(taken, "other", LONG)).await;
            for claims in [all(&["c", "a", "b"], "one"), made(&["c", "a", "b"], "two")] {
                for patience in [Duration::ZERO, Duration::from_millis(100)] {
                    // On Redlock a node may still have a vote of the claim before.
                    eventually(PATIENCE, async || {
                        let claimed = locks.acquire_all(claims.clone(), patience).await;
                        (held(claimed) == taken).then_some(())
                    })
                    .await;
                    for on in ["a", "b", "c"].into_iter().filter(|on| *on != taken) {
                        assert!(is_free(store, on).await, "{on} after {taken}");
                    }
                }
            }
            release(store, taken, "other").await;
        }
        free(store, &["a", "b", "c"]).await;
    }

    pub(super) async fn leases_that_the_token_had_before_stay_when_another_key_is_refused(
        stage: Stage,
    ) {
        let (locks, store) = (locks(&stage), &stage.store);
        let before = stage.granted(&claim("b", "one", LONG)).await.fencing_token.number();
        stage.granted(&claim("c", "other", LONG)).await;
        for patience in [Duration::ZERO, Duration::from_millis(100)] {
            let answer = locks.acquire_all(all(&["a", "b", "c"], "one"), patience).await;
            assert_eq!(held(answer), "c");
            assert!(is_free(store, "a").await, "it was new");
            assert_eq!(number(store, "b", "one").await, Some(before));
        }
    }

    pub(super) async fn a_claim_of_several_keys_that_is_cut_short_at_any_moment_leaves_nothing(
        stage: Stage,
    ) {
        let (locks, store, mut cut_short) = (locks(&stage), &stage.store, Vec::new());
        for (patience, name) in [(Duration::ZERO, "once"), (FOR_EVER, "kept")] {
            for polls in 1..60 {
                // Keys of its own: the calls of a claim that is cut short go on for a moment.
                let name = format!("{name}-{polls}");
                let keys = ["a", "b", "c"].map(|key| format!("{key}-{name}"));
                let claims = made(&keys.each_ref().map(String::as_str), &name);
                let answer = polled_and_gone(locks.acquire_all(claims, patience), polls).await;
                if let Some(answer) = answer {
                    granted(answer);
                    for on in &keys {
                        release(store, on, &name).await;
                    }
                    break;
                }
                cut_short.extend(keys);
            }
        }
        assert!(cut_short.len() >= 3, "too few claims were cut short: {cut_short:?}");
        free(store, &cut_short.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }

    pub(super) async fn nothing_is_left_of_two_requests_of_a_claim_that_one_key_refuses(
        stage: Stage,
    ) {
        let ((here, toy), elsewhere, store) = (toy(&stage), locks(&stage), &stage.store);
        stage.granted(&claim("b", "other", LONG)).await;
        toy.let_go(Verb::TryAcquire, Way::After);
        let repeat = async {
            toy.called(Verb::TryAcquire, 0).await;
            let repeat = elsewhere.acquire_all(all(&["a", "b"], "one"), Duration::ZERO).await;
            toy.let_go(Verb::TryAcquire, Way::Straight);
            repeat
        };
        let first = here.acquire_all(all(&["a", "b"], "one"), Duration::ZERO);
        let (first, repeat) = tokio::join!(first, repeat);
        assert_eq!((held(first), held(repeat)), ("b".to_owned(), "a".to_owned()));
        free(store, &["a"]).await;
    }

    pub(super) async fn a_claim_whose_last_renewal_has_no_answer_is_unknown(stage: Stage) {
        let ((locks, toy), store) = (toy(&stage), &stage.store);
        toy.let_go(Verb::LetGo, Way::Lost);
        let answer = locks.acquire_all(all(&["a", "b"], "one"), FOR_EVER).await;
        assert!(matches!(answer, Err((_, LockError::Store(_)))), "{answer:?}");
        toy.let_go(Verb::LetGo, Way::Straight);
        // The client repeats it.
        let grants = granted(locks.acquire_all(all(&["a", "b"], "one"), FOR_EVER).await);
        for (grant, _) in grants {
            let on = grant.lease.key.as_str();
            let has = number(store, on, "one").await;
            assert_eq!(has, Some(grant.lease.fencing_token.number()));
        }
    }

    pub(super) async fn a_token_of_the_service_without_an_answer_is_undone_on_all_keys(
        stage: Stage,
    ) {
        let ((locks, toy), store) = (toy(&stage), &stage.store);
        for verb in [Verb::TryAcquire, Verb::LetGo] {
            toy.let_go(verb, Way::Lost);
            let answer = locks.acquire_all(made(&["a", "b", "c"], "one"), FOR_EVER).await;
            assert!(matches!(answer, Err((_, LockError::Store(_)))), "{answer:?}");
            toy.let_go(verb, Way::Straight);
            free(store, &["a", "b", "c"]).await;
        }
    }

    pub(super) async fn a_refusal_is_not_definite_while_leases_are_being_taken_back(stage: Stage) {
        let ((locks, toy), store) = (toy(&stage), &stage.store);
        stage.granted(&claim("b", "other", LONG)).await;
        toy.let_go(Verb::Release, Way::Before);
        let answer = locks.acquire_all(all(&["a", "b"], "one"), Duration::ZERO).await;
        let Err((on, LockError::Store(error))) = answer else { panic!("{answer:?}") };
        assert_eq!((on.as_str(), error.effect), ("b", Effect::Unknown));
        toy.let_go(Verb::Release, Way::Straight);
        free(store, &["a"]).await;
    }

    pub(super) async fn the_undo_of_a_token_tells_which_lease_it_has_ended(stage: Stage) {
        let lease = stage.granted(&made(&["a"], "one")[0]).await;
        let all = Target::of(&lease.key, &token("one"), None).only(Condition::Ever);
        match stage.store.end(&all).await.unwrap() {
            Ended::Lease(ended) => assert_eq!(ended.fencing_token, Some(lease.fencing_token)),
            // On several nodes it is not found out.
            Ended::Nothing(None) if !stage.hands_over() => free(&stage.store, &["a"]).await,
            other => panic!("not ended: {other:?}"),
        }
    }

    pub(super) async fn a_hundred_clients_over_five_keys_in_random_orders_come_to_an_end(
        stage: Stage,
    ) {
        const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
        let (instance, store) = (locks(&stage), &stage.store);
        let busy: Arc<[AtomicBool; 5]> = Arc::default();
        let mut clients = JoinSet::new();
        for client in 0..100 {
            let (locks, busy) = (instance.clone(), busy.clone());
            clients.spawn(async move {
                let mut keys: Vec<_> = (0..KEYS.len()).collect();
                fastrand::shuffle(&mut keys);
                keys.truncate(fastrand::usize(2..=KEYS.len()));
                let name = format!("client-{client}");
                let claims = keys.iter().map(|at| claim(KEYS[*at], &name, LONG)).collect();
                let grants = granted(locks.acquire_all(claims, FOR_EVER).await);
                for at in &keys {
                    assert!(!busy[*at].swap(true, Ordering::SeqCst), "{} twice", KEYS[*at]);
                }
                tokio::task::yield_now().await;
                for (at, (grant, _)) in keys.iter().zip(grants) {
                    busy[*at].store(false, Ordering::SeqCst);
                    let number = Some(grant.lease.fencing_token);
                    let of = Target::of(&grant.lease.key, &grant.token, number);
                    let ended = locks.release(of).await.unwrap();
                    assert!(matches!(ended, Ended::Lease(_)), "{ended:?}");
                }
            });
        }
        let all = async { clients.join_all().await };
        tokio::time::timeout(PATIENCE * 6, all).await.expect("no deadlock");
        free(store, &KEYS).await;
        assert!(instance.finish(PATIENCE).await);
    }
}
