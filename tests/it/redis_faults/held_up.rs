//! Calls that are held up on their way, while their callers go on.

use std::time::{Duration, Instant};

use crate::hold::Listener;
use crate::redis_faults::clock::Clock;
use crate::redis_faults::{LONG, PATIENCE, acquire, calls_of, held, look, service, unavailable};
use crate::support::wire::Wire;
use crate::support::{Redis, Service, eventually};

pub(super) const TOKEN: &str = "token-of-the-client";

const SOON: Duration = Duration::from_millis(1_500);

/// More than any heartbeat.
const A_SCRIPT: usize = 100;

/// Longer than an instance may be wrong about the time of Redis: calls that were slow leave it open.
const A_WHILE: Duration = Duration::from_millis(20);

/// An instance on a Redis at the end of a wire.
async fn by_wire(redis: &Redis, variables: &[(&str, &str)]) -> (Wire, Service) {
    by(Wire::to(redis.port()).await, variables).await
}

pub(super) async fn by(wire: Wire, variables: &[(&str, &str)]) -> (Wire, Service) {
    let url = format!("redis://127.0.0.1:{}", wire.port());
    let mut all = vec![("LOCKKEEPER_STORE", url.as_str())];
    all.extend_from_slice(variables);
    let service = Service::start(&all, "").await;
    eventually(PATIENCE, async || {
        (service.http().post("/locks/served", "").await.status < 500).then_some(())
    })
    .await;
    (wire, service)
}

