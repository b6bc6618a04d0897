//! Waiting in line as `Locks` does it: patience, callers that vanish, and stores that fail.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::lock::error::LockError;
use lockkeeper::lock::lease::{Acquired, Claim, Origin};
use lockkeeper::lock::locks::Locks;
use lockkeeper::lock::store::{Store, Target};
use tokio::task::JoinSet;

use crate::conformance::{claim, key, on_every_store, token};
use crate::support::{PATIENCE, eventually};

/// Long enough for a busy machine, and long before a place or a lease ends by its time.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(3);

/// Longer than any test takes.
const LONG: u64 = 600_000;

on_every_store!(tests:
    a_waiter_has_the_key_when_its_holder_releases,
    a_waiter_has_the_key_when_the_lease_of_its_holder_is_over,
    patience_that_is_over_is_held_and_says_how_long_it_was,
    waiters_are_served_in_the_order_of_their_places,
    a_waiter_that_is_gone_is_out_of_the_line_at_once,
    rule_10_a_waiter_that_is_gone_keeps_its_place_if_the_client_chose_the_token,
    the_end_of_a_wait_keeps_the_place_of_a_token_of_the_client,
    rule_9_of_requests_with_one_token_one_waits,
    rule_10_a_claim_leaves_the_line_with_its_request,
    a_draining_instance_tells_its_waiters,
    no_more_wait_than_there_is_room_for,
);

/// A claim for the key of all tests with a token that the service made.
pub(crate) fn made(name: &str) -> Claim {
    Claim { origin: Origin::Service, ..claim("a", name, LONG) }
}

/// The same with a token that the client chose.
pub(crate) fn chosen(name: &str) -> Claim {
    claim("a", name, LONG)
}

/// A request that waits, in a task that aborts it if it is dropped.
pub(crate) struct Request(JoinSet<Result<Acquired, LockError>>);

impl Request {
    pub(crate) fn of(locks: &Locks, claim: Claim) -> Self {
        Self::with(locks, claim, PATIENCE * 2)
    }

    pub(crate) fn with(locks: &Locks, claim: Claim, patience: Duration) -> Self {
        let (locks, mut tasks) = (locks.clone(), JoinSet::new());
        tasks.spawn(async move { locks.acquire(claim, patience).await });
        Self(tasks)
    }

    pub(crate) async fn answer(mut self) -> Result<Acquired, LockError> {
        let answer = tokio::time::timeout(PATIENCE, self.0.join_next()).await;
        answer.expect("answered in time").unwrap().unwrap()
    }

    /// Waits this long for an answer that must not come yet.
    pub(crate) async fn is_open_for(&mut self, time: Duration) {
        let answer = tokio::time::timeout(time, self.0.join_next()).await;
        assert!(answer.is_err(), "answered too early: {answer:?}");
    }

    /// Waits until the request was answered, and drops its answer.
    pub(crate) async fn ended(&mut self) {
        tokio::time::timeout(PATIENCE, self.0.join_next()).await.expect("answered in time");
    }

    /// Drops the request; says whether it had been told that it has the lease by then.
    pub(crate) async fn gone(mut self) -> bool {
        self.0.abort_all();
        matches!(self.0.join_next().await, Some(Ok(Ok(Acquired::Granted(_)))))
    }

    pub(crate) async fn granted(self) -> u64 {
        match self.answer().await.unwrap() {
            Acquired::Granted(grant) => grant.lease.fencing_token.number(),
            other => panic!("not granted: {other:?}"),
        }
    }
}

pub(crate) async fn waiters(store: &Arc<dyn Store>) -> u64 {
    store.look(&key("a"), None, 0).await.unwrap().waiters
}

/// Waits until so many stand in line.
pub(crate) async fn waiting(store: &Arc<dyn Store>, count: u64) {
    eventually(PATIENCE, async || (waiters(store).await == count).then_some(())).await;
}

pub(crate) async fn release(store: &Arc<dyn Store>, name: &str) {
    store.end(&Target::of(&key("a"), &token(name), None)).await.unwrap();
}

/// Waits until `name` holds the key.
pub(crate) async fn holds(store: &Arc<dyn Store>, name: &str) {
    let token = token(name);
    eventually(PATIENCE, async || {
        let status = store.look(&key("a"), Some(&token), 0).await.unwrap();
        (status.mine == Some(true)).then_some(())
    })
    .await;
}

