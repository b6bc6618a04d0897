//! Users of Redis that lack a right: nothing false is answered, and nothing is deleted.

use std::path::Path;

use crate::redis_faults::servers::{allow, user_of_the_page};
use crate::redis_faults::{LONG, PATIENCE, acquire, look, refresh, release, service, unavailable};
use crate::support::packages::{unpacked, venv};
use crate::support::{Answer, Http, Process, Redis, Service, eventually};

const FIRST: &str = "token-of-the-first-one";
const SECOND: &str = "token-of-the-second-one";

/// The rights without which leases are kept.
const SPARE: [&str; 3] = ["+publish", "+subscribe", "+scan"];

/// Those that the service can do without altogether: the client library sends the commands, or does
/// not, as it likes.
const FREE: [&str; 2] = ["+ping", "+client"];

/// The commands that the user of the operations page may run.
fn rights() -> Vec<String> {
    user_of_the_page(&[]).into_iter().filter(|word| word.starts_with('+')).collect()
}

/// The URL for the user of the operations page.
fn limited(redis: &Redis) -> String {
    format!("redis://locks:s3cret@{}", redis.address())
}

fn without(redis: &Redis, right: &str) {
    let right = right.replace('+', "-");
    redis.run_words::<()>(&["ACL", "SETUSER", "locks", &right]);
}

