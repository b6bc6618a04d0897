//! The line on Redis: other instances, applications that lock on Redis directly, and what is
//! left behind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::lock::error::Verb;
use lockkeeper::lock::lease::{Acquired, Claim, Lease};
use lockkeeper::lock::locks::Locks;
use lockkeeper::lock::slots::Slots;
use lockkeeper::lock::store::{Answer, Ask, Ended, Keep, Store, Target};
use lockkeeper::lock::time::Ttl;
use tokio::task::JoinSet;

use crate::conformance::line::{confirmed, refused, waits};
use crate::conformance::toy::{Toy, Way};
use crate::conformance::{LIMITS, Stage, claim, key, token};
use crate::redis_faults::PATIENCE;
use crate::support::{Redis, eventually};

/// What the waiters of a dead instance cost the line at most, and a little for the machine.
const WINDOW: Duration = Duration::from_millis(3_000);
const MARGIN: Duration = Duration::from_millis(1_500);

pub(super) fn long(name: &str) -> Claim {
    claim("a", name, 600_000)
}

pub(super) async fn release(store: &Arc<dyn Store>, name: &str) -> Ended {
    store.end(&Target::of(&key("a"), &token(name), None)).await.unwrap()
}

async fn refreshed(store: &Arc<dyn Store>, name: &str) -> Option<Lease> {
    store.renew(&Target::of(&key("a"), &token(name), None), None).await.unwrap().lease()
}

/// The names of all that is there.
pub(super) fn names(redis: &Redis) -> BTreeSet<String> {
    redis.run::<Vec<String>>("KEYS *").into_iter().collect()
}

/// Everything has ended: only the record of the key stays, and it says that there is no line.
pub(super) fn only_the_record(redis: &Redis) {
    let left = names(redis);
    let record = left.first().cloned().unwrap_or_default();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(record.starts_with("lk//{") && record.ends_with("}lock:a"), "{left:?}");
    let known = redis.run_words::<Vec<u8>>(&["GET", &record]);
    assert_eq!(known[0], 0, "{known:?}");
    assert!(redis.run_words::<i64>(&["PTTL", &record]) > 0);
}

