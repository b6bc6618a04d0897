//! A Redis that wants a password, or speaks TLS.

use crate::redis_faults::{LONG, PATIENCE, acquire, unavailable};
use crate::support::certificates::Certificates;
use crate::support::redis::free_port;
use crate::support::{Process, Redis, eventually};

const TOKEN: &str = "token-of-the-client";

#[tokio::test(flavor = "multi_thread")]
async fn user_and_password_of_the_url_are_used_and_not_logged() {
    let redis = Redis::start();
    redis.run::<()>("ACL SETUSER shop on >p@ss/w:rd ~lock:* ~lk//* +@all");
    redis.run::<()>("CONFIG SET requirepass s3cret-of-default");
    for (number, login) in ["shop:p%40ss%2Fw%3Ard", ":s3cret-of-default"].iter().enumerate() {
        let url = format!("redis://{login}@127.0.0.1:{}", redis.port());
        let service = Process::start(&url, &[("LOCKKEEPER_LOG_LEVEL", "trace")]);
        let http = service.http();
        let key = format!("guarded/{number}");
        eventually(PATIENCE, async || {
            (acquire(&http, &key, TOKEN, LONG).await.status == 201).then_some(())
        })
        .await;
        let listed = http.get("/locks?prefix=guarded").await;
        assert_eq!(listed.status, 200, "{listed:?}");
        assert!(!service.log().contains("p%40ss") && !service.log().contains("p@ss"));
        assert!(!service.log().contains("s3cret"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_503_and_a_line_in_the_log_until_it_is_right() {
    let redis = Redis::start();
    redis.run::<()>("ACL SETUSER shop on >another ~* +@all");
    let url = format!("redis://shop:s3cret@127.0.0.1:{}", redis.port());
    let service = Process::start(&url, &[]);
    let http = service.http();
    eventually(PATIENCE, async || service.log().contains("cannot connect; retrying").then_some(()))
        .await;
    let refused = acquire(&http, "guarded", TOKEN, LONG).await;
    assert_eq!(refused.told(), unavailable());
    assert_eq!(refused.text("outcome"), "unknown");
    assert_eq!(http.get("/readyz").await.told(), (503, "not_ready".to_owned()));
    assert!(!String::from_utf8_lossy(&refused.body).contains("s3cret"));
    redis.run::<()>("ACL SETUSER shop >s3cret");
    eventually(PATIENCE, async || {
        (acquire(&http, "guarded", TOKEN, LONG).await.status == 201).then_some(())
    })
    .await;
    let log = service.log();
    assert!(log.contains("AuthenticationFailed") || log.contains("WRONGPASS"), "{log}");
    assert!(!log.contains("s3cret"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_with_tls_is_served_if_its_certificate_is_trusted_and_only_then() {
    let certificates = Certificates::make();
    let port = free_port();
    let redis = Redis::start_with(&[
        "--save",
        "",
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &certificates.path("server.pem"),
        "--tls-key-file",
        &certificates.path("server.key"),
        "--tls-ca-cert-file",
        &certificates.path("ca.pem"),
        "--tls-auth-clients",
        "no",
    ]);
    let ca = certificates.path("ca.pem");
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("rediss://{host}:{port}");
        let service = Process::start(&url, &[("SSL_CERT_FILE", &ca)]);
        let http = service.http();
        let key = format!("trusted/{host}");
        eventually(PATIENCE, async || {
            (acquire(&http, &key, TOKEN, LONG).await.status == 201).then_some(())
        })
        .await;
        assert_eq!(redis.run::<String>(&format!("GET lock:{key}")), TOKEN);
    }

    let service = Process::start(&format!("rediss://127.0.0.1:{port}"), &[]);
    eventually(PATIENCE, async || service.log().contains("cannot connect; retrying").then_some(()))
        .await;
    let refused = acquire(&service.http(), "mistrusted", TOKEN, LONG).await;
    assert_eq!(refused.told(), unavailable());
    assert_eq!(refused.text("outcome"), "unknown");
    assert!(service.log().to_lowercase().contains("certificate"), "{}", service.log());
}
