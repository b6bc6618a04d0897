//! Several leases of one key: who may hold it together, with which slots, and who comes next.

use lockkeeper::lock::lease::{Claim, Lease, LockStatus};
use lockkeeper::lock::slots::Slots;
use lockkeeper::lock::store::{Answer, Ask, Ended, Target, Win};

use crate::conformance::{Stage, claim, key, on_every_store_that_shares, on_routed_stores, token};

on_every_store_that_shares!(tests:
    rule_2_as_many_hold_a_key_as_all_of_them_allow,
    a_slot_is_the_lowest_free_number_and_stays_with_its_lease,
    rule_4_a_repeat_without_slots_keeps_them,
    a_lease_changes_its_slots_if_the_others_allow_it,
    a_promotion_is_a_new_lease_and_needs_the_key_alone,
    a_reader_that_takes_a_slot_has_a_new_fencing_token,
    a_refusal_tells_whose_end_makes_room,
    a_look_names_the_leases_and_the_list_counts_them,
    each_lease_ends_when_its_own_ttl_is_over,
    a_lease_lasts_for_its_whole_ttl_from_its_request_on,
    a_release_that_names_a_lease_ends_no_other,
    a_forced_release_ends_all_leases_or_the_one_it_names,
    a_change_of_the_share_makes_a_lease_last_no_longer,
    a_lower_limit_holds_at_once_and_a_higher_one_when_the_last_lower_is_gone,
);

on_routed_stores!(tests:
    rule_2_as_many_hold_a_key_as_all_of_them_allow,
    a_look_names_the_leases_and_the_list_counts_them,
    a_lease_lasts_for_its_whole_ttl_from_its_request_on,
    a_release_that_names_a_lease_ends_no_other,
    a_forced_release_ends_all_leases_or_the_one_it_names,
);

const LONG: u64 = 60_000;
pub(super) const READER: u64 = 1_001;

pub(super) fn of(name: &str, slots: u64) -> Claim {
    Claim { slots: Some(Slots::from_number(slots).unwrap()), ..claim("a", name, LONG) }
}

pub(super) async fn win(stage: &Stage, claim: &Claim) -> Win {
    match stage.store.ask(claim, Ask::Once(None)).await.unwrap() {
        Answer::Won(win) => win,
        held => panic!("{held:?}"),
    }
}

pub(super) async fn lease(stage: &Stage, name: &str, slots: u64) -> Lease {
    win(stage, &of(name, slots)).await.lease
}

/// Changes the share of a lease, which it names.
async fn change(stage: &Stage, name: &str, slots: u64, lease: &Lease) -> Answer {
    let claim = Claim { named: Some(lease.fencing_token), ..of(name, slots) };
    stage.store.ask(&claim, Ask::Once(None)).await.unwrap()
}

pub(super) async fn changed(stage: &Stage, name: &str, slots: u64, lease: &Lease) -> Win {
    match change(stage, name, slots, lease).await {
        Answer::Won(win) => win,
        refused => panic!("{refused:?}"),
    }
}

pub(super) async fn refusal(stage: &Stage, claim: &Claim) -> LockStatus {
    match stage.store.ask(claim, Ask::Once(None)).await.unwrap() {
        Answer::Held(status) => status,
        won => panic!("{won:?}"),
    }
}

pub(super) async fn release(stage: &Stage, name: &str) {
    let released = stage.store.end(&Target::of(&key("a"), &token(name), None)).await.unwrap();
    assert!(matches!(released, Ended::Lease(_)), "{name}: {released:?}");
}
/// The holders of the key, and how many these allow.
pub(super) async fn holders(stage: &Stage) -> Option<(u64, u16)> {
    let status = stage.store.look(&key("a"), None, 0).await.unwrap();
    status.sharers.map(|all| (all.holders, all.slots.number()))
}

mod tests {
    use std::time::{Duration, Instant};

    use lockkeeper::lock::lease::Claim;
    use lockkeeper::lock::slots::Slots;
    use lockkeeper::lock::store::{Answer, Ask, Ended, Page, Target};
    use lockkeeper::lock::time::Ttl;

    use super::{LONG, READER, change, changed, holders, lease, of, refusal, release, win};
    use crate::conformance::{CAPPED, MAX_HOLD, Stage, claim, key, token};
    use crate::support::{PATIENCE, eventually};

    /// Whole milliseconds, of several clocks.
    const ROUNDING: Duration = Duration::from_millis(5);

