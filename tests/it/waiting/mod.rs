//! Waiting in a fair line, on all stores, with one instance and with several.

mod claims;
mod crowd;
mod gone;
mod hand_over;
mod instances;
mod kinds;
mod losses;
mod order;
mod over;
mod rolling;

use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::support::{Answer, Http, Process, Redis, Service, eventually, fleet, in_memory};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The token of whoever has the key while a line builds up.
const HOLDER: &str = "token-of-the-holder";

/// The token of one who waits.
const TOKEN: &str = "token-of-the-waiter";

/// What the services of a test stand on.
pub(crate) struct Stage {
    services: Vec<Service>,
    redis: Option<Redis>,
    _directory: Option<TempDir>,
}

impl Stage {
    /// So many instances on a Redis.
    pub(crate) async fn redis(instances: usize) -> Self {
        Self::redis_with(instances, &[]).await
    }

    /// So many instances on a Redis, with these variables.
    pub(crate) async fn redis_with(instances: usize, variables: &[(&str, &str)]) -> Self {
        let redis = Redis::start();
        let mut services = Vec::new();
        for _ in 0..instances {
            services.push(start(&redis.url(), variables).await);
        }
        Self { services, redis: Some(redis), _directory: None }
    }

    /// One on an embedded store.
    pub(crate) async fn embedded() -> Self {
        Self::embedded_with(&[]).await
    }

    /// One on an embedded store, with these variables.
    pub(crate) async fn embedded_with(variables: &[(&str, &str)]) -> Self {
        let directory = in_memory();
        let store = format!("embedded:{}", directory.path().display());
        let services = vec![start(&store, variables).await];
        Self { services, redis: None, _directory: Some(directory) }
    }

    /// So many instances on servers that tests share.
    async fn shared(instances: usize, url: &str) -> Self {
        let prefix = fleet::prefix();
        let variables = [("LOCKKEEPER_REDIS_KEY_PREFIX", prefix.as_str())];
        let mut services = Vec::new();
        for _ in 0..instances {
            services.push(start(url, &variables).await);
        }
        Self { services, redis: None, _directory: None }
    }

    /// So many instances on the master of sentinels.
    pub(crate) async fn sentinel(instances: usize) -> Self {
        Self::shared(instances, fleet::sentinel()).await
    }

    /// So many instances on a Cluster.
    pub(crate) async fn cluster(instances: usize) -> Self {
        Self::shared(instances, fleet::cluster()).await
    }

    /// The embedded store, and one Redis: that a call is routed changes nothing of what it does.
    pub(crate) async fn each() -> [Self; 2] {
        Self::each_with(&[]).await
    }

    /// Both, with these variables.
    pub(crate) async fn each_with(variables: &[(&str, &str)]) -> [Self; 2] {
        [Self::embedded_with(variables).await, Self::redis_with(1, variables).await]
    }

    /// A client of an instance, taken in turn.
    pub(crate) fn http(&self, number: usize) -> Http {
        self.services[number % self.services.len()].http()
    }

    pub(crate) fn redis_server(&self) -> &Redis {
        self.redis.as_ref().unwrap()
    }
}

async fn start(store: &str, variables: &[(&str, &str)]) -> Service {
    let mut all = vec![("LOCKKEEPER_STORE", store)];
    all.extend_from_slice(variables);
    let service = Service::start(&all, "").await;
    let http = service.http();
    eventually(PATIENCE, async || ready(&http).await.then_some(())).await;
    service
}

/// A service in a process of its own, once it has reached its store.
pub(crate) async fn process(store: &str, variables: &[(&str, &str)]) -> Process {
    let process = Process::start(store, variables);
    let http = process.http();
    eventually(PATIENCE, async || ready(&http).await.then_some(())).await;
    process
}

async fn ready(http: &Http) -> bool {
    http.get("/readyz").await.status == 200
}

/// Takes the key as the holder, for long.
async fn hold(http: &Http, key: &str) -> Answer {
    let body = format!(r#"{{"token":"{HOLDER}","ttl_ms":600000}}"#);
    let granted = http.post(&format!("/locks/{key}"), &body).await;
    assert_eq!(granted.status, 201, "{granted:?}");
    granted
}

/// Releases until it is answered: a connection to Redis may break meanwhile.
async fn release(http: &Http, key: &str, token: &str) {
    let http = http.token(token);
    eventually(PATIENCE, async || {
        let answer = http.delete(&format!("/locks/{key}")).await;
        [204, 409].contains(&answer.status).then_some(())
    })
    .await;
}

/// A request that waits, with a token that the service makes.
fn wait(http: &Http, key: &str, wait: &str) -> JoinHandle<Answer> {
    post(http, format!("/locks/{key}?wait={wait}&ttl=10m"), String::new())
}

/// A request that waits, with this token.
pub(crate) fn wait_as(http: &Http, key: &str, token: &str, wait: &str) -> JoinHandle<Answer> {
    let body = format!(r#"{{"token":"{token}"}}"#);
    post(http, format!("/locks/{key}?wait={wait}&ttl=10m"), body)
}

#[expect(clippy::disallowed_methods, reason = "the test that asks awaits or aborts it")]
fn post(http: &Http, path: String, body: String) -> JoinHandle<Answer> {
    let http = http.clone();
    tokio::spawn(async move { http.post(&path, &body).await })
}

/// How many wait, in the words of the service.
pub(crate) async fn waiters(http: &Http, key: &str) -> u64 {
    http.get(&format!("/locks/{key}")).await.number("waiters")
}

/// Until so many wait.
pub(crate) async fn until_waiters(http: &Http, key: &str, wanted: u64) {
    eventually(PATIENCE, async || (waiters(http, key).await == wanted).then_some(())).await;
}

/// The answer to a request, which has to come within the patience of a test.
async fn answer(request: JoinHandle<Answer>) -> Answer {
    tokio::time::timeout(PATIENCE, request).await.expect("an answer").unwrap()
}

/// The grant to a request that waited.
async fn granted(request: JoinHandle<Answer>) -> Answer {
    let answer = answer(request).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    answer
}

fn held() -> (u16, String) {
    (409, "lock_held".to_owned())
}
