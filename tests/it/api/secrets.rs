//! Secrets go to their owners and nowhere else.

use std::sync::Mutex;

use tempfile::TempDir;

use crate::api::{OTHER, TOKEN, api_keys};
use crate::support::openapi::SPEC;
use crate::support::{Answer, Checked, PATIENCE, Process, Redis, eventually};

const SECRET: &str = "the-secret-of-an-api-key";
const GUESS: &str = "a-guess-at-an-api-key";
const PASSWORD: &str = "the-password-of-redis";
const MADE_BY_BODY: &str = "a-token-in-a-body-00003";

/// Every secret of a run.
const SECRETS: [&str; 6] = [SECRET, GUESS, PASSWORD, TOKEN, OTHER, MADE_BY_BODY];

const METHODS: [&str; 11] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW", "LOCK", "UNLOCK"];

/// A service with an API key, at the most talkative level of the log.
fn start(store: &str, level: &str) -> (Process, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("lockkeeper.toml");
    let keys = api_keys(&[(SECRET, r#"[""]"#, r#"["acquire", "read", "admin"]"#)]);
    std::fs::write(&settings, keys.replace(&format!("key of {SECRET}"), "shop")).unwrap();
    let embedded = format!("embedded:{}", directory.path().join("data").display());
    let store = if store == "embedded" { &embedded } else { store };
    let arguments = ["--store", store, "--config", settings.to_str().unwrap()];
    (Process::start_with(&arguments, &[("LOCKKEEPER_LOG_LEVEL", level)]), directory)
}

#[tokio::test]
async fn no_answer_to_others_and_no_line_of_the_log_holds_a_token_or_an_api_key() {
    let (process, _directory) = start("embedded", "trace");
    let http = Checked(process.http()).bearer(SECRET);

    let made = http.post("/locks/made", r#"{"owner":"web-1"}"#).await.text("token");
    let body = format!(r#"{{"token":"{TOKEN}"}}"#);
    let mut told = vec![
        http.post("/locks/made", "").await,
        http.get("/locks/made").await,
        http.token(&made).get("/locks/made").await,
        http.get("/locks").await,
        http.get("/metrics").await,
        http.get(&format!("/locks/made?token={made}")).await,
        http.token(&made).post("/locks/made", &body).await,
        http.token(OTHER).put("/locks/made/refresh", "").await,
        http.token(OTHER).delete("/locks/made").await,
    ];
    http.post("/locks/chosen", &body).await;
    http.token(TOKEN).put("/locks/chosen/refresh", "").await;
    told.push(http.delete("/admin/locks/chosen").await);
    told.push(http.token(TOKEN).delete("/locks/chosen").await);
    http.with("X-Request-Id", "the-last").token(&made).delete("/locks/made").await;

    let log = log_with(&process, "the-last").await;
    assert!(log.contains("web-1") && log.contains("shop"), "not what it should hold: {log}");
    for hidden in [made.as_str(), TOKEN, OTHER, SECRET] {
        assert!(!log.contains(hidden), "{hidden}: {log}");
        for answer in &told {
            assert!(!shown(answer).contains(hidden), "{hidden}: {answer:?}");
        }
    }
}

/// Every path of the contract with every method, however the secrets are sent, while Redis is there
/// and when it is away: only a grant names a token, and only the one that it was asked with.
#[tokio::test(flavor = "multi_thread")]
async fn no_route_with_any_method_lets_a_secret_out_also_when_redis_is_away() {
    let mut redis = Redis::start();
    redis.run::<()>(&format!("CONFIG SET requirepass {PASSWORD}"));
    let url = format!("redis://:{PASSWORD}@{}", redis.address());
    let (process, _directory) = start(&url, "trace");
    let http = Checked(process.http());
    let ready = async || (http.get("/readyz").await.status == 200).then_some(());
    eventually(PATIENCE, ready).await;
    let seen = Seen::default();
    for round in ["there", "away"] {
        for path in SPEC.paths() {
            for method in METHODS {
                seen.asks(&http, method, path).await;
            }
        }
        let last = format!("the-last-while-redis-is-{round}");
        http.with("X-Request-Id", &last).bearer(SECRET).token(TOKEN).delete("/locks/last").await;
        log_with(&process, &last).await;
        if round == "there" {
            redis.kill();
        }
    }
    let log = process.log();
    for word in ["granted", "force_release", "refused", "store call failed", "cannot connect"] {
        assert!(log.contains(word), "it did not come to {word:?}: {log}");
    }
    for secret in SECRETS {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
    let granted = seen.0.lock().unwrap().clone();
    for route in ["POST /locks/{key}", "PUT /locks/{key}/refresh", "POST /hold/{key}"] {
        assert!(granted.iter().any(|one| one == route), "no grant of {route}: {granted:?}");
    }
    assert_eq!(granted.iter().filter(|one| one.starts_with("GET ")).count(), 0, "{granted:?}");
}

/// The routes whose answers named the token that they were asked with.
#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl Seen {
    /// Sends secrets in each place where a client may put them, rightly or not.
    async fn asks(&self, http: &Checked, method: &str, template: &str) {
        let path = template.replace("{key}", "report");
        let known = http.bearer(SECRET);
        let in_body = format!(r#"{{"token":"{MADE_BY_BODY}"}}"#);
        let wrong = format!(r#"{{"token":"{MADE_BY_BODY}","ttl_ms":"{OTHER}"}}"#);
        let of_terraform = format!(r#"{{"ID":"{OTHER}"}}"#);
        let in_url = format!("{path}?token={OTHER}&api_key={SECRET}");
        // So that there is something to refresh, to release and to look at.
        let of_stream = template.starts_with("/hold");
        let prepare = if of_stream { "DELETE" } else { "POST" };
        known.token(TOKEN).send(prepare, "/locks/report", "").await;
        for (http, path, body, own) in [
            (known.token(TOKEN), &path, "", TOKEN),
            (known.clone(), &path, &*in_body, MADE_BY_BODY),
            (known.token(OTHER), &path, &*in_body, ""),
            (known.clone(), &path, &*wrong, ""),
            (known.clone(), &path, OTHER, ""),
            (known.clone(), &path, &*of_terraform, ""),
            (known.with("Content-Type", "application/x-www-form-urlencoded"), &path, OTHER, ""),
            (known.token(TOKEN), &in_url, "", ""),
            (http.bearer(GUESS).token(TOKEN), &path, "", ""),
            (http.with("Authorization", SECRET).token(TOKEN), &path, "", ""),
            (http.token(TOKEN), &path, &*in_body, ""),
        ] {
            let answer = http.send(method, path, body).await;
            let text = shown(&answer);
            for secret in SECRETS.iter().filter(|secret| text.contains(**secret)) {
                assert!(answer.status < 300 && *secret == own, "{method} {path}: {answer:?}");
                self.0.lock().unwrap().push(format!("{method} {template}"));
            }
        }
    }
}

/// All of an answer that a client can see.
fn shown(answer: &Answer) -> String {
    format!("{:?}\n{}", answer.headers, String::from_utf8_lossy(&answer.body))
}

/// The log, once it has this request.
async fn log_with(process: &Process, request_id: &str) -> String {
    eventually(PATIENCE, async || process.log().contains(request_id).then_some(())).await;
    process.log()
}