    pub(super) async fn rule_2_as_many_hold_a_key_as_all_of_them_allow(stage: Stage) {
        for name in ["one", "two", "three"] {
            lease(&stage, name, 5).await;
        }
        refusal(&stage, &of("least", 3)).await;
        assert_eq!(holders(&stage).await, Some((3, 5)));
        lease(&stage, "four", 4).await;
        assert_eq!(holders(&stage).await, Some((4, 4)));
        refusal(&stage, &of("five", 5)).await;
        refusal(&stage, &of("reader", READER)).await;
        refusal(&stage, &claim("a", "writer", LONG)).await;
        release(&stage, "four").await;
        lease(&stage, "reader", READER).await;
        lease(&stage, "five", 5).await;
        refusal(&stage, &of("another", READER)).await;
        for name in ["one", "two", "three", "reader", "five"] {
            refusal(&stage, &claim("a", "writer", LONG)).await;
            release(&stage, name).await;
        }
        assert_eq!(holders(&stage).await, None);
        stage.granted(&claim("a", "writer", LONG)).await;
        refusal(&stage, &of("reader", READER)).await;
    }

    pub(super) async fn a_slot_is_the_lowest_free_number_and_stays_with_its_lease(stage: Stage) {
        for (number, name) in (1..).zip(["one", "two", "three", "four"]) {
            assert_eq!(lease(&stage, name, 4).await.share.slot, Some(number));
        }
        release(&stage, "three").await;
        release(&stage, "one").await;
        let four = stage.refresh("a", "four", None).await;
        let four = four.unwrap();
        assert_eq!(four.share.slot, Some(4));
        let fewer = changed(&stage, "four", 2, &four).await;
        assert_eq!(fewer.lease.share.slot, Some(1), "a new lease has the lowest one");
        assert_eq!(holders(&stage).await, Some((2, 2)));
        changed(&stage, "four", 9, &fewer.lease).await;
        assert_eq!(lease(&stage, "five", 4).await.share.slot, Some(3));
        assert_eq!(lease(&stage, "six", 4).await.share.slot, Some(4));
        let seen = stage.store.look(&key("a"), None, 0).await.unwrap().sharers.unwrap();
        let mut slots: Vec<_> = seen.leases.iter().map(|one| one.share.slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, [Some(1), Some(2), Some(3), Some(4)]);
    }

    pub(super) async fn rule_4_a_repeat_without_slots_keeps_them(stage: Stage) {
        let first = lease(&stage, "one", 3).await;
        lease(&stage, "two", 3).await;
        let again = win(&stage, &claim("a", "one", LONG)).await;
        assert!(!again.fresh);
        assert_eq!(again.lease.share, first.share);
        assert_eq!(again.lease.fencing_token, first.fencing_token);
    }

    pub(super) async fn a_lease_changes_its_slots_if_the_others_allow_it(stage: Stage) {
        let alone = stage.granted(&claim("a", "one", LONG)).await;
        let demoted = changed(&stage, "one", 3, &alone).await;
        assert_eq!((demoted.fresh, demoted.lease.share.slot), (true, Some(1)));
        assert!(demoted.lease.fencing_token > alone.fencing_token);
        lease(&stage, "two", 3).await;
        lease(&stage, "three", 3).await;
        let refused = change(&stage, "one", 2, &demoted.lease).await;
        let mine = |refused: &Answer| matches!(refused, Answer::Held(at) if at.mine == Some(true));
        assert!(mine(&refused), "{refused:?}");
        let seen = stage.store.look(&key("a"), Some(&token("one")), 0).await.unwrap();
        assert_eq!(seen.holder.unwrap().share, demoted.lease.share, "it stays as it was");
        let reader = changed(&stage, "one", READER, &demoted.lease).await;
        assert_eq!((reader.fresh, reader.lease.share.slot), (true, None));
    }

    pub(super) async fn a_promotion_is_a_new_lease_and_needs_the_key_alone(stage: Stage) {
        let reader = lease(&stage, "one", READER).await;
        lease(&stage, "two", READER).await;
        assert_eq!(refusal(&stage, &of("one", 1)).await.mine, Some(true));
        assert_eq!(holders(&stage).await, Some((2, 1_001)));
        release(&stage, "two").await;
        let promoted = changed(&stage, "one", 1, &reader).await;
        assert!(promoted.fresh);
        assert!(promoted.lease.fencing_token > reader.fencing_token);
        assert_eq!(promoted.lease.share.slots, Slots::ALONE);
        refusal(&stage, &of("two", READER)).await;
        let old = Some(reader.fencing_token);
        let refreshed = stage
            .store
            .renew(&Target::of(&key("a"), &token("one"), old), None)
            .await
            .unwrap()
            .lease();
        assert_eq!(refreshed, None, "the shared lease is over");
    }

