//! Leases that take several units of the slots: who may hold a key together, and what a repeat and a
//! replacement do. Their line is in `sharing_line`.

use lockkeeper::lock::lease::Claim;

use crate::conformance::sharing::of;
use crate::conformance::{Stage, key, on_every_store_that_shares, on_routed_stores};

on_every_store_that_shares!(tests:
    rule_2_all_units_together_are_as_many_as_each_lease_allows,
    a_lease_of_several_units_has_no_slot,
    rule_5_a_repeat_with_other_units_is_refused,
    rule_6_a_replacement_changes_the_units_if_there_is_room,
);

on_routed_stores!(tests:
    rule_2_all_units_together_are_as_many_as_each_lease_allows,
);

pub(super) fn units(name: &str, slots: u64, units: u16) -> Claim {
    Claim { units: Some(units), ..of(name, slots) }
}

/// The units that the holders of the key have, and how many these allow.
async fn taken(stage: &Stage) -> Option<(u64, u64, u16)> {
    let status = stage.store.look(&key("a"), None, 0).await.unwrap();
    status.sharers.map(|all| (all.holders, all.units, all.slots.number()))
}

mod tests {
    use lockkeeper::lock::lease::{Claim, Lease};
    use lockkeeper::lock::slots::Slots;

    use super::{taken, units};
    use crate::conformance::sharing::{READER, changed, lease, of, refusal, release, win};
    use crate::conformance::{Stage, claim, key, token};

    const LONG: u64 = 60_000;

    pub(super) async fn rule_2_all_units_together_are_as_many_as_each_lease_allows(stage: Stage) {
        let three = win(&stage, &units("three", 8, 3)).await.lease;
        assert_eq!((three.share.slots, three.share.units), (Slots::from_number(8).unwrap(), 3));
        let refused = refusal(&stage, &units("six", 8, 6)).await.sharers.unwrap();
        assert_eq!((refused.holders, refused.units), (1, 3));
        refusal(&stage, &units("least", 4, 2)).await;
        lease(&stage, "one", 8).await;
        assert_eq!(taken(&stage).await, Some((2, 4, 8)));
        let four = win(&stage, &units("four", 9, 4)).await.lease;
        assert_eq!(taken(&stage).await, Some((3, 8, 8)));
        for slots in [8, 1_000, READER] {
            refusal(&stage, &of("full", slots)).await;
        }
        let seen = stage.store.look(&key("a"), Some(&token("four")), 0).await.unwrap();
        assert_eq!(seen.holder.unwrap().share, four.share);
        let mut all: Vec<_> =
            seen.sharers.unwrap().leases.iter().map(|one| one.share.units).collect();
        all.sort_unstable();
        assert_eq!(all, [1, 3, 4]);
        release(&stage, "three").await;
        assert_eq!(taken(&stage).await, Some((2, 5, 8)));
        refusal(&stage, &units("late", 8, 4)).await;
        lease(&stage, "reader", READER).await;
        win(&stage, &units("late", 8, 2)).await;
        let same = stage.refresh("a", "late", None).await.unwrap();
        assert_eq!(same.share.units, 2);
        assert_eq!(taken(&stage).await, Some((4, 8, 8)));
    }

    pub(super) async fn a_lease_of_several_units_has_no_slot(stage: Stage) {
        for (name, claimed, slot) in [
            ("one", of("one", 8), Some(1)),
            ("two", units("two", 8, 2), None),
            ("three", units("three", 8, 1), Some(2)),
            ("four", units("four", 8, 4), None),
        ] {
            let lease = win(&stage, &claimed).await.lease;
            assert_eq!(lease.share.slot, slot, "{name}");
            assert_eq!(stage.refresh("a", name, None).await.unwrap().share, lease.share);
        }
        release(&stage, "one").await;
        release(&stage, "two").await;
        let ended = stage.store.force_release(&key("a"), None).await.unwrap();
        let mut shares: Vec<_> =
            ended.iter().map(|one| (one.share.units, one.share.slot)).collect();
        shares.sort_unstable();
        assert_eq!(shares, [(1, Some(2)), (4, None)]);
    }

    pub(super) async fn rule_5_a_repeat_with_other_units_is_refused(stage: Stage) {
        let first = win(&stage, &units("one", 8, 3)).await.lease;
        for same in [units("one", 8, 3), of("one", 8), claim("a", "one", LONG)] {
            let again = win(&stage, &same).await;
            assert_eq!((again.fresh, again.lease.share), (false, first.share));
        }
        for other in [units("one", 8, 2), units("one", 8, 1), units("one", 9, 3), of("one", 9)] {
            let refused = refusal(&stage, &other).await;
            assert_eq!(refused.mine, Some(true));
            assert_eq!(refused.holder.unwrap().share, first.share);
        }
    }

    pub(super) async fn rule_6_a_replacement_changes_the_units_if_there_is_room(stage: Stage) {
        let first = win(&stage, &units("one", 8, 3)).await.lease;
        win(&stage, &units("two", 8, 3)).await;
        let named = |units_now, lease: &Lease| Claim {
            named: Some(lease.fencing_token),
            ..units("one", 8, units_now)
        };
        let refused = refusal(&stage, &named(6, &first)).await;
        assert_eq!((refused.mine, refused.holder.unwrap().share.units), (Some(true), 3));
        let more = win(&stage, &named(5, &first)).await;
        assert!(more.fresh && more.lease.fencing_token > first.fencing_token);
        assert_eq!(taken(&stage).await, Some((2, 8, 8)));
        let fewer = win(&stage, &named(1, &more.lease)).await.lease;
        assert_eq!((fewer.share.units, fewer.share.slot), (1, Some(1)));
        assert_eq!(taken(&stage).await, Some((2, 4, 8)));
        let more = win(&stage, &named(2, &fewer)).await.lease;
        let slots_alone = changed(&stage, "one", 8, &more).await.lease;
        assert_eq!(slots_alone.share.units, 1, "a new lease without units has one");
    }
}
