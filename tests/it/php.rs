//! PHP processes as clients: over HTTP with curl and streams, and on Redis directly by the recipes
//! that applications use, on the same Redis and the same keys as the service.

use crate::support::peers::{Site, counted, php};
use crate::support::{PATIENCE, Process, eventually};

/// What makes SETNX + GETSET code read a token as a time in the far future.
pub(crate) const FAR_FUTURE: &[(&str, &str)] = &[("LOCKKEEPER_REDIS_TOKEN_PREFIX", "9999999999-")];

/// The three ways in which SETNX + GETSET code compares a value with the time.
const GETSET_RECIPES: [&str; 3] = ["getset-int", "getset-float", "getset-juggled"];

#[test]
fn plain_curl_takes_a_key_and_gives_it_back() {
    on_every_store("verbs");
}

#[test]
fn every_body_that_php_makes_of_an_array_is_understood_or_refused_with_advice() {
    on_every_store("bodies");
}

#[test]
fn streams_do_all_that_curl_does() {
    on_every_store("streams");
}

#[test]
fn a_key_by_rawurlencode_is_that_key_in_one_piece_and_in_segments() {
    on_every_store("keys");
}

#[tokio::test]
async fn redlock_php_excludes_the_services_clients_and_is_excluded_by_them() {
    let site = Site::start(&[]);
    site.excludes_until_release("redlock").await;
    site.is_excluded_until_release("redlock").await;
    site.is_excluded_until_expiry("redlock").await;
    site.excludes_until_expiry("redlock").await;
}

#[tokio::test]
async fn setnx_and_getset_exclude_and_are_excluded_where_tokens_read_as_far_in_the_future() {
    let site = Site::start(FAR_FUTURE);
    for recipe in GETSET_RECIPES {
        site.excludes_until_release(recipe).await;
        site.is_excluded_until_release(recipe).await;
        site.is_excluded_until_expiry(recipe).await;
    }
}

#[tokio::test]
async fn a_lock_by_setnx_that_nobody_released_ends_for_its_kind_and_by_force_only() {
    let site = Site::start(FAR_FUTURE);
    let first = site.acquire("getset-int", "crashed", 1_000).unwrap();
    let taken_over = eventually(PATIENCE, async || {
        assert_eq!(site.told("POST", "/locks/crashed").await, (409, "lock_held".into()));
        site.acquire("getset-int", "crashed", 60_000)
    });
    let second = taken_over.await;
    assert_ne!(first, second);
    let held = site.http().post("/locks/crashed", "").await;
    assert_eq!((held.header("retry-after"), held.json().get("retry_after_ms")), (Some("1"), None));
    assert_eq!(site.told("DELETE", "/admin/locks/crashed").await.0, 200);
    assert_eq!(site.told("POST", "/locks/crashed").await.0, 201);
}

#[tokio::test]
async fn setnx_and_getset_steal_a_plain_uuid() {
    let site = Site::start(&[]);
    let mut stolen = 0;
    // A few UUIDs read as a number beyond the time, as `12345e12-...` does; four in a row do not.
    for key in ["uuid/1", "uuid/2", "uuid/3", "uuid/4"] {
        let (path, refresh) = (format!("/locks/{key}"), format!("/locks/{key}/refresh"));
        let token = site.http().post(&path, "").await.text("token");
        if site.acquire("getset-int", key, 60_000).is_some() {
            stolen += 1;
            let lost = site.http().token(&token).put(&refresh, "").await;
            assert_eq!(lost.told(), (409, "lock_lost".into()));
        }
    }
    assert!(stolen > 0, "the recipe is harmless, and `redis.token_prefix` is for nothing");
}

#[tokio::test]
async fn setnx_and_getset_steal_a_token_that_a_client_chose_without_the_prefix() {
    let site = Site::start(FAR_FUTURE);
    for (token, stolen) in [
        ("f47ac10b-58cc-4372-a567-0e02b2c3d479", true),
        ("9999999999-f47ac10b-58cc-4372-a567-0e02b2c3d479", false),
    ] {
        let holder = site.http().token(token);
        assert_eq!(holder.post("/locks/chosen", "").await.status, 201);
        let thief = site.acquire("getset-int", "chosen", 60_000);
        assert_eq!(thief.is_some(), stolen, "{token}");
        let refreshed = holder.put("/locks/chosen/refresh", "").await.status;
        assert_eq!(refreshed, if stolen { 409 } else { 200 });
        site.told("DELETE", "/admin/locks/chosen").await;
    }
}

/// Why the prefix is a crutch: GETSET writes before it knows what was there.
#[tokio::test]
async fn a_getset_after_a_look_at_a_free_key_ends_a_lease_whatever_its_token() {
    let site = Site::start(FAR_FUTURE);
    assert!(site.redis.run::<Option<String>>("GET lock:race").is_none());
    let token = site.http().post("/locks/race", "").await.text("token");
    let old: String = site.redis.run("GETSET lock:race 1700000000");
    assert_eq!(old, token);
    let lost = site.http().token(&token).put("/locks/race/refresh", "").await;
    assert_eq!(lost.told(), (409, "lock_lost".into()));
}

#[test]
fn php_on_http_and_php_by_set_nx_never_count_over_one_another() {
    let site = Site::start(&[]);
    let (port, url) = (site.port(), site.url());
    let workers = [("http", url.as_str()), ("http", &url), ("set-nx", &port), ("redlock", &port)];
    assert_eq!(counted(&workers, 60), 240);
}

/// Without `set-nx` and `redlock`: SETNX + GETSET code steals their tokens, service or no service.
#[test]
fn php_on_http_and_php_by_setnx_and_getset_never_count_over_one_another() {
    let site = Site::start(FAR_FUTURE);
    let (port, url) = (site.port(), site.url());
    let workers =
        [("http", url.as_str()), ("http", &url), ("getset-int", &port), ("getset-float", &port)];
    assert_eq!(counted(&workers, 60), 240);
}

#[test]
fn php_on_http_never_counts_over_one_another_on_the_embedded_store() {
    let directory = tempfile::tempdir().unwrap();
    let process = Process::start(&format!("embedded:{}", directory.path().display()), &[]);
    let url = process.http().url();
    assert_eq!(counted(&[("http", url.as_str()); 4], 60), 240);
}

#[test]
fn php_without_a_lock_counts_over_one_another() {
    assert!(counted(&[("none", ""); 4], 200) < 800);
}

/// Runs a scenario of `http.php` against each store.
fn on_every_store(scenario: &str) {
    let directory = tempfile::tempdir().unwrap();
    let embedded = Process::start(&format!("embedded:{}", directory.path().display()), &[]);
    let url = embedded.http().url();
    let said = format!("{scenario}: as it has to be");
    assert_eq!(php("http.php", &[scenario, &url]), said);
    let site = Site::start(&[]);
    assert_eq!(php("http.php", &[scenario, &site.url(), &site.port()]), said);
}