    pub(super) async fn a_reader_that_takes_a_slot_has_a_new_fencing_token(stage: Stage) {
        let reader = lease(&stage, "one", READER).await;
        let other = lease(&stage, "two", 3).await;
        assert_eq!(other.share.slot, Some(1));
        release(&stage, "two").await;
        let numbered = changed(&stage, "one", 3, &reader).await;
        assert_eq!((numbered.fresh, numbered.lease.share.slot), (true, Some(1)));
        assert!(numbered.lease.fencing_token > other.fencing_token, "slot 1 has seen that number");
        assert!(numbered.lease.fencing_token > reader.fencing_token);
        assert_eq!(holders(&stage).await, Some((1, 3)));
    }

    pub(super) async fn a_refusal_tells_whose_end_makes_room(stage: Stage) {
        let slots = Slots::from_number(2);
        for (name, ttl) in [("short", 40_000), ("long", 80_000)] {
            stage.granted(&Claim { slots, ..claim("a", name, ttl) }).await;
        }
        for (name, slots, first) in [("sharer", 2, "short"), ("writer", 1, "long")] {
            let status = refusal(&stage, &of(name, slots)).await;
            let holder = status.holder.unwrap();
            assert_eq!(holder.owner.unwrap().as_str(), format!("{first}@host"));
            assert_eq!(status.mine, None);
            assert_eq!(status.sharers.map(|all| (all.holders, all.slots)), Some((2, slots_of(2))));
        }
    }

    fn slots_of(number: u64) -> Slots {
        Slots::from_number(number).unwrap()
    }

    pub(super) async fn a_look_names_the_leases_and_the_list_counts_them(stage: Stage) {
        let slots = Slots::from_number(3);
        let one = stage.granted(&Claim { slots, ..claim("a", "one", 80_000) }).await;
        let two = stage.granted(&Claim { slots, ..claim("a", "two", 40_000) }).await;
        let seen = stage.store.look(&key("a"), None, 0).await.unwrap();
        let holder = seen.holder.unwrap();
        assert_eq!((holder.owner, holder.fencing_token), (None, None), "there are several");
        assert!(holder.left.unwrap() > Duration::from_secs(41), "until the last is over");
        let leases = seen.sharers.unwrap().leases;
        let told: Vec<_> = leases.iter().map(|one| (one.fencing_token, one.share)).collect();
        let ends = [&two, &one].map(|lease| (Some(lease.fencing_token), lease.share));
        assert_eq!(told, ends, "the first to end comes first");
        assert!(leases.iter().all(|one| one.held.is_some_and(|held| held < PATIENCE)));
        let mine = stage.store.look(&key("a"), Some(&token("two")), 0).await.unwrap();
        assert_eq!(mine.mine, Some(true));
        assert_eq!(mine.holder.unwrap().fencing_token, Some(two.fencing_token));
        let other = stage.store.look(&key("a"), Some(&token("three")), 0).await.unwrap();
        assert_eq!(other.mine, Some(false));
        let page = Page { prefixes: [String::new()].into(), after: None, limit: 9 };
        let listed = stage.store.list(&page).await.unwrap().locks;
        let listed: Vec<_> = listed.iter().filter(|one| one.key == key("a")).collect();
        assert_eq!(listed.len(), 1);
        let sharers = listed[0].sharers.as_ref().unwrap();
        assert_eq!((sharers.holders, sharers.slots, sharers.leases.len()), (2, slots_of(3), 0));
        assert_eq!(listed[0].holder.as_ref().unwrap().fencing_token, None);
    }

    pub(super) async fn each_lease_ends_when_its_own_ttl_is_over(stage: Stage) {
        let slots = Slots::from_number(2);
        let short = stage.granted(&Claim { slots, ..claim("a", "short", 2_000) }).await;
        let long = stage.granted(&Claim { slots, ..claim("a", "long", LONG) }).await;
        let third = of("third", 2);
        let next = eventually(PATIENCE, async || {
            match stage.store.ask(&third, Ask::Once(None)).await.unwrap() {
                Answer::Won(win) => Some(win.lease),
                _ => None,
            }
        });
        let next = next.await;
        assert_eq!(next.share.slot, short.share.slot);
        assert!(next.fencing_token > long.fencing_token);
        let refreshed = stage.refresh("a", "short", None).await;
        assert_eq!(refreshed, None, "nothing is revived");
        let ttl = Some(Ttl::from_millis(LONG));
        let refreshed = stage.refresh("a", "long", ttl).await;
        assert_eq!(refreshed.unwrap().fencing_token, long.fencing_token);
        assert_eq!(holders(&stage).await, Some((2, 2)));
    }

