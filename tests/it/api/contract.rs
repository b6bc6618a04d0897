//! openapi.yaml and the service know the same answers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tokio::task::JoinSet;

use crate::api::docs::assert_examples;
use crate::api::ending::acquire_while_draining;
use crate::api::panicking::panicking;
use crate::api::{Lockkeeper, TOKEN, api_keys};
use crate::hold::Listener;
use crate::support::openapi::{Row, SPEC};
use crate::support::{Answer, PATIENCE, eventually};

/// An operation, and a request of it that is granted if it comes right after an acquire.
struct Operation {
    id: &'static str,
    method: &'static str,
    path: &'static str,
    /// The status of that request.
    done: u16,
    /// Whether it needs an API key where there are any.
    guarded: bool,
    /// Whether it asks the store.
    asks: bool,
}

const fn operation(
    id: &'static str,
    method: &'static str,
    path: &'static str,
    done: u16,
    kind: Kind,
) -> Operation {
    let (guarded, asks) = match kind {
        Kind::Lock => (true, true),
        Kind::Figures => (true, false),
        Kind::Open => (false, false),
    };
    Operation { id, method, path, done, guarded, asks }
}

impl Operation {
    /// The body of that request.
    fn body(&self) -> &'static str {
        if self.id.ends_with("TerraformLock") { LOCK_INFO } else { "" }
    }
}

/// What an operation needs.
#[derive(Clone, Copy)]
enum Kind {
    Lock,
    Figures,
    Open,
}

const OPERATIONS: [Operation; 18] = [
    operation("acquireLock", "POST", "/locks/k", 200, Kind::Lock),
    operation("holdLock", "POST", "/hold/k", 200, Kind::Lock),
    operation("refreshLock", "PUT", "/locks/k/refresh", 200, Kind::Lock),
    operation("getLock", "GET", "/locks/k", 200, Kind::Lock),
    operation("listLocks", "GET", "/locks", 200, Kind::Lock),
    operation("releaseLock", "DELETE", "/locks/k", 204, Kind::Lock),
    operation("acquireLocks", "POST", "/locks?key=k", 200, Kind::Lock),
    operation("refreshLocks", "PUT", "/locks/refresh?key=k", 200, Kind::Lock),
    operation("releaseLocks", "DELETE", "/locks?key=k", 204, Kind::Lock),
    operation("forceReleaseLock", "DELETE", "/admin/locks/k", 200, Kind::Lock),
    operation("acquireTerraformLock", "POST", "/terraform/t", 200, Kind::Lock),
    operation("releaseTerraformLock", "DELETE", "/terraform/t", 200, Kind::Lock),
    operation("getMetrics", "GET", "/metrics", 200, Kind::Figures),
    operation("getAbout", "GET", "/", 200, Kind::Open),
    operation("getHealth", "GET", "/healthz", 200, Kind::Open),
    operation("getReadiness", "GET", "/readyz", 200, Kind::Open),
    operation("getContract", "GET", "/openapi.yaml", 200, Kind::Open),
    operation("getDocs", "GET", "/docs", 200, Kind::Open),
];

