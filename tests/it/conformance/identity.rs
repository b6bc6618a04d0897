//! One token, several leases: whoever knows one of them acts on none of the others.

use crate::conformance::on_every_store;

on_every_store!(tests:
    a_refresh_that_names_a_lease_touches_no_other,
    a_release_that_names_a_lease_touches_no_other,
    a_release_that_names_a_lease_gives_up_no_place,
    the_keeper_of_a_lease_neither_keeps_nor_ends_a_later_one,
    the_last_word_for_a_lease_leaves_a_later_one_its_ttl,
    a_keeper_whose_refresh_was_not_answered_still_ends_its_lease,
    a_keeper_does_not_end_what_its_client_has_refreshed,
);

mod tests {
    use std::time::Duration;

    use lockkeeper::lock::lease::{Holding, Lease};
    use lockkeeper::lock::store::{Kept, Released};
    use lockkeeper::lock::time::Ttl;

    use crate::conformance::line::{line_up, waits};
    use crate::conformance::{Stage, claim, key, next_number, token};

    const LONG: Ttl = Ttl::from_millis(60_000);
    const SHORT: Ttl = Ttl::from_millis(5_000);

    /// The first and the second lease of one token.
    async fn two_leases(stage: &Stage) -> [Lease; 2] {
        let first = stage.granted(&claim("a", "one", 60_000)).await;
        stage.store.release(&key("a"), &token("one"), None).await.unwrap();
        let second = stage.granted(&claim("a", "one", 60_000)).await;
        assert!(second.fencing_token > first.fencing_token);
        [first, second]
    }

    fn held(lease: &Lease) -> Holding {
        Holding {
            key: lease.key.clone(),
            token: token("one"),
            fencing_token: lease.fencing_token,
            renewals: lease.renewals,
        }
    }

    /// What is left of the lease, if the key is held.
    async fn left(stage: &Stage) -> Option<Duration> {
        let status = stage.store.inspect(&key("a"), Some(&token("one"))).await.unwrap();
        status.holder.and_then(|holder| holder.left).filter(|_| status.mine == Some(true))
    }

    pub(super) async fn a_refresh_that_names_a_lease_touches_no_other(stage: Stage) {
        let [first, second] = two_leases(&stage).await;
        let refresh = async |lease: &Lease, ttl| {
            let named = Some(lease.fencing_token);
            stage.store.refresh(&key("a"), &token("one"), named, Some(ttl)).await.unwrap()
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
            stage.store.release(&key("a"), &token("one"), named).await.unwrap()
        };
        assert_eq!(release(&first).await, Released::Nothing);
        let next = Lease { fencing_token: next_number(second.fencing_token), ..second.clone() };
        assert_eq!(release(&next).await, Released::Nothing);
        assert!(left(&stage).await.is_some());
        assert!(matches!(release(&second).await, Released::Lease(_)));
        assert_eq!(left(&stage).await, None);
        assert_eq!(release(&second).await, Released::Nothing);
    }

    pub(super) async fn a_release_that_names_a_lease_gives_up_no_place(stage: Stage) {
        let first = stage.granted(&claim("a", "one", 60_000)).await;
        stage.store.release(&key("a"), &token("one"), None).await.unwrap();
        let [one] = line_up(&stage.store, ["one"]).await;
        let named = Some(first.fencing_token);
        let released = stage.store.release(&key("a"), &one.token, named).await.unwrap();
        assert_eq!(released, Released::Nothing);
        assert!(!waits(&stage.store, &one).await.new);
    }

    pub(super) async fn the_keeper_of_a_lease_neither_keeps_nor_ends_a_later_one(stage: Stage) {
        let [first, _] = two_leases(&stage).await;
        assert_eq!(stage.store.keep(&held(&first), SHORT).await.unwrap(), Kept::Lost);
        assert!(left(&stage).await.unwrap() > SHORT.as_duration());
        stage.store.let_go(&held(&first), None).await.unwrap();
        assert!(left(&stage).await.is_some());
    }

    pub(super) async fn the_last_word_for_a_lease_leaves_a_later_one_its_ttl(stage: Stage) {
        let [first, second] = two_leases(&stage).await;
        stage.store.let_go(&held(&first), Some(SHORT)).await.unwrap();
        assert!(left(&stage).await.unwrap() > SHORT.as_duration());
        stage.store.let_go(&held(&second), Some(SHORT)).await.unwrap();
        assert!(left(&stage).await.unwrap() <= SHORT.as_duration());
    }

    pub(super) async fn a_keeper_whose_refresh_was_not_answered_still_ends_its_lease(stage: Stage) {
        let lease = stage.granted(&claim("a", "one", 60_000)).await;
        // The keeper learns nothing of these two.
        for _ in 0..2 {
            let kept = stage.store.keep(&held(&lease), LONG).await.unwrap();
            assert!(matches!(kept, Kept::Lease(_)), "{kept:?}");
        }
        stage.store.let_go(&held(&lease), None).await.unwrap();
        assert_eq!(left(&stage).await, None);
    }

    pub(super) async fn a_keeper_does_not_end_what_its_client_has_refreshed(stage: Stage) {
        let lease = stage.granted(&claim("a", "one", 60_000)).await;
        stage.store.refresh(&key("a"), &token("one"), None, None).await.unwrap().unwrap();
        stage.store.let_go(&held(&lease), None).await.unwrap();
        assert!(left(&stage).await.is_some());
        let Kept::Lease(kept) = stage.store.keep(&held(&lease), LONG).await.unwrap() else {
            panic!("it is still the keeper's")
        };
        stage.store.let_go(&held(&kept), None).await.unwrap();
        assert_eq!(left(&stage).await, None);
    }
}
