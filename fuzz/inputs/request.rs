//! A request as text, answered by the routes: a method and a target, headers, an empty line, a body.
//! Whatever it is, the answer is not a 500, and says in its form what is wrong.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use lockkeeper::api::{Activity, Api, ApiLimits, App, Lists, Quota, Quotas};
use lockkeeper::auth::Keyring;
use lockkeeper::lock::locks::Locks;
use lockkeeper::metrics::Metrics;
use lockkeeper::store::embedded::{EmbeddedSettings, EmbeddedStore};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use super::{config, directory};

/// The settings of the service: short leases, so that keys become free again.
const SETTINGS: &str = r#"
[ttl]
default = "1s"
max = "10s"
"#;

/// API keys for requests that bring one: their secrets are "shop" and "root".
const API_KEYS: &str = r#"
[[api_keys]]
name = "shop"
sha256 = "8d9001d32c6a703d95921a77115050f33dd823d3f1730bd35215dcbecad6dc20"
prefixes = ["shop/"]
permissions = ["acquire"]

[[api_keys]]
name = "root"
sha256 = "4813494d137e1631bba301d5acab6e7bb7aa74ce1185d456565ef51d737677b2"
prefixes = [""]
permissions = ["acquire", "read", "admin"]
"#;

/// The services under test, and the runtime that drives them.
struct House {
    runtime: Runtime,
    open: Api,
    keyed: Api,
    _directories: Vec<tempfile::TempDir>,
}

static HOUSE: LazyLock<House> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let directories = vec![directory(), directory()];
    let _guard = runtime.enter();
    let open = api(&directories[0], SETTINGS);
    let keyed = api(&directories[1], &format!("{SETTINGS}{API_KEYS}"));
    House { open, keyed, runtime, _directories: directories }
});

/// Has a request answered, and panics if the answer is not what the contract allows.
pub fn judge(input: &[u8]) {
    let Some(request) = request(input) else { return };
    let house = &*HOUSE;
    let keyed = request.headers().contains_key("authorization");
    let api = if keyed { &house.keyed } else { &house.open };
    let (peer, has_body) = ([127, 0, 0, 1].into(), request.method() != "HEAD");
    house.runtime.block_on(async {
        let answer = api.answer(request, peer).await;
        let status = answer.status().as_u16();
        assert_ne!(status, 500, "a fault of the service");
        let content_type = answer.headers().get(CONTENT_TYPE).cloned();
        let content_type = content_type.as_ref().map_or("", |value| value.to_str().unwrap());
        if content_type == "application/x-ndjson" {
            return; // A stream ends when its body is dropped.
        }
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        if !has_body {
            return; // The connection leaves it out where the routes have not.
        }
        if status >= 400 {
            assert_eq!(content_type, "application/problem+json");
            let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(problem["status"], status);
            assert!(!problem["code"].as_str().unwrap().is_empty());
            assert!(!problem["detail"].as_str().unwrap().is_empty());
        } else if content_type == "application/json" {
            serde_json::from_slice::<serde_json::Value>(&body).unwrap();
        }
    });
}

fn request(input: &[u8]) -> Option<Request> {
    let (head, body) = match input.windows(2).position(|pair| pair == b"\n\n") {
        Some(at) => (&input[..at], &input[at + 2..]),
        None => (input, &[][..]),
    };
    let mut lines = head.split(|byte| *byte == b'\n');
    let mut first = lines.next()?.splitn(2, |byte| *byte == b' ');
    let mut request = Request::builder().method(first.next()?).uri(first.next()?);
    for line in lines {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (name, value) = (parts.next()?, parts.next()?);
        request = request.header(name, value.trim_ascii());
    }
    request.body(Body::from(body.to_vec())).ok()
}

fn api(directory: &tempfile::TempDir, settings: &str) -> Api {
    let mut config = config(directory, settings);
    let metrics = Arc::new(Metrics::for_embedded());
    let store = EmbeddedStore::open(
        &directory.path().join("store"),
        EmbeddedSettings {
            position_kept: config.position_kept(),
            command_timeout: config.embedded.command_timeout.get(),
            prefixes: config.prefixes(),
        },
        metrics.clone(),
    );
    Api::new(Arc::new(App {
        locks: Locks::new(Arc::new(store.unwrap()), config.wait_limits()),
        keyring: Keyring::new(std::mem::take(&mut config.api_keys)),
        hosts: config.allowed_hosts.clone(),
        proxies: config.trusted_proxies.clone(),
        default_owner: config.default_owner,
        ttl: config.ttl_bounds(),
        tokens: config.token_maker(),
        metrics,
        hold_streams: Arc::new(Semaphore::new(100)),
        lists: Lists::new(100),
        activity: Activity::new("fuzz".to_owned()),
        quotas: Arc::new(Quotas::new(Quota::default())),
        limits: ApiLimits {
            body_bytes: config.limits.body_bytes,
            body_time: config.limits.body_time.get(),
            max_wait: Duration::from_millis(1),
        },
    }))
}
