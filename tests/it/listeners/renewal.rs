//! The files of TLS are read again while clients are served.

use std::fs::{copy, rename, write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use crate::listeners::{Secured, printed};
use crate::support::certificates::Certificates;
use crate::support::{PATIENCE, eventually};

const EXPIRATION: &str = "lockkeeper_tls_certificate_expiration_timestamp_seconds";
const SUCCESSFUL: &str = "lockkeeper_config_last_reload_successful";

impl Secured {
    /// Replaces the certificate and the key by those of this name, as an operator should.
    fn install(&self, name: &str) {
        for end in ["pem", "key"] {
            let place = |name: &str| self.certificates.path(&format!("{name}.{end}"));
            copy(place(name), place("copied")).unwrap();
            rename(place("copied"), place("server")).unwrap();
        }
    }

    /// The certificate that a new connection gets.
    async fn shown(&self) -> Vec<u8> {
        shown(&self.connect(&[]).await)
    }

    /// The lines of the log so far that have this field.
    fn lines_with(&self, name: &str) -> Vec<Value> {
        let log = self.service.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| !line[name].is_null()).collect()
    }

    /// Waits for so many lines of the audit about a new certificate.
    async fn renewed(&self, times: usize) -> Value {
        eventually(PATIENCE, async || {
            let mut lines = self.lines_with("certificate.changed");
            lines.retain(|line| line["certificate.changed"] == true);
            (lines.len() >= times).then(|| lines.pop().unwrap())
        })
        .await
    }

    fn figure(&self, name: &str) -> f64 {
        let told = printed(&self.curl("/metrics").output().unwrap());
        let line = told.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{told}")).parse().unwrap()
    }
}

