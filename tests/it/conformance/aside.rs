//! Out of the line: for good, or for a while with the place kept.

use std::time::Duration;

use crate::conformance::{on_every_store, on_routed_stores};

on_every_store!(tests:
    a_claim_that_leaves_is_out_of_the_line,
    a_claim_that_leaves_after_the_hand_off_passes_the_key_on,
    the_last_in_line_that_leaves_after_the_hand_off_frees_the_key,
    a_claim_that_steps_aside_is_passed_over_and_has_its_position_back,
    a_claim_that_steps_aside_after_the_hand_off_keeps_its_position,
    a_claim_that_is_away_has_a_free_key_if_it_asks,
    a_claim_that_is_away_can_be_given_up,
    a_kept_place_ends_when_its_time_is_over,
    a_kept_place_that_is_over_is_not_released,
    a_release_gives_up_a_place,
    a_release_of_what_was_handed_passes_it_on,
    nothing_of_a_waiter_ends_the_lease_of_the_holder,
);

on_routed_stores!(tests:
    a_claim_that_leaves_after_the_hand_off_passes_the_key_on,
);

/// Lets time pass where nothing but time ends what is looked at.
pub(super) async fn pass(time: Duration) {
    let nothing = std::future::pending::<()>();
    let _ = tokio::time::timeout(time, nothing).await;
}

mod tests {
    use lockkeeper::lock::store::{Ended, Keep, Target};
    use lockkeeper::lock::time::Ttl;

    use super::pass;
    use crate::conformance::line::{confirmed, line_up, long, refused, release, waiters, waits};
    use crate::conformance::{Stage, key, token};
    use crate::support::PATIENCE;

    /// A kept place that ends within a test.
    const SHORTLY: Ttl = Ttl::from_millis(50);

    pub(super) async fn a_claim_that_leaves_is_out_of_the_line(stage: Stage) {
        let [one, two] = line_up(&stage.store, ["one", "two"]).await;
        let place = waits(&stage.store, &two).await.place;
        stage.store.leave(&key("a"), &[(one.token.clone(), Keep::Nothing)]).await.unwrap();
        assert_eq!(waiters(&stage.store).await, 1);
        assert_eq!(waits(&stage.store, &two).await.ahead, 0);
        let back = waits(&stage.store, &one).await;
        assert!(back.new && back.place > place, "{back:?}");
        release(&stage.store, "holder").await;
        confirmed(&stage.store, &two).await;
    }

    pub(super) async fn a_claim_that_leaves_after_the_hand_off_passes_the_key_on(stage: Stage) {
        let [one, two] = line_up(&stage.store, ["one", "two"]).await;
        release(&stage.store, "holder").await;
        let bell = stage.store.listen(&key("a"));
        stage.store.leave(&key("a"), &[(one.token.clone(), Keep::Nothing)]).await.unwrap();
        tokio::time::timeout(PATIENCE, bell.rung()).await.unwrap();
        refused(&stage.store, &one).await;
        confirmed(&stage.store, &two).await;
        assert_eq!(waiters(&stage.store).await, 0);
    }

    pub(super) async fn the_last_in_line_that_leaves_after_the_hand_off_frees_the_key(
        stage: Stage,
    ) {
        for keep in [Keep::Nothing, Keep::Place] {
            let [one] = line_up(&stage.store, ["one"]).await;
            release(&stage.store, "holder").await;
            stage.store.leave(&key("a"), &[(one.token.clone(), keep)]).await.unwrap();
            stage.granted(&long("other")).await;
            release(&stage.store, "other").await;
            release(&stage.store, "one").await;
        }
    }

    pub(super) async fn a_claim_that_steps_aside_is_passed_over_and_has_its_position_back(
        stage: Stage,
    ) {
        let [one, two, three] = line_up(&stage.store, ["one", "two", "three"]).await;
        let place = waits(&stage.store, &one).await.place;
        stage.store.leave(&key("a"), &[(one.token.clone(), Keep::Place)]).await.unwrap();
        assert_eq!(waiters(&stage.store).await, 2);
        assert_eq!(waits(&stage.store, &three).await.ahead, 1);
        release(&stage.store, "holder").await;
        refused(&stage.store, &one).await;
        confirmed(&stage.store, &two).await;
        let back = waits(&stage.store, &one).await;
        assert_eq!((back.place, back.ahead, back.new), (place, 0, false));
        assert_eq!(waits(&stage.store, &three).await.ahead, 1);
        release(&stage.store, "two").await;
        refused(&stage.store, &three).await;
        confirmed(&stage.store, &one).await;
    }

    pub(super) async fn a_claim_that_steps_aside_after_the_hand_off_keeps_its_position(
        stage: Stage,
    ) {
        let [one, two, three] = line_up(&stage.store, ["one", "two", "three"]).await;
        release(&stage.store, "holder").await;
        stage.store.leave(&key("a"), &[(one.token.clone(), Keep::Place)]).await.unwrap();
        confirmed(&stage.store, &two).await;
        assert!(!waits(&stage.store, &one).await.new);
        release(&stage.store, "two").await;
        refused(&stage.store, &three).await;
        confirmed(&stage.store, &one).await;
    }

