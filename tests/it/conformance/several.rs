//! Several keys in one claim: all of them, or none.

use crate::conformance::{on_every_store, on_routed_stores};

on_every_store!(tests:
    a_claim_of_several_keys_has_plain_leases_in_the_order_asked,
    a_repeat_of_several_keys_gets_the_same_leases,
    nothing_is_left_of_a_claim_that_one_key_refuses,
    leases_that_the_token_had_before_stay_when_another_key_is_refused,
    earlier_keys_are_kept_while_a_later_one_is_awaited,
    a_key_that_is_lost_while_another_is_awaited_ends_the_claim,
    a_claim_of_several_keys_that_is_cut_short_at_any_moment_leaves_nothing,
    a_claim_whose_last_renewal_has_no_answer_is_unknown,
    a_token_of_the_service_without_an_answer_is_undone_on_all_keys,
    a_release_ends_the_wait_for_a_later_key,
    a_repeat_elsewhere_has_the_keys_once_the_earlier_request_is_gone,
    a_draining_instance_ends_the_wait_for_a_later_key,
    a_hundred_clients_over_five_keys_in_random_orders_come_to_an_end,
);

on_routed_stores!(tests:
    earlier_keys_are_kept_while_a_later_one_is_awaited,
    a_hundred_clients_over_five_keys_in_random_orders_come_to_an_end,
);

mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Poll;
    use std::time::Duration;

    use lockkeeper::lock::error::{LockError, Verb};
    use lockkeeper::lock::key::LockKey;
    use lockkeeper::lock::lease::{Claim, Grant, Origin};
    use lockkeeper::lock::locks::Locks;
    use lockkeeper::lock::several::AllAcquired;
    use lockkeeper::lock::store::{Ended, Renewed, Store, Target};
    use tokio::task::JoinSet;

    use crate::conformance::toy::{Toy, Way};
    use crate::conformance::{LIMITS, Stage, claim, key, token};
    use crate::support::{PATIENCE, eventually};

    const LONG: u64 = 60_000;

    const FOR_EVER: Duration = Duration::from_secs(600);

    type Answer = Result<AllAcquired, (LockKey, LockError)>;

    /// A claim of each of these keys by a token of the client.
    fn all(keys: &[&str], name: &str) -> Vec<Claim> {
        keys.iter().map(|key| claim(key, name, LONG)).collect()
    }

    /// The same by one of the service.
    fn made(keys: &[&str], name: &str) -> Vec<Claim> {
        all(keys, name).into_iter().map(|one| Claim { origin: Origin::Service, ..one }).collect()
    }

    fn locks(stage: &Stage) -> Locks {
        Locks::new(stage.store.clone(), LIMITS)
    }

    fn toy(stage: &Stage) -> (Locks, Arc<Toy>) {
        let toy = Toy::over(stage.store.clone());
        (Locks::new(toy.clone() as Arc<dyn Store>, LIMITS), toy)
    }

    /// A claim in a task of its own, which ends with this.
    struct Waiting(JoinSet<Answer>);

    impl Waiting {
        fn of(locks: &Locks, claims: Vec<Claim>) -> Self {
            let (locks, mut tasks) = (locks.clone(), JoinSet::new());
            tasks.spawn(async move { locks.acquire_all(claims, FOR_EVER).await });
            Self(tasks)
        }

        async fn answer(mut self) -> Answer {
            let answer = tokio::time::timeout(PATIENCE, self.0.join_next()).await;
            answer.expect("answered in time").unwrap().unwrap()
        }

        async fn granted(self) -> Vec<Grant> {
            granted(self.answer().await).into_iter().map(|(grant, _)| grant).collect()
        }
    }

    fn granted(answer: Answer) -> Vec<(Grant, bool)> {
        match answer {
            Ok(AllAcquired::Granted(grants)) => grants,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// The key that is held.
    fn held(answer: Answer) -> String {
        match answer {
            Ok(AllAcquired::Held(status, _)) => status.key.to_string(),
            other => panic!("not held: {other:?}"),
        }
    }

    /// The number of the lease that this token has of a key.
    async fn number(store: &Arc<dyn Store>, on: &str, name: &str) -> Option<u64> {
        let status = store.look(&key(on), Some(&token(name)), 0).await.unwrap();
        let own = status.holder.filter(|_| status.mine == Some(true))?;
        own.fencing_token.map(|number| number.number())
    }

    async fn holds(store: &Arc<dyn Store>, on: &str, name: &str) -> u64 {
        eventually(PATIENCE, async || number(store, on, name).await).await
    }

    async fn is_free(store: &Arc<dyn Store>, on: &str) -> bool {
        let status = store.look(&key(on), None, 0).await.unwrap();
        status.holder.is_none() && status.waiters == 0
    }

    /// Waits until nobody has any of the keys or waits for it.
    async fn free(store: &Arc<dyn Store>, keys: &[&str]) {
        for on in keys {
            eventually(PATIENCE, async || is_free(store, on).await.then_some(())).await;
        }
    }

    async fn in_line(store: &Arc<dyn Store>, on: &str) {
        let waiters = async || store.look(&key(on), None, 0).await.unwrap().waiters;
        eventually(PATIENCE, async || (waiters().await == 1).then_some(())).await;
    }

    async fn release(store: &Arc<dyn Store>, on: &str, name: &str) {
        let ended = store.end(&Target::of(&key(on), &token(name), None)).await.unwrap();
        assert!(matches!(ended, Ended::Lease(_)), "{on}: {ended:?}");
    }

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

    pub(super) async fn a_key_that_is_lost_while_another_is_awaited_ends_the_claim(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        stage.granted(&claim("c", "other", LONG)).await;
        // Noticed by a renewal, or by the last one.
        for is_last in [false, true] {
            let ttl = if is_last { LONG } else { 3_000 };
            let claims = ["a", "b", "c"].map(|on| claim(on, "one", ttl)).to_vec();
            let waiting = Waiting::of(&locks, claims);
            in_line(store, "c").await;
            stage.forced("b").await.unwrap();
            if is_last {
                release(store, "c", "other").await;
            }
            match waiting.answer().await {
                Ok(AllAcquired::Lost(lost, _)) => assert_eq!(lost, key("b")),
                other => panic!("not lost: {other:?}"),
            }
            free(store, &["a", "b"]).await;
        }
        free(store, &["c"]).await;
    }

    /// Polls a call so many times, and drops it; returns its answer if it came before.
    async fn polled_and_gone<F: Future>(call: F, polls: usize) -> Option<F::Output> {
        let (mut call, mut left) = (pin!(call), polls);
        std::future::poll_fn(|context| {
            left -= 1;
            match call.as_mut().poll(context) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending if left == 0 => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
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
        assert!(cut_short.len() >= 12, "too few claims were cut short: {cut_short:?}");
        assert!(locks.finish(PATIENCE).await, "a call or an undo does not end");
        free(store, &cut_short.iter().map(String::as_str).collect::<Vec<_>>()).await;
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
        let kept = async || number(store, "a", "one").await.filter(|number| *number > before);
        let number = eventually(PATIENCE, kept).await;
        in_line(store, "b").await;
        release(store, "b", "other").await;
        assert_eq!(second.granted().await[0].lease.fencing_token.number(), number);
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
