//! Answers that are lost, late, not from the service or not good.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;

use crate::exec::proxy::{Mode, Proxy};
use crate::legacy::php::Php;
use crate::legacy::{HOLDER, embedded};
use crate::support::{NOWHERE, PATIENCE, eventually};

/// What a start of PHP and a busy machine add.
const SLACK: Duration = Duration::from_secs(20);

/// How often it may give up after its first question.
const TRIES: usize = 5;

/// What a service that does not answer costs at most, as the page says, with a patience of 3 s.
const MOST: Duration = Duration::from_secs(2 * 3 + 3);

/// Waits for answers for as long as a busy machine takes, and no longer than a test can.
fn repeats(php: Php, url: &str) -> String {
    php.says(&["failing", url, "key", "0", "", "4"])
}

const BAD_GATEWAY: &str = "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\n\
    Content-Length: 24\r\nConnection: close\r\n\r\n<html>Bad gateway</html>";
const NOT_OURS: &str = "HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n\
    Content-Length: 22\r\nConnection: close\r\n\r\n<html>Not found</html>";
const UNKNOWN: &str = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n\
    {\"code\":\"store_unavailable\",\"detail\":\"no answer\",\"outcome\":\"unknown\",\
    \"type\":\"urn:lockkeeper:store_unavailable\"}";
const NOT_ACQUIRED: &str = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n\
    {\"code\":\"store_unavailable\",\"detail\":\"no store\",\"outcome\":\"not_acquired\",\
    \"type\":\"urn:lockkeeper:store_unavailable\"}";
const DRAINING: &str = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\
    Retry-After: 0\r\n\r\n{\"code\":\"draining\",\"detail\":\"going down\",\
    \"type\":\"urn:lockkeeper:draining\"}";
const OF_ANOTHER_KEY: &str = "HTTP/1.1 201 Created\r\nConnection: close\r\n\r\n\
    {\"token\":\"another-token-0123\",\"key\":\"another\",\"fencing_token\":7,\"ttl_ms\":60000,\
    \"waited_ms\":0}";

/// The lease tokens of some requests.
fn tokens(requests: &[String]) -> Vec<&str> {
    let lines = requests.iter().flat_map(|request| request.lines());
    let mut tokens: Vec<_> = lines.filter_map(|line| line.strip_prefix("Lock-Token: ")).collect();
    tokens.dedup();
    tokens
}

fn count(requests: &[String], method: &str) -> usize {
    requests.iter().filter(|request| request.starts_with(method)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_good_answer_is_repeated_with_the_same_token() {
    let (service, _directory) = embedded(&[]);
    let proxy = Proxy::before(service.http().address).await;
    for php in Php::ALL {
        for fault in [
            Mode::HangUp,
            Mode::LoseAnswer,
            Mode::KeepAnswer,
            Mode::Instead(BAD_GATEWAY),
            Mode::Answer(BAD_GATEWAY),
            Mode::Answer(UNKNOWN),
            Mode::Answer(NOT_ACQUIRED),
            Mode::Answer(DRAINING),
            Mode::Answer(OF_ANOTHER_KEY),
            Mode::Instead(OF_ANOTHER_KEY),
        ] {
            proxy.plan(&[fault]);
            assert_eq!(repeats(php, &proxy.url()), "granted", "{php:?} {fault:?}");
            let requests = proxy.requests();
            assert_eq!((count(&requests, "POST"), count(&requests, "DELETE")), (2, 1));
            assert_eq!(tokens(&requests).len(), 1, "{requests:?}");
            assert_eq!(service.http().get("/locks/key").await.field("held"), false);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_gives_up_says_in_time_what_is_known_and_leaves_nothing_held() {
    let (service, _directory) = embedded(&[]);
    let http = service.http();
    let proxy = Proxy::before(http.address).await;
    for php in Php::ALL {
        for (fault, expected) in [
            (Mode::HangUp, "unknown"),
            (Mode::Swallow, "unknown"),
            (Mode::LoseAnswer, "unknown"),
            (Mode::Answer(UNKNOWN), "unknown"),
            (Mode::Answer(NOT_ACQUIRED), "not_acquired"),
        ] {
            let mut tries = Vec::new();
            // On a busy machine its patience may be over with the first answer, or before an answer.
            while tries.len() < TRIES && tries.iter().all(|posts| *posts < 2) {
                proxy.set(fault);
                let began = Instant::now();
                let said = php.gives_up("failing", &proxy.url(), "key");
                assert!(began.elapsed() < MOST + SLACK, "{:?}", began.elapsed());
                let late = tries.len() + 1 < TRIES && said.starts_with("unavailable, unknown: ");
                let outcome = if late { "unknown" } else { expected };
                let told = format!("unavailable, {outcome}: 'key': ");
                assert!(said.starts_with(&told), "{php:?} {fault:?}: {said}");
                let requests = proxy.requests();
                tries.push(if outcome == expected { count(&requests, "POST") } else { 0 });
                assert_eq!(count(&requests, "DELETE"), usize::from(outcome == "unknown"));
                assert!(tokens(&requests).iter().all(|token| !said.contains(token)));
                assert_eq!(http.get("/locks/key").await.field("held"), false, "{php:?} {fault:?}");
            }
            assert!(tries.iter().any(|posts| *posts >= 2), "{php:?} {fault:?}: {tries:?}");
        }
    }
}

#[test]
fn where_nobody_listens_nothing_was_acquired() {
    for php in Php::ALL {
        let url = format!("http://{NOWHERE}");
        let said = php.gives_up("failing", &url, "key");
        // What is PHP 7.2 here does not tell streams that a connection was refused.
        let outcome = if php == Php::OldWithoutCurl { "unknown" } else { "not_acquired" };
        assert!(said.starts_with(&format!("unavailable, {outcome}: 'key': ")), "{php:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_from_the_service_is_a_refusal_without_a_code() {
    let (service, _directory) = embedded(&[]);
    let proxy = Proxy::before(service.http().address).await;
    for php in Php::ALL {
        proxy.plan(&[Mode::Answer(NOT_OURS)]);
        let said = php.says(&["failing", &proxy.url()]);
        assert_eq!(said, "refused, 404 : 'key': HTTP 404, and not from lockkeeper", "{php:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_key_is_null_at_once_or_after_the_wait() {
    let (service, _directory) = embedded(&[]);
    let http = service.http();
    assert_eq!(http.token(HOLDER).post("/locks/key?ttl=1h", "").await.status, 201);
    for php in Php::ALL {
        assert_eq!(php.says(&["failing", &http.url()]), "busy", "{php:?}");
        let began = Instant::now();
        assert_eq!(php.says(&["failing", &http.url(), "key", "0.5"]), "busy", "{php:?}");
        assert!(began.elapsed() >= Duration::from_millis(500), "{php:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_beyond_the_services_cap_is_one_claim_and_what_remains_is_never_too_much() {
    for cap in ["300ms", "20ms"] {
        let (service, _directory) = embedded(&[("LOCKKEEPER_LIMITS_MAX_WAIT", cap)]);
        let http = service.http();
        let proxy = Proxy::before(http.address).await;
        for php in Php::ALL {
            let holder = http.token(HOLDER);
            assert_eq!(holder.post("/locks/key", "").await.status, 201);
            let url = proxy.url();
            let says = spawn_blocking(move || php.says(&["acquire", &url, "key", "20"]));
            let requests = RefCell::new(Vec::new());
            let asked = || {
                requests.borrow_mut().extend(proxy.requests());
                count(&requests.borrow(), "POST")
            };
            eventually(PATIENCE, async || (asked() > 0).then_some(())).await;
            let began = Instant::now();
            eventually(PATIENCE, async || (asked() >= 10).then_some(())).await;
            // Nine pauses of 200 ms; the first request may have been noticed late.
            assert!(began.elapsed() > Duration::from_millis(900), "{php:?}: {:?}", began.elapsed());
            assert_eq!(holder.delete("/locks/key").await.status, 204);
            assert_eq!(says.await.unwrap(), "granted", "{php:?}");
            asked();
            assert_eq!(tokens(&requests.borrow()).len(), 1, "{php:?}: {requests:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_and_a_release_outlive_lost_answers_and_tell_of_lost_leases() {
    let (service, _directory) = embedded(&[]);
    let proxy = Proxy::before(service.http().address).await;
    let lost = concat!(
        "HTTP/1.1 409 Conflict\r\nConnection: close\r\n\r\n",
        r#"{"code":"lock_lost","detail":"the lease is lost","type":"urn:lockkeeper:lock_lost"}"#
    );
    for php in Php::ALL {
        for (plan, told) in [
            (vec![], "refreshed, anew, released"),
            (vec![Mode::LoseAnswer], "refreshed, anew, released"),
            (vec![Mode::Instead(BAD_GATEWAY)], "refreshed, anew, released"),
            // A repeat that finds no lease cannot know whether it had lasted.
            (vec![Mode::Pass, Mode::LoseAnswer], "refreshed, anew, not released"),
            (vec![Mode::Pass, Mode::Instead(BAD_GATEWAY)], "refreshed, anew, not released"),
            (vec![Mode::Pass, Mode::Answer(UNKNOWN)], "refreshed, anew, released"),
            (vec![Mode::Pass, Mode::Answer(lost)], "refreshed, anew, not released"),
            (vec![Mode::Answer(lost)], "LockkeeperLost, not released"),
            (vec![Mode::Answer(NOT_OURS)], "LockkeeperRefused, released"),
        ] {
            proxy.plan(&[Mode::Pass]);
            proxy.plan(&plan);
            let said = php.says(&["keeping", &proxy.url()]);
            assert_eq!(said, told, "{php:?} {plan:?}");
            proxy.requests();
            service.http().delete("/admin/locks/key").await;
        }
        proxy.plan(&[Mode::Pass]);
        proxy.set(Mode::HangUp);
        let said = php.gives_up("keeping", &proxy.url(), &format!("down/{php:?}"));
        assert_eq!(said, "LockkeeperUnavailable, not released", "{php:?}");
        proxy.set(Mode::Pass);
    }
}
