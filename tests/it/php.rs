//! PHP processes as clients: over HTTP with curl and streams, and on Redis directly by the recipes
//! that applications use, on the same Redis and the same keys as the service.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use crate::support::Http;
use crate::support::Process;
use crate::support::Redis;
use crate::support::eventually;
use crate::support::process::command;

/// What makes SETNX + GETSET code read a token as a time in the far future.
pub(crate) const FAR_FUTURE: &[(&str, &str)] = &[("LOCKKEEPER_REDIS_TOKEN_PREFIX", "9999999999-")];

/// The three ways in which SETNX + GETSET code compares a value with the time.
const GETSET_RECIPES: [&str; 3] = ["getset-int", "getset-float", "getset-juggled"];

/// A lease that is to end by itself within a test.
const SHORT: Duration = Duration::from_millis(400);

/// How much earlier than its TTL a lease on Redis may seem to end: its clock has whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

const PATIENCE: Duration = Duration::from_secs(30);

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
async fn set_nx_px_excludes_the_services_clients_and_is_excluded_by_them() {
    let site = Site::start(&[]);
    site.excludes_until_release("set-nx").await;
    site.is_excluded_until_release("set-nx").await;
    site.is_excluded_until_expiry("set-nx").await;
    site.excludes_until_expiry("set-nx").await;
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
    let url = format!("http://{}", process.http().address);
    assert_eq!(counted(&[("http", url.as_str()); 4], 60), 240);
}

#[test]
fn php_without_a_lock_counts_over_one_another() {
    assert!(counted(&[("none", ""); 4], 200) < 800);
}

/// A service and the Redis that it shares with PHP applications.
struct Site {
    redis: Redis,
    process: Process,
}

impl Site {
    fn start(variables: &[(&str, &str)]) -> Self {
        let redis = Redis::start();
        let process = Process::start(&redis.url(), variables);
        Self { redis, process }
    }

    fn http(&self) -> Http {
        self.process.http()
    }

    fn port(&self) -> String {
        self.redis.port().to_string()
    }

    fn url(&self) -> String {
        format!("http://{}", self.http().address)
    }

    /// What a PHP process has to show for the lock, if it got it.
    fn acquire(&self, recipe: &str, key: &str, ttl_ms: u64) -> Option<String> {
        let step = [recipe, &self.port(), "acquire", key, &ttl_ms.to_string()];
        Some(php("recipe.php", &step)).filter(|proof| proof != "held")
    }

    fn release(&self, recipe: &str, key: &str, proof: &str) -> String {
        php("recipe.php", &[recipe, &self.port(), "release", key, proof])
    }

    async fn told(&self, method: &str, path: &str) -> (u16, String) {
        self.http().send(method, path, "").await.told()
    }

    async fn excludes_until_release(&self, recipe: &str) {
        let key = &format!("first/{recipe}");
        let path = format!("/locks/{key}");
        let proof = self.acquire(recipe, key, 60_000).unwrap();
        assert_eq!(self.told("POST", &path).await, (409, "lock_held".into()));
        assert_eq!(self.acquire(recipe, key, 60_000), None);
        let look = self.http().get(&path).await.json();
        assert_eq!((look["held"].as_bool(), look.get("owner")), (Some(true), None));
        let other = self.http().token("a-token-of-somebody-else");
        assert_eq!(other.delete(&path).await.told(), (409, "lock_lost".into()));
        assert_eq!(self.told("POST", &path).await, (409, "lock_held".into()));
        assert_eq!(self.release(recipe, key, &proof), "released");
        assert_eq!(self.told("POST", &path).await.0, 201);
    }

    async fn is_excluded_until_release(&self, recipe: &str) {
        let key = &format!("second/{recipe}");
        let path = format!("/locks/{key}");
        let token = self.http().post(&path, "").await.text("token");
        let holder = self.http().token(&token);
        assert_eq!(self.acquire(recipe, key, 60_000), None);
        assert_eq!(holder.put(&format!("{path}/refresh"), "").await.status, 200);
        assert_eq!(self.acquire(recipe, key, 60_000), None);
        assert_eq!(holder.get(&path).await.field("mine"), true);
        assert_eq!(holder.delete(&path).await.status, 204);
        let proof = self.acquire(recipe, key, 60_000).unwrap();
        assert_eq!(holder.delete(&path).await.told(), (409, "lock_lost".into()));
        assert_eq!(self.release(recipe, key, &proof), "released");
    }

