//! The web requests, by php-fpm behind nginx as the page sets them up.

use std::process::Child;
use std::time::{Duration, Instant};

use crate::examples::{HOLDER, Stage};
use crate::hold::proxies::Proxy;
use crate::readme::blocks;
use crate::support::process::command;
use crate::support::{Http, PATIENCE, eventually};

const PAGE: &str = include_str!("../../../examples/php-fpm/README.md");

const FILES: &[&str] = &[
    "examples/php-fpm/count.php",
    "examples/php-fpm/held.php",
    "examples/php-fpm/pool.conf",
    "examples/fenced-file/FencedFile.php",
    "clients/php/legacy/lockkeeper.php",
];

/// Where the page says that things are.
const PLACE: &str = "/srv/shop";
const SERVICE: &str = "http://127.0.0.1:8080";

/// How much earlier than it seemed a lease may end: times are whole milliseconds.
const ROUNDING_MS: u64 = 2;

/// A php-fpm and an nginx before it; they end when it is dropped.
struct Shop {
    stage: Stage,
    fpm: Child,
    nginx: Proxy,
}

impl Shop {
    /// With these changes of the files.
    async fn open(changes: &[(&str, &str, &str)]) -> Self {
        let stage = Stage::with(FILES);
        let place = stage.directory.path().display().to_string();
        for (file, from, to) in changes {
            let text = stage.text(file);
            assert!(text.contains(from), "{file}: {from}");
            stage.writes(file, &text.replace(from, to));
        }
        stage.writes("pool.conf", &stage.text("pool.conf").replace(PLACE, &place));
        let mut fpm = command(fpm());
        fpm.args(["-R", "-y", "pool.conf", "-p", &place]).current_dir(&place);
        let fpm = fpm.spawn().expect("php-fpm is there: `make test` installs it");
        let socket = stage.directory.path().join("php-fpm.sock");
        eventually(PATIENCE, async || socket.exists().then_some(())).await;
        let page = blocks(PAGE);
        let (_, shown) = page.iter().find(|(kind, _)| *kind == "nginx").unwrap();
        let nginx =
            Proxy::nginx_with(&shown.replace(PLACE, &place).replace(SERVICE, &stage.url())).await;
        Self { stage, fpm, nginx }
    }

    fn http(&self) -> Http {
        Http::new(self.nginx.address)
    }

    /// Status and text.
    async fn get(&self, path: &str) -> (u16, String) {
        let answer = self.http().get(path).await;
        (answer.status, String::from_utf8(answer.body.to_vec()).unwrap())
    }

    async fn held(&self, key: &str) -> bool {
        self.stage.look(key).await["held"] == true
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        // Its workers end with it.
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.fpm),
            rustix::process::Signal::TERM,
        );
        let _ = self.fpm.wait();
    }
}

/// Its name has the version of PHP in Debian.
pub(crate) fn fpm() -> String {
    let found = ["8.2", "8.3", "8.4", ""].map(|version| format!("/usr/sbin/php-fpm{version}"));
    let there = found.into_iter().find(|path| std::path::Path::new(path).exists());
    there.expect("php-fpm is there: `make test` installs it")
}

#[tokio::test(flavor = "multi_thread")]
async fn web_requests_count_one_after_another_and_give_the_key_back() {
    let shop = Shop::open(&[]).await;
    for count in ["1\n", "2\n"] {
        assert_eq!(shop.get("/count.php").await, (200, count.to_owned()));
        assert!(!shop.held("count").await);
    }
    let requests = (0..8).map(|_| async {
        let (status, _) = shop.get("/count.php").await;
        assert!(status == 200 || status == 409, "{status}");
        usize::from(status == 200)
    });
    let counted: usize = futures_util::future::join_all(requests).await.into_iter().sum();
    assert_eq!(shop.get("/count.php").await, (200, format!("{}\n", 2 + counted + 1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_request_for_a_held_key_is_409_after_its_wait_and_503_without_a_service() {
    let shop = Shop::open(&[]).await;
    let holder = shop.stage.http().token(HOLDER);
    assert_eq!(holder.post("/locks/count", "").await.status, 201);
    let began = Instant::now();
    let answer = shop.http().get("/count.php").await;
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert_eq!((answer.status, answer.header("retry-after")), (409, Some("2")));
    assert_eq!(shop.stage.text("counter"), "");
    shop.stage.service.signal("KILL");
    let answer = shop.http().get("/count.php").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("5")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_request_that_was_too_slow_is_refused_by_what_it_writes_to() {
    let shop = Shop::open(&[]).await;
    let slow = shop.get("/count.php?seconds=2");
    let overtaken = async {
        eventually(PATIENCE, async || shop.held("count").await.then_some(())).await;
        let claimed = shop.stage.directory.path().join("counter");
        eventually(PATIENCE, async || claimed.exists().then_some(())).await;
        let http = shop.stage.http();
        assert_eq!(http.delete("/admin/locks/count").await.status, 200);
        assert_eq!(shop.get("/count.php").await, (200, "1\n".to_owned()));
    };
    let (slow, ()) = tokio::join!(slow, overtaken);
    assert_eq!(slow, (409, "too late, somebody else has counted\n".to_owned()));
    assert_eq!(shop.get("/count.php").await, (200, "2\n".to_owned()));
}

/// As the page says of `request_terminate_timeout`.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_leaves_its_key_to_the_ttl_and_a_stream_frees_it_at_once() {
    let soon = ("pool.conf", "request_terminate_timeout = 4s", "request_terminate_timeout = 1s");
    let shop = Shop::open(&[soon]).await;
    assert_eq!(shop.get("/count.php?seconds=30").await.0, 502);
    let began = Instant::now();
    let left = shop.stage.look("count").await["ttl_ms"].as_u64().unwrap();
    let next = shop.stage.http().post("/locks/count?wait=20s", "").await;
    assert_eq!(next.status, 201);
    assert!(began.elapsed() >= Duration::from_millis(left.saturating_sub(ROUNDING_MS)), "{left}");

    assert_eq!(shop.get("/held.php?seconds=30").await.0, 502);
    let next = shop.stage.http().post("/locks/held?wait=2s", "").await;
    assert_eq!(next.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_in_a_web_request_has_the_key_and_respects_a_held_one() {
    let shop = Shop::open(&[]).await;
    for _ in 0..2 {
        let (status, text) = shop.get("/held.php").await;
        assert!(status == 200 && text.starts_with("done as number "), "{status} {text}");
    }
    let holder = shop.stage.http().token(HOLDER);
    assert_eq!(holder.post("/locks/held?wait=2s", "").await.status, 201);
    let answer = shop.http().get("/held.php").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("2")));
}