    pub(super) async fn a_claim_that_is_away_has_a_free_key_if_it_asks(stage: Stage) {
        let [one, two] = line_up(&stage.store, ["one", "two"]).await;
        for away in [&one, &two] {
            stage.store.leave(&key("a"), &[(away.token.clone(), Keep::Place)]).await.unwrap();
        }
        release(&stage.store, "holder").await;
        assert_eq!(stage.store.look(&key("a"), None, 0).await.unwrap().holder, None);
        // Nobody who is there stands before anybody.
        stage.granted(&two).await;
        assert!(!waits(&stage.store, &one).await.new);
    }

    pub(super) async fn a_claim_that_is_away_can_be_given_up(stage: Stage) {
        let [one, two] = line_up(&stage.store, ["one", "two"]).await;
        stage.store.leave(&key("a"), &[(one.token.clone(), Keep::Place)]).await.unwrap();
        stage.store.leave(&key("a"), &[(one.token.clone(), Keep::Nothing)]).await.unwrap();
        let place = waits(&stage.store, &two).await.place;
        let back = waits(&stage.store, &one).await;
        assert!(back.new && back.place > place, "{back:?}");
    }

    pub(super) async fn a_kept_place_ends_when_its_time_is_over(stage: Stage) {
        let stage = stage.keeping(SHORTLY).await;
        let [one, two] = line_up(&stage.store, ["one", "two"]).await;
        stage.store.leave(&key("a"), &[(one.token.clone(), Keep::Place)]).await.unwrap();
        pass(SHORTLY.as_duration() * 2).await;
        let back = waits(&stage.store, &one).await;
        assert!(back.new, "{back:?}");
        assert_eq!(back.ahead, 1);
        release(&stage.store, "holder").await;
        refused(&stage.store, &one).await;
        confirmed(&stage.store, &two).await;
    }

    pub(super) async fn a_kept_place_that_is_over_is_not_released(stage: Stage) {
        let stage = stage.keeping(SHORTLY).await;
        let [one] = line_up(&stage.store, ["one"]).await;
        stage.store.leave(&key("a"), &[(one.token.clone(), Keep::Place)]).await.unwrap();
        pass(SHORTLY.as_duration() * 2).await;
        let released = stage.store.end(&Target::of(&key("a"), &one.token, None)).await.unwrap();
        assert_eq!(released, Ended::Nothing(None));
    }

    pub(super) async fn a_release_gives_up_a_place(stage: Stage) {
        let [one, two, three] = line_up(&stage.store, ["one", "two", "three"]).await;
        stage.store.leave(&key("a"), &[(two.token.clone(), Keep::Place)]).await.unwrap();
        for gone in [&one, &two] {
            let released =
                stage.store.end(&Target::of(&key("a"), &gone.token, None)).await.unwrap();
            assert_eq!(released, Ended::Place);
            let again = stage.store.end(&Target::of(&key("a"), &gone.token, None)).await.unwrap();
            assert_eq!(again, Ended::Nothing(None));
        }
        assert_eq!(waits(&stage.store, &three).await.ahead, 0);
        for gone in [&one, &two] {
            assert!(waits(&stage.store, gone).await.new);
        }
    }

    pub(super) async fn a_release_of_what_was_handed_passes_it_on(stage: Stage) {
        let [one, two] = line_up(&stage.store, ["one", "two"]).await;
        release(&stage.store, "holder").await;
        let released = stage.store.end(&Target::of(&key("a"), &one.token, None)).await.unwrap();
        assert_eq!(released, Ended::Place);
        refused(&stage.store, &one).await;
        confirmed(&stage.store, &two).await;
    }

    pub(super) async fn nothing_of_a_waiter_ends_the_lease_of_the_holder(stage: Stage) {
        let [one, two] = line_up(&stage.store, ["one", "two"]).await;
        release(&stage.store, "holder").await;
        let lease = confirmed(&stage.store, &one).await;
        for keep in [Keep::Place, Keep::Nothing] {
            // Also late, by the holder's own instance.
            for leaving in [&one.token, &two.token, &token("nobody")] {
                stage.store.leave(&key("a"), &[(leaving.clone(), keep)]).await.unwrap();
            }
        }
        for other in ["two", "nobody"] {
            let released =
                stage.store.end(&Target::of(&key("a"), &token(other), None)).await.unwrap();
            assert_eq!(released, Ended::Nothing(None));
        }
        let kept = stage
            .store
            .renew(&Target::of(&key("a"), &one.token, None), None)
            .await
            .unwrap()
            .lease()
            .unwrap();
        assert_eq!(kept.fencing_token, lease.fencing_token);
    }
}
