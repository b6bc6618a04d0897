//! A web page in a real browser against a service without API keys: it locks nothing, not even by
//! DNS rebinding. The user of the browser may look.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::Process;
use crate::support::process::command;

/// A browser takes its time to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a page can send to `SERVICE`, of which it may read nothing, and to its own origin, which
/// leads to the service as well; then it tells how that went.
const PAGE: &str = r#"<!doctype html><title>evil</title><iframe name="frame"></iframe>
<form method="post" target="frame" action="http://SERVICE/locks/by-form"></form><script>
const sent = [];
const send = async (name, url, options) => {
    try { sent.push(name + ':' + (await fetch(url, options)).status); } catch { sent.push(name + ':error'); }
};
const blind = { method: 'POST', mode: 'no-cors' };
const text = { headers: { 'Content-Type': 'text/plain' }, body: '{"ttl_ms":86400000}' };
const form = { body: new URLSearchParams({ ttl_ms: '86400000', owner: 'evil' }) };
(async () => {
    await send('post', 'http://SERVICE/locks/by-post?ttl=24h', blind);
    await send('text', 'http://SERVICE/locks/by-text', { ...blind, ...text });
    await send('form', 'http://SERVICE/locks/by-fields', { ...blind, ...form });
    await send('null', 'http://SERVICE/locks/by-nobody', { ...blind, referrerPolicy: 'no-referrer' });
    await send('name', 'http://localhost:PORT/locks/by-name', blind);
    await send('hold', 'http://SERVICE/hold/by-stream?wait=forever', blind);
    const shown = new Promise(done => { document.querySelector('iframe').onload = done; });
    document.querySelector('form').submit();
    await shown;
    await send('list', '/locks');
    await send('take', '/locks/by-rebinding', { method: 'POST' });
    await send('force', '/admin/locks/kept', { method: 'DELETE' });
    await fetch('/done', { method: 'POST', body: sent.join(' ') });
})();
</script>"#;

/// A browser, ended with the test.
struct Browser {
    child: Child,
    _profile: TempDir,
}

impl Browser {
    fn open(url: &str, more: &[&str]) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let child = command("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--disable-dev-shm-usage"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(more)
            .arg(url)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, _profile: profile }
    }

    /// What it prints until it ends.
    fn output(mut self) -> String {
        let mut printed = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        printed
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves the page at `/`, and passes all other requests on as they are: to a browser it is a name
/// that pointed at the page's server first and at the service then. Gives its port, and what the
/// page tells at the end.
fn evil_server(service: SocketAddr) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (done, told) = mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let done = done.clone();
            std::thread::spawn(move || serve(client, service, &done));
        }
    });
    (port, told)
}

fn serve(mut client: TcpStream, service: SocketAddr, done: &mpsc::Sender<String>) -> Option<()> {
    let (head, body) = request(&mut client)?;
    let answer = if head.starts_with("GET / ") {
        let page = PAGE.replace("SERVICE", &service.to_string());
        let page = page.replace("PORT", &service.port().to_string());
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n{page}")
    } else if head.starts_with("POST /done ") {
        done.send(body).ok()?;
        "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_owned()
    } else {
        let head = head.replace("keep-alive", "close");
        let mut service = TcpStream::connect(service).ok()?;
        service.write_all(format!("{head}{body}").as_bytes()).ok()?;
        let mut answer = String::new();
        service.read_to_string(&mut answer).ok()?;
        answer
    };
    client.write_all(answer.as_bytes()).ok()
}

/// Head and body of a request.
fn request(client: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let length = client.read(&mut piece).ok().filter(|length| *length > 0)?;
        bytes.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some(end) = text.find("\r\n\r\n") else { continue };
        let (head, body) = text.split_at(end + 4);
        let lower = head.to_lowercase();
        let whole = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= whole.map_or(0, |length| length.parse().unwrap()) {
            return Some((head.to_owned(), body.to_owned()));
        }
    }
}

fn start() -> (Process, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    (Process::start(&store, &[]), directory)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_locks_nothing_and_reads_nothing() {
    let (service, _directory) = start();
    let http = service.http();
    assert_eq!(http.post("/locks/kept?ttl=1h", "").await.status, 201);
    let (port, told) = evil_server(http.address);
    let resolved = "--host-resolver-rules=MAP evil.example 127.0.0.1";
    let browser = Browser::open(
        &format!("http://evil.example:{port}/"),
        &[resolved, "--remote-debugging-port=0"],
    );
    let told = tokio::task::spawn_blocking(move || told.recv_timeout(PATIENCE)).await.unwrap();
    drop(browser);
    // An opaque answer has the status 0. What the page may read is refused.
    let blind = "post:0 text:0 form:0 null:0 name:0 hold:0";
    assert_eq!(told.unwrap(), format!("{blind} list:403 take:403 force:403"));
    let held = http.get("/locks").await;
    let held: Vec<_> = held.json()["locks"].as_array().unwrap().clone();
    assert_eq!(held.iter().map(|lock| &lock["key"]).collect::<Vec<_>>(), ["kept"]);
    // They came, and were refused for what they are.
    let metrics = String::from_utf8(http.get("/metrics").await.body.to_vec()).unwrap();
    for (route, method, count) in [
        ("/locks/{key}", "POST", 7),
        ("/hold/{key}", "POST", 1),
        ("/locks", "GET", 1),
        ("/admin/locks/{key}", "DELETE", 1),
    ] {
        let labels = format!("route=\"{route}\",method=\"{method}\",status=\"403\"");
        let line = format!("lockkeeper_http_requests_total{{{labels}}} {count}\n");
        assert!(metrics.contains(&line), "no {line} in {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_types_the_address_into_a_browser_may_look() {
    let (service, _directory) = start();
    assert_eq!(service.http().post("/locks/looked-at?ttl=1h", "").await.status, 201);
    let url = format!("{}/locks/looked-at", service.http().url());
    let browser = Browser::open(&url, &["--dump-dom"]);
    let shown = tokio::task::spawn_blocking(move || browser.output()).await.unwrap();
    assert!(shown.contains("looked-at") && shown.contains("true"), "{shown}");
}
