//! Shared leases over HTTP: semaphores with slots, readers and writers.

use crate::api::{Lockkeeper, OTHER, TOKEN, api_keys, assert_members};

/// Three stores on which no Redis ever is.
const REDLOCK_AWAY: &str = "redis://127.0.0.1:1 redis://127.0.0.1:2 redis://127.0.0.1:3";

fn token(number: usize) -> String {
    format!("a-token-of-holder-{number}")
}

#[tokio::test]
async fn a_semaphore_tells_slots_and_slot_in_every_form_of_a_request() {
    let http = Lockkeeper::start().await;
    for (number, (path, body)) in (1..).zip([
        ("/locks/pool?slots=4&owner=web", ""),
        ("/locks/pool", r#"{"slots":4,"owner":"web"}"#),
        ("/locks/pool", r#"{"slots":"4","owner":"web"}"#),
        ("/locks/pool", "slots=4&owner=web"),
    ]) {
        let form = if body.starts_with("slots") { "application/x-www-form-urlencoded" } else { "" };
        let of_form = http.token(&token(number)).with("content-type", form);
        let http = if form.is_empty() { http.token(&token(number)) } else { of_form };
        let granted = http.post(path, body).await;
        assert_eq!((granted.status, granted.number("slots")), (201, 4), "{granted:?}");
        assert_eq!(granted.number("slot"), number as u64);
        let members =
            ["token", "key", "fencing_token", "ttl_ms", "waited_ms", "slots", "slot", "owner"];
        assert_members(&granted, &members);
    }
    let refused = http.post("/locks/pool?slots=4", "").await;
    assert_eq!(refused.told(), (409, "lock_held".into()));
    assert_eq!((refused.number("holders"), refused.number("slots")), (4, 4));
    assert!(refused.field("mine").is_null());
    let detail = refused.text("detail");
    assert!(detail.starts_with("'pool' is held by 4 leases of at most 4"), "{detail}");
    assert!(detail.ends_with(" s, after web"), "{detail}");
}

#[tokio::test]
async fn units_are_told_in_every_form_of_a_request_and_an_answer() {
    let http = Lockkeeper::start().await;
    for (number, path, body) in [
        (1, "/locks/gpu?slots=12&units=3&owner=web", ""),
        (2, "/locks/gpu", r#"{"slots":12,"units":3,"owner":"web"}"#),
        (3, "/locks/gpu", r#"{"slots":"12","units":"3","owner":"web"}"#),
        (4, "/locks/gpu", "slots=12&units=3&owner=web"),
    ] {
        let holder = http.token(&token(number));
        let granted = match body.starts_with("slots") {
            true => {
                let form = "application/x-www-form-urlencoded";
                holder.with("content-type", form).post(path, body).await
            }
            false => holder.post(path, body).await,
        };
        assert_eq!((granted.status, granted.number("units")), (201, 3), "{granted:?}");
        let members =
            ["token", "key", "fencing_token", "ttl_ms", "waited_ms", "slots", "units", "owner"];
        assert_members(&granted, &members);
        let refreshed = holder.put("/locks/gpu/refresh", "").await;
        assert_eq!((refreshed.number("slots"), refreshed.number("units")), (12, 3));
        let seen = http.get("/locks/gpu").await;
        assert_eq!(
            (seen.number("holders"), seen.number("units")),
            (number as u64, 3 * number as u64)
        );
    }
    let refused = http.post("/locks/gpu?slots=12", "").await;
    assert_eq!(refused.told(), (409, "lock_held".into()));
    let told = ["holders", "units", "slots"].map(|name| refused.number(name));
    assert_eq!(told, [4, 12, 12]);
    let detail = refused.text("detail");
    assert!(detail.starts_with("'gpu' is held by 4 leases with 12 of 12 units"), "{detail}");
    assert_eq!(http.token(&token(1)).delete("/locks/gpu").await.status, 204);
    let one = http.token(&token(1)).post("/locks/gpu?slots=12&units=1", "").await;
    assert_members(
        &one,
        &["token", "key", "fencing_token", "ttl_ms", "waited_ms", "slots", "slot", "owner"],
    );
    let seen = http.get("/locks/gpu").await;
    assert_eq!(seen.number("units"), 10);
    let units: Vec<_> =
        seen.field("leases").as_array().unwrap().iter().map(|one| one["units"].clone()).collect();
    assert_eq!(units.iter().filter(|units| **units == 3).count(), 3);
    assert_eq!(units.iter().filter(|units| units.is_null()).count(), 1);
    assert_eq!(http.get("/locks").await.field("locks")[0]["units"], 10);
    let repeat = |query: &'static str| {
        let http = http.token(&token(2));
        async move { http.post(&format!("/locks/gpu?{query}"), "").await }
    };
    for query in ["", "slots=12", "slots=12&units=3"] {
        assert_eq!(repeat(query).await.status, 200, "{query}");
    }
    let other = repeat("slots=12&units=2").await;
    assert_eq!((other.told().0, other.field("mine")), (409, true.into()), "{other:?}");
}

#[tokio::test]
async fn a_look_at_a_shared_key_names_its_leases_and_a_list_does_not() {
    let http = Lockkeeper::start().await;
    http.token(&token(1)).post("/locks/pool?slots=3&owner=one&ttl=50s", "").await;
    http.token(&token(2)).post("/locks/pool?shared=true&ttl=20s", "").await;
    let seen = http.get("/locks/pool").await;
    assert_members(&seen, &["key", "held", "ttl_ms", "waiters", "holders", "slots", "leases"]);
    assert_eq!((seen.number("holders"), seen.number("slots")), (2, 3));
    let leases = seen.field("leases");
    assert_eq!((&leases[0]["slots"], &leases[0]["slot"]), (&1_000.into(), &().into()));
    assert_eq!((&leases[1]["slots"], &leases[1]["slot"]), (&3.into(), &1.into()));
    assert_eq!(leases[1]["owner"], "one");
    let mine = http.token(&token(1)).get("/locks/pool").await;
    assert_eq!((mine.field("mine"), mine.text("owner")), (true.into(), "one".into()));
    assert_eq!(mine.field("fencing_token"), leases[1]["fencing_token"]);
    let listed = http.get("/locks").await.field("locks")[0].clone();
    assert_eq!((&listed["holders"], &listed["leases"]), (&2.into(), &().into()));
    let metrics = http.get("/metrics").await;
    let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(metrics.contains("lockkeeper_locks_held 1\n"), "a shared key counts once: {metrics}");
    let free = http.get("/locks/other").await;
    assert_members(&free, &["key", "held", "waiters"]);
}

#[tokio::test]
async fn without_the_two_options_nothing_is_told_of_them() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let granted = http.post("/locks/k", r#"{"owner":"web-1"}"#).await;
    let members = ["token", "key", "fencing_token", "ttl_ms", "waited_ms", "owner"];
    assert_members(&granted, &members);
    let named = http.post("/locks/k?slots=1", "").await;
    assert_members(&named, &members);
    let refused = http.token(OTHER).post("/locks/k", "").await;
    assert!(refused.field("holders").is_null() && refused.field("slots").is_null());
    assert!(refused.field("mine").is_null());
    let forced = http.delete("/admin/locks/k").await;
    assert_members(&forced, &["key", "owner", "fencing_token"]);
}

#[tokio::test]
async fn slots_out_of_bounds_are_refused_by_name_and_cost_no_store_call() {
    let http = Lockkeeper::without_store("").await;
    for (path, body, field) in [
        ("/locks/k?slots=0", "", "slots"),
        ("/locks/k?slots=1001", "", "slots"),
        ("/locks/k?slots=two", "", "slots"),
        ("/locks/k?slots=-1", "", "slots"),
        ("/locks/k", r#"{"slots":1.5}"#, "slots"),
        ("/locks/k", r#"{"slots":[2]}"#, "slots"),
        ("/locks/k", r#"{"slots":18446744073709551616}"#, "slots"),
        ("/locks/k", r#"{"shared":2}"#, "shared"),
        ("/locks/k?shared=maybe", "", "shared"),
        ("/locks/k?slots=2&shared=true", "", "shared"),
        ("/hold/k?slots=2&shared=1", "", "shared"),
        ("/locks/k?units=1", "", "units"),
        ("/locks/k?units=2&shared=true", "", "units"),
        ("/locks/k?units=2&slots=1", "", "units"),
        ("/locks/k?units=4&slots=3", "", "units"),
        ("/locks/k?units=0&slots=3", "", "units"),
        ("/locks/k?units=65537&slots=3", "", "units"),
        ("/locks/k", r#"{"slots":3,"units":1.5}"#, "units"),
        ("/hold/k?units=4&slots=3", "", "units"),
    ] {
        let refused = http.post(path, body).await;
        assert_eq!(refused.told(), (400, "invalid_request".into()), "{path} {body}");
        assert_eq!(refused.text("field"), field, "{path} {body}");
    }
    let http = http.token(TOKEN);
    for (method, path) in [
        ("PUT", "/locks/k/refresh?slots=2"),
        ("PUT", "/locks/k/refresh?shared=true"),
        ("PUT", "/locks/k/refresh?units=2"),
        ("DELETE", "/locks/k?slots=2"),
    ] {
        let refused = http.send(method, path, "").await;
        assert_eq!(refused.told(), (400, "unknown_field".into()), "{method} {path}");
    }
}

#[tokio::test]
async fn a_store_that_cannot_share_says_so_and_is_not_asked() {
    let http = Lockkeeper::on(REDLOCK_AWAY, "").await;
    for (query, field) in
        [("slots=2", "slots"), ("slots=2&units=2", "slots"), ("shared=true", "shared")]
    {
        for path in ["/locks/k", "/hold/k"] {
            let refused = http.post(&format!("{path}?{query}"), "").await;
            assert_eq!(refused.told(), (400, "invalid_request".into()));
            assert_eq!(refused.text("field"), field);
            assert!(refused.text("detail").contains("exclusive leases only"), "{refused:?}");
        }
    }
    for query in ["slots=1", "slots=1&units=1", "shared=false"] {
        assert_eq!(http.post(&format!("/locks/k?{query}"), "").await.status, 503, "{query}");
    }
}

#[tokio::test]
async fn a_promotion_that_others_do_not_allow_is_mine_and_not_waited_for() {
    let http = Lockkeeper::start().await;
    let (one, two) = (http.token(&token(1)), http.token(&token(2)));
    let first = one.post("/locks/k?shared=true", "").await;
    two.post("/locks/k?shared=true", "").await;
    let refused = one.post("/locks/k?slots=1&wait=1h", "").await;
    assert_eq!((refused.told().0, refused.field("mine")), (409, true.into()), "{refused:?}");
    let refused = one.post("/hold/k?slots=1&wait=forever", "").await;
    assert_eq!((refused.told().0, refused.field("mine")), (409, true.into()), "{refused:?}");
    assert_eq!(two.delete("/locks/k").await.status, 204);
    let promote = format!("/locks/k?slots=1&fencing_token={}", first.number("fencing_token"));
    let promoted = one.post(&promote, "").await;
    assert_eq!(promoted.status, 201, "{promoted:?}");
    assert_eq!(one.post(&promote, "").await.told(), (409, "lock_lost".into()));
    assert!(promoted.number("fencing_token") > first.number("fencing_token"));
    let demote = format!("/locks/k?slots=5&fencing_token={}", promoted.number("fencing_token"));
    let demoted = one.post(&demote, "").await;
    assert_eq!((demoted.status, demoted.number("slot")), (201, 1));
    assert!(demoted.number("fencing_token") > promoted.number("fencing_token"));
}

#[tokio::test]
async fn a_forced_release_of_one_slot_frees_that_slot() {
    let http = Lockkeeper::start().await;
    let mut numbers = Vec::new();
    for number in 1..=3 {
        let granted = http.token(&token(number)).post("/locks/pool?slots=3&owner=w", "").await;
        numbers.push(granted.number("fencing_token"));
    }
    let path = format!("/admin/locks/pool?fencing_token={}", numbers[1]);
    let forced = http.delete(&path).await;
    assert_eq!((forced.status, forced.number("fencing_token")), (200, numbers[1]));
    assert_eq!(forced.number("holders"), 1);
    assert_eq!(http.delete(&path).await.told(), (409, "lock_lost".into()));
    let lost = http.token(&token(2)).put("/locks/pool/refresh", "").await;
    assert_eq!(lost.told(), (409, "lock_lost".into()));
    assert_eq!(http.token(&token(1)).put("/locks/pool/refresh", "").await.number("slot"), 1);
    let next = http.token(&token(4)).post("/locks/pool?slots=3", "").await;
    assert_eq!(next.number("slot"), 2);
    assert_eq!(http.delete("/admin/locks/pool").await.number("holders"), 3);
    assert_eq!(http.get("/locks/pool").await.field("held"), false);
}

#[tokio::test]
async fn a_quota_counts_each_lease_of_a_shared_key() {
    let keys = api_keys(&[("secret-one", r#"[""]"#, r#"["acquire"]"#)]);
    let http = Lockkeeper::with_settings(&format!("[quotas]\nleases = 2\n{keys}")).await;
    let http = http.with("authorization", "Bearer secret-one");
    let claim = |number| http.token(&token(number));
    for number in [1, 2] {
        assert_eq!(claim(number).post("/locks/pool?slots=5", "").await.status, 201);
    }
    let refused = claim(3).post("/locks/pool?slots=5", "").await;
    assert_eq!(refused.told(), (429, "quota_exceeded".into()));
    assert_eq!(claim(1).post("/locks/pool", "").await.status, 200, "a repeat is no other lease");
    assert_eq!(claim(1).delete("/locks/pool").await.status, 204);
    assert_eq!(claim(3).post("/locks/pool?slots=5", "").await.status, 201);
}

#[tokio::test]
async fn a_quota_counts_a_lease_once_whatever_becomes_of_its_share() {
    let keys = api_keys(&[("secret-one", r#"[""]"#, r#"["acquire"]"#)]);
    let http = Lockkeeper::with_settings(&format!("[quotas]\nleases = 2\n{keys}")).await;
    let http = http.with("authorization", "Bearer secret-one");
    let claim = async |number, path: &str| http.token(&token(number)).post(path, "").await.status;
    let mut named = String::new();
    for share in ["shared=true", "slots=5", "slots=1", "slots=5"] {
        let path = format!("/locks/pool?{share}{named}");
        let granted = http.token(&token(1)).post(&path, "").await;
        assert_eq!(granted.status, 201, "{path}: {granted:?}");
        named = format!("&fencing_token={}", granted.number("fencing_token"));
    }
    assert_eq!(claim(2, "/locks/pool?slots=5").await, 201);
    assert_eq!(claim(3, "/locks/pool?slots=5").await, 429);
    for number in [1, 2] {
        assert_eq!(http.token(&token(number)).delete("/locks/pool").await.status, 204);
        assert_eq!(claim(number + 3, "/locks/pool?slots=5").await, 201);
    }
    assert_eq!(claim(6, "/locks/pool?slots=5").await, 429);
}

#[tokio::test]
async fn an_exclusive_lease_makes_no_room_in_the_quota_for_many_that_wait_to_share_its_key() {
    let keys = api_keys(&[("secret-one", r#"[""]"#, r#"["acquire"]"#)]);
    let http = Lockkeeper::with_settings(&format!("[quotas]\nleases = 1\n{keys}")).await;
    let http = http.with("authorization", "Bearer secret-one");
    let claim = async |number, path: &str| http.token(&token(number)).post(path, "").await.status;
    let first = http.token(&token(1)).post("/locks/pool", "").await.number("fencing_token");
    assert_eq!(claim(2, "/locks/pool?shared=true&wait=10s").await, 429);
    assert_eq!(claim(2, "/locks/pool").await, 409, "it would take the place of the other");
    assert_eq!(claim(1, &format!("/locks/pool?shared=true&fencing_token={first}")).await, 201);
}

#[tokio::test]
async fn a_truth_value_without_a_value_is_refused() {
    let http = Lockkeeper::start().await;
    for (path, body) in
        [("/locks/a?shared", ""), ("/locks/a?shared=", ""), ("/locks/a", r#"{"shared":""}"#)]
    {
        let refused = http.post(path, body).await;
        assert_eq!(refused.told(), (400, "invalid_request".into()), "{path} {body}");
        assert_eq!(refused.text("field"), "shared");
    }
}