/// Asks until it is the turn of the claim.
async fn turn(store: &Arc<dyn Store>, claim: &Claim) {
    let granted = async || match store.ask(claim, Ask::InLine(None)).await.unwrap() {
        Answer::Won(win) if win.fresh => Some(()),
        Answer::Waiting(_) => None,
        other => panic!("{other:?}"),
    };
    eventually(PATIENCE, granted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_line_but_the_record() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    for (round, keep) in [Keep::Nothing, Keep::Place, Keep::Nothing].into_iter().enumerate() {
        stage.granted(&long("holder")).await;
        for name in ["one", "two", "three"] {
            waits(store, &long(name)).await;
        }
        let during = names(redis);
        assert_eq!(during.len(), 5, "{during:?}");
        assert!(during.contains("lock:a"), "{during:?}");
        release(store, "holder").await;
        store.leave(&key("a"), &[(token("one"), keep)]).await.unwrap();
        store.leave(&key("a"), &[(token("three"), Keep::Nothing)]).await.unwrap();
        confirmed(store, &long("two")).await;
        if keep == Keep::Place {
            assert_eq!(release(store, "one").await, Ended::Place);
        }
        if round == 2 {
            redis.run::<()>("DEL lock:a");
        }
        release(store, "two").await;
        only_the_record(redis);
        // From here on a claim costs one script that knows nothing of lines.
        stage.granted(&long("last")).await;
        release(store, "last").await;
        only_the_record(redis);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_whose_questions_are_all_granted_is_alive() {
    let stage = Stage::redis().await;
    let store = &stage.store;
    stage.granted(&long("holder")).await;
    let names: Vec<_> = (0..10).map(|number| format!("waiter-{number}")).collect();
    for name in &names {
        waits(store, &long(name)).await;
    }
    let (began, mut holder) = (Instant::now(), "holder".to_owned());
    for name in names {
        // Nothing but time may take the instance for dead.
        let nothing = std::future::pending::<()>();
        drop(tokio::time::timeout(WINDOW / 6, nothing).await);
        release(store, &holder).await;
        refused(store, &long("newcomer")).await;
        confirmed(store, &long(&name)).await;
        holder = name;
    }
    assert!(began.elapsed() > WINDOW);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_steps_out_of_the_line_where_redis_has_no_memory() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    stage.granted(&long("holder")).await;
    for name in ["one", "two", "three"] {
        waits(store, &long(name)).await;
    }
    redis.run::<()>("CONFIG SET maxmemory-policy noeviction");
    redis.run::<()>("CONFIG SET maxmemory 1");
    store.leave(&key("a"), &[(token("one"), Keep::Place)]).await.unwrap();
    store.leave(&key("a"), &[(token("two"), Keep::Nothing)]).await.unwrap();
    assert_eq!(store.look(&key("a"), None, 0).await.unwrap().waiters, 1);
    release(store, "holder").await;
    confirmed(store, &long("three")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_place_that_was_kept_once_the_key_is_used_again() {
    let stage = Stage::redis().await.keeping(Ttl::from_millis(50)).await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    stage.granted(&long("holder")).await;
    waits(store, &long("one")).await;
    store.leave(&key("a"), &[(token("one"), Keep::Place)]).await.unwrap();
    release(store, "holder").await;
    eventually(PATIENCE, async || {
        stage.granted(&long("next")).await;
        release(store, "next").await;
        (names(redis).len() == 1).then_some(())
    })
    .await;
    only_the_record(redis);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_line_itself_ends_when_nobody_asks_any_more() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    stage.granted(&long("holder")).await;
    waits(store, &long("one")).await;
    for name in names(redis) {
        let left = redis.run_words::<i64>(&["PTTL", &name]);
        assert!(left > 0, "{name} stays for ever");
        if ["/line//", "/crew//", "/who//"].iter().any(|part| name.contains(part)) {
            assert!(left <= 120_000, "{name}: {left}");
            redis.run_words::<()>(&["DEL", &name]);
        }
    }
    release(store, "holder").await;
    stage.granted(&long("other")).await;
    release(store, "other").await;
    only_the_record(redis);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_holds_across_instances_and_the_hint_finds_the_right_one() {
    let stage = Stage::redis().await;
    let (one, two) = (&stage.store, stage.another().await);
    stage.granted(&long("holder")).await;
    let first = waits(&two, &long("first")).await;
    let second = waits(one, &long("second")).await;
    let third = waits(&two, &long("third")).await;
    assert!(first.place < second.place && second.place < third.place);
    assert_eq!((second.ahead, third.ahead), (1, 2));
    let bell = two.listen(&key("a"));
    release(one, "holder").await;
    tokio::time::timeout(PATIENCE, bell.rung()).await.unwrap();
    assert_eq!(waits(&two, &long("third")).await.handed, Some(token("first")));
    // It is nothing to the other instance, which can neither have it nor pass it on.
    assert_eq!(waits(one, &long("second")).await.handed, None);
    one.leave(&key("a"), &[(token("first"), Keep::Nothing)]).await.unwrap();
    refused(one, &long("second")).await;
    confirmed(&two, &long("first")).await;
    release(&two, "first").await;
    confirmed(one, &long("second")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_released_elsewhere_is_not_granted_by_its_last_question() {
    let stage = Stage::redis().await;
    let (here, there) = (&stage.store, stage.another().await);
    for slots in [None, Slots::from_number(2)] {
        let claim = |name| Claim { slots, ..long(name) };
        stage.granted(&long("holder")).await;
        let waiting = waits(here, &claim("w")).await;
        assert_eq!(release(&there, "w").await, Ended::Place);
        release(here, "holder").await;
        let last = here.ask(&claim("w"), Ask::Once(Some(waiting.place))).await.unwrap();
        assert_eq!(last, Answer::Superseded);
        // A claim that still stands has the key.
        stage.granted(&long("holder")).await;
        let waiting = waits(here, &claim("x")).await;
        release(here, "holder").await;
        let last = here.ask(&claim("x"), Ask::Once(Some(waiting.place))).await.unwrap();
        assert!(matches!(last, Answer::Won(_)), "{last:?}");
        release(here, "x").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_handed_to_a_dead_instance_goes_on_after_its_window() {
    let stage = Stage::redis().await;
    let (alive, dead) = (&stage.store, stage.another().await);
    stage.granted(&long("holder")).await;
    for number in 0..100 {
        waits(&dead, &long(&format!("dead-{number}"))).await;
    }
    waits(alive, &long("alive")).await;
    drop(dead);
    let began = Instant::now();
    release(alive, "holder").await;
    turn(alive, &long("alive")).await;
    let waited = began.elapsed();
    assert!(waited < WINDOW + MARGIN, "a hundred dead waiters cost {waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_whose_window_is_over_is_passed_over_and_may_come_back() {
    let stage = Stage::redis().await;
    let (alive, asleep) = (&stage.store, stage.another().await);
    stage.granted(&long("holder")).await;
    let place = waits(&asleep, &long("asleep")).await.place;
    eventually(PATIENCE, async || (waits(alive, &long("alive")).await.ahead == 0).then_some(()))
        .await;
    assert_eq!(alive.look(&key("a"), None, 0).await.unwrap().waiters, 1);
    release(alive, "holder").await;
    confirmed(alive, &long("alive")).await;
    waits(alive, &long("next")).await;
    let back = waits(&asleep, &long("asleep")).await;
    assert_eq!((back.place, back.ahead, back.new), (place, 0, false));
    release(alive, "alive").await;
    refused(alive, &long("next")).await;
    confirmed(&asleep, &long("asleep")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_is_waited_for_and_may_be_taken_away() {
    for write in ["HSET lock:a 8743c9c0:1 1", "ZADD lock:a 5 member", "SET lock:a 1795170616"] {
        let stage = Stage::redis().await;
        let (store, redis) = (&stage.store, stage.server().unwrap());
        redis.run::<redis::Value>(write);
        let first = waits(store, &long("one")).await;
        assert!(first.new && first.recheck_after <= Duration::from_millis(500), "{first:?}");
        assert_eq!(waits(store, &long("two")).await.ahead, 1);
        refused(store, &long("other")).await;
        let status = store.look(&key("a"), Some(&token("one")), 0).await.unwrap();
        assert_eq!((status.waiters, status.mine), (2, Some(false)), "{write}");
        assert_eq!(status.holder.unwrap().left, None, "{write}");
        assert_eq!(release(store, "two").await, Ended::Place);
        assert_eq!(refreshed(store, "one").await, None);
        assert_eq!(store.force_release(&key("a"), None).await.unwrap().len(), 1);
        confirmed(store, &long("one")).await;
        release(store, "one").await;
        only_the_record(redis);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_deleted_on_redis_goes_to_the_head_and_to_nobody_else() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    stage.granted(&long("holder")).await;
    waits(store, &long("one")).await;
    waits(store, &long("two")).await;
    redis.run::<()>("DEL lock:a");
    refused(store, &long("holder")).await;
    // Deleted again, though handed.
    redis.run::<()>("DEL lock:a");
    assert_eq!(release(store, "holder").await, Ended::Nothing(None));
    confirmed(store, &long("one")).await;
    redis.run::<()>("DEL lock:a");
    assert_eq!(refreshed(store, "one").await, None);
    confirmed(store, &long("two")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_that_takes_a_waited_key_on_redis_has_it() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    stage.granted(&long("holder")).await;
    waits(store, &long("one")).await;
    release(store, "holder").await;
    // It barges in where the hand-off was deleted, with a token that it also tells the service.
    redis.run::<()>("DEL lock:a");
    redis.run::<()>("SET lock:a direct---------- NX PX 600000");
    waits(store, &long("one")).await;
    store.leave(&key("a"), &[(token("one"), Keep::Nothing)]).await.unwrap();
    assert!(refreshed(store, "direct").await.is_some(), "the holder is refused");
    waits(store, &long("two")).await;
    assert!(matches!(release(store, "direct").await, Ended::Lease(_)));
    confirmed(store, &long("two")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_look_like_marks_of_the_line_are_tokens() {
    let stage = Stage::redis().await;
    let store = &stage.store;
    stage.granted(&long("holder")).await;
    let plain = long("one");
    let marked = Claim { token: token("~one-------------"), ..long("marked") };
    let place = waits(store, &plain).await.place;
    waits(store, &long("two")).await;
    store.leave(&key("a"), &[(plain.token.clone(), Keep::Place)]).await.unwrap();
    let stranger = waits(store, &marked).await;
    assert!(stranger.new && stranger.ahead == 1, "{stranger:?}");
    assert_eq!(waits(store, &plain).await.place, place);
    assert!(!waits(store, &marked).await.new, "it was lost with the other's return");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_lost_its_data_hears_of_a_claim_anew() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    stage.granted(&long("holder")).await;
    for name in ["one", "two"] {
        waits(store, &long(name)).await;
    }
    redis.run::<()>("FLUSHALL");
    stage.granted(&long("other")).await;
    assert!(waits(store, &long("two")).await.new);
    let attempt = store.ask(&long("one"), Ask::Once(None)).await.unwrap();
    assert!(matches!(attempt, Answer::Held(_)), "{attempt:?}");
    assert!(waits(store, &long("one")).await.new);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_whose_return_after_a_loss_of_data_fails_return_all_the_same() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    stage.granted(&long("holder")).await;
    let toy = Toy::over(store.clone());
    let locks = Locks::new(toy.clone() as Arc<dyn Store>, LIMITS);
    let mut requests = JoinSet::new();
    for (number, name) in ["one", "two", "three"].into_iter().enumerate() {
        let (locks, claim) = (locks.clone(), long(name));
        requests.spawn(async move { locks.acquire(claim, PATIENCE).await });
        let all = async || {
            let status = store.look(&key("a"), None, 0).await.unwrap();
            (status.waiters == number as u64 + 1).then_some(())
        };
        eventually(PATIENCE, all).await;
    }
    // The first question after the loss is answered, the others are not.
    let before = toy.calls(Verb::WaitTurn);
    toy.let_go(Verb::WaitTurn, Way::Before);
    toy.called(Verb::WaitTurn, before).await;
    redis.run::<()>("FLUSHALL");
    redis.run::<()>("SET lock:a direct PX 600000");
    let before = toy.calls(Verb::WaitTurn);
    toy.let_go(Verb::WaitTurn, Way::Refused);
    toy.called(Verb::WaitTurn, before + 1).await;
    toy.let_go(Verb::WaitTurn, Way::Straight);
    redis.run::<()>("DEL lock:a");
    let began = Instant::now();
    while let Some(answer) = requests.join_next().await {
        match answer.unwrap().unwrap() {
            Acquired::Granted(grant) => {
                store.end(&Target::of(&key("a"), &grant.token, None)).await.unwrap();
            }
            other => panic!("not granted: {other:?}"),
        }
    }
    // Not by the last question at the end of their patience.
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
}
