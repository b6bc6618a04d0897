//! Waits that cross with something else: callers that vanish half-way, stores that are slow or
//! fail, answers that come too late.

use crate::conformance::on_every_store;

on_every_store!(tests:
    a_wait_that_is_cut_short_at_any_moment_leaves_nothing_behind,
    a_wait_that_is_cut_short_as_it_is_granted_passes_the_key_on,
    a_claim_that_is_dropped_while_it_joins_leaves_no_ghost,
    a_claim_that_comes_back_while_it_joins_is_served,
    a_claim_whose_place_a_release_took_as_it_joined_is_cancelled,
    a_request_that_a_draining_instance_lets_go_is_told_what_another_instance_granted,
    a_draining_instance_is_sure_that_its_own_calls_grant_a_token_nothing_more,
    a_draining_instance_is_sure_that_a_token_in_its_line_gets_nothing_more,
    a_store_that_fails_does_not_end_a_wait,
    a_join_that_is_refused_is_told,
    rule_12_a_join_whose_outcome_is_unknown_is_taken_back,
    a_join_of_nobody_whose_outcome_is_unknown_is_taken_back,
    a_departure_that_the_store_did_not_hear_of_is_told_again,
    a_crowd_that_is_gone_leaves_in_few_calls,
);

mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use lockkeeper::lock::error::{LockError, Verb};
    use lockkeeper::lock::lease::Acquired;
    use lockkeeper::lock::locks::Locks;
    use lockkeeper::lock::store::{Ended, Store, Target};
    use tokio::task::JoinSet;

    use crate::conformance::toy::{Toy, Way};
    use crate::conformance::waiting::{
        AT_ONCE, Request, chosen, deserted, holds, made, release, waiters, waiting,
    };
    use crate::conformance::{LIMITS, Stage, polled_and_gone};
    use crate::support::{PATIENCE, eventually};

    fn locks(stage: &Stage) -> Locks {
        Locks::new(stage.store.clone(), LIMITS)
    }

    /// Long enough for an answer that is not to come.
    const A_WHILE: Duration = Duration::from_millis(200);

    /// How far a wait is followed: a few polls more than any has.
    const MOST_POLLS: usize = 40;

    /// Locks over a toy over the store, and the key held.
    async fn with_toy(stage: &Stage) -> (Locks, Arc<Toy>) {
        stage.granted(&chosen("holder")).await;
        let toy = Toy::over(stage.store.clone());
        (Locks::new(toy.clone() as Arc<dyn Store>, LIMITS), toy)
    }

    pub(super) async fn a_wait_that_is_cut_short_at_any_moment_leaves_nothing_behind(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        let mut cut_short = 0;
        for claim in [made("one"), chosen("one")] {
            for polls in 1..MOST_POLLS {
                stage.granted(&chosen("holder")).await;
                let wait = locks.acquire(claim.clone(), Duration::from_millis(30));
                let answered = polled_and_gone(wait, polls).await;
                cut_short += u32::from(answered.is_none());
                waiting(store, 0).await;
                release(store, "holder").await;
                // Whatever is still under way finds nobody.
                eventually(PATIENCE, async || (locks.waiting() == 0).then_some(())).await;
                deserted(store, AT_ONCE).await;
                if answered.is_some() {
                    break;
                }
            }
        }
        assert!(cut_short >= 4, "too few waits were cut short to say anything: {cut_short}");
        locks.finish(PATIENCE).await;
        deserted(store, AT_ONCE).await;
    }

    pub(super) async fn a_wait_that_is_cut_short_as_it_is_granted_passes_the_key_on(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        let mut cut_short = 0;
        for round in 0..60_u32 {
            stage.granted(&chosen("holder")).await;
            let (gone, next) = (format!("gone-{round}"), format!("next-{round}"));
            let first = Request::of(&locks, made(&gone));
            waiting(store, 1).await;
            let second = Request::of(&locks, made(&next));
            waiting(store, 2).await;
            let releasing = {
                let store = store.clone();
                async move { release(&store, "holder").await }
            };
            // Sooner or later than the hand-off, from one round to the next.
            let leaving = async move {
                for _ in 0..round % 20 {
                    tokio::task::yield_now().await;
                }
                first.gone().await
            };
            let (_, told) = tokio::join!(releasing, leaving);
            if told {
                // It was too late to be cut short: the lease is in the hands of a client.
                release(store, &gone).await;
            }
            let began = Instant::now();
            second.granted().await;
            assert!(began.elapsed() < AT_ONCE, "{round}: {:?}", began.elapsed());
            cut_short += u32::from(!told);
            release(store, &next).await;
            deserted(store, PATIENCE).await;
        }
        assert!(cut_short > 10, "too few were cut short to say anything: {cut_short}");
        locks.finish(PATIENCE).await;
        deserted(store, AT_ONCE).await;
    }

    pub(super) async fn a_claim_that_is_dropped_while_it_joins_leaves_no_ghost(stage: Stage) {
        let (locks, toy) = with_toy(&stage).await;
        for (claim, way) in [
            (made("one"), Way::Before),
            (made("two"), Way::After),
            (chosen("three"), Way::Before),
            (chosen("four"), Way::After),
        ] {
            let before = toy.calls(Verb::WaitTurn);
            toy.let_go(Verb::WaitTurn, way);
            let request = Request::of(&locks, claim);
            toy.called(Verb::WaitTurn, before).await;
            drop(request);
            eventually(PATIENCE, async || (locks.waiting() == 0).then_some(())).await;
            let left = toy.calls(Verb::Leave);
            toy.let_go(Verb::WaitTurn, Way::Straight);
            toy.called(Verb::Leave, left).await;
            assert_eq!(waiters(&stage.store).await, 0);
        }
        release(&stage.store, "holder").await;
        deserted(&stage.store, AT_ONCE).await;
    }

    pub(super) async fn a_claim_that_comes_back_while_it_joins_is_served(stage: Stage) {
        for way in [Way::Before, Way::After] {
            let (locks, toy) = with_toy(&stage).await;
            toy.let_go(Verb::WaitTurn, way);
            let gone = Request::of(&locks, chosen("one"));
            toy.called(Verb::WaitTurn, 0).await;
            drop(gone);
            eventually(PATIENCE, async || (locks.waiting() == 0).then_some(())).await;
            let mut back = Request::of(&locks, chosen("one"));
            back.is_open_for(A_WHILE).await;
            toy.let_go(Verb::WaitTurn, Way::Straight);
            waiting(&stage.store, 1).await;
            release(&stage.store, "holder").await;
            let answer = back.answer().await.unwrap();
            assert!(matches!(answer, Acquired::Granted(_) | Acquired::Again(_)), "{answer:?}");
            holds(&stage.store, "one").await;
            release(&stage.store, "one").await;
        }
    }

    pub(super) async fn a_claim_whose_place_a_release_took_as_it_joined_is_cancelled(stage: Stage) {
        let (locks, toy) = with_toy(&stage).await;
        // The head of the line is asked for all the time; the next one is not.
        let head = Request::of(&locks, chosen("head"));
        waiting(&stage.store, 1).await;
        toy.let_go(Verb::Release, Way::Before);
        let (one, mut releasing) = (chosen("one"), JoinSet::new());
        let (releaser, key, token) = (locks.clone(), one.key.clone(), one.token.clone());
        releasing.spawn(async move { releaser.release(Target::of(&key, &token, None)).await });
        toy.called(Verb::Release, 0).await;
        let one = Request::of(&locks, one);
        waiting(&stage.store, 2).await;
        toy.let_go(Verb::Release, Way::Straight);
        assert_eq!(releasing.join_next().await.unwrap().unwrap().unwrap(), Ended::Place);
        let answer = one.answer().await;
        assert!(matches!(answer, Err(LockError::WaitCancelled(_))), "{answer:?}");
        waiting(&stage.store, 1).await;
        release(&stage.store, "holder").await;
        let answer = head.answer().await.unwrap();
        assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
        release(&stage.store, "head").await;
        deserted(&stage.store, AT_ONCE).await;
    }

    pub(super) async fn a_request_that_a_draining_instance_lets_go_is_told_what_another_instance_granted(
        stage: Stage,
    ) {
        let (locks, toy) = with_toy(&stage).await;
        let request = Request::of(&locks, chosen("one"));
        waiting(&stage.store, 1).await;
        toy.all_go(Verb::WaitTurn, Way::Refused).await;
        release(&stage.store, "holder").await;
        stage.granted(&chosen("one")).await;
        locks.drain();
        let answer = request.answer().await;
        assert!(matches!(answer, Ok(Acquired::Again(_))), "{answer:?}");
        locks.finish(PATIENCE).await;
    }

    pub(super) async fn a_draining_instance_is_sure_that_its_own_calls_grant_a_token_nothing_more(
        stage: Stage,
    ) {
        let toy = Toy::over(stage.store.clone());
        let locks = Locks::new(toy.clone() as Arc<dyn Store>, LIMITS);
        toy.let_go(Verb::TryAcquire, Way::Before);
        let first = Request::of(&locks, chosen("one"));
        toy.called(Verb::TryAcquire, 0).await;
        locks.drain();
        // A repeat of the client, which has given the first one up.
        let mut repeat = Request::of(&locks, chosen("one"));
        repeat.is_open_for(A_WHILE).await;
        toy.let_go(Verb::TryAcquire, Way::Straight);
        assert!(matches!(first.answer().await, Ok(Acquired::Granted(_))));
        let answer = repeat.answer().await;
        assert!(matches!(answer, Ok(Acquired::Again(_))), "{answer:?}");
        let answer = Request::of(&locks, chosen("two")).answer().await;
        assert!(matches!(answer, Err(LockError::Draining)), "{answer:?}");
        locks.finish(PATIENCE).await;
    }

    pub(super) async fn a_draining_instance_is_sure_that_a_token_in_its_line_gets_nothing_more(
        stage: Stage,
    ) {
        let (locks, toy) = with_toy(&stage).await;
        toy.let_go(Verb::WaitTurn, Way::Before);
        let first = Request::of(&locks, chosen("one"));
        toy.called(Verb::WaitTurn, 0).await;
        release(&stage.store, "holder").await;
        locks.drain();
        let mut repeat = Request::of(&locks, chosen("one"));
        repeat.is_open_for(A_WHILE).await;
        toy.let_go(Verb::WaitTurn, Way::Straight);
        assert!(matches!(first.answer().await, Err(LockError::Superseded(_))));
        let answer = repeat.answer().await;
        assert!(matches!(answer, Ok(Acquired::Again(_))), "{answer:?}");
        locks.finish(PATIENCE).await;
    }

    pub(super) async fn a_store_that_fails_does_not_end_a_wait(stage: Stage) {
        for (name, way) in [("one", Way::Refused), ("two", Way::Lost)] {
            let (locks, toy) = with_toy(&stage).await;
            let request = Request::of(&locks, made(name));
            waiting(&stage.store, 1).await;
            // A question that is under way would be granted the key.
            toy.all_go(Verb::WaitTurn, way).await;
            release(&stage.store, "holder").await;
            let asked = toy.calls(Verb::WaitTurn);
            toy.called(Verb::WaitTurn, asked + 1).await;
            assert_eq!(locks.waiting(), 1);
            toy.let_go(Verb::WaitTurn, Way::Straight);
            let answer = request.answer().await.unwrap();
            // After a lost answer it has it already.
            assert!(matches!(answer, Acquired::Granted(_) | Acquired::Again(_)), "{answer:?}");
            holds(&stage.store, name).await;
            release(&stage.store, name).await;
        }
    }

    pub(super) async fn a_join_that_is_refused_is_told(stage: Stage) {
        let (locks, toy) = with_toy(&stage).await;
        toy.let_go(Verb::WaitTurn, Way::Refused);
        let answer = Request::of(&locks, made("one")).answer().await;
        assert!(matches!(answer, Err(LockError::Store(_))), "{answer:?}");
        assert_eq!((locks.waiting(), waiters(&stage.store).await), (0, 0));
    }

    pub(super) async fn rule_12_a_join_whose_outcome_is_unknown_is_taken_back(stage: Stage) {
        let (locks, toy) = with_toy(&stage).await;
        toy.let_go(Verb::WaitTurn, Way::Lost);
        for claim in [made("one"), chosen("two")] {
            let answer = Request::of(&locks, claim).answer().await;
            assert!(matches!(answer, Err(LockError::Store(_))), "{answer:?}");
            waiting(&stage.store, 0).await;
        }
        release(&stage.store, "holder").await;
        deserted(&stage.store, AT_ONCE).await;
    }

    pub(super) async fn a_join_of_nobody_whose_outcome_is_unknown_is_taken_back(stage: Stage) {
        let (locks, toy) = with_toy(&stage).await;
        toy.let_go(Verb::TryAcquire, Way::After);
        let request = Request::of(&locks, made("one"));
        toy.called(Verb::TryAcquire, 0).await;
        // The key is free when it joins: it has the lease, and nobody is told.
        release(&stage.store, "holder").await;
        toy.let_go(Verb::WaitTurn, Way::After);
        toy.let_go(Verb::TryAcquire, Way::Straight);
        toy.called(Verb::WaitTurn, 0).await;
        holds(&stage.store, "one").await;
        drop(request);
        eventually(PATIENCE, async || (locks.waiting() == 0).then_some(())).await;
        toy.let_go(Verb::WaitTurn, Way::Lost);
        deserted(&stage.store, PATIENCE).await;
    }

    pub(super) async fn a_departure_that_the_store_did_not_hear_of_is_told_again(stage: Stage) {
        for way in [Way::Refused, Way::Lost] {
            let (locks, toy) = with_toy(&stage).await;
            let requests: Vec<_> =
                (0..20).map(|n| Request::of(&locks, made(&format!("gone-{n}")))).collect();
            waiting(&stage.store, 20).await;
            let next = Request::of(&locks, chosen("next"));
            waiting(&stage.store, 21).await;
            // All have joined, and the head has asked: on the embedded store it sleeps for 5 s now.
            toy.called(Verb::WaitTurn, 21).await;
            let before = toy.calls(Verb::Leave);
            toy.let_go(Verb::Leave, way);
            drop(requests);
            toy.called(Verb::Leave, before).await;
            let failed = Instant::now();
            toy.let_go(Verb::Leave, Way::Straight);
            waiting(&stage.store, 1).await;
            assert!(failed.elapsed() < AT_ONCE, "{:?}", failed.elapsed());
            release(&stage.store, "holder").await;
            next.granted().await;
            release(&stage.store, "next").await;
        }
    }

    pub(super) async fn a_crowd_that_is_gone_leaves_in_few_calls(stage: Stage) {
        let (locks, toy) = with_toy(&stage).await;
        let crowd: Vec<_> =
            (0..200).map(|n| Request::of(&locks, made(&format!("gone-{n}")))).collect();
        waiting(&stage.store, 200).await;
        let next = Request::of(&locks, chosen("next"));
        waiting(&stage.store, 201).await;
        // The crowd is gone while the question for its first is under way, and the key is handed
        // to one of them meanwhile.
        toy.let_go(Verb::WaitTurn, Way::Before);
        let asked = toy.calls(Verb::WaitTurn);
        toy.called(Verb::WaitTurn, asked).await;
        drop(crowd);
        release(&stage.store, "holder").await;
        let before = toy.calls(Verb::Leave);
        toy.let_go(Verb::WaitTurn, Way::Straight);
        next.granted().await;
        let calls = toy.calls(Verb::Leave) - before;
        assert!(calls <= 3, "{calls} calls");
        deserted_by_all_but(&stage.store, "next").await;
    }

    async fn deserted_by_all_but(store: &Arc<dyn Store>, name: &str) {
        holds(store, name).await;
        waiting(store, 0).await;
    }
}