    pub(super) async fn a_lease_lasts_for_its_whole_ttl_from_its_request_on(stage: Stage) {
        const TTL: Duration = Duration::from_millis(100);
        let mut looks = 0;
        for round in 0..10 {
            for slots in [1, 3, READER] {
                let name = format!("{round}-{slots}");
                let claim = Claim { ttl: Ttl::lasting(TTL), key: key(&name), ..of("it", slots) };
                let asked = Instant::now();
                // Nothing is granted that is over by then.
                let Ok(Answer::Won(_)) = stage.store.ask(&claim, Ask::Once(None)).await else {
                    continue;
                };
                loop {
                    let status = stage.store.look(&claim.key, None, 0).await.unwrap();
                    let after = asked.elapsed();
                    if after >= TTL {
                        break;
                    }
                    let is_held = status.holder.is_some() || status.sharers.is_some();
                    assert!(is_held, "{slots} slots: over after {after:?}");
                    looks += 1;
                }
            }
        }
        assert!(looks > 0);
    }

    pub(super) async fn a_release_that_names_a_lease_ends_no_other(stage: Stage) {
        let first = lease(&stage, "one", 2).await.fencing_token;
        let other = lease(&stage, "two", 2).await.fencing_token;
        let release = async |name, named| {
            stage.store.end(&Target::of(&key("a"), &token(name), Some(named))).await.unwrap()
        };
        assert_eq!(release("one", other).await, Ended::Nothing(Some(first)));
        assert!(matches!(release("one", first).await, Ended::Lease(_)));
        assert_eq!(release("one", first).await, Ended::Nothing(None));
        assert_eq!(holders(&stage).await, Some((1, 2)));
        assert!(matches!(release("two", other).await, Ended::Lease(_)));
        assert_eq!(stage.store.look(&key("a"), None, 0).await.unwrap().holder, None);
    }

    pub(super) async fn a_forced_release_ends_all_leases_or_the_one_it_names(stage: Stage) {
        let one = lease(&stage, "one", 3).await.fencing_token;
        for name in ["two", "three"] {
            lease(&stage, name, 3).await;
        }
        let force = async |named| stage.store.force_release(&key("a"), named).await.unwrap();
        let ended = force(Some(one)).await;
        assert_eq!(ended.iter().map(|one| one.fencing_token).collect::<Vec<_>>(), [Some(one)]);
        assert_eq!(force(Some(one)).await, []);
        assert_eq!(holders(&stage).await, Some((2, 3)));
        let mut owners: Vec<_> = force(None).await.into_iter().map(|one| one.owner).collect();
        owners.sort_by_key(|owner| owner.as_ref().map(|owner| owner.as_str().to_owned()));
        let owners: Vec<_> = owners.into_iter().flatten().map(|one| one.to_string()).collect();
        assert_eq!(owners, ["three@host", "two@host"]);
        assert_eq!(stage.store.look(&key("a"), None, 0).await.unwrap().holder, None);
        assert_eq!(force(None).await, []);
    }

    pub(super) async fn a_change_of_the_share_makes_a_lease_last_no_longer(stage: Stage) {
        let asked = |slots| {
            let key = claim(&format!("{CAPPED}a"), "one", LONG).key;
            Claim { key, ..of("one", slots) }
        };
        let mut before = win(&stage, &asked(READER)).await.lease;
        let began = Instant::now();
        for (step, slots) in (1..).zip([5, 1, READER, 1]) {
            // So that the change is told from a lease that begins now.
            eventually(PATIENCE, async || {
                (began.elapsed() > MAX_HOLD.as_duration() * step / 8).then_some(())
            })
            .await;
            let spent = began.elapsed();
            let named = Some(before.fencing_token);
            let claim = Claim { named, ..asked(slots) };
            let Answer::Won(win) = stage.store.ask(&claim, Ask::Once(None)).await.unwrap() else {
                return; // A busy machine: its time is over.
            };
            let replaces = win.replaces.map(|replaced| replaced.number);
            assert_eq!(replaces, Some(before.fencing_token));
            assert!(win.lease.capped, "{slots}");
            assert!(win.lease.ttl.as_duration() + spent <= MAX_HOLD.as_duration() + ROUNDING);
            before = win.lease;
        }
    }

    pub(super) async fn a_lower_limit_holds_at_once_and_a_higher_one_when_the_last_lower_is_gone(
        stage: Stage,
    ) {
        for name in ["old-1", "old-2"] {
            lease(&stage, name, 5).await;
        }
        lease(&stage, "new-1", 3).await;
        refusal(&stage, &of("old-3", 5)).await;
        refusal(&stage, &of("new-2", 3)).await;
        release(&stage, "old-1").await;
        lease(&stage, "new-2", 3).await;
        release(&stage, "new-1").await;
        lease(&stage, "old-3", 5).await;
        refusal(&stage, &of("old-4", 5)).await;
        release(&stage, "new-2").await;
        for name in ["old-4", "old-5", "old-6"] {
            lease(&stage, name, 5).await;
        }
        assert_eq!(holders(&stage).await, Some((5, 5)));
    }
}
