//! A claim on Redis: the instance that it belongs to, and what its waits leave.

use lockkeeper::lock::store::{Answer, Ask, Ended, Keep};

use crate::conformance::line::{confirmed, waits};
use crate::conformance::{Stage, key, token};
use crate::redis_faults::PATIENCE;
use crate::redis_faults::line::{long, names, release};
use crate::support::Redis;

/// All fields and members beside the lock, and what is in the record.
fn beside(redis: &Redis) -> u64 {
    let count = |name: &String| match redis.run_words::<String>(&["TYPE", name]).as_str() {
        "zset" => redis.run_words::<u64>(&["ZCARD", name]),
        "hash" => redis.run_words::<u64>(&["HLEN", name]),
        _ => 1,
    };
    names(redis).iter().map(count).sum()
}

/// A field for each of them stayed, while the line was never empty: 86 400 made every other key
/// 225 ms slow.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_in_redis_grows_with_the_waits_that_were_cancelled_through_another_instance() {
    const WAITS: u32 = 10_000;
    let stage = Stage::redis().await;
    let (here, there) = (&stage.store, stage.another().await);
    let redis = stage.server().unwrap();
    stage.granted(&long("holder")).await;
    waits(here, &long("always")).await;
    waits(&there, &long("also")).await;
    let before = beside(redis);
    for wait in 0..WAITS {
        let name = format!("cancelled-{wait}");
        waits(here, &long(&name)).await;
        assert_eq!(release(&there, &name).await, Ended::Place);
        if wait % 1_000 == 0 {
            waits(here, &long("always")).await;
        }
    }
    assert_eq!(beside(redis), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_9_a_claim_belongs_to_the_instance_of_its_newest_request() {
    let stage = Stage::redis().await;
    let (here, there) = (&stage.store, stage.another().await);
    stage.granted(&long("holder")).await;
    let older = waits(here, &long("one")).await;
    let bell = here.listen(&key("a"));
    let newer = waits(&there, &long("one")).await;
    assert_eq!((newer.place, newer.new), (older.place, false), "it has the place of the older one");
    tokio::time::timeout(PATIENCE, bell.rung()).await.unwrap();
    assert_eq!(bell.take_ended().len(), 1);
    for ask in [Ask::InLine(Some(older.place)), Ask::Once(Some(older.place))] {
        assert_eq!(here.ask(&long("one"), ask).await.unwrap(), Answer::Superseded);
    }
    // What the older instance takes out is not the newer one's.
    here.leave(&key("a"), &[(token("one"), Keep::Nothing)]).await.unwrap();
    assert!(matches!(release(here, "holder").await, Ended::Lease(_)));
    confirmed(&there, &long("one")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_of_a_line_that_was_evicted_join_anew_and_are_not_superseded() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    stage.granted(&long("holder")).await;
    let one = waits(store, &long("one")).await.place;
    let two = waits(store, &long("two")).await.place;
    let names = names(redis);
    let line =
        names.iter().filter(|name| ["line", "crew", "who"].iter().any(|part| name.contains(part)));
    for name in line {
        redis.run_words::<u64>(&["DEL", name]);
    }
    // Another one joins first: the mark of the line and its last place are still in the record.
    let late = waits(store, &long("late")).await;
    assert!(late.new && late.place > two, "{late:?}");
    for (name, place) in [("one", one), ("two", two)] {
        let again = store.ask(&long(name), Ask::InLine(Some(place))).await.unwrap();
        let Answer::Waiting(again) = again else { panic!("{again:?}") };
        assert!(again.new && again.place > late.place, "{again:?}");
    }
}
