//! One token, several leases: whoever knows one of them acts on none of the others.

use crate::conformance::on_every_store;

on_every_store!(tests:
    a_refresh_that_names_a_lease_touches_no_other,
    a_release_that_names_a_lease_touches_no_other,
    rule_14_a_release_that_names_a_lease_gives_up_no_place,
    rule_16_the_keeper_of_a_lease_neither_keeps_nor_ends_a_later_one,
    the_last_word_for_a_lease_leaves_a_later_one_its_ttl,
    rule_16_the_last_word_makes_a_lease_one_of_its_client,
    rule_16_a_last_word_that_comes_late_or_twice_ends_nothing_earlier,
);

mod tests {
    use std::time::Duration;

    use lockkeeper::lock::lease::{Claim, Lease};
    use lockkeeper::lock::store::{Condition, Ended, Renewed, Target};
    use lockkeeper::lock::time::Ttl;

    use crate::conformance::line::{line_up, waits};
    use crate::conformance::{Stage, claim, key, next_number, token};

    const LONG: Ttl = Ttl::from_millis(60_000);
    const SHORT: Ttl = Ttl::from_millis(5_000);

    /// The first and the second lease of one token, for a stream.
    async fn two_leases(stage: &Stage) -> [Lease; 2] {
        let first = stage.granted(&kept()).await;
        stage.store.end(&Target::of(&key("a"), &token("one"), None)).await.unwrap();
        let second = stage.granted(&kept()).await;
        assert!(second.fencing_token > first.fencing_token);
        [first, second]
    }

    /// The claim of a stream.
    fn kept() -> Claim {
        Claim { kept: true, ..claim("a", "one", 60_000) }
    }

    fn last_word(lease: &Lease) -> Target {
        held(lease).only(Condition::LetGo { grants: false })
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
        stage.store.renew(&last_word(&second), None).await.unwrap();
        let refresh = async |number| {
            let of = Target::of(&key("a"), &token("one"), Some(number));
            stage.store.renew(&of, Some(LONG)).await.unwrap()
        };
        let (old, number) = (first.fencing_token, second.fencing_token);
        for other in [old, next_number(number)] {
            assert_eq!(refresh(other).await, Renewed::Lost(Some(number)), "it tells what there is");
        }
        let refreshed = refresh(number).await.lease().unwrap();
        assert_eq!(refreshed.fencing_token, number);
    }

    pub(super) async fn a_release_that_names_a_lease_touches_no_other(stage: Stage) {
        let [first, second] = two_leases(&stage).await;
        let release = async |lease: &Lease| {
            let named = Some(lease.fencing_token);
            stage.store.end(&Target::of(&key("a"), &token("one"), named)).await.unwrap()
        };
        let nothing = Ended::Nothing(Some(second.fencing_token));
        assert_eq!(release(&first).await, nothing, "it tells what there is");
        let next = Lease { fencing_token: next_number(second.fencing_token), ..second.clone() };
        assert_eq!(release(&next).await, nothing);
        assert!(left(&stage).await.is_some());
        assert!(matches!(release(&second).await, Ended::Lease(_)));
        assert_eq!(left(&stage).await, None);
        assert_eq!(release(&second).await, Ended::Nothing(None));
    }

    pub(super) async fn rule_14_a_release_that_names_a_lease_gives_up_no_place(stage: Stage) {
        let first = stage.granted(&claim("a", "one", 60_000)).await;
        stage.store.end(&Target::of(&key("a"), &token("one"), None)).await.unwrap();
        let [one] = line_up(&stage.store, ["one"]).await;
        let named = Some(first.fencing_token);
        let released = stage.store.end(&Target::of(&key("a"), &one.token, named)).await.unwrap();
        assert_eq!(released, Ended::Nothing(None));
        assert!(!waits(&stage.store, &one).await.new);
    }

    pub(super) async fn rule_16_the_keeper_of_a_lease_neither_keeps_nor_ends_a_later_one(
        stage: Stage,
    ) {
        let [first, second] = two_leases(&stage).await;
        let kept = stage.store.renew(&held(&first), Some(SHORT)).await.unwrap();
        assert_eq!(kept, Renewed::Lost(Some(second.fencing_token)));
        assert!(left(&stage).await.unwrap() > SHORT.as_duration());
        stage.store.end(&last_word(&first)).await.unwrap();
        assert!(left(&stage).await.is_some());
    }

    pub(super) async fn the_last_word_for_a_lease_leaves_a_later_one_its_ttl(stage: Stage) {
        let [first, second] = two_leases(&stage).await;
        stage.store.renew(&last_word(&first), Some(SHORT)).await.unwrap();
        assert!(left(&stage).await.unwrap() > SHORT.as_duration());
        stage.store.renew(&last_word(&second), Some(SHORT)).await.unwrap();
        assert!(left(&stage).await.unwrap() <= SHORT.as_duration());
    }

    pub(super) async fn rule_16_the_last_word_makes_a_lease_one_of_its_client(stage: Stage) {
        let lease = stage.granted(&kept()).await;
        let refresh = async || {
            let of = Target::of(&key("a"), &token("one"), None);
            stage.store.renew(&of, Some(LONG)).await.unwrap()
        };
        assert_eq!(refresh().await, Renewed::Kept(lease.fencing_token));
        stage.store.renew(&last_word(&lease), None).await.unwrap();
        assert!(left(&stage).await.unwrap() > SHORT.as_duration(), "it keeps its end");
        assert!(refresh().await.lease().is_some());
        let kept = stage.store.renew(&held(&lease), Some(LONG)).await.unwrap();
        assert_eq!(kept, Renewed::Lost(None), "nobody keeps it any more");
    }

    pub(super) async fn rule_16_a_last_word_that_comes_late_or_twice_ends_nothing_earlier(
        stage: Stage,
    ) {
        let lease = stage.granted(&kept()).await;
        stage.store.renew(&last_word(&lease), Some(SHORT)).await.unwrap();
        assert!(left(&stage).await.unwrap() <= SHORT.as_duration());
        stage.refresh("a", "one", Some(LONG)).await.unwrap();
        stage.store.renew(&last_word(&lease), Some(SHORT)).await.unwrap();
        assert!(left(&stage).await.unwrap() > SHORT.as_duration());
    }
}
