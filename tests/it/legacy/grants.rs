//! The legacy file claims no more than the service has granted, and keeps its secrets.

use crate::exec::proxy::{Mode, Proxy};
use crate::legacy::embedded;
use crate::legacy::php::Php;

const KEY_CHANGED: &str = "HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\n\
    {\"code\":\"unauthenticated\",\"detail\":\"unknown API key\",\"type\":\"urn:lockkeeper:unauthenticated\"}";
const RATE_LIMITED: &str = "HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\n\r\n\
    {\"code\":\"rate_limited\",\"message\":\"slow down\"}";
const CANCELLED: &str = "HTTP/1.1 409 Conflict\r\nConnection: close\r\n\r\n\
    {\"code\":\"wait_cancelled\",\"detail\":\"released while it waited\",\
    \"type\":\"urn:lockkeeper:wait_cancelled\"}";
const SUPERSEDED: &str = "HTTP/1.1 409 Conflict\r\nConnection: close\r\nRetry-After: 1\r\n\r\n\
    {\"code\":\"superseded\",\"detail\":\"a newer request waits\",\
    \"type\":\"urn:lockkeeper:superseded\"}";
const HALF_A_GRANT: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"key\":\"key\"}";
const DETAILED: &str = "HTTP/1.1 422 Unprocessable Entity\r\nConnection: close\r\n\r\n\
    {\"detail\":[{\"loc\":[\"path\"],\"msg\":\"bad\"}]}";
const ODD: &str = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n\
    {\"code\":\"odd\",\"detail\":[\"a\"],\"field\":[\"a\"],\"type\":\"urn:lockkeeper:odd\"}";

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_that_fails_leaves_the_end_as_it_was() {
    let (service, _directory) = embedded(&[]);
    for php in Php::ALL {
        for (answer, told) in [
            (KEY_CHANGED, "LockkeeperRefused, unknown"),
            (RATE_LIMITED, "LockkeeperUnavailable, unknown"),
        ] {
            // One of its own: nothing comes late of the process before.
            let proxy = Proxy::before(service.http().address).await;
            proxy.plan(&[Mode::Pass, Mode::LoseAnswer]);
            proxy.plan(&[Mode::Answer(answer); 20]);
            let key = format!("{php:?}/{told}");
            let said = php.gives_up("refresh_failing", &proxy.url(), &key);
            assert_eq!(said, format!("{told}, as before"), "{php:?}");
        }
        let proxy = Proxy::before(service.http().address).await;
        proxy.plan(&[Mode::Pass, Mode::Answer(KEY_CHANGED)]);
        let said = php.says(&["refresh_failing", &proxy.url(), &format!("{php:?}")]);
        assert_eq!(said, "LockkeeperRefused, not_acquired, as before", "{php:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_refreshed_behind_a_release() {
    let (service, _directory) = embedded(&[]);
    for php in Php::ALL {
        let proxy = Proxy::before(service.http().address).await;
        proxy.plan(&[Mode::Pass]);
        proxy.plan(&[Mode::LoseAnswer; 20]);
        let key = format!("{php:?}");
        let said = php.gives_up("refreshing_what_was_released", &proxy.url(), &key);
        assert_eq!(said, "LockkeeperLost, 0 s", "{php:?}");
        let asked = proxy.requests();
        assert!(asked.iter().all(|request| !request.starts_with("PUT")), "{php:?}: {asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_and_a_release_name_their_lease_by_its_fencing_token() {
    let (service, _directory) = embedded(&[]);
    let proxy = Proxy::before(service.http().address).await;
    for php in Php::ALL {
        assert_eq!(php.says(&["keeping", &proxy.url()]), "refreshed, anew, released", "{php:?}");
        let asked = proxy.requests();
        assert!(
            asked[1].starts_with("PUT ") && asked[1].contains("\"fencing_token\":"),
            "{asked:?}"
        );
        assert!(asked[2].starts_with("DELETE /locks/key?fencing_token="), "{asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_cancelled_is_told_as_that() {
    let (service, _directory) = embedded(&[]);
    let proxy = Proxy::before(service.http().address).await;
    for php in Php::ALL {
        proxy.plan(&[Mode::Answer(CANCELLED)]);
        let said = php.says(&["failing", &proxy.url(), "key", "5"]);
        assert_eq!(said, "LockkeeperCancelled: 'key': released while it waited", "{php:?}");
        assert_eq!(proxy.requests().len(), 1, "{php:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_a_newer_request_supersedes_repeats_it_and_gives_up_after_three() {
    let (service, _directory) = embedded(&[]);
    let proxy = Proxy::before(service.http().address).await;
    for php in Php::ALL {
        proxy.plan(&[Mode::Answer(SUPERSEDED); 2]);
        assert_eq!(php.says(&["failing", &proxy.url(), "key", "5"]), "granted", "{php:?}");
        proxy.requests();
        proxy.plan(&[Mode::Answer(SUPERSEDED); 3]);
        let said = php.says(&["failing", &proxy.url(), "key", "5"]);
        assert_eq!(said, "LockkeeperCancelled: 'key': a newer request waits", "{php:?}");
        // It gives back what the newer request may get.
        let asked = proxy.requests();
        assert_eq!((asked.len(), asked[3].starts_with("DELETE ")), (4, true), "{php:?}: {asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_files_own_exceptions_come_out_whatever_the_answer() {
    let (service, _directory) = embedded(&[]);
    let endless: &'static str = Box::leak(
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", "x".repeat(3 << 20))
            .into_boxed_str(),
    );
    for php in Php::NATIVE {
        for answer in [HALF_A_GRANT, DETAILED, ODD, RATE_LIMITED, endless] {
            let proxy = Proxy::before(service.http().address).await;
            proxy.set(Mode::Answer(answer));
            let said = php.gives_up("strict", &proxy.url(), "key");
            assert!(said.starts_with("a LockkeeperException: "), "{php:?}: {said}");
            assert!(!said.contains("Array"), "{php:?}: {said}");
            let proxy = Proxy::before(service.http().address).await;
            proxy.plan(&[Mode::Pass]);
            proxy.plan(&[Mode::Answer(answer); 20]);
            let said = php.gives_up("strict_refresh", &proxy.url(), "key");
            assert_eq!(said, "a LockkeeperException, not released", "{php:?}");
            service.http().delete("/admin/locks/key").await;
        }
    }
}

#[test]
fn no_secret_is_shown_and_none_ends_a_header() {
    let (service, _directory) = embedded(&[]);
    for php in Php::ALL {
        let said = php.says(&["secrets", &service.http().url(), "key", "0", "the-api-key"]);
        assert_eq!(said, "as it has to be", "{php:?}");
    }
}

#[test]
fn a_proxy_of_the_environment_and_times_without_an_end_change_nothing() {
    let (service, _directory) = embedded(&[]);
    for php in Php::NATIVE {
        let mut command = php.command();
        command.env("http_proxy", "http://127.0.0.1:1");
        command.arg(crate::legacy::php::root().join("tests/php/legacy.php"));
        let done = command.args(["endless_patience", &service.http().url()]).output().unwrap();
        assert_eq!(String::from_utf8(done.stdout).unwrap().trim(), "granted", "{php:?}");
    }
}
