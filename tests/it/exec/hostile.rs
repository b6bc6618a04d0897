//! Answers that a lockkeeper does not give, and services that should not be trusted.

use std::process::Command;

use crate::exec::proxy::{Mode, Proxy};
use crate::exec::{Ran, Stage, exec};
use crate::support::process::{BINARY, command};

/// Would colour the terminal, and more.
const ESCAPES: &str = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n\
                       {\"type\":\"urn:lockkeeper:invalid_request\",\"code\":\"invalid_request\",\"detail\":\"\\u001b[31mred\\u009b2J\"}";

const COLOURED: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n\
                        {\"key\":\"k\",\"held\":true,\"owner\":\"\\u001b[31mred\",\"waiters\":0,\
                        \"more\":\"\u{9b}2J\"}";

const ENDLESS: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"locks\":[],\"cursor\":\"a\"}";

const ANOTHERS: &str = "HTTP/1.1 201 Created\r\nConnection: close\r\n\r\n\
                        {\"token\":\"a-token-of-another\",\"key\":\"another\",\"fencing_token\":7,\
                        \"ttl_ms\":30000,\"waited_ms\":0}";

const PAGE: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<html></html>";

const FORBIDDEN: &str = "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n<html></html>";

const CONFLICT: &str = "HTTP/1.1 409 Conflict\r\nConnection: close\r\n\r\n<html></html>";

const LOST: &str = "HTTP/1.1 409 Conflict\r\nConnection: close\r\n\r\n\
                    {\"type\":\"urn:lockkeeper:lock_lost\",\"code\":\"lock_lost\",\"detail\":\"the lease is lost\"}";

const CANCELLED: &str = "HTTP/1.1 409 Conflict\r\nConnection: close\r\n\r\n\
                         {\"type\":\"urn:lockkeeper:wait_cancelled\",\"code\":\"wait_cancelled\",\"detail\":\"cancelled\",\"waited_ms\":5}";

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_writes_control_characters_to_a_terminal() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    proxy.set(Mode::Answer(ESCAPES));
    for verb in [&["exec", "-n", "k", "true"][..], &["acquire", "-n", "k"], &["get", "k"]] {
        let ran = run(&proxy, verb);
        assert_eq!(
            (ran.code, &*ran.err),
            (Some(125), "lockkeeper: 'k': \\u{1b}[31mred\\u{9b}2J\n")
        );
    }
    proxy.set(Mode::Answer(COLOURED));
    assert_eq!(run(&proxy, &["get", "k"]).out, "k\theld\t-\t-\t0\t\\u{1b}[31mred\n");
    let shown = run(&proxy, &["get", "--json", "k"]).out;
    assert!(!shown.trim_end().contains(char::is_control), "{shown:?}");
    let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(read["more"], "\u{9b}2J");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_does_not_end_is_an_error() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    proxy.set(Mode::Answer(ENDLESS));
    let ran = run(&proxy, &["list"]);
    let told = "lockkeeper: the service repeats a page of the list\n";
    assert_eq!((ran.code, &*ran.err), (Some(125), told));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_for_another_claim_is_none() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    proxy.set(Mode::Answer(ANOTHERS));
    let marker = stage.path("started");
    let ran = Ran::of(exec(&proxy.url(), &["-n", "k", "touch", &marker]).output().unwrap());
    let told = "lockkeeper: 'k': the answer is for another claim\n";
    assert_eq!((ran.code, &*ran.err), (Some(69), told));
    assert!(!std::path::Path::new(&marker).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_a_proxy_gives_nothing_back() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    proxy.plan(&[Mode::Pass, Mode::Answer(PAGE), Mode::Answer(PAGE), Mode::Answer(PAGE)]);
    let ran = Ran::of(exec(&proxy.url(), &["k", "true"]).output().unwrap());
    let told = "lockkeeper: 'k' was not released; it will expire\n";
    assert_eq!((ran.code, &*ran.err), (Some(0), told));
    assert_eq!(stage.look("k").await["held"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_whose_grant_a_gateway_hides_by_a_refusal_is_given_back() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    for verb in [&["exec", "k", "true"][..], &["acquire", "k"]] {
        proxy.plan(&[Mode::Instead(FORBIDDEN)]);
        let ran = run(&proxy, verb);
        let told = "lockkeeper: 'k': the answer is 403 and not from lockkeeper\n";
        assert_eq!((ran.code, &*ran.err), (Some(125), told), "{verb:?}");
        assert_eq!(stage.look("k").await["held"], false, "{verb:?}");
    }
    proxy.plan(&[Mode::Instead(CONFLICT)]);
    let ran = run(&proxy, &["exec", "k", "true"]);
    assert_eq!((ran.code, &*ran.err), (Some(0), ""), "it asked again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_gone_at_the_end_counts_as_lost_unless_an_earlier_release_may_have_ended_it()
 {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    for (flags, code) in [(&[][..], 79), (&["--on-lost", "warn"], 0)] {
        proxy.plan(&[Mode::Pass, Mode::Answer(LOST)]);
        let ran = Ran::of(exec(&proxy.url(), &[flags, &["k", "true"]].concat()).output().unwrap());
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.err.contains("or a proxy sent the release twice"), "{}", ran.err);
        stage.service.http().delete("/admin/locks/k").await;
    }
    proxy.plan(&[Mode::Pass, Mode::LoseAnswer]);
    let ran = Ran::of(exec(&proxy.url(), &["k", "true"]).output().unwrap());
    assert_eq!((ran.code, &*ran.err), (Some(0), ""));
    // A request that lets it last until then has not ended it before.
    proxy.plan(&[Mode::Pass, Mode::LoseAnswer, Mode::Answer(LOST)]);
    let kept = ["--min-hold", "1m", "k", "true"];
    assert_eq!(Ran::of(exec(&proxy.url(), &kept).output().unwrap()).code, Some(79));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_released_while_it_waits_ends_with_79() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    proxy.set(Mode::Answer(CANCELLED));
    let marker = stage.path("started");
    for verb in [&["exec", "k", "touch", &marker][..], &["acquire", "k"]] {
        let ran = run(&proxy, verb);
        let told = "lockkeeper: the claim on 'k' was released while it waited\n";
        assert_eq!((ran.code, &*ran.err, &*ran.out), (Some(79), told, ""), "{verb:?}");
    }
    assert!(!std::path::Path::new(&marker).exists());
}

#[test]
fn an_api_key_that_goes_over_http_to_another_host_is_warned_of() {
    let nowhere = "http://0.0.0.0:1";
    let get = |flags: &[&str], plain: &str| {
        let mut get = command(BINARY);
        get.args(["get", "-u", nowhere]).args(flags).arg("k");
        get.env("LOCKKEEPER_API_KEY", "secret").env("LOCKKEEPER_PLAIN_HTTP", plain);
        Ran::of(get.output().unwrap()).err
    };
    let told = "lockkeeper: the API key goes to 0.0.0.0 unencrypted: use https://, or allow it \
                (--plain-http)\n";
    assert!(get(&[], "0").starts_with(told), "{}", get(&[], "0"));
    assert!(!get(&["--plain-http"], "").contains("unencrypted"));
    assert!(!get(&[], "1").contains("unencrypted"));
    let mut exec = command(BINARY);
    exec.args(["exec", "-n", "-u", nowhere, "--also", "l", "k", "true"]);
    let ran = Ran::of(exec.env("LOCKKEEPER_API_KEY", "secret").output().unwrap());
    assert_eq!(ran.err.matches("unencrypted").count(), 1, "{}", ran.err);
}

#[test]
fn no_secret_of_the_environment_is_shown() {
    for arguments in [&["exec", "--help"][..], &["get", "--help"], &["get", "k"]] {
        let mut verb = command(BINARY);
        verb.args(arguments).env("LOCKKEEPER_URL", "http://jane:s3cret-password@host");
        let ran = Ran::of(verb.env("LOCKKEEPER_API_KEY", "s3cret-key").output().unwrap());
        assert!(!format!("{}{}", ran.out, ran.err).contains("s3cret"), "{ran:?}");
    }
}

fn run(proxy: &Proxy, arguments: &[&str]) -> Ran {
    let mut run: Command = command(BINARY);
    Ran::of(run.args(arguments).env("LOCKKEEPER_URL", proxy.url()).output().unwrap())
}
