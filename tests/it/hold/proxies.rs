//! Real clients, directly and through the proxies as deploy/proxies sets them up.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc;

use tempfile::TempDir;

use crate::hold::{Listener, OTHER, PATIENCE, freed};
use crate::support::process::command;
use crate::support::redis::free_port;
use crate::support::{Http, eventually};
use crate::waiting::{Stage, until_waiters};

const PAGE: &str = include_str!("../../../docs/clients.md");

const NGINX: &str = include_str!("../../../deploy/proxies/nginx.conf");
const HAPROXY: &str = include_str!("../../../deploy/proxies/haproxy.cfg");
const APACHE: &str = include_str!("../../../deploy/proxies/apache.conf");

/// What Apache needs around a virtual host.
const APACHE_MODULES: [&str; 4] = ["mpm_event", "authz_core", "proxy", "proxy_http"];

/// Where the settings say that the service is.
const SERVICE: &str = "10.0.0.7:8080";

/// A program before the service; killed when it is dropped.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    child: Child,
    _directory: TempDir,
}

impl Proxy {
    async fn nginx(service: &Http) -> Self {
        Self::nginx_with(&with_service(NGINX, service)).await
    }

    /// An nginx with these settings, on a free port instead of 80.
    pub(crate) async fn nginx_with(settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut around =
            "daemon off; master_process off; events {}\nhttp { access_log off;".to_owned();
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            around.push_str(&format!(" {kind}_temp_path {}/{kind};", directory.path().display()));
        }
        let around = format!("pid {}/pid; {around}", directory.path().display());
        let port = free_port();
        let settings = settings.replace("listen 80;", &format!("listen 127.0.0.1:{port};"));
        let settings = format!("{around}\n{settings}\n}}\n");
        let arguments = ["-e", "stderr", "-c"];
        Self::start("nginx", &arguments, &settings, directory, port).await
    }

    async fn haproxy(service: &Http) -> Self {
        let port = free_port();
        let shown = HAPROXY.replace("bind :80", &format!("bind 127.0.0.1:{port}"));
        let settings = with_service(&shown, service);
        let directory = tempfile::tempdir().unwrap();
        Self::start("haproxy", &["-db", "-f"], &settings, directory, port).await
    }

    async fn apache(service: &Http) -> Self {
        let (port, directory) = (free_port(), tempfile::tempdir().unwrap());
        let there = directory.path().display();
        let mut settings = format!(
            "ServerName localhost\nListen 127.0.0.1:{port}\nServerRoot {there}\n\
             DefaultRuntimeDir {there}\nPidFile {there}/pid\nErrorLog {there}/errors\n\
             User nobody\nGroup nogroup\n"
        );
        for name in APACHE_MODULES {
            let file = format!("/usr/lib/apache2/modules/mod_{name}.so");
            settings.push_str(&format!("LoadModule {name}_module {file}\n"));
        }
        settings.push_str(&with_service(APACHE, service).replace("*:80", &format!("*:{port}")));
        // In one process: the children of another one would outlive it.
        Self::start("apache2", &["-X", "-f"], &settings, directory, port).await
    }

    async fn start(
        program: &str,
        arguments: &[&str],
        settings: &str,
        directory: TempDir,
        port: u16,
    ) -> Self {
        let file = directory.path().join("settings");
        std::fs::write(&file, settings).unwrap();
        let child = command(program).args(arguments).arg(&file).spawn();
        let child = child.expect("it is there: `make test` installs it");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        eventually(PATIENCE, async || TcpStream::connect(address).ok()).await;
        Self { address, child, _directory: directory }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The one block of this kind on the page.
pub(super) fn block(kind: &str) -> &'static str {
    let begin = format!("\n```{kind}\n");
    let (_, rest) = PAGE.split_once(&begin).unwrap();
    rest.split("\n```").next().unwrap()
}