/// Requests with [`TOKEN`] that are refused, or answered otherwise, whatever is held.
const PECULIAR: [(&str, &str, &str, &str, u16, &str); 62] = [
    ("acquireLock", "POST", "/locks/a//b", "", 400, "invalid_key"),
    ("acquireLock", "POST", "/locks/k", r#"{"ttl_ms":1}"#, 400, "invalid_request"),
    ("acquireLock", "POST", "/locks/k", r#"{"ttl":5}"#, 400, "unknown_field"),
    ("acquireLock", "POST", "/locks/k/refresh", "", 405, "method_not_allowed"),
    ("acquireLock", "POST", "/locks/k", LONG, 413, "body_too_large"),
    ("acquireLock", "POST", "/locks/new", "", 201, ""),
    ("acquireLock", "POST", "/locks/other", "", 409, "lock_held"),
    ("acquireLock", "POST", "/locks/k", r#"{"fencing_token":1}"#, 409, "lock_lost"),
    ("holdLock", "POST", "/hold/a//b", "", 400, "invalid_key"),
    ("holdLock", "POST", "/hold/k/refresh", "", 400, "invalid_key"),
    ("holdLock", "POST", "/hold/k", r#"{"linger_ms":60001}"#, 400, "invalid_request"),
    ("holdLock", "POST", "/hold/k", r#"{"linger":5}"#, 400, "unknown_field"),
    ("holdLock", "POST", "/hold/k", LONG, 413, "body_too_large"),
    ("holdLock", "POST", "/hold/other", "", 409, "lock_held"),
    ("holdLock", "POST", "/hold/k", r#"{"fencing_token":1}"#, 409, "lock_lost"),
    ("refreshLock", "PUT", "/locks/a//b/refresh", "", 400, "invalid_key"),
    ("refreshLock", "PUT", "/locks/k/refresh", r#"{"ttl_ms":1}"#, 400, "invalid_request"),
    ("refreshLock", "PUT", "/locks/k/refresh", r#"{"ttl":5}"#, 400, "unknown_field"),
    ("refreshLock", "PUT", "/locks/k/refresh", LONG, 413, "body_too_large"),
    ("refreshLock", "PUT", "/locks/other/refresh", "", 409, "lock_lost"),
    ("getLock", "GET", "/locks/a//b", "", 400, "invalid_key"),
    ("getLock", "GET", "/locks/k?token=x", "", 400, "invalid_request"),
    ("getLock", "GET", "/locks/k?x=1", "", 400, "unknown_field"),
    ("getLock", "GET", "/locks/k/refresh", "", 405, "method_not_allowed"),
    ("listLocks", "GET", "/locks?limit=0", "", 400, "invalid_request"),
    ("listLocks", "GET", "/locks?x=1", "", 400, "unknown_field"),
    ("releaseLock", "DELETE", "/locks/a//b", "", 400, "invalid_key"),
    ("releaseLock", "DELETE", "/locks/k", r#"{"token":5}"#, 400, "invalid_request"),
    ("releaseLock", "DELETE", "/locks/k", r#"{"ttl":5}"#, 400, "unknown_field"),
    ("releaseLock", "DELETE", "/locks/k/refresh", "", 405, "method_not_allowed"),
    ("releaseLock", "DELETE", "/locks/k", LONG, 413, "body_too_large"),
    ("releaseLock", "DELETE", "/locks/other", "", 409, "lock_lost"),
    ("acquireLocks", "POST", "/locks?key=a//b", "", 400, "invalid_key"),
    ("acquireLocks", "POST", "/locks?key=k&key=k", "", 400, "invalid_request"),
    ("acquireLocks", "POST", "/locks?key=k&slots=2", "", 400, "unknown_field"),
    ("acquireLocks", "POST", "/locks?key=k", LONG, 413, "body_too_large"),
    ("acquireLocks", "POST", "/locks?key=k&key=new2", "", 201, ""),
    ("acquireLocks", "POST", "/locks?key=k&key=other", "", 409, "lock_held"),
    ("refreshLocks", "PUT", "/locks/refresh?key=a//b", "", 400, "invalid_key"),
    ("refreshLocks", "PUT", "/locks/refresh", "", 400, "invalid_request"),
    ("refreshLocks", "PUT", "/locks/refresh?key=k&wait=1s", "", 400, "unknown_field"),
    ("refreshLocks", "PUT", "/locks/refresh?key=k", LONG, 413, "body_too_large"),
    ("refreshLocks", "PUT", "/locks/refresh?key=k&key=other", "", 409, "lock_lost"),
    ("releaseLocks", "DELETE", "/locks?key=a//b", "", 400, "invalid_key"),
    ("releaseLocks", "DELETE", "/locks", "", 400, "invalid_request"),
    ("releaseLocks", "DELETE", "/locks?key=k&ttl=1s", "", 400, "unknown_field"),
    ("releaseLocks", "DELETE", "/locks?key=k", LONG, 413, "body_too_large"),
    ("releaseLocks", "DELETE", "/locks?key=new2&key=other", "", 409, "lock_lost"),
    ("forceReleaseLock", "DELETE", "/admin/locks/a//b", "", 400, "invalid_key"),
    ("forceReleaseLock", "DELETE", "/admin/locks/k?token=x", "", 400, "invalid_request"),
    ("forceReleaseLock", "DELETE", "/admin/locks/k?x=1", "", 400, "unknown_field"),
    ("forceReleaseLock", "DELETE", "/admin/locks/k", LONG, 413, "body_too_large"),
    ("acquireTerraformLock", "POST", "/terraform/a//b", LOCK_INFO, 400, "invalid_key"),
    ("acquireTerraformLock", "POST", "/terraform/k", "", 400, "invalid_request"),
    ("acquireTerraformLock", "POST", "/terraform/k?x=1", LOCK_INFO, 400, "unknown_field"),
    ("acquireTerraformLock", "POST", "/terraform/k", LONG, 413, "body_too_large"),
    ("acquireTerraformLock", "POST", "/terraform/k", LOCK_INFO, 409, "lock_held"),
    ("releaseTerraformLock", "DELETE", "/terraform/a//b", LOCK_INFO, 400, "invalid_key"),
    ("releaseTerraformLock", "DELETE", "/terraform/k", r#"{"ID":5}"#, 400, "invalid_request"),
    ("releaseTerraformLock", "DELETE", "/terraform/k?x=1", LOCK_INFO, 400, "unknown_field"),
    ("releaseTerraformLock", "DELETE", "/terraform/k", LONG, 413, "body_too_large"),
    ("releaseTerraformLock", "DELETE", "/terraform/k", LOCK_INFO, 409, "lock_lost"),
];

/// A body that is too large.
const LONG: &str = match std::str::from_utf8(&[b' '; 32_769]) {
    Ok(text) => text,
    Err(_) => unreachable!(),
};

/// The body of Terraform.
const LOCK_INFO: &str = r#"{"ID":"b856d8c2-8341-2f97-939a-44fdce65a761"}"#;

/// The answers that were met, and the problems by code.
#[derive(Default)]
struct Met(BTreeSet<Row>, BTreeMap<String, Vec<Value>>);

impl Met {
    /// Notes an answer, which has to have this status and code.
    fn note(&mut self, id: &str, answer: &Answer, status: u16, code: &str) {
        assert_eq!(answer.told(), (status, code.to_owned()), "{id}: {answer:?}");
        self.0.insert((id.to_owned(), status, code.to_owned()));
        if !code.is_empty() {
            self.1.entry(code.to_owned()).or_default().push(answer.json());
        }
    }
}

#[tokio::test]
async fn every_code_of_the_contract_is_met_and_every_code_that_is_met_is_in_it() {
    let mut met = Met::default();
    meet_usual(&mut met).await;
    meet_peculiar(&mut met).await;
    meet_rights(&mut met).await;
    meet_failures(&mut met).await;
    let nowhere = Lockkeeper::start().await.get("/nowhere").await;
    met.1.insert("no_such_route".to_owned(), vec![nowhere.json()]);
    assert_examples(&met.1);
    let documented = SPEC.rows();
    let missing: Vec<_> = documented.difference(&met.0).collect();
    let unknown: Vec<_> = met.0.difference(&documented).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "not met {missing:?}, not there {unknown:?}");
}

/// What succeeds, and a head that is too large.
async fn meet_usual(met: &mut Met) {
    let http = Lockkeeper::start().await.holding(TOKEN);
    for operation in OPERATIONS {
        let Operation { id, method, path, done, .. } = operation;
        let prepare = if id == "holdLock" { "DELETE" } else { "POST" };
        http.send(prepare, "/locks/k", "").await;
        met.note(id, &http.send(method, path, operation.body()).await, done, "");

        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-Long: ");
        let head = format!("{head}{}", "x".repeat(16_384 - head.len()));
        met.note(id, &http.raw(head.as_bytes()).await, 431, "");
    }
}

/// What is peculiar to a verb.
async fn meet_peculiar(met: &mut Met) {
    let http = Lockkeeper::start().await;
    http.post("/locks/other", r#"{"owner":"web-1:4242"}"#).await;
    let mine = http.token(TOKEN);
    mine.post("/locks/k", "").await;
    for (id, method, path, body, status, code) in PECULIAR {
        met.note(id, &mine.send(method, path, body).await, status, code);
    }
    for (id, method, path) in [
        ("refreshLock", "PUT", "/locks/k/refresh"),
        ("releaseLock", "DELETE", "/locks/k"),
        ("refreshLocks", "PUT", "/locks/refresh?key=k"),
        ("releaseLocks", "DELETE", "/locks?key=k"),
    ] {
        met.note(id, &http.send(method, path, "").await, 400, "token_required");
    }
    let _kept = Listener::open_as(&http.http.0, "kept", TOKEN).await;
    met.note("refreshLock", &mine.put("/locks/kept/refresh", "").await, 409, "lock_held");
    met.note("refreshLocks", &mine.put("/locks/refresh?key=kept", "").await, 409, "lock_held");
    let nobody = http.delete("/admin/locks/free").await;
    met.note("forceReleaseLock", &nobody, 409, "lock_lost");
    met.note("getAbout", &http.with("Accept", "text/html").get("/").await, 302, "");
    for (id, path) in
        [("acquireLock", "/locks/other?wait=20s"), ("acquireLocks", "/locks?key=other&wait=20s")]
    {
        let mut waiting = JoinSet::new();
        let spawn = |waiting: &mut JoinSet<_>| {
            let mine = mine.clone();
            waiting.spawn(async move { mine.post(path, "").await });
        };
        spawn(&mut waiting);
        let waits = async || (http.get("/locks/other").await.number("waiters") == 1).then_some(());
        eventually(PATIENCE, waits).await;
        spawn(&mut waiting);
        met.note(id, &waiting.join_next().await.unwrap().unwrap(), 409, "superseded");
        mine.delete("/locks/other").await;
        met.note(id, &waiting.join_next().await.unwrap().unwrap(), 409, "wait_cancelled");
    }
    let mut waiting = JoinSet::new();
    let claim = mine.clone();
    waiting.spawn(async move { claim.post("/locks?key=lost&key=other&wait=20s", "").await });
    let waits = async || (http.get("/locks/other").await.number("waiters") == 1).then_some(());
    eventually(PATIENCE, waits).await;
    http.delete("/admin/locks/lost").await;
    http.delete("/admin/locks/other").await;
    met.note("acquireLocks", &waiting.join_next().await.unwrap().unwrap(), 409, "lock_lost");
}

/// Who is unknown, and who may not.
async fn meet_rights(met: &mut Met) {
    let rights = [("nobody", "[]", r#"["read"]"#), ("else", r#"["else"]"#, r#"["acquire"]"#)];
    let http = Lockkeeper::with_settings(&api_keys(&rights)).await;
    let open = Lockkeeper::start().await;
    let page = open.with("Sec-Fetch-Site", "cross-site");
    for Operation { id, method, path, guarded, .. } in OPERATIONS {
        if guarded {
            met.note(id, &http.send(method, path, "").await, 401, "unauthenticated");
            let other = if id == "getMetrics" { "else" } else { "nobody" };
            let refused = http.bearer(other).send(method, path, "").await;
            met.note(id, &refused, 403, "forbidden");
            met.note(id, &page.send(method, path, "").await, 403, "forbidden_origin");
        }
    }
}

/// A store that is away, one that panics, and the end.
async fn meet_failures(met: &mut Met) {
    let away = Lockkeeper::without_store("").await.holding(TOKEN);
    let (_serving, panicking) = panicking().await;
    let panicking = panicking.token(TOKEN);
    for operation in OPERATIONS {
        let Operation { id, method, path, asks, .. } = operation;
        let body = operation.body();
        if asks {
            met.note(id, &away.send(method, path, body).await, 503, "store_unavailable");
            met.note(id, &panicking.send(method, path, body).await, 500, "internal");
        }
    }
    met.note("getReadiness", &away.get("/readyz").await, 503, "not_ready");
    let full = Lockkeeper::with_settings("[limits]\nwaiters_per_key = 0").await;
    full.post("/locks/k", "").await;
    met.note("acquireLock", &full.post("/locks/k?wait=1s", "").await, 429, "too_many_waiters");
    let several = full.post("/locks?key=k&wait=1s", "").await;
    met.note("acquireLocks", &several, 429, "too_many_waiters");
    let full = Lockkeeper::with_settings("[limits]\nhold_streams = 0").await;
    met.note("holdLock", &full.post("/hold/k", "").await, 429, "too_many_waiters");
    let full = Lockkeeper::with_settings("[limits]\nlists = 0").await;
    met.note("listLocks", &full.get("/locks").await, 429, "too_many_waiters");
    let all = api_keys(&[("all", r#"[""]"#, r#"["acquire", "read"]"#)]);
    let full = Lockkeeper::with_settings(&format!("[quotas]\nleases = 0\n{all}")).await;
    let acquires = [
        ("acquireLock", "/locks/k", "{}"),
        ("acquireLocks", "/locks?key=k", "{}"),
        ("holdLock", "/hold/k", "{}"),
        ("acquireTerraformLock", "/terraform/k", LOCK_INFO),
    ];
    for (id, path, body) in acquires {
        met.note(id, &full.bearer("all").post(path, body).await, 429, "quota_exceeded");
    }
    let full = Lockkeeper::with_settings(&format!("[limits]\nlists = 0\n{all}")).await;
    met.note("listLocks", &full.bearer("all").get("/locks").await, 429, "quota_exceeded");
    for (id, path, body) in acquires {
        let Lockkeeper { service, .. } = Lockkeeper::start().await;
        let (draining, _) = acquire_while_draining(service, path, body).await;
        met.note(id, &draining, 503, "draining");
    }
}

#[test]
fn every_operation_of_the_contract_keeps_the_rules_for_generators() {
    let mut ids: Vec<_> =
        SPEC.operations().map(|one| one["operationId"].as_str().unwrap()).collect();
    let mut tested = OPERATIONS.map(|one| one.id);
    ids.sort_unstable();
    tested.sort_unstable();
    assert_eq!(ids, tested);
    for operation in SPEC.operations() {
        let id = &operation["operationId"];
        assert_eq!(operation["tags"].as_array().unwrap().len(), 1, "{id}");
        assert!(operation["summary"].is_string(), "{id}");
        for (at, parameter) in operation["parameters"].as_array().into_iter().flatten().enumerate()
        {
            let key = parameter["$ref"].as_str().is_some_and(|name| name.ends_with("Key"));
            let is_of_one = !id.as_str().unwrap().ends_with("Locks");
            assert_eq!(key, at == 0 && is_of_one, "the key is not first: {id}");
        }
        let statuses: Vec<_> = operation["responses"].as_object().unwrap().keys().collect();
        assert!(statuses.iter().any(|status| status.starts_with('4')), "no 4xx: {id}");
    }
    for path in SPEC.paths() {
        assert!(!path.contains("{*"), "{path}");
    }
    let text = include_str!("../../../openapi.yaml");
    assert!(text.starts_with("openapi: 3.0.3\n"));
    for word in ["enum:", "default:", "nullable:", "oneOf:", "anyOf:", "allOf:"] {
        assert!(!text.contains(word), "{word} breaks generators or those who upgrade");
    }
}
