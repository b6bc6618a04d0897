//! A key on Redis that leases share: what a client on Redis directly finds there, and what is left
//! of it.

use std::time::Duration;

use lockkeeper::lock::lease::{Claim, LockStatus};
use lockkeeper::lock::slots::Slots;
use lockkeeper::lock::store::{Answer, Ask, Ended, Page, Target};

use crate::conformance::line::{confirmed, waits};
use crate::conformance::{Stage, claim, key, token};
use crate::redis_faults::PATIENCE;
use crate::redis_faults::line::{long, names, only_the_record};
use crate::support::eventually;

/// What nearly every library does to release.
const COMPARE_AND_DELETE: &str = include_str!("shared/compare_and_delete.lua");

const READER: u64 = 1_001;

fn of(name: &str, slots: u64) -> Claim {
    Claim { slots: Slots::from_number(slots), ..long(name) }
}

async fn holders(stage: &Stage) -> u64 {
    let status = stage.store.look(&key("a"), None, 0).await.unwrap();
    status.sharers.map_or(0, |all| all.holders)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_on_redis_directly_finds_a_shared_key_locked_and_harms_nothing() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    stage.granted(&of("one", 3)).await;
    stage.granted(&of("two", 3)).await;
    assert_eq!(redis.run::<Option<String>>("SET lock:a theirs NX PX 60000"), None);
    assert_eq!(redis.run::<u64>("SETNX lock:a theirs"), 0);
    for theirs in ["theirs", token("one").expose()] {
        let deleted = redis.run_words::<u64>(&["EVAL", COMPARE_AND_DELETE, "1", "lock:a", theirs]);
        assert_eq!(deleted, 0);
    }
    // Code that keeps the end of its lock in the value reads this one as a time to come.
    let value: String = redis.run("GET lock:a");
    let end: u64 = value.split('-').next().unwrap().parse().unwrap();
    assert!(end > redis.run::<Vec<u64>>("TIME")[0], "{value}");
    assert!(redis.run::<i64>("PTTL lock:a") > 0);
    assert_eq!(holders(&stage).await, 2);
    let refreshed =
        store.renew(&Target::of(&key("a"), &token("one"), None), None).await.unwrap().lease();
    assert_eq!(refreshed.unwrap().share.slot, Some(1));
    // The value is no token: nobody can release by it, and no list or look tells it.
    let page = Page { prefixes: [String::new()].into(), after: None, limit: 9 };
    let listed = store.list(&page).await.unwrap().locks;
    let [LockStatus { key: name, holder: Some(holder), .. }] = &listed[..] else {
        panic!("{listed:?}")
    };
    assert_eq!((name, &holder.owner, holder.fencing_token), (&key("a"), &None, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_key_that_is_deleted_by_hand_is_free_and_its_leases_do_not_rise_again() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    for between in [1, 3] {
        for name in ["one", "two"] {
            stage.granted(&of(name, 3)).await;
        }
        redis.run::<u64>("DEL lock:a");
        assert_eq!(store.look(&key("a"), None, 0).await.unwrap().holder, None);
        // Alone at first, or one of several at once.
        let next = stage.granted(&of("next", between)).await;
        let named = Claim { named: Some(next.fencing_token), ..of("next", 3) };
        let Answer::Won(win) = store.ask(&named, Ask::Once(None)).await.unwrap() else {
            panic!("it has the key")
        };
        assert!(win.lease.fencing_token > next.fencing_token);
        assert_eq!(win.lease.share.slot, Some(1));
        assert_eq!(holders(&stage).await, 1);
        for name in ["one", "two"] {
            let refreshed = store
                .renew(&Target::of(&key("a"), &token(name), None), None)
                .await
                .unwrap()
                .lease();
            assert_eq!(refreshed, None);
            let released = store.end(&Target::of(&key("a"), &token(name), None)).await.unwrap();
            assert_eq!(released, Ended::Nothing(None));
        }
        store.end(&Target::of(&key("a"), &token("next"), None)).await.unwrap();
        only_the_record(redis);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_key_whose_records_are_lost_stays_locked_until_it_ends_or_is_freed() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    for (part, other_type) in
        [("/share//", false), ("/facts//", false), ("/share//", true), ("/facts//", true)]
    {
        stage.granted(&of("one", 3)).await;
        let lost = names(redis).into_iter().find(|name| name.contains(part)).unwrap();
        redis.run_words::<u64>(&["DEL", &lost]);
        if other_type {
            redis.run_words::<u64>(&["LPUSH", &lost, "by hand"]);
        }
        for slots in [1, 3, READER] {
            let refused = store.ask(&of("two", slots), Ask::Once(None)).await.unwrap();
            assert!(matches!(refused, Answer::Held(_)), "{part} {slots}: {refused:?}");
        }
        assert!(store.look(&key("a"), None, 0).await.unwrap().holder.is_some());
        let refreshed =
            store.renew(&Target::of(&key("a"), &token("one"), None), None).await.unwrap().lease();
        assert_eq!(refreshed, None);
        assert_eq!(store.force_release(&key("a"), None).await.unwrap().len(), 1);
        only_the_record(redis);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_shared_key_but_the_record() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    for name in ["one", "two", "three"] {
        stage.granted(&of(name, READER)).await;
    }
    let ends: Vec<_> = names(redis)
        .iter()
        .filter(|name| !name.ends_with("}lock:a"))
        .map(|name| redis.run_words::<i64>(&["PEXPIRETIME", name]))
        .collect();
    assert_eq!(ends.len(), 3, "the lock and two beside it");
    assert!(ends.iter().all(|end| *end > 0 && *end == ends[0]), "{ends:?}");
    for name in ["two", "one", "three"] {
        store.end(&Target::of(&key("a"), &token(name), None)).await.unwrap();
    }
    only_the_record(redis);
    for name in ["one", "two"] {
        let short = Claim { slots: Slots::from_number(READER), ..claim("a", name, 50) };
        store.ask(&short, Ask::Once(None)).await.ok();
    }
    eventually(PATIENCE, async || (names(redis).len() == 1).then_some(())).await;
    only_the_record(redis);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_without_memory_refuses_more_holders_and_keeps_serving_the_others() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    for name in ["one", "two", "three"] {
        stage.granted(&of(name, 5)).await;
    }
    redis.run::<()>("CONFIG SET maxmemory-policy noeviction");
    redis.run::<()>("CONFIG SET maxmemory 1");
    store.ask(&of("four", 5), Ask::Once(None)).await.unwrap_err();
    store.ask(&of("four", 5), Ask::InLine(None)).await.unwrap_err();
    redis.run::<()>("CONFIG SET maxmemory 0");
    waits(store, &long("writer")).await;
    redis.run::<()>("CONFIG SET maxmemory 1");
    assert_eq!(holders(&stage).await, 3);
    let refreshed =
        store.renew(&Target::of(&key("a"), &token("one"), None), None).await.unwrap().lease();
    assert_eq!(refreshed.unwrap().share.slot, Some(1));
    let Answer::Won(again) = store.ask(&of("one", 5), Ask::Once(None)).await.unwrap() else {
        panic!("it is a holder")
    };
    assert!(!again.fresh);
    let released = store.end(&Target::of(&key("a"), &token("two"), None)).await.unwrap();
    assert!(matches!(released, Ended::Lease(_)));
    assert_eq!(store.force_release(&key("a"), None).await.unwrap().len(), 2);
    confirmed(store, &long("writer")).await;
    redis.run::<()>("CONFIG SET maxmemory 0");
    store.end(&Target::of(&key("a"), &token("writer"), None)).await.unwrap();
    stage.granted(&of("four", 5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_share_a_key_and_no_more() {
    let stage = Stage::redis().await;
    let store = &stage.store;
    for number in 1..=1_000 {
        let lease = stage.granted(&of(&number.to_string(), 1_000)).await;
        assert_eq!(lease.share.slot, Some(number));
    }
    for slots in [1_000, READER] {
        let refused = store.ask(&of("late", slots), Ask::Once(None)).await.unwrap();
        assert!(matches!(refused, Answer::Held(_)), "{refused:?}");
    }
    for gone in [777, 5] {
        store.end(&Target::of(&key("a"), &token(&gone.to_string()), None)).await.unwrap();
    }
    let lease = stage.granted(&of("late", 1_000)).await;
    assert_eq!(lease.share.slot, Some(5));
    stage.granted(&of("reader", READER)).await;
    let status = store.look(&key("a"), None, 0).await.unwrap();
    let sharers = status.sharers.unwrap();
    assert_eq!((sharers.holders, sharers.leases.len()), (1_000, 100));
    let ended = store.force_release(&key("a"), None).await.unwrap();
    assert_eq!(ended.len(), 1_000);
    let held = Duration::from_secs(600);
    assert!(ended.iter().all(|one| one.held.is_some_and(|time| time < held)));
    only_the_record(stage.server().unwrap());
}
