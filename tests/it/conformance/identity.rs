//! One token, several leases: whoever knows one of them acts on none of the others.

use crate::conformance::on_every_store;

on_every_store!(tests:
    a_refresh_that_names_a_lease_touches_no_other,
    a_release_that_names_a_lease_touches_no_other,
    rule_12_a_release_that_names_a_lease_gives_up_no_place,
    rule_15_the_keeper_of_a_lease_neither_keeps_nor_ends_a_later_one,
    the_last_word_for_a_lease_leaves_a_later_one_its_ttl,
    a_keeper_whose_refresh_was_not_answered_still_ends_its_lease,
    rule_15_a_keeper_does_not_end_what_its_client_has_refreshed,
    rule_15_a_keeper_is_refused_once_its_token_has_acquired_the_lease_again,
);

mod tests {
    use std::time::Duration;

    use lockkeeper::lock::lease::Lease;
    use lockkeeper::lock::store::{Ask, Ended, Renewed, Target};
    use lockkeeper::lock::time::Ttl;

    use crate::conformance::line::{line_up, waits};
    use crate::conformance::{Stage, claim, key, next_number, token};

    const LONG: Ttl = Ttl::from_millis(60_000);
    const SHORT: Ttl = Ttl::from_millis(5_000);

    /// The first and the second lease of one token.
    async fn two_leases(stage: &Stage) -> [Lease; 2] {
        let first = stage.granted(&claim("a", "one", 60_000)).await;
        stage.store.end(&Target::of(&key("a"), &token("one"), None)).await.unwrap();
        let second = stage.granted(&claim("a", "one", 60_000)).await;
        assert!(second.fencing_token > first.fencing_token);
        [first, second]
    }

    fn held(lease: &Lease) -> Target {
        Target::kept(&token("one"), lease)
    }

    /// What is left of the lease, if the key is held.
    async fn left(stage: &Stage) -> Option<Duration> {
        let status = stage.store.look(&key("a"), Some(&token("one")), 0).await.unwrap();
        status.holder.and_then(|holder| holder.left).filter(|_| status.mine == Some(true))
    }

    pub(super) async fn a_refresh_that_names_a_lease_touches_no_other(stage: Stage) {
        let [first, second] = two_leases(&stage).await;
        let refresh = async |lease: &Lease, ttl| {
            let named = Some(lease.fencing_token);
            stage
                .store
                .renew(&Target::of(&key("a"), &token("one"), named), Some(ttl))
                .await
                .unwrap()
                .lease()
        };
        assert_eq!(refresh(&first, SHORT).await, None);
        let next = Lease { fencing_token: next_number(second.fencing_token), ..second.clone() };
        assert_eq!(refresh(&next, LONG).await, None);
        assert!(left(&stage).await.unwrap() > SHORT.as_duration());
        let refreshed = refresh(&second, SHORT).await.unwrap();
        assert_eq!(refreshed.fencing_token, second.fencing_token);
        assert!(left(&stage).await.unwrap() <= SHORT.as_duration());
    }

    pub(super) async fn a_release_that_names_a_lease_touches_no_other(stage: Stage) {
        let [first, second] = two_leases(&stage).await;
        let release = async |lease: &Lease| {
            let named = Some(lease.fencing_token);
            stage.store.end(&Target::of(&key("a"), &token("one"), named)).await.unwrap()
        };
        assert_eq!(release(&first).await, Ended::Nothing);
        let next = Lease { fencing_token: next_number(second.fencing_token), ..second.clone() };
        assert_eq!(release(&next).await, Ended::Nothing);
        assert!(left(&stage).await.is_some());
        assert!(matches!(release(&second).await, Ended::Lease(_)));
        assert_eq!(left(&stage).await, None);
        assert_eq!(release(&second).await, Ended::Nothing);
    }

    pub(super) async fn rule_12_a_release_that_names_a_lease_gives_up_no_place(stage: Stage) {
        let first = stage.granted(&claim("a", "one", 60_000)).await;
        stage.store.end(&Target::of(&key("a"), &token("one"), None)).await.unwrap();
        let [one] = line_up(&stage.store, ["one"]).await;
        let named = Some(first.fencing_token);
        let released = stage.store.end(&Target::of(&key("a"), &one.token, named)).await.unwrap();
        assert_eq!(released, Ended::Nothing);
        assert!(!waits(&stage.store, &one).await.new);
    }

    pub(super) async fn rule_15_the_keeper_of_a_lease_neither_keeps_nor_ends_a_later_one(
        stage: Stage,
    ) {
        let [first, _] = two_leases(&stage).await;
        assert_eq!(stage.store.renew(&held(&first), Some(SHORT)).await.unwrap(), Renewed::Lost);
        assert!(left(&stage).await.unwrap() > SHORT.as_duration());
        stage.store.end(&held(&first).last_word()).await.unwrap();
        assert!(left(&stage).await.is_some());
    }

    pub(super) async fn the_last_word_for_a_lease_leaves_a_later_one_its_ttl(stage: Stage) {
        let [first, second] = two_leases(&stage).await;
        stage.store.renew(&held(&first).last_word(), Some(SHORT)).await.unwrap();
        assert!(left(&stage).await.unwrap() > SHORT.as_duration());
        stage.store.renew(&held(&second).last_word(), Some(SHORT)).await.unwrap();
        assert!(left(&stage).await.unwrap() <= SHORT.as_duration());
    }

    pub(super) async fn a_keeper_whose_refresh_was_not_answered_still_ends_its_lease(stage: Stage) {
        let lease = stage.granted(&claim("a", "one", 60_000)).await;
        // The keeper learns nothing of these two.
        for _ in 0..2 {
            let kept = stage.store.renew(&held(&lease), Some(LONG)).await.unwrap();
            assert!(matches!(kept, Renewed::Lease(_)), "{kept:?}");
        }
        stage.store.end(&held(&lease).last_word()).await.unwrap();
        assert_eq!(left(&stage).await, None);
    }

    pub(super) async fn rule_15_a_keeper_does_not_end_what_its_client_has_refreshed(stage: Stage) {
        let lease = stage.granted(&claim("a", "one", 60_000)).await;
        stage.refresh("a", "one", None).await.unwrap();
        stage.store.end(&held(&lease).last_word()).await.unwrap();
        assert!(left(&stage).await.is_some());
        let Renewed::Lease(kept) = stage.store.renew(&held(&lease), Some(LONG)).await.unwrap()
        else {
            panic!("it is still the keeper's")
        };
        stage.store.end(&held(&kept).last_word()).await.unwrap();
        assert_eq!(left(&stage).await, None);
    }

    pub(super) async fn rule_15_a_keeper_is_refused_once_its_token_has_acquired_the_lease_again(
        stage: Stage,
    ) {
        let lease = stage.granted(&claim("a", "one", 60_000)).await;
        stage.store.ask(&claim("a", "one", 60_000), Ask::Once(None)).await.unwrap();
        let kept = stage.store.renew(&held(&lease), Some(LONG)).await.unwrap();
        assert_eq!(kept, Renewed::TakenOver);
        stage.store.end(&held(&lease).last_word()).await.unwrap();
        assert!(left(&stage).await.is_some());
    }
}
