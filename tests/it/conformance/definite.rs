//! A no is definite: nothing that is under way can grant the claim afterwards.

use crate::conformance::on_every_store;

on_every_store!(tests:
    a_grant_on_its_way_at_the_end_of_a_wait_is_delivered,
    a_grant_on_its_way_at_the_end_of_the_instance_is_delivered,
    rule_12_a_wait_whose_end_the_store_does_not_answer_is_unknown,
    rule_12_a_grant_whose_answer_is_lost_is_undone_if_the_service_made_its_token,
    rule_11_many_short_waits_are_told_the_truth,
    rule_14_a_release_ends_the_request_that_waits_with_its_claim,
    a_release_while_the_claim_joins_leaves_nothing,
    a_release_while_the_claim_is_granted_leaves_nothing,
);

mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use lockkeeper::lock::error::{Effect, LockError, Verb};
    use lockkeeper::lock::lease::{Acquired, Origin};
    use lockkeeper::lock::locks::Locks;
    use lockkeeper::lock::store::{Ended, Store, Target};
    use tokio::task::JoinSet;

    use crate::conformance::aside::pass;
    use crate::conformance::toy::{Toy, Way};
    use crate::conformance::waiting::{Request, chosen, deserted, holds, made, release, waiting};
    use crate::conformance::{LIMITS, Stage, key, token};
    use crate::support::PATIENCE;

    /// Over before the store answers.
    const SHORT: Duration = Duration::from_millis(100);

    /// Locks over a toy over the store.
    fn with_toy(stage: &Stage) -> (Locks, Arc<Toy>) {
        let toy = Toy::over(stage.store.clone());
        (Locks::new(toy.clone() as Arc<dyn Store>, LIMITS), toy)
    }

    /// Has `holder` hold the key, and a request wait of which the question is granted and not
    /// answered.
    async fn granted_and_not_told(
        stage: &Stage,
        name: &str,
        wait: Wait,
    ) -> (Locks, Arc<Toy>, Request) {
        // On a busy machine nodes of Redlock may not vote in time, and the wait may be over too soon.
        for _ in 0..20 {
            let (locks, toy) = with_toy(stage);
            stage.granted(&chosen("holder")).await;
            toy.let_go(Verb::TryAcquire, Way::After);
            let claim = match wait.origin {
                Origin::Client => chosen(name),
                Origin::Service => made(name),
            };
            let mut request = Request::with(&locks, claim, wait.patience);
            toy.called(Verb::TryAcquire, 0).await;
            release(&stage.store, "holder").await;
            toy.let_go(Verb::WaitTurn, Way::After);
            toy.let_go(Verb::TryAcquire, Way::Straight);
            let asked = tokio::select! {
                () = toy.called(Verb::WaitTurn, 0) => true,
                () = request.ended() => false,
            };
            if asked
                && stage.store.look(&key("a"), Some(&token(name)), 0).await.unwrap().mine
                    == Some(true)
            {
                return (locks, toy, request);
            }
            toy.let_go(Verb::WaitTurn, Way::Straight);
            if asked {
                request.ended().await;
            }
            release(&stage.store, name).await;
            deserted(&stage.store, PATIENCE).await;
        }
        panic!("no question was granted")
    }

    #[derive(Clone, Copy)]
    struct Wait {
        origin: Origin,
        patience: Duration,
    }

    const BOTH: [(&str, Origin); 2] = [("one", Origin::Client), ("two", Origin::Service)];

    pub(super) async fn a_grant_on_its_way_at_the_end_of_a_wait_is_delivered(stage: Stage) {
        for (name, origin) in BOTH {
            let wait = Wait { origin, patience: SHORT };
            let (_locks, toy, request) = granted_and_not_told(&stage, name, wait).await;
            pass(SHORT * 2).await;
            toy.let_go(Verb::WaitTurn, Way::Straight);
            request.granted().await;
            holds(&stage.store, name).await;
            release(&stage.store, name).await;
        }
    }

    pub(super) async fn a_grant_on_its_way_at_the_end_of_the_instance_is_delivered(stage: Stage) {
        for (name, origin) in BOTH {
            let wait = Wait { origin, patience: PATIENCE };
            let (locks, toy, request) = granted_and_not_told(&stage, name, wait).await;
            locks.drain();
            pass(SHORT).await;
            toy.let_go(Verb::WaitTurn, Way::Straight);
            request.granted().await;
            release(&stage.store, name).await;
        }
    }

    pub(super) async fn rule_12_a_wait_whose_end_the_store_does_not_answer_is_unknown(
        stage: Stage,
    ) {
        for (name, origin) in BOTH {
            let wait = Wait { origin, patience: SHORT };
            let (locks, toy, request) = granted_and_not_told(&stage, name, wait).await;
            let answer = request.answer().await;
            let Err(LockError::Store(error)) = answer else { panic!("{answer:?}") };
            assert_eq!(error.effect, Effect::Unknown);
            toy.let_go(Verb::WaitTurn, Way::Straight);
            match origin {
                // The grant reaches nobody and may be taken back before the client repeats its
                // request, or after.
                Origin::Client => {
                    let again = Request::of(&locks, chosen(name)).answer().await.unwrap();
                    assert!(
                        matches!(again, Acquired::Granted(_) | Acquired::Again(_)),
                        "{again:?}"
                    );
                    locks.finish(PATIENCE).await;
                    holds(&stage.store, name).await;
                    release(&stage.store, name).await;
                }
                Origin::Service => deserted(&stage.store, PATIENCE).await,
            }
        }
    }

    pub(super) async fn rule_12_a_grant_whose_answer_is_lost_is_undone_if_the_service_made_its_token(
        stage: Stage,
    ) {
        let (locks, toy) = with_toy(&stage);
        toy.let_go(Verb::TryAcquire, Way::Lost);
        let lost = async |claim| {
            let answer = locks.acquire(claim, Duration::ZERO).await;
            let Err(LockError::Store(error)) = answer else { panic!("{answer:?}") };
            assert_eq!(error.effect, Effect::Unknown);
        };
        lost(made("one")).await;
        // Where a call may still arrive, it is undone after its deadline, which is PATIENCE.
        deserted(&stage.store, PATIENCE * 2).await;
        lost(chosen("two")).await;
        locks.finish(PATIENCE).await;
        holds(&stage.store, "two").await;
    }

    pub(super) async fn rule_11_many_short_waits_are_told_the_truth(stage: Stage) {
        let locks = Locks::new(stage.store.clone(), LIMITS);
        let mut clients = JoinSet::new();
        for client in 0..8_u64 {
            let (locks, store) = (locks.clone(), stage.store.clone());
            clients.spawn(async move {
                let (mut held, mut had) = (0, 0);
                for round in 0..40_u64 {
                    let claim = chosen(&format!("{client}-{round}"));
                    let token = claim.token.clone();
                    let patience = Duration::from_millis(1 + (client + round) % 12);
                    let answer = locks.acquire(claim, patience).await.unwrap();
                    let mine = store.look(&key("a"), Some(&token), 0).await.unwrap().mine;
                    match answer {
                        Acquired::Held(..) => {
                            assert_eq!(mine, Some(false), "held by the very token");
                            held += 1;
                        }
                        Acquired::Granted(_) | Acquired::Again(_) => {
                            locks.release(Target::of(&key("a"), &token, None)).await.unwrap();
                            had += 1;
                        }
                        Acquired::Lost(_) => panic!("it names no lease"),
                    }
                }
                (held, had)
            });
        }
        let all = clients.join_all().await;
        let (held, had) = all.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        assert!(held > 10 && had > 10, "{held} held and {had} granted say too little");
        deserted(&stage.store, PATIENCE).await;
    }

    pub(super) async fn rule_14_a_release_ends_the_request_that_waits_with_its_claim(stage: Stage) {
        let (locks, store) = (Locks::new(stage.store.clone(), LIMITS), &stage.store);
        stage.granted(&chosen("holder")).await;
        let request = Request::of(&locks, chosen("one"));
        waiting(store, 1).await;
        let released = locks.release(Target::of(&key("a"), &token("one"), None)).await.unwrap();
        assert_eq!(released, Ended::Place);
        let answer = request.answer().await;
        assert!(matches!(answer, Err(LockError::WaitCancelled(_))), "{answer:?}");
        waiting(store, 0).await;
        release(store, "holder").await;
        deserted(store, PATIENCE).await;
        // A later claim of the token is another one.
        stage.granted(&chosen("one")).await;
    }

    type Releasing = JoinSet<Result<Ended, LockError>>;

    /// A release of the claim of all tests that is under way.
    fn releasing(locks: &Locks) -> Releasing {
        let (locks, mut tasks) = (locks.clone(), JoinSet::new());
        tasks.spawn(async move { locks.release(Target::of(&key("a"), &token("one"), None)).await });
        tasks
    }

    async fn ended(mut releasing: Releasing) -> Ended {
        releasing.join_next().await.unwrap().unwrap().unwrap()
    }

    pub(super) async fn a_release_while_the_claim_joins_leaves_nothing(stage: Stage) {
        for way in [Way::Before, Way::After] {
            let (locks, toy) = with_toy(&stage);
            stage.granted(&chosen("holder")).await;
            toy.let_go(Verb::WaitTurn, way);
            let request = Request::of(&locks, chosen("one"));
            toy.called(Verb::WaitTurn, 0).await;
            let releasing = releasing(&locks);
            pass(SHORT).await;
            toy.let_go(Verb::WaitTurn, Way::Straight);
            assert_ne!(ended(releasing).await, Ended::Nothing(None));
            let answer = request.answer().await;
            assert!(matches!(answer, Err(LockError::WaitCancelled(_))), "{answer:?}");
            release(&stage.store, "holder").await;
            locks.finish(PATIENCE).await;
            deserted(&stage.store, PATIENCE).await;
        }
    }

    pub(super) async fn a_release_while_the_claim_is_granted_leaves_nothing(stage: Stage) {
        let wait = Wait { origin: Origin::Client, patience: PATIENCE };
        let (locks, toy, request) = granted_and_not_told(&stage, "one", wait).await;
        let releasing = releasing(&locks);
        pass(SHORT).await;
        toy.let_go(Verb::WaitTurn, Way::Straight);
        assert!(matches!(ended(releasing).await, Ended::Lease(_)));
        // It was told one or the other, and holds nothing now.
        drop(request.answer().await);
        deserted(&stage.store, PATIENCE).await;
    }
}
