//! Other servers than the one that most tests run on, and users with no more rights than they need.

use std::path::Path;

use crate::redis_faults::{LONG, PATIENCE, acquire, held, look, refresh, release, unavailable};
use crate::support::fleet::Clustered;
use crate::support::packages::{unpacked, venv};
use crate::support::{Http, Process, Redis, eventually};

const FIRST: &str = "token-of-the-first-one";
const SECOND: &str = "token-of-the-second-one";

/// Has a service on this store do all that it can; `flush` makes the servers forget its scripts.
async fn all_verbs_work(url: &str, variables: &[(&str, &str)], flush: impl Fn()) {
    let service = Process::start(url, variables);
    let http = service.http();
    eventually(PATIENCE, async || (http.get("/readyz").await.status == 200).then_some(())).await;
    for key in ["one", "two", "three", "four", "five", "six"] {
        let first = acquire(&http, key, FIRST, LONG).await;
        assert_eq!(first.status, 201, "{first:?}");
        assert_eq!(acquire(&http, key, FIRST, LONG).await.status, 200);
        assert_eq!(acquire(&http, key, SECOND, LONG).await.told(), held());
        let given_up = http.post(&format!("/locks/{key}?wait=10ms"), "").await;
        assert_eq!(given_up.told(), held(), "{given_up:?}");
        flush();
        let body = format!(r#"{{"token":"{SECOND}"}}"#);
        let path = format!("/locks/{key}?wait=20s");
        let handing_on = async {
            eventually(PATIENCE, async || {
                (look(&http, key).await.number("waiters") == 1).then_some(())
            })
            .await;
            assert_eq!(refresh(&http, key, FIRST).await.status, 200);
            assert_eq!(release(&http, key, FIRST).await.status, 204);
        };
        let (second, ()) = tokio::join!(http.post(&path, &body), handing_on);
        assert_eq!(second.status, 201, "{second:?}");
        assert!(second.number("fencing_token") > first.number("fencing_token"), "{second:?}");
        let listed = http.get("/locks").await.field("locks").to_string();
        assert!(listed.contains(&format!("\"{key}\"")), "{listed}");
        assert_eq!(http.delete(&format!("/admin/locks/{key}")).await.status, 200);
        shared_verbs_work(&http, key).await;
    }
    let log = service.log();
    assert!(!log.contains("\"WARN\"") && !log.contains("\"ERROR\""), "{log}");
}

async fn shared_verbs_work(http: &Http, key: &str) {
    let path = format!("/locks/{key}?slots=2");
    for token in [FIRST, SECOND] {
        let granted = http.token(token).post(&path, "").await;
        assert_eq!(granted.status, 201, "{granted:?}");
    }
    let full = http.post(&format!("{path}&wait=10ms"), "").await;
    assert_eq!((full.told(), full.number("holders")), (held(), 2), "{full:?}");
    assert_eq!(refresh(http, key, FIRST).await.status, 200);
    assert_eq!(release(http, key, FIRST).await.status, 204);
    assert_eq!(look(http, key).await.number("holders"), 1);
    assert_eq!(http.delete(&format!("/admin/locks/{key}")).await.status, 200);
}

/// What goes on, and what does not, when a server has no memory left.
async fn memory_is_used_up(server: &Redis) {
    let service = Process::start(&server.url(), &[]);
    let http = service.http();
    for key in ["mine", "other"] {
        eventually(PATIENCE, async || {
            (acquire(&http, key, FIRST, LONG).await.status == 201).then_some(())
        })
        .await;
    }
    server.run::<()>("CONFIG SET maxmemory 1");
    let new = http.post("/locks/new", "").await;
    assert_eq!((new.told(), &*new.text("outcome")), (unavailable(), "not_acquired"), "{new:?}");
    assert_eq!(refresh(&http, "mine", FIRST).await.status, 200);
    assert_eq!(release(&http, "mine", FIRST).await.status, 204);
}

async fn serves(program: &Path) {
    let server = Redis::start_program(program);
    all_verbs_work(&server.url(), &[], || server.run("SCRIPT FLUSH")).await;
    memory_is_used_up(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_redis_that_is_supported_serves_all_verbs() {
    serves(&venv("servers/requirements.txt").join("bin/redis-server")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn valkey_serves_all_verbs() {
    let packages = unpacked(&["valkey-server", "valkey-tools"], "bookworm-backports");
    serves(&packages.join("usr/bin/valkey-server")).await;
}

/// The user that the operations page makes, with further rights.
pub(super) fn user_of_the_page(further: &[&str]) -> Vec<String> {
    let page = std::fs::read_to_string("docs/operations.md").unwrap();
    let (_, command) = page.split_once("redis-cli ACL SETUSER ").unwrap();
    let (command, _) = command.split_once("```").unwrap();
    let command = command.replace(['\\', '\''], "").replace("PASSWORD", "s3cret");
    let further = further.iter().copied();
    ["ACL", "SETUSER"]
        .into_iter()
        .chain(command.split_whitespace())
        .chain(further)
        .map(str::to_owned)
        .collect()
}

/// Makes that user on these servers, with further rights.
pub(super) fn allow(servers: &[Redis], further: &[&str]) {
    let words = user_of_the_page(further);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    servers.iter().for_each(|server| server.run_words(&words));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_user_of_the_operations_page_can_do_all() {
    let servers = [Redis::start()];
    allow(&servers, &[]);
    let url = format!("redis://locks:s3cret@{}", servers[0].address());
    all_verbs_work(&url, &[], || servers[0].run("SCRIPT FLUSH")).await;

    allow(&servers, &["+select"]);
    all_verbs_work(&format!("{url}/3"), &[], || servers[0].run("SCRIPT FLUSH")).await;

    let clustered = Clustered::replicated().await;
    let further = ["+cluster", "+asking", "+wait"];
    allow(&clustered.masters, &further);
    allow(&clustered.replicas, &further);
    let url = clustered.url().replace("://", "://locks:s3cret@");
    let variables = [("LOCKKEEPER_REDIS_MIN_REPLICAS", "1")];
    let flush = || clustered.masters.iter().for_each(|node| node.run("SCRIPT FLUSH"));
    all_verbs_work(&url, &variables, flush).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_behind_a_unix_socket_serves_all_verbs() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("redis.sock").display().to_string();
    let redis = Redis::start_with(&["--unixsocket", &socket]);
    all_verbs_work(&format!("redis+unix://{socket}?db=1"), &[], || {
        redis.run::<()>("SCRIPT FLUSH");
    })
    .await;
    assert_eq!(redis.run::<u64>("DBSIZE"), 0, "database 0 is not used");
}