/// Waits until a call is held up on a wire that was cut, and was asked for a while ago.
pub(super) async fn held_up(wire: &Wire) {
    eventually(PATIENCE, async || (wire.kept() > A_SCRIPT).then_some(())).await;
    let asked = Instant::now();
    eventually(PATIENCE, async || (asked.elapsed() > A_WHILE).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_connection_broke_does_nothing_after_its_answer() {
    let redis = Redis::start();
    let (wire, service) = by_wire(&redis, &[]).await;
    let http = service.http();
    for round in 0..4 {
        let key = format!("late/{round}");
        wire.cut();
        let broken = async {
            held_up(&wire).await;
            wire.hang_up();
        };
        let (answer, ()) = tokio::join!(acquire(&http, &key, TOKEN, LONG), broken);
        assert_eq!(
            (answer.told(), &*answer.text("outcome")),
            (unavailable(), "unknown"),
            "round {round}: {answer:?}"
        );
        let before = calls_of(&redis, "evalsha");
        wire.mend();
        eventually(PATIENCE, async || (calls_of(&redis, "evalsha") > before).then_some(())).await;
        let held = eventually(PATIENCE, async || {
            let seen = look(&http, &key).await;
            (seen.status == 200).then(|| seen.field("held").clone())
        });
        assert_eq!(held.await, false, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streams_refresh_on_its_way_and_its_last_word_touch_no_lease_that_replaced_its_own() {
    let redis = Redis::start();
    let (wire, near) = by_wire(&redis, &[]).await;
    let far = service(&redis, &[]).await;
    let mut stream = Listener::open(&near.http(), &format!("k?ttl={}ms", SOON.as_millis())).await;
    let grant = stream.hears("acquired").await;
    wire.cut();
    held_up(&wire).await;
    let long = format!("/locks/k?ttl={}s&fencing_token={}", LONG.as_secs(), grant["fencing_token"]);
    let http = far.http();
    let replaced = http.token(grant["token"].as_str().unwrap()).post(&long, "").await;
    assert_eq!(replaced.status, 201, "{replaced:?}");
    let before = calls_of(&redis, "evalsha");
    drop(stream);
    wire.mend();
    // The refresh of the stream, and its last word.
    eventually(PATIENCE, async || (calls_of(&redis, "evalsha") > before + 1).then_some(())).await;
    assert_eq!(acquire(&http, "k", TOKEN, LONG).await.told(), held());
    let left = look(&http, "k").await.number("ttl_ms");
    assert!(u128::from(left) > SOON.as_millis(), "{left} ms are left");
}

/// Two instances on one Redis, of which the first has a wire to it that holds calls up.
pub(super) struct Pair {
    pub(super) redis: Redis,
    pub(super) wire: Wire,
    pub(super) near: Service,
    pub(super) far: Service,
}

impl Pair {
    async fn start() -> Self {
        Self::on(Redis::start()).await
    }

    async fn on(redis: Redis) -> Self {
        let wire = Wire::to(redis.port()).await;
        let pair = Self::by(redis, wire, "10s").await;
        for _ in 0..50 {
            assert_eq!(look(&pair.near.http(), "served").await.status, 200);
        }
        pair
    }

    /// The way from the first instance to Redis takes long: it knows the time there less exactly.
    async fn apart() -> Self {
        let redis = Redis::start();
        let wire = Wire::long(redis.port(), A_WHILE * 5).await;
        Self::by(redis, wire, "10s").await
    }

    pub(super) async fn by(redis: Redis, wire: Wire, timeout: &str) -> Self {
        let (wire, near) = by(wire, &[("LOCKKEEPER_REDIS_COMMAND_TIMEOUT", timeout)]).await;
        let far = service(&redis, &[]).await;
        Self { redis, wire, near, far }
    }

    /// The client gives this request up while it is on its way to Redis, goes on over the other
    /// instance, and then the request arrives, in so many calls.
    async fn late<T>(
        &self,
        request: (&str, &str, &str),
        calls: u64,
        meanwhile: impl Future<Output = T>,
    ) -> T {
        let (near, (method, path, body)) = (self.near.http(), request);
        self.wire.cut();
        tokio::select! {
            biased;
            answer = near.send(method, path, body) => panic!("{answer:?}"),
            () = held_up(&self.wire) => (),
        }
        // Its instance has seen that: this question has the only connection.
        let connections = async || near.figure("lockkeeper_http_connections").await;
        eventually(PATIENCE, async || (connections().await <= 1.0).then_some(())).await;
        let done = meanwhile.await;
        self.arrive(calls).await;
        done
    }

    /// Mends the wire, until so many more calls have been made.
    pub(super) async fn arrive(&self, calls: u64) {
        let until = calls_of(&self.redis, "evalsha") + calls;
        self.wire.mend();
        eventually(PATIENCE, async || (calls_of(&self.redis, "evalsha") >= until).then_some(()))
            .await;
    }

    /// Waits until nobody has the key or waits for it: the request may have joined the line before
    /// its instance heard that the client had gone. A lease would last for longer.
    pub(super) async fn is_free(&self, key: &str) {
        let http = self.far.http();
        eventually(PATIENCE, async || {
            let seen = look(&http, key).await;
            (seen.number("waiters") == 0 && seen.field("held") == false).then_some(())
        })
        .await;
    }
}

/// An exclusive lease, for which somebody waits.
const WITH_A_LINE: &str = r#","slots":1"#;

pub(super) fn acquire_with(rest: &str) -> String {
    format!(r#"{{"token":"{TOKEN}"{rest}}}"#)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_given_up_does_not_cut_a_newer_one_short() {
    let pair = Pair::start().await;
    let far = pair.far.http();
    let soon = format!(r#""ttl_ms":{}"#, SOON.as_millis());
    let refresh = format!(r#"{{"token":"{TOKEN}",{soon}}}"#);
    let repeat = acquire_with(&format!(",{soon}"));
    let share = acquire_with(&format!(r#",{soon},"slots":3"#));
    for (round, (kind, method, path, body, calls)) in [
        ("", "PUT", "/refresh", &refresh, 1),
        ("", "POST", "", &repeat, 1),
        // The second one is of a key with a line.
        (WITH_A_LINE, "POST", "", &repeat, 2),
        (r#","slots":3"#, "PUT", "/refresh", &refresh, 2),
        (r#","slots":3"#, "POST", "", &share, 1),
        (r#","shared":true"#, "PUT", "/refresh", &refresh, 2),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("cut/{round}");
        let path = format!("/locks/{key}{path}");
        let long = acquire_with(&format!(r#"{kind},"ttl_ms":{}"#, LONG.as_millis()));
        assert_eq!(far.post(&format!("/locks/{key}"), &long).await.status, 201);
        if kind == WITH_A_LINE {
            let waits = r#"{"token":"token-of-somebody-else","wait_ms":50}"#;
            assert_eq!(far.post(&format!("/locks/{key}"), waits).await.told(), held());
        }
        let newer = pair
            .late((method, &path, body), calls, far.post(&format!("/locks/{key}"), &long))
            .await;
        assert_eq!(newer.status, 200, "round {round}: {newer:?}");
        let left = look(&far, &key).await.number("ttl_ms");
        assert!(u128::from(left) > SOON.as_millis(), "round {round}: {left} ms are left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_given_up_cuts_none_short_over_a_step_back_of_the_clock() {
    let clock = Clock::make();
    let pair = Pair::on(clock.redis()).await;
    let far = pair.far.http();
    let soon = format!(r#""ttl_ms":{}"#, SOON.as_millis());
    let refresh = format!(r#"{{"token":"{TOKEN}",{soon}}}"#);
    let repeat = acquire_with(&format!(",{soon}"));
    for (round, (method, path, body)) in
        [("PUT", "/refresh", &refresh), ("POST", "", &repeat)].into_iter().enumerate()
    {
        let key = format!("back/{round}");
        assert_eq!(acquire(&far, &key, TOKEN, LONG).await.status, 201);
        let newer = async {
            let newer = acquire(&far, &key, TOKEN, LONG).await;
            clock.step_ms(-1_000 * (1 + round as i64));
            newer
        };
        let path = format!("/locks/{key}{path}");
        let newer = pair.late((method, &path, body), 1, newer).await;
        assert_eq!(newer.status, 200, "round {round}: {newer:?}");
        // This instance hears of the step, too.
        let left = look(&pair.near.http(), &key).await.number("ttl_ms");
        assert!(u128::from(left) > SOON.as_millis(), "round {round}: {left} ms are left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_that_was_given_up_shares_no_more_than_a_newer_one() {
    let pair = Pair::start().await;
    let far = pair.far.http();
    let long = format!(r#","ttl_ms":{}"#, LONG.as_millis());
    for (kind, wider, slots) in [
        (r#","slots":1"#, r#","slots":3"#, 0),
        (r#","slots":2"#, r#","slots":3"#, 2),
        (r#","slots":2"#, r#","shared":true"#, 2),
    ] {
        let path = format!("/locks/share/{slots}/{}", wider.len());
        let wider = acquire_with(&format!("{wider}{long}"));
        let first = far.post(&path, &wider).await;
        assert_eq!(first.status, 201);
        let named = format!(r#","fencing_token":{}"#, first.field("fencing_token"));
        let kind = acquire_with(&format!("{kind}{long}{named}"));
        let newer = pair.late(("POST", &path, &wider), 1, far.post(&path, &kind)).await;
        assert!(matches!(newer.status, 200 | 201), "{newer:?}");
        let seen = far.get(&path).await;
        assert_eq!(seen.field("slots").as_u64().unwrap_or_default(), slots, "{seen:?}");
    }
}

pub(super) const OTHER: &str = "token-of-somebody-else";

/// A request is given up that has to wait for another lease; its client is refused over the other
/// instance, and then the key is freed.
async fn is_refused_since(pair: &Pair, key: &str, rest: &str) {
    let (far, path) = (pair.far.http(), format!("/locks/{key}"));
    assert_eq!(acquire(&far, key, OTHER, LONG).await.status, 201);
    let refused = pair
        .late(("POST", &path, &acquire_with(rest)), 1, async {
            let refused = acquire(&far, key, TOKEN, LONG).await;
            assert_eq!(far.token(OTHER).delete(&path).await.status, 204);
            refused
        })
        .await;
    assert_eq!(refused.told(), held());
    pair.is_free(key).await;
    // A newer request has the key at once; a late grant to the other request is this one's then.
    let granted = acquire(&far, key, TOKEN, LONG).await.status;
    assert!(matches!(granted, 200 | 201), "{key}: {granted}");
}

/// A request is given up, and then its token is released, with a lease or not, or at maxmemory.
async fn is_released_since(pair: &Pair, key: &str, rest: &str, (acquired, full): (bool, bool)) {
    let (far, path) = (pair.far.http(), format!("/locks/{key}"));
    let body = acquire_with(rest);
    let released = pair.late(("POST", &path, &body), 1, async {
        if acquired {
            assert_eq!(acquire(&far, key, TOKEN, LONG).await.status, 201);
        }
        pair.redis.run::<()>(&format!("CONFIG SET maxmemory {}", u8::from(full)));
        let released = far.token(TOKEN).delete(&path).await.status;
        pair.redis.run::<()>("CONFIG SET maxmemory 0");
        released
    });
    assert_eq!(released.await, if acquired { 204 } else { 409 }, "{key}");
    pair.is_free(key).await;
    // A late grant to the other request is this one's then.
    let granted = acquire(&far, key, TOKEN, LONG).await.status;
    assert!(matches!(granted, 200 | 201), "{key}: {granted}");
}

const KINDS: [&str; 4] =
    ["", r#","wait_ms":5000"#, r#","slots":2"#, r#","slots":2,"wait_ms":5000"#];

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_given_up_is_granted_nothing_that_its_client_was_refused_since() {
    let pair = Pair::start().await;
    for (round, rest) in KINDS.iter().enumerate() {
        is_refused_since(&pair, &format!("no/{round}"), rest).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_given_up_is_granted_nothing_after_a_release() {
    let pair = Pair::start().await;
    for (round, rest) in KINDS.iter().enumerate() {
        for (way, how) in [(true, false), (false, false), (false, true)].into_iter().enumerate() {
            is_released_since(&pair, &format!("released/{round}/{way}"), rest, how).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_given_up_is_granted_nothing_however_far_redis_is() {
    let pair = Pair::apart().await;
    for (round, rest) in KINDS.iter().enumerate() {
        is_refused_since(&pair, &format!("no/{round}"), rest).await;
        is_released_since(&pair, &format!("released/{round}"), rest, (true, false)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_a_far_instance_gets_what_was_freed_a_moment_ago() {
    let pair = Pair::apart().await;
    let (near, far) = (pair.near.http(), pair.far.http());
    for (round, rest) in KINDS.iter().enumerate() {
        let (key, path) = (format!("freed/{round}"), format!("/locks/freed/{round}"));
        assert_eq!(acquire(&far, &key, OTHER, LONG).await.status, 201);
        assert_eq!(far.token(OTHER).delete(&path).await.status, 204);
        let granted = near.post(&path, &acquire_with(rest)).await;
        assert_eq!(granted.status, 201, "{key}: {granted:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_with_room_refuses_no_question_because_a_lease_of_another_ended_meanwhile() {
    let pair = Pair::start().await;
    let (near, far) = (pair.near.http(), pair.far.http());
    let pool = "/locks/pool?slots=100";
    assert_eq!(far.post(pool, "").await.status, 201);
    pair.wire.cut();
    let meanwhile = async {
        held_up(&pair.wire).await;
        assert_eq!(far.token(OTHER).post(pool, "").await.status, 201);
        assert_eq!(far.token(OTHER).delete("/locks/pool").await.status, 204);
        let before = calls_of(&pair.redis, "evalsha");
        pair.wire.mend();
        before
    };
    let near = near.token(TOKEN);
    let (granted, before) = tokio::join!(near.post(pool, ""), meanwhile);
    assert_eq!(granted.status, 201, "{granted:?}");
    assert_eq!(calls_of(&pair.redis, "evalsha") - before, 1, "it was asked again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_from_before_a_hand_off_does_not_take_the_key_for_a_client_that_is_gone() {
    let pair = Pair::start().await;
    let (near, far) = (pair.near.http(), pair.far.http());
    for round in 0..3 {
        let (key, path) = (format!("handed/{round}"), format!("/locks/handed/{round}"));
        assert_eq!(acquire(&far, &key, OTHER, LONG).await.status, 201);
        let body = acquire_with(r#","wait_ms":20000"#);
        let waiting = async {
            eventually(PATIENCE, async || {
                (look(&far, &key).await.number("waiters") == 1).then_some(())
            })
            .await;
            pair.wire.cut();
            held_up(&pair.wire).await;
        };
        tokio::select! {
            biased;
            answer = near.post(&path, &body) => panic!("{answer:?}"),
            () = waiting => (),
        }
        assert_eq!(acquire(&far, &key, TOKEN, LONG).await.told(), held());
        assert_eq!(far.token(OTHER).delete(&path).await.status, 204);
        pair.wire.mend();
        pair.is_free(&key).await;
    }
}