    async fn is_excluded_until_expiry(&self, recipe: &str) {
        let key = &format!("third/{recipe}");
        let path = format!("/locks/{key}");
        let began = Instant::now();
        let form = format!(r#"{{"ttl_ms":{}}}"#, SHORT.as_millis());
        let holder = self.http().token(&self.http().post(&path, &form).await.text("token"));
        let taken = eventually(PATIENCE, async || self.acquire(recipe, key, 60_000)).await;
        assert!(began.elapsed() + ROUNDING >= SHORT, "{recipe} had it {:?} on", began.elapsed());
        let refreshed = holder.put(&format!("{path}/refresh"), "").await;
        assert_eq!(refreshed.told(), (409, "lock_lost".into()));
        assert_eq!(holder.delete(&path).await.told(), (409, "lock_lost".into()));
        assert_eq!(self.told("POST", &path).await, (409, "lock_held".into()));
        assert_eq!(self.release(recipe, key, &taken), "released");
    }

    async fn excludes_until_expiry(&self, recipe: &str) {
        let key = &format!("fourth/{recipe}");
        let path = format!("/locks/{key}");
        let began = Instant::now();
        let proof = self.acquire(recipe, key, SHORT.as_millis().try_into().unwrap()).unwrap();
        let granted = eventually(PATIENCE, async || {
            let answer = self.http().post(&path, "").await;
            (answer.status == 201).then_some(answer)
        });
        let token = granted.await.text("token");
        assert!(began.elapsed() + ROUNDING >= SHORT, "{recipe} ended {:?} on", began.elapsed());
        assert_eq!(self.release(recipe, key, &proof), "lost");
        assert_eq!(self.http().token(&token).get(&path).await.field("mine"), true);
    }
}

/// Runs a scenario of `http.php` against each store.
fn on_every_store(scenario: &str) {
    let directory = tempfile::tempdir().unwrap();
    let embedded = Process::start(&format!("embedded:{}", directory.path().display()), &[]);
    let url = format!("http://{}", embedded.http().address);
    let said = format!("{scenario}: as it has to be");
    assert_eq!(php("http.php", &[scenario, &url]), said);
    let site = Site::start(&[]);
    assert_eq!(php("http.php", &[scenario, &site.url(), &site.port()]), said);
}

/// What a file says after all these workers added one to it so many times each.
pub(crate) fn counted(workers: &[(&str, &str)], rounds: u32) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("counter");
    std::fs::write(&file, "0").unwrap();
    let (counter, rounds) = (file.display().to_string(), rounds.to_string());
    let spawn = |&(recipe, place): &(&str, &str)| {
        let arguments = [recipe, place, "counter", &counter, &rounds];
        let mut worker = command("php");
        worker.args(line("worker.php", &arguments));
        worker.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running: Vec<_> = workers.iter().map(spawn).collect();
    for worker in running {
        let done = worker.wait_with_output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    std::fs::read_to_string(&file).unwrap().parse().unwrap()
}

/// What a script of `tests/php` prints, if all went well.
pub(crate) fn php(script: &str, arguments: &[&str]) -> String {
    let done = command("php").args(line(script, arguments)).output().unwrap();
    let [out, error] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(done.status.success() && error.is_empty(), "{script} {arguments:?}: {out}{error}");
    out.trim().to_owned()
}

fn line(script: &str, arguments: &[&str]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/php").join(script);
    let mut words =
        ["-d", "display_errors=stderr", "-d", "error_reporting=-1"].map(String::from).to_vec();
    words.push(script.display().to_string());
    words.extend(arguments.iter().map(|&argument| argument.to_owned()));
    words
}
