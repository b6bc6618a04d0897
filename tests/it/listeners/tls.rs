//! TLS on the wire: versions, client certificates, half handshakes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::listeners::{Secured, lockkeeper, printed};
use crate::support::certificates::Certificates;
use crate::support::{PATIENCE, eventually};

#[test]
fn a_client_that_prefers_http_2_gets_http_1_1() {
    let secured = Secured::start(&[]);
    assert!(secured.service.url().starts_with("https://"), "{}", secured.service.log());
    for flag in ["--http1.1", "--http2"] {
        let output = secured
            .curl(&format!("/locks/{flag}"))
            .args(["-X", "POST", flag, "-w", " %{http_version} %{http_code}"])
            .output()
            .unwrap();
        let told = printed(&output);
        assert!(told.ends_with(" 1.1 201"), "{told}");
        assert!(told.contains("fencing_token"), "{told}");
    }
    for version in ["1.2", "1.3"] {
        let mut curl = secured.curl("/healthz");
        let output = curl.args(["--tls-max", version, "--tlsv1.2"]).output().unwrap();
        assert!(printed(&output).contains("ok"), "{version}: {}", printed(&output));
    }
    let old = secured.curl("/healthz").args(["--tls-max", "1.1", "--tlsv1.0"]).output().unwrap();
    assert!(!old.status.success(), "{}", printed(&old));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_cut() {
    let secured = Secured::start(&[]);
    let mut deaf = secured.connect(&[b"http/1.1"]).await;
    // More than the system keeps for one that does not read.
    let request = "GET /docs/scalar.js HTTP/1.1\r\nhost: localhost\r\n\r\n";
    deaf.write_all(request.repeat(30).as_bytes()).await.unwrap();
    // With that of curl.
    for connected in [2, 1] {
        let line = format!("\nlockkeeper_http_connections {connected}\n");
        eventually(Duration::from_secs(60), async || {
            let output = secured.curl("/metrics").output().unwrap();
            printed(&output).contains(&line).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_is_required() {
    let secured = Secured::start(&[("LOCKKEEPER_TLS_CLIENT_CA", "ca.pem")]);
    let (own, strange) = (&secured.certificates, Certificates::make());
    own.sign("client", "2");
    strange.sign("client", "2");
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| own.path(name));
    let shown = |from: &Certificates| {
        let mut curl = secured.curl("/locks/a");
        curl.args(["-X", "POST", "--cert", &from.path("client.pem")]);
        printed(&curl.args(["--key", &from.path("client.key")]).output().unwrap())
    };
    assert!(shown(own).contains("fencing_token"), "{}", shown(own));
    assert!(!shown(&strange).contains("fencing_token"), "{}", shown(&strange));
    let without = secured.curl("/locks/a").output().unwrap();
    assert!(!without.status.success(), "{}", printed(&without));
    secured.service.logs("TLS handshake failed").await;
    // The command line has the same certificate, and health needs none.
    let url = secured.service.url();
    let trusting = ["get", "-u", url, "--ca", &ca, "a"];
    let refused = lockkeeper(&trusting).output().unwrap();
    assert_eq!(refused.status.code(), Some(69), "{}", printed(&refused));
    let mut arguments = trusting.to_vec();
    arguments.extend(["--cert", &cert, "--cert-key", &key]);
    let output = lockkeeper(&arguments).output().unwrap();
    assert!(output.status.success(), "{}", printed(&output));
    let output = lockkeeper(&["get", "-u", url, "a"])
        .envs([("LOCKKEEPER_CA", &ca), ("LOCKKEEPER_CERT", &cert), ("LOCKKEEPER_CERT_KEY", &key)])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", printed(&output));
    eventually(PATIENCE, async || health(&secured).contains("is alive").then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_health_of_a_service_with_tls_is_checked_by_its_own_settings() {
    let secured = Secured::start(&[]);
    eventually(PATIENCE, async || health(&secured).contains("is alive").then_some(())).await;
    let url = secured.service.url();
    let doubting = lockkeeper(&["get", "-u", url, "a"]).output().unwrap();
    assert_eq!(doubting.status.code(), Some(69), "{}", printed(&doubting));
    let ca = secured.certificates.path("ca.pem");
    let output = lockkeeper(&["get", "-u", url, "--ca", &ca, "a"]).output().unwrap();
    assert!(output.status.success(), "{}", printed(&output));
    let none = lockkeeper(&["get", "-u", url, "--ca", "/nonexistent", "a"]).output().unwrap();
    assert_eq!(none.status.code(), Some(125), "{}", printed(&none));
    assert!(printed(&none).contains("--ca: cannot read /nonexistent"), "{}", printed(&none));
}

/// `is alive`, or what the health check says.
fn health(secured: &Secured) -> String {
    let [certificate, key] = ["server.pem", "server.key"].map(|one| secured.certificates.path(one));
    let listen = secured.service.address().to_string();
    let output = lockkeeper(&["healthcheck", "--listen", &listen])
        .envs([("LOCKKEEPER_TLS_CERTIFICATE", certificate), ("LOCKKEEPER_TLS_KEY", key)])
        .output()
        .unwrap();
    if output.status.success() { "is alive".to_owned() } else { printed(&output) }
}

#[test]
fn http_without_tls_is_told_to_use_it() {
    let secured = Secured::start(&[]);
    let mut plain = TcpStream::connect(secured.service.address()).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain.write_all(b"POST /locks/a HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.ends_with("this address speaks TLS: call https://\r\n"), "{answer}");
    let length = answer.split_once("\r\n\r\n").unwrap().1.len();
    assert!(answer.contains(&format!("content-length: {length}\r\n")), "{answer}");
    let url = format!("http://{}", secured.service.address());
    let told = printed(&lockkeeper(&["list", "--url", &url]).output().unwrap());
    assert_eq!(told, "lockkeeper: TLS is spoken there: is it https://?\n");
    let mut strange = TcpStream::connect(secured.service.address()).unwrap();
    strange.set_read_timeout(Some(PATIENCE)).unwrap();
    strange.write_all(b"\0\0\0\0").unwrap();
    assert_eq!(strange.read(&mut [0; 64]).unwrap_or(0), 0);
}

#[test]
fn half_handshakes_block_nobody_and_are_cut() {
    let secured = Secured::start(&[
        ("LOCKKEEPER_LIMITS_HEAD_TIME", "2s"),
        ("LOCKKEEPER_LIMITS_CONNECTIONS", "40"),
    ]);
    // The head of a handshake of 512 bytes, of which nothing follows; and nothing at all.
    let begun: Vec<_> = [&[22, 3, 1, 2, 0][..], &[]]
        .into_iter()
        .cycle()
        .take(60)
        .map(|bytes| {
            let mut half = TcpStream::connect(secured.service.address()).unwrap();
            half.set_read_timeout(Some(PATIENCE)).unwrap();
            half.write_all(bytes).unwrap();
            half
        })
        .collect();
    let output = secured.curl("/locks/a").args(["-X", "POST"]).output().unwrap();
    assert!(printed(&output).contains("fencing_token"), "{}", printed(&output));
    for mut half in begun {
        // Nothing, or a reset: but an end.
        assert_eq!(half.read(&mut [0; 64]).unwrap_or(0), 0);
    }
    secured.service.signal("TERM");
    assert_eq!(secured.service.wait(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_proxies_could_read_in_two_ways_is_refused_over_tls_too() {
    let secured = Secured::start(&[]);
    for (lines, status) in [("X-Bare: one\n", 400), ("X-Whole: one\r\n", 200)] {
        let mut stream = secured.connect(&[]).await;
        let head = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).await.unwrap();
        assert_eq!(begin, format!("HTTP/1.1 {status}").as_bytes(), "{lines:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_leaves_the_line_over_tls_too() {
    let secured = Secured::start(&[]);
    let waiters = async || {
        let output = secured.curl("/metrics").output().unwrap();
        let lines = printed(&output);
        let line = lines.lines().find(|line| line.starts_with("lockkeeper_waiters ")).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()
    };
    let held = secured.curl("/locks/line").args(["-X", "POST"]).output().unwrap();
    assert!(printed(&held).contains("fencing_token"), "{}", printed(&held));
    for behind in ["", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        let mut stream = secured.connect(&[]).await;
        let head = "POST /locks/line?wait=25s HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(format!("{head}{behind}").as_bytes()).await.unwrap();
        eventually(PATIENCE, async || (waiters().await == 1).then_some(())).await;
        drop(stream);
        eventually(PATIENCE, async || (waiters().await == 0).then_some(())).await;
    }
}
