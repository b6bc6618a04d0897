//! The end of an instance: nothing is acquired any more, and what was asked is answered.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use lockkeeper::server::Ended;

use crate::api::{Lockkeeper, TOKEN};
use crate::support::openapi::SPEC;
use crate::support::raw::{last_answer, read_until};
use crate::support::{Answer, Service};

/// Begins an acquire or a hold, ends the service, and gives what it answers and its end.
pub(super) async fn acquire_while_draining(
    service: Service,
    path: &str,
    body: &str,
) -> (Answer, impl Future<Output = Ended> + use<>) {
    let address = service.http().address;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nLock-Token: {TOKEN}\r\nContent-Length: {}\r\n\
         Expect: 100-continue\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // From here on the request is under way: the service asks for its body.
    read_until(&mut stream, "100 Continue\r\n\r\n").await;
    let ended = service.shut_down();
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    stream.write_all(body.as_bytes()).await.unwrap();
    let answer = last_answer(&mut stream).await;
    SPEC.check("POST", path, &answer);
    (answer, ended)
}

#[tokio::test]
async fn an_acquire_under_way_when_the_end_begins_is_sent_to_another_instance() {
    let Lockkeeper { service, directory, .. } = Lockkeeper::start().await;
    let (answer, ended) = acquire_while_draining(service, "/locks/late", "{}").await;
    assert_eq!(answer.told(), (503, "draining".into()));
    assert_eq!(answer.header("retry-after"), Some("0"));
    ended.await;
    let next = Service::embedded(&directory).await;
    assert_eq!(next.http().get("/locks/late").await.field("held"), false);
}

#[tokio::test]
async fn an_open_connection_acquires_nothing_once_the_end_has_begun() {
    let Lockkeeper { service, directory, .. } = Lockkeeper::start().await;
    let mut stream = TcpStream::connect(service.http().address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    read_until(&mut stream, r#"{"status":"ok"}"#).await;
    let ended = service.shut_down();
    // It may be closed already, or still take the request.
    let _ = stream.write_all(b"POST /locks/late HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let sent_away =
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("\r\nretry-after: 0\r\n");
    assert!(answer.is_empty() || sent_away, "{answer}");
    ended.await;
    let next = Service::embedded(&directory).await;
    assert_eq!(next.http().get("/locks/late").await.field("held"), false);
}

#[tokio::test]
async fn leases_outlive_the_instance_that_granted_them() {
    let Lockkeeper { http, service, directory } = Lockkeeper::start().await;
    let granted = http.token(TOKEN).post("/locks/k", "").await;
    service.shut_down().await;
    let next = Service::embedded(&directory).await;
    let refreshed = next.http().token(TOKEN).put("/locks/k/refresh", "").await;
    assert_eq!(refreshed.status, 200);
    assert_eq!(refreshed.field("fencing_token"), granted.field("fencing_token"));
}