/// Waits until nobody has the key or waits for it.
pub(crate) async fn deserted(store: &Arc<dyn Store>, patience: Duration) {
    eventually(patience, async || {
        let status = store.look(&key("a"), None, 0).await.unwrap();
        (status.holder.is_none() && status.waiters == 0).then_some(())
    })
    .await;
}

mod tests {
    use std::time::{Duration, Instant};

    use lockkeeper::lock::error::LockError;
    use lockkeeper::lock::lease::{Acquired, Claim};
    use lockkeeper::lock::locks::Locks;
    use lockkeeper::lock::waiting::WaitLimits;
    use tokio::task::JoinSet;

    use super::{AT_ONCE, Request, chosen, holds, made, release, waiters, waiting};
    use crate::conformance::line::waits;
    use crate::conformance::{LIMITS, Stage, claim};
    use crate::support::{PATIENCE, eventually};

    fn locks(stage: &Stage) -> Locks {
        Locks::new(stage.store.clone(), LIMITS)
    }

    pub(super) async fn a_waiter_has_the_key_when_its_holder_releases(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        let first = stage.granted(&chosen("holder")).await.fencing_token.number();
        let request = Request::of(&locks, made("one"));
        waiting(store, 1).await;
        assert_eq!(locks.waiting(), 1);
        release(store, "holder").await;
        let Acquired::Granted(grant) = request.answer().await.unwrap() else { panic!() };
        assert_eq!(grant.token, made("one").token);
        assert!(grant.lease.fencing_token.number() > first);
        holds(store, "one").await;
        assert_eq!((locks.waiting(), waiters(store).await), (0, 0));
        assert!(locks.finish(PATIENCE).await, "the task of the line has ended");
        holds(store, "one").await;
    }

    pub(super) async fn a_waiter_has_the_key_when_the_lease_of_its_holder_is_over(stage: Stage) {
        let locks = locks(&stage);
        let (began, ttl) = (Instant::now(), Duration::from_millis(stage.soon_over()));
        stage.granted(&claim("a", "holder", stage.soon_over())).await;
        Request::of(&locks, made("one")).granted().await;
        let waited = began.elapsed();
        assert!(waited + Duration::from_millis(1) >= ttl, "{waited:?}");
        assert!(waited < ttl + AT_ONCE, "{waited:?}");
    }

    pub(super) async fn patience_that_is_over_is_held_and_says_how_long_it_was(stage: Stage) {
        let locks = locks(&stage);
        stage.granted(&chosen("holder")).await;
        let (began, patience) = (Instant::now(), Duration::from_millis(200));
        let answer = Request::with(&locks, made("one"), patience).answer().await.unwrap();
        let Acquired::Held(status, waited) = answer else { panic!("{answer:?}") };
        assert!(waited >= patience && waited <= began.elapsed(), "{waited:?}");
        assert_eq!(status.holder.unwrap().owner.unwrap().as_str(), "holder@host");
        assert_eq!(status.waiters, 0, "it waits no longer");
        waiting(&stage.store, 0).await;
        assert_eq!(locks.waiting(), 0);
    }

    pub(super) async fn waiters_are_served_in_the_order_of_their_places(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        stage.granted(&chosen("holder")).await;
        let names: Vec<_> = (0..30).map(|number| format!("waiter-{number}")).collect();
        let mut requests = Vec::new();
        for (name, before) in names.iter().zip(0..) {
            requests.push(Request::of(&locks, made(name)));
            waiting(store, before + 1).await;
        }
        let (mut last, mut fencing) = ("holder", 0);
        for (request, name) in requests.into_iter().zip(&names) {
            release(store, last).await;
            let number = request.granted().await;
            assert!(number > fencing, "{name}");
            (last, fencing) = (name, number);
        }
    }

    pub(super) async fn a_waiter_that_is_gone_is_out_of_the_line_at_once(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        stage.granted(&chosen("holder")).await;
        let first = Request::of(&locks, made("one"));
        waiting(store, 1).await;
        let second = Request::of(&locks, made("two"));
        waiting(store, 2).await;
        assert!(!waits(store, &made("one")).await.new);
        drop(first);
        waiting(store, 1).await;
        release(store, "holder").await;
        second.granted().await;
        let back = waits(store, &made("one")).await;
        assert!(back.new, "{back:?}");
    }