/// A lock, and one that two leases share, taken by a user with all rights.
async fn with_leases(redis: &Redis) -> Service {
    let service = service(redis, &[]).await;
    let http = service.http();
    eventually(PATIENCE, async || (http.get("/readyz").await.status == 200).then_some(())).await;
    assert_eq!(acquire(&http, "held", FIRST, LONG).await.status, 201);
    for token in [FIRST, SECOND] {
        let body = format!(r#"{{"token":"{token}","ttl_ms":600000,"slots":3}}"#);
        assert_eq!(http.post("/locks/shared", &body).await.status, 201);
    }
    service
}

/// The leases are there, as a user with all rights sees them.
async fn nothing_is_deleted(http: &Http, right: &str) {
    assert_eq!(refresh(http, "held", FIRST).await.status, 200, "{right}");
    for token in [FIRST, SECOND] {
        assert_eq!(refresh(http, "shared", token).await.status, 200, "{right}");
    }
    assert_eq!(look(http, "shared").await.number("holders"), 2, "{right}");
}

/// True, or no answer at all.
fn is(answer: &Answer, statuses: &[u16], right: &str) {
    let is_unknown = answer.told() == unavailable();
    assert!(is_unknown || statuses.contains(&answer.status), "without {right}: {answer:?}");
}

/// What the verbs answer without this right, beside `all` who has it.
async fn nothing_false_is_answered(http: &Http, all: &Http, right: &str) {
    let own = |kind: &str| format!("{kind}-{}", right.trim_start_matches('+'));
    is(&acquire(http, &own("free"), FIRST, LONG).await, &[201], right);
    let shared = http.token(FIRST).post(&format!("/locks/{}?slots=2", own("room")), "").await;
    is(&shared, &[201], right);
    assert_eq!(acquire(all, &own("mine"), FIRST, LONG).await.status, 201, "{right}");
    is(&release(http, &own("mine"), FIRST).await, &[204], right);
    for (key, token) in [("held", FIRST), ("shared", FIRST), ("shared", SECOND)] {
        is(&refresh(http, key, token).await, &[200], right);
    }
    is(&acquire(http, "held", SECOND, LONG).await, &[409], right);
    is(&http.post("/locks/held?wait=10ms", "").await, &[409], right);
    let told = look(http, "held").await;
    assert!(told.status != 200 || told.field("held") == true, "without {right}: {told:?}");
    let told = look(http, "shared").await;
    assert!(told.status != 200 || told.field("holders") == 2, "without {right}: {told:?}");
    let list = http.get("/locks").await;
    let listed = String::from_utf8_lossy(&list.body).into_owned();
    let has_both = listed.contains("\"held\"") && listed.contains("\"shared\"");
    assert!(list.status != 200 || has_both, "without {right}: {listed}");
}

/// Takes each right in turn from a user that is connected.
async fn rights_are_taken_away(redis: Redis) {
    let all = with_leases(&redis).await;
    let servers = [redis];
    allow(&servers, &[]);
    let [redis] = &servers;
    let limited = limited(redis);
    let less = Service::start(&[("LOCKKEEPER_STORE", &limited)], "").await;
    let http = less.http();
    eventually(PATIENCE, async || (http.get("/readyz").await.status == 200).then_some(())).await;
    for right in rights() {
        without(redis, &right);
        nothing_false_is_answered(&http, &all.http(), &right).await;
        redis.run_words::<()>(&["ACL", "SETUSER", "locks", &right]);
        nothing_is_deleted(&all.http(), &right).await;
        eventually(PATIENCE, async || {
            (refresh(&http, "held", FIRST).await.status == 200).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_taken_away_leads_to_no_false_answer_and_deletes_nothing() {
    rights_are_taken_away(Redis::start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_taken_away_leads_to_no_false_answer_on_the_oldest_redis_and_valkey() {
    for program in [oldest(), valkey()] {
        rights_are_taken_away(Redis::start_program(Path::new(&program))).await;
    }
}

/// Starts the service as a user that lacks each right in turn.
async fn rights_are_missing(redis: Redis) {
    let all = with_leases(&redis).await;
    let servers = [redis];
    for right in rights() {
        allow(&servers, &[]);
        without(&servers[0], &right);
        let service = Process::start(&limited(&servers[0]), &[("LOCKKEEPER_TTL_DEFAULT", "600s")]);
        let http = service.http();
        let name = right.trim_start_matches('+');
        if SPARE.contains(&&*right) || FREE.contains(&&*right) {
            eventually(PATIENCE, async || (http.get("/readyz").await.status == 200).then_some(()))
                .await;
        } else {
            let told = eventually(PATIENCE, async || {
                let told = http.get("/readyz").await;
                assert_eq!(told.status, 503, "without {right}: {told:?}");
                told.text("detail").contains(name).then_some(told)
            })
            .await;
            assert_eq!(told.text("code"), "not_ready");
            assert_eq!(acquire(&http, "held", FIRST, LONG).await.told(), unavailable(), "{right}");
        }
        if !FREE.contains(&&*right) {
            service.logs(name).await;
        }
        nothing_false_is_answered(&http, &all.http(), &right).await;
        nothing_is_deleted(&all.http(), &right).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_a_right_is_told_which_and_nothing_is_served_that_is_false() {
    rights_are_missing(Redis::start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named_on_the_oldest_redis_and_valkey() {
    for program in [oldest(), valkey()] {
        rights_are_missing(Redis::start_program(Path::new(&program))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_not_ready_where_a_command_has_another_name() {
    for (command, right) in [("EVALSHA", "+evalsha"), ("EVAL", "+eval"), ("HMGET", "+hmget")] {
        let arguments = ["--save", "", "--rename-command", command, "other"];
        let redis = Redis::start_with(&arguments);
        let service = service(&redis, &[]).await;
        let told = eventually(PATIENCE, async || {
            let told = service.http().get("/readyz").await;
            assert_eq!(told.status, 503, "{told:?}");
            told.text("detail").contains("lacks").then_some(told)
        })
        .await;
        assert!(told.text("detail").ends_with(&format!("the rights {right}")), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_not_ready_where_it_may_not_ask_the_replicas() {
    let servers = [Redis::start()];
    allow(&servers, &[]);
    let variables = [("LOCKKEEPER_REDIS_MIN_REPLICAS", "1")];
    let service = Process::start(&limited(&servers[0]), &variables);
    eventually(PATIENCE, async || {
        let told = service.http().get("/readyz").await;
        assert_eq!(told.status, 503, "{told:?}");
        told.text("detail").contains("'wait' command").then_some(())
    })
    .await;
    service.logs("'wait' command").await;
}

fn oldest() -> std::path::PathBuf {
    venv("servers/requirements.txt").join("bin/redis-server")
}

fn valkey() -> std::path::PathBuf {
    unpacked(&["valkey-server", "valkey-tools"], "bookworm-backports").join("usr/bin/valkey-server")
}
