//! Two versions on one Redis: the scripts of the version before records had the start of a lease,
//! and lines the owners of claims, beside those of today.

use std::time::Duration;

use lockkeeper::lock::lease::Owner;
use lockkeeper::lock::store::{Attempt, Released};
use redis::Value;

use crate::conformance::{Stage, key, token};
use crate::redis_faults::line::{long, names, release};
use crate::support::{PATIENCE, Redis, eventually};

const TRY_ACQUIRE: &str = include_str!("older/try_acquire.lua");
const WAIT_TURN: &str = include_str!("older/wait_turn.lua");
const REFRESH: &str = include_str!("older/refresh.lua");
const RELEASE: &str = include_str!("older/release.lua");
const INSPECT: &str = include_str!("older/inspect.lua");

/// Later than every call, and more than any lease or record lasts, in milliseconds.
const NEVER: &str = "9000000000000";
const DAY: &str = "86400000";

/// Runs a script of the older version on the key of all tests, and returns its word and items.
fn older(redis: &Redis, script: &str, arguments: &[&str]) -> (String, Vec<String>) {
    let all = names(redis);
    let record = all.iter().find(|name| name.ends_with("}lock:a")).expect("a record");
    let beside = record.strip_suffix("lock:a").unwrap();
    let (line, crew) = (format!("{beside}/line//lock:a"), format!("{beside}/crew//lock:a"));
    let names = ["EVAL", script, "4", "lock:a", record, &line, &crew];
    let answer: Vec<Value> = redis.run_words(&[&names[..], arguments].concat());
    let text = |value: &Value| match value {
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        other => panic!("{other:?}"),
    };
    (text(&answer[1]), answer[2..].iter().map(text).collect())
}

fn older_claim(redis: &Redis, script: &str, name: &str, more: &[&str]) -> (String, Vec<String>) {
    let token = token(name);
    let believable = format!("{NEVER}000");
    let common = [NEVER, token.expose(), "600000", "old owner", DAY, "1", &believable];
    older(redis, script, &[&common[..], more].concat())
}

/// A record of the version of today, with an end, so that the older scripts find its name.
async fn with_a_record() -> Stage {
    let stage = Stage::redis().await;
    stage.granted(&long("first")).await;
    release(&stage.store, "first").await;
    stage
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_version_reads_a_newer_record_and_its_refresh_keeps_the_start() {
    const A_WHILE: Duration = Duration::from_millis(200);
    let stage = Stage::redis().await;
    let (store, redis, one) = (&stage.store, stage.server().unwrap(), token("one"));
    let lease = stage.granted(&long("one")).await;
    let fencing_token = lease.fencing_token.to_string();
    let holder = async || store.inspect(&key("a"), None).await.unwrap().holder.unwrap();
    let held = async || holder().await.held.filter(|held| *held >= A_WHILE);
    let held = eventually(PATIENCE, held).await;
    let (word, seen) = older(redis, INSPECT, &[one.expose()]);
    assert_eq!((&*word, &seen[1], &*seen[4]), ("held", &fencing_token, "1"), "{seen:?}");
    let (word, refused) = older_claim(redis, TRY_ACQUIRE, "two", &[]);
    assert_eq!((&*word, &refused[1]), ("held", &fencing_token));
    let late = format!("{NEVER}000");
    let refresh = [NEVER, one.expose(), "", "30000", DAY, "1", &late, &fencing_token, "", ""];
    let (word, refreshed) = older(redis, REFRESH, &refresh);
    assert_eq!((&*word, &refreshed[0], &*refreshed[1]), ("refreshed", &fencing_token, "600000"));
    let kept = holder().await;
    assert_eq!((kept.owner, kept.fencing_token), (lease.owner, Some(lease.fencing_token)));
    assert!(kept.held.unwrap() >= held, "{:?} after {held:?}", kept.held);
    let (word, again) = older_claim(redis, TRY_ACQUIRE, "one", &[]);
    assert_eq!((&*word, &again[0]), ("again", &fencing_token));
    let again = holder().await;
    assert_eq!(again.owner.as_ref().map(Owner::as_str), Some("old owner"));
    assert_eq!((again.fencing_token, again.held), (Some(lease.fencing_token), None));
    let (word, _) = older(redis, RELEASE, &[one.expose(), "5000", &fencing_token, "", "older"]);
    assert_eq!(word, "lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_an_older_version_is_held_since_no_known_moment() {
    let stage = with_a_record().await;
    let (store, redis, one) = (&stage.store, stage.server().unwrap(), token("one"));
    let (word, granted) = older_claim(redis, TRY_ACQUIRE, "one", &[]);
    assert_eq!(word, "granted");
    for _ in 0..2 {
        let holder = store.inspect(&key("a"), None).await.unwrap().holder.unwrap();
        assert_eq!(holder.owner.unwrap().as_str(), "old owner");
        assert_eq!(holder.fencing_token.unwrap().to_string(), granted[0]);
        assert_eq!(holder.held, None);
        let refused = store.try_acquire(&long("two")).await.unwrap();
        let Attempt::Held(status) = refused else { panic!("{refused:?}") };
        assert_eq!(status.holder.unwrap().held, None);
        assert!(store.refresh(&key("a"), &one, None, None).await.unwrap().is_some());
    }
    assert!(matches!(
        store.release(&key("a"), &one, None).await.unwrap(),
        Released::Lease(holder) if holder.owner.as_ref().unwrap().as_str() == "old owner"
    ));
    stage.granted(&long("two")).await;
    let holder = store.inspect(&key("a"), None).await.unwrap().holder.unwrap();
    assert!(holder.held.is_some(), "{holder:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_line_has_claims_of_two_versions_and_nothing_is_left_of_it_without_an_end() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    stage.granted(&long("holder")).await;
    let older_waits = |name: &str| {
        let (word, waiting) = older_claim(redis, WAIT_TURN, name, &["older", "600000", "5000", ""]);
        assert_eq!(word, "waiting", "{waiting:?}");
    };
    older_waits("one");
    for name in ["two", "three"] {
        crate::conformance::line::waits(store, &long(name)).await;
    }
    let line = store.inspect_line(&key("a"), None, 9).await.unwrap().line;
    let seen: Vec<_> = line
        .iter()
        .map(|waiter| (waiter.owner.as_ref().map(Owner::as_str), waiter.waited.is_some()))
        .collect();
    assert_eq!(seen, [(None, false), (Some("two@host"), true), (Some("three@host"), true)]);
    // The older version takes a claim out that it did not note.
    let (word, _) = older(redis, RELEASE, &[token("two").expose(), "5000", "", "", "older"]);
    assert_eq!(word, "place");
    let line = store.inspect_line(&key("a"), None, 9).await.unwrap().line;
    assert_eq!(line.len(), 2, "{line:?}");
    for name in ["holder", "one", "three"] {
        release(store, name).await;
    }
    let left = names(redis);
    for name in &left {
        let ttl = redis.run_words::<i64>(&["PTTL", name]);
        assert!(ttl > 0, "{name} stays for ever: {left:?}");
    }
    stage.granted(&long("next")).await;
}