fn shown(stream: &TlsStream<TcpStream>) -> Vec<u8> {
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

async fn status(sender: &mut SendRequest<Empty<Bytes>>, method: &str, path: &str) -> u16 {
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    let request = request.header("lock-token", "the-token-of-this-test").body(Empty::new());
    let answer = sender.send_request(request.unwrap()).await.unwrap();
    let status = answer.status().as_u16();
    answer.into_body().collect().await.unwrap();
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_changed_under_load_without_a_failed_request() {
    let secured = Arc::new(Secured::start(&[]));
    let seen = Arc::new(Mutex::new(Vec::<Vec<u8>>::new()));
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut load = JoinSet::new();
    for client in 0..4 {
        let (secured, seen) = (secured.clone(), seen.clone());
        let (stop, answered) = (stop.clone(), answered.clone());
        load.spawn(async move {
            let path = format!("/locks/key-{client}");
            while !stop.load(Ordering::Relaxed) {
                let stream = secured.connect(&[]).await;
                let shown = shown(&stream);
                let (mut sender, connection) =
                    http1::handshake(TokioIo::new(stream)).await.unwrap();
                let cycle = async {
                    assert_eq!(status(&mut sender, "POST", &path).await, 201);
                    assert_eq!(status(&mut sender, "DELETE", &path).await, 204);
                };
                tokio::select! {
                    () = cycle => (),
                    ended = connection => panic!("{ended:?}"),
                }
                answered.fetch_add(1, Ordering::Relaxed);
                let mut seen = seen.lock().unwrap();
                if !seen.contains(&shown) {
                    seen.push(shown);
                }
            }
        });
    }
    // A connection from before the change.
    let stream = secured.connect(&[]).await;
    let old = shown(&stream);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    load.spawn(async move { connection.await.unwrap() });
    secured.certificates.sign("renewed", "2");
    more(&answered).await;
    assert_eq!(*seen.lock().unwrap(), std::slice::from_ref(&old));
    secured.install("renewed");
    let line = secured.renewed(1).await;
    let what = (&line["target"], &line["audit"], &line["cause"]);
    assert_eq!(what, (&"audit".into(), &"reload".into(), &"the file has changed".into()), "{line}");
    assert_ne!(secured.shown().await, old);
    more(&answered).await;
    eventually(PATIENCE, async || (seen.lock().unwrap().len() == 2).then_some(())).await;
    assert_eq!(status(&mut sender, "GET", "/healthz").await, 200);
    drop(sender);
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = load.join_next().await {
        ended.unwrap();
    }
}

/// Waits until some more requests are answered.
async fn more(answered: &AtomicUsize) {
    let before = answered.load(Ordering::Relaxed);
    eventually(PATIENCE, async || (answered.load(Ordering::Relaxed) >= before + 12).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_file_keeps_the_old_one() {
    let secured = Secured::start(&[]);
    let path = |name: &str| secured.certificates.path(name);
    for (name, days) in [("renewed", "2"), ("over", "-1"), ("good", "5")] {
        secured.certificates.sign(name, days);
    }
    for end in ["pem", "key"] {
        copy(path(&format!("server.{end}")), path(&format!("first.{end}"))).unwrap();
    }
    let old = secured.shown().await;
    assert_eq!(secured.figure(SUCCESSFUL), 1.0);
    let expiration = secured.figure(EXPIRATION);
    let whole = std::fs::read(path("renewed.pem")).unwrap();
    let faults: [(&str, &dyn Fn()); 5] = [
        ("is not the key of the certificate in", &|| {
            copy(path("renewed.pem"), path("server.pem")).unwrap();
        }),
        ("is not whole: copy the PEM file again", &|| {
            write(path("server.pem"), &whole[..whole.len() / 2]).unwrap();
        }),
        ("has no private key in PEM", &|| {
            secured.install("first");
            write(path("server.key"), "").unwrap();
        }),
        ("`tls.certificate`: cannot read", &|| {
            secured.install("first");
            std::fs::remove_file(path("server.pem")).unwrap();
        }),
        (": renew it", &|| secured.install("over")),
    ];
    for (expected, spoil) in faults {
        spoil();
        secured.service.signal("HUP");
        let failed = eventually(PATIENCE, async || {
            let failed = secured.lines_with("error");
            let named = |line: &Value| line["error"].as_str().unwrap().contains(expected);
            failed.into_iter().find(named)
        })
        .await;
        assert_eq!((&failed["level"], &failed["what"]), (&"ERROR".into(), &"tls".into()));
        assert!(!failed.to_string().contains("PRIVATE"), "{failed}");
        assert_eq!(secured.shown().await, old, "{expected}");
        eventually(PATIENCE, async || (secured.figure(SUCCESSFUL) == 0.0).then_some(())).await;
        assert_eq!(secured.figure(EXPIRATION).to_bits(), expiration.to_bits());
    }
    secured.install("good");
    secured.service.signal("HUP");
    let line = secured.renewed(1).await;
    assert_ne!(secured.shown().await, old);
    eventually(PATIENCE, async || (secured.figure(SUCCESSFUL) == 1.0).then_some(())).await;
    let days_later = (secured.figure(EXPIRATION) - expiration) / 86_400.0;
    assert!(days_later > 2.9 && days_later < 3.1, "{days_later}");
    let end = line["certificate.ends"].as_str().unwrap();
    assert!(end.starts_with("20") && end.ends_with('Z'), "{line}");
    let reminder = |line: &Value| line["message"] == "the TLS certificate ends soon";
    assert!(secured.lines_with("end").iter().any(reminder), "{}", secured.service.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_authority_of_clients_can_be_changed() {
    let (own, other) = (Certificates::make(), Certificates::make());
    for authority in [&own, &other] {
        authority.sign("client", "2");
    }
    let [authorities, others] = [own.path("clients.pem"), other.path("ca.pem")];
    copy(own.path("ca.pem"), &authorities).unwrap();
    let secured = Secured::with(own, &[("LOCKKEEPER_TLS_CLIENT_CA", &authorities)]);
    let enters = |from: &Certificates| {
        let mut curl = secured.curl("/healthz");
        curl.args(["--cert", &from.path("client.pem"), "--key", &from.path("client.key")]);
        printed(&curl.output().unwrap()).contains("\"ok\"")
    };
    assert!(enters(&secured.certificates) && !enters(&other));
    copy(others, authorities).unwrap();
    secured.service.signal("HUP");
    secured.renewed(1).await;
    assert!(enters(&other) && !enters(&secured.certificates));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_without_a_change_says_so() {
    let secured = Secured::start(&[]);
    let old = secured.shown().await;
    secured.service.signal("HUP");
    let lines = eventually(PATIENCE, async || {
        let lines = secured.lines_with("certificate.changed");
        (!lines.is_empty()).then_some(lines)
    })
    .await;
    assert_eq!(
        (&lines[0]["certificate.changed"], &lines[0]["cause"]),
        (&false.into(), &"SIGHUP".into())
    );
    assert_eq!(secured.shown().await, old);
}