fn with_service(settings: &str, service: &Http) -> String {
    assert!(settings.contains(SERVICE));
    settings.replace(SERVICE, &service.address.to_string())
}

/// A client that says what it hears; killed when it is dropped.
struct Client {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Client {
    fn start(way: &str, address: SocketAddr, target: &str) -> Self {
        let url = format!("http://{address}/hold/{target}");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/php/hold.php");
        let mut program = if way == "curl -N" { command("curl") } else { command("php") };
        match way {
            "curl -N" => program.args(["-sSN", "-X", "POST", &url]),
            _ => program.args([script, way, &url]),
        };
        let mut child = program.stdout(Stdio::piped()).spawn().unwrap();
        let shown = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || {
            // The test may have heard enough.
            shown.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)).ok();
        });
        Self { child, lines }
    }

    /// Hears this event, which has to come at once.
    fn hears(&self, event: &str, what: &str) {
        // One that was kept back would come only at the end, which is never.
        let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("late: {what}"));
        assert!(line.starts_with(&format!(r#"{{"event":"{event}""#)), "{line}: {what}");
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every client gets its lines as they are sent, and its end is noticed.
async fn serves(service: &Http, address: SocketAddr, ways: &[&str]) {
    for way in ways {
        let what = format!("{way} at {address}");
        let client = Client::start(way, address, "through?ttl=1500ms");
        client.hears("acquired", &what);
        for _ in 0..4 {
            client.hears("alive", &what);
        }
        drop(client); // As `kill -9` does.
        freed(service, "through").await;

        let mut holder = Listener::open_as(service, "through", OTHER).await;
        holder.hears("acquired").await;
        let client = Client::start(way, address, "through?wait=forever&ttl=1500ms");
        client.hears("waiting", &what);
        until_waiters(service, "through", 1).await;
        drop(holder);
        client.hears("acquired", &what);
        drop(client);
        freed(service, "through").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_hears_each_line_at_once_and_is_missed_when_it_is_killed() {
    let stage = Stage::embedded().await;
    let http = stage.http(0);
    serves(&http, http.address, &["curl -N", "fopen11", "fopen10", "curl"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_as_the_page_says_passes_on_each_line_and_the_end() {
    let stage = Stage::embedded().await;
    let http = stage.http(0);
    let proxy = Proxy::nginx(&http).await;
    serves(&http, proxy.address, &["curl -N", "fopen10", "curl"]).await;
    passes_on_a_wait(&http, proxy.address).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_as_the_page_says_passes_on_each_line_and_the_end() {
    let stage = Stage::embedded().await;
    let http = stage.http(0);
    let proxy = Proxy::haproxy(&http).await;
    serves(&http, proxy.address, &["curl -N", "fopen10", "curl"]).await;
    passes_on_a_wait(&http, proxy.address).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn apache_as_the_page_says_passes_on_each_line_the_end_and_every_key() {
    let stage = Stage::embedded().await;
    let http = stage.http(0);
    let proxy = Proxy::apache(&http).await;
    serves(&http, proxy.address, &["curl -N", "fopen10", "curl"]).await;
    passes_on_a_key(proxy.address).await;
}

/// A key comes through as it was sent.
async fn passes_on_a_key(address: SocketAddr) {
    let through = Http::new(address);
    assert_eq!(through.post("/locks/a%2Fb%20%25?ttl=1m", "").await.text("key"), "a/b %");
}

/// A key comes through, and who hangs up is out of the line.
async fn passes_on_a_wait(service: &Http, address: SocketAddr) {
    passes_on_a_key(address).await;
    let url = format!("http://{address}/locks/a/b%20%25?wait=20s");
    let mut curl = command("curl").args(["-sS", "-X", "POST", &url]).spawn().unwrap();
    until_waiters(service, "a/b%20%25", 1).await;
    curl.kill().unwrap();
    curl.wait().unwrap();
    until_waiters(service, "a/b%20%25", 0).await;
}
