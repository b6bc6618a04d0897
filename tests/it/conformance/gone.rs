//! Callers that vanish.

use crate::conformance::on_every_store;

on_every_store!(tests:
    a_grant_that_nobody_received_is_taken_back_if_the_service_made_the_token,
    rule_19_a_release_whose_caller_is_gone_is_done,
    a_draining_instance_grants_nothing_and_keeps_what_there_is,
);

mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::time::Duration;

    use lockkeeper::lock::error::LockError;
    use lockkeeper::lock::lease::{Acquired, Claim, Origin};
    use lockkeeper::lock::locks::Locks;
    use lockkeeper::lock::store::{Renewed, Target};

    use crate::conformance::{LIMITS, Stage, claim, key, token};
    use crate::support::PATIENCE;

    /// Polls a call once, as for a client that hangs up while the store is asked; `false` if it
    /// was answered at once.
    async fn asked_and_gone<F: Future>(call: F) -> bool {
        let mut call = pin!(call);
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(call.as_mut().poll(context).is_pending())
        })
        .await
    }

    pub(super) async fn a_grant_that_nobody_received_is_taken_back_if_the_service_made_the_token(
        stage: Stage,
    ) {
        let locks = Locks::new(stage.store.clone(), LIMITS);
        let (mut asked, mut cut_short) = (0_usize, 0);
        // On a busy machine some are answered before the first poll of them is over.
        while cut_short < 50 {
            assert!(asked < 1000, "too few calls were cut short to say anything: {cut_short}");
            let name = format!("k{asked}");
            let claim = Claim { origin: Origin::Service, ..claim(&name, "one", 60_000) };
            let gone = asked_and_gone(locks.acquire(claim, Duration::ZERO)).await;
            (asked, cut_short) = (asked + 1, cut_short + usize::from(gone));
        }
        locks.finish(PATIENCE).await;
        let page = locks.list(vec![String::new()], None, 1000).await.unwrap();
        assert_eq!(page.locks.len(), asked - cut_short, "only who got an answer holds");
    }

    pub(super) async fn rule_19_a_release_whose_caller_is_gone_is_done(stage: Stage) {
        let locks = Locks::new(stage.store.clone(), LIMITS);
        stage.granted(&claim("a", "one", 60_000)).await;
        asked_and_gone(locks.release(Target::of(&key("a"), &token("one"), None))).await;
        locks.finish(PATIENCE).await;
        assert_eq!(stage.store.look(&key("a"), None, 0).await.unwrap().holder, None);
    }

    pub(super) async fn a_draining_instance_grants_nothing_and_keeps_what_there_is(stage: Stage) {
        let locks = Locks::new(stage.store.clone(), LIMITS);
        stage.granted(&claim("a", "one", 60_000)).await;
        assert_eq!(locks.ready(), Ok(()));
        locks.drain();
        assert!(locks.ready().is_err());
        let refused = locks.acquire(claim("b", "one", 60_000), Duration::ZERO).await;
        assert!(matches!(refused, Err(LockError::Draining)), "{refused:?}");
        assert_eq!(stage.store.look(&key("b"), None, 0).await.unwrap().holder, None);
        // Whoever has the lease is not told that it has nothing.
        let again = locks.acquire(claim("a", "one", 60_000), Duration::ZERO).await;
        assert!(matches!(again, Ok(Acquired::Again(_))), "{again:?}");
        let other = locks.acquire(claim("a", "two", 60_000), Duration::from_secs(60)).await;
        assert!(matches!(other, Err(LockError::Draining)), "{other:?}");
        let refreshed = locks.refresh(Target::of(&key("a"), &token("one"), None), None).await;
        assert!(matches!(refreshed, Ok(Renewed::Lease(_))), "{refreshed:?}");
    }
}
