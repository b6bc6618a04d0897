//! A listener of its own for operators.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::listeners::{Secured, lockkeeper, printed};
use crate::support::process::command;
use crate::support::{Answer, Http, Process};

/// A service with a second listener on a unix socket.
struct Divided {
    service: Process,
    directory: tempfile::TempDir,
}

impl Divided {
    fn start(variables: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = format!("embedded:{}", directory.path().join("data").display());
        let admin = format!("unix:{}", directory.path().join("admin").display());
        let mut all = vec![("LOCKKEEPER_ADMIN_LISTEN", admin.as_str())];
        all.extend(variables);
        Self { service: Process::start(&store, &all), directory }
    }

    fn admin(&self) -> String {
        self.directory.path().join("admin").display().to_string()
    }

    /// The status of a path for operators.
    fn status(&self, method: &str, path: &str) -> u16 {
        let mut stream = UnixStream::connect(self.admin()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close");
        stream.write_all(format!("{head}\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

const BOTH: [&str; 5] = ["/", "/healthz", "/readyz", "/openapi.yaml", "/locks"];

#[tokio::test(flavor = "multi_thread")]
async fn the_routes_of_operators_are_on_their_listener_only() {
    let divided = Divided::start(&[]);
    let http = divided.service.http();
    for path in BOTH {
        assert_eq!((http.get(path).await.status, divided.status("GET", path)), (200, 200));
    }
    for path in ["/metrics", "/ui"] {
        assert_eq!(divided.status("GET", path), 200, "{path}");
    }
    for path in ["/metrics", "/metrics/", "/admin", "/admin/locks/a", "/ui", "/ui/", "/ui/a.js"] {
        for method in ["GET", "DELETE", "POST"] {
            let answer: Answer = http.send(method, path, "").await;
            assert_eq!(answer.told(), (404, "no_such_route".to_owned()), "{method} {path}");
        }
    }
    assert!(http.get("/").await.field("links")["metrics"].is_null(), "it is not there");
    assert_eq!(http.post("/locks/a", "").await.status, 201);
    let forced: Answer = http.send("UNLOCK", "/terraform/a", "").await;
    assert_eq!(forced.told(), (403, "forbidden".to_owned()));
    let url = http.url();
    let forced = lockkeeper(&["force-release", "--url", &url, "a"]).output().unwrap();
    let told =
        format!("{url} forces no releases: name the address of its `admin_listen` with --url");
    assert!(printed(&forced).contains(&told), "{}", printed(&forced));
    assert_eq!(divided.status("DELETE", "/admin/locks/a"), 200);
    assert_eq!(http.post("/locks/a", "").await.status, 201);
    let listen = http.address.to_string();
    for admin in [format!("unix:{}", divided.admin()), "127.0.0.1:0".to_owned()] {
        let mut health = lockkeeper(&["healthcheck", "--listen", &listen]);
        let output = health.env("LOCKKEEPER_ADMIN_LISTEN", admin).output().unwrap();
        assert!(output.status.success(), "{}", printed(&output));
    }
    let log = divided.service.log();
    assert!(log.contains(&format!("unix:{}", divided.admin())), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_get_in_while_clients_have_all_places() {
    let divided = Divided::start(&[("LOCKKEEPER_LIMITS_CONNECTIONS", "2")]);
    let address = divided.service.address();
    let _busy: Vec<_> = ["a", "b"]
        .map(|key| {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            let head = format!("POST /hold/{key} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0");
            stream.write_all(format!("{head}\r\n\r\n").as_bytes()).unwrap();
            assert!(stream.read(&mut [0; 512]).unwrap() > 0);
            stream
        })
        .into();
    assert_eq!(divided.status("GET", "/metrics"), 200);
    assert_eq!(divided.status("DELETE", "/admin/locks/a"), 200);
    assert!(Http::new(address).get("/healthz").await.status == 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_for_operators_speaks_tls_too() {
    let secured = Secured::start(&[("LOCKKEEPER_ADMIN_LISTEN", "127.0.0.1:0")]);
    secured.service.logs("\"admin\":\"").await;
    let log = secured.service.log();
    let admin = log.split("\"admin\":\"").nth(1).and_then(|rest| rest.split('"').next());
    let admin = admin.unwrap_or_else(|| panic!("{log}"));
    let ca = secured.certificates.path("ca.pem");
    for (place, status) in [(admin, "200"), (secured.service.url(), "404")] {
        assert!(place.starts_with("https://127.0.0.1:"), "{place}");
        let mut curl = command("curl");
        curl.args(["-sS", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}"]);
        let output = curl.args(["--cacert", &ca, &format!("{place}/metrics")]).output().unwrap();
        assert_eq!(printed(&output), status, "{place}");
    }
}

#[test]
fn a_listener_for_operators_on_a_network_needs_api_keys_too() {
    let directory = tempfile::tempdir().unwrap();
    let output = lockkeeper(&["serve", "--listen", "127.0.0.1:0"])
        .env("LOCKKEEPER_ADMIN_LISTEN", "0.0.0.0:0")
        .current_dir(directory.path())
        .output()
        .unwrap();
    let told = printed(&output);
    assert!(told.contains("can be reached from other machines"), "{told}");
    assert_eq!(output.status.code(), Some(1), "{told}");
}