    pub(super) async fn rule_10_a_waiter_that_is_gone_keeps_its_place_if_the_client_chose_the_token(
        stage: Stage,
    ) {
        let (locks, store) = (locks(&stage), &stage.store);
        stage.granted(&chosen("holder")).await;
        let first = Request::of(&locks, chosen("one"));
        waiting(store, 1).await;
        let _second = Request::of(&locks, made("two"));
        waiting(store, 2).await;
        drop(first);
        waiting(store, 1).await;
        let back = Request::of(&locks, chosen("one"));
        waiting(store, 2).await;
        release(store, "holder").await;
        back.granted().await;
    }

    pub(super) async fn the_end_of_a_wait_keeps_the_place_of_a_token_of_the_client(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        stage.granted(&chosen("holder")).await;
        let first = Request::with(&locks, chosen("one"), AT_ONCE);
        waiting(store, 1).await;
        let _second = Request::of(&locks, made("two"));
        waiting(store, 2).await;
        let place = waits(store, &chosen("one")).await.place;
        let answer = first.answer().await.unwrap();
        assert!(matches!(answer, Acquired::Held(..)), "{answer:?}");
        waiting(store, 1).await;
        assert_eq!(waits(store, &chosen("one")).await.place, place);
    }

    pub(super) async fn rule_9_of_requests_with_one_token_one_waits(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        stage.granted(&chosen("holder")).await;
        let requests = [(); 3].map(|()| Request::of(&locks, chosen("one")));
        let mut answers = JoinSet::new();
        for request in requests {
            answers.spawn(request.answer());
        }
        for _ in 0..2 {
            let answer = answers.join_next().await.unwrap().unwrap();
            assert!(matches!(answer, Err(LockError::Superseded(_))), "{answer:?}");
        }
        waiting(store, 1).await;
        release(store, "holder").await;
        let answer = answers.join_next().await.unwrap().unwrap();
        assert!(matches!(answer, Ok(Acquired::Granted(_))), "{answer:?}");
    }

    pub(super) async fn rule_10_a_claim_leaves_the_line_with_its_request(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        stage.granted(&chosen("holder")).await;
        let ghost = Request::of(&locks, chosen("one"));
        waiting(store, 1).await;
        let retry = Request::of(&locks, chosen("one"));
        let told = ghost.answer().await;
        assert!(matches!(told, Err(LockError::Superseded(_))), "{told:?}");
        release(store, "holder").await;
        retry.granted().await;
        release(store, "one").await;
        stage.granted(&chosen("holder")).await;
        let last = Request::of(&locks, chosen("two"));
        waiting(store, 1).await;
        drop(last);
        waiting(store, 0).await;
    }

    pub(super) async fn a_draining_instance_tells_its_waiters(stage: Stage) {
        let (locks, store) = (locks(&stage), &stage.store);
        stage.granted(&chosen("holder")).await;
        let requests = [made("one"), chosen("two")].map(|claim| Request::of(&locks, claim));
        waiting(store, 2).await;
        locks.drain();
        for request in requests {
            let answer = request.answer().await;
            assert!(matches!(answer, Err(LockError::Draining)), "{answer:?}");
        }
        locks.finish(PATIENCE).await;
        assert_eq!(waiters(store).await, 0);
        holds(store, "holder").await;
    }

    pub(super) async fn no_more_wait_than_there_is_room_for(stage: Stage) {
        let limits = WaitLimits { per_key: 2, per_instance: 3, keys: 2 };
        let (locks, store) = (Locks::new(stage.store.clone(), limits), &stage.store);
        let full = async |claim: Claim| {
            let answer = Request::of(&locks, claim).answer().await;
            assert!(matches!(answer, Err(LockError::TooManyWaiters(_))), "{answer:?}");
        };
        for name in ["a", "b", "c"] {
            stage.granted(&claim(name, "holder", super::LONG)).await;
        }
        let first = Request::of(&locks, made("one"));
        let _second = Request::of(&locks, made("two"));
        waiting(store, 2).await;
        full(made("three")).await;
        // A newer request takes the place and the room of an older one.
        let again = Request::of(&locks, made("one"));
        let told = first.answer().await;
        assert!(matches!(told, Err(LockError::Superseded(_))), "{told:?}");
        let _other = Request::of(&locks, claim("b", "one", super::LONG));
        eventually(PATIENCE, async || (locks.waiting() == 3).then_some(())).await;
        full(claim("b", "two", super::LONG)).await;
        full(claim("c", "one", super::LONG)).await;
        drop(again);
        eventually(PATIENCE, async || (locks.waiting() == 2).then_some(())).await;
        full(claim("c", "one", super::LONG)).await;
        let again = Request::of(&locks, made("three"));
        waiting(store, 2).await;
        drop(again);
        waiting(store, 1).await;
    }
}
