//! A disk that takes seconds, or fails: what is answered meanwhile, and how the service ends.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::process::command;
use crate::support::{Answer, Http, PATIENCE, Process, eventually};

/// Longer than any call may take.
const STUCK: i64 = 60_000;

const EIO: i64 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_told_with_what_is_left_of_it_and_not_told_once_it_is_over() {
    let disk = Disk::make();
    let service = disk.start(&[]);
    let http = service.http();
    // The first commit of a service makes its log: three syncs instead of one.
    assert_eq!(acquire(&http, "first", "token-of-the-first-one", 20_000).await.status, 201);
    disk.takes(1_500);
    let answer = acquire(&http, "long", "token-of-the-long-one", 20_000).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert!(answer.number("ttl_ms") <= 20_000 - 1_000, "{answer:?}");
    let mine = http.token("token-of-the-long-one");
    let refresh = mine.put("/locks/long/refresh?ttl=25s", "").await;
    assert_eq!(refresh.status, 200, "{refresh:?}");
    assert!(refresh.number("ttl_ms") <= 25_000 - 1_000, "{refresh:?}");
    // Two leases that are shorter than the disk takes, whether it writes them together or not.
    let (a, b) = tokio::join!(http.post("/locks/a?ttl=1s", ""), http.post("/locks/b?ttl=1s", ""));
    for answer in [a, b] {
        assert_eq!(answer.told(), (503, "store_unavailable".into()), "{answer:?}");
        assert_eq!(answer.text("outcome"), "unknown");
    }
    disk.takes(0);
    // What was written too late is taken back.
    for key in ["a", "b"] {
        eventually(PATIENCE, async || {
            let answer = http.post(&format!("/locks/{key}?ttl=1h"), "").await;
            (answer.status == 201).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_whose_lease_ends_while_it_is_written_has_lost_it() {
    let disk = Disk::make();
    let service = disk.start(&[]);
    let http = service.http();
    assert_eq!(acquire(&http, "short", "token-of-the-short", 2_000).await.status, 201);
    disk.takes(2_500);
    let refresh = http.token("token-of-the-short").put("/locks/short/refresh?ttl=2s", "").await;
    assert_eq!(refresh.told(), (409, "lock_lost".into()), "{refresh:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_has_a_deadline_and_a_look_does_not_wait_for_the_disk() {
    let disk = Disk::make();
    let service = disk.start(&[("LOCKKEEPER_EMBEDDED_COMMAND_TIMEOUT", "1s")]);
    let http = service.http();
    let held = http.token("token-of-the-holder");
    assert_eq!(acquire(&http, "held", "token-of-the-holder", 600_000).await.status, 201);
    disk.takes(STUCK);
    // The first is on its way to the disk, those behind it do not begin.
    let first = http.post("/locks/first", "").await;
    assert_eq!(first.told(), (503, "store_unavailable".into()), "{first:?}");
    assert_eq!(first.text("outcome"), "unknown", "{first:?}");
    let second = acquire(&http, "second", "token-of-the-second", 600_000).await;
    assert_eq!(second.text("outcome"), "unknown", "it may be from before: {second:?}");
    assert!(second.text("detail").contains("this did nothing; an earlier"), "{second:?}");
    for (answer, outcome) in [
        (held.put("/locks/held/refresh", "").await, "unknown"),
        (held.delete("/locks/held").await, "unknown"),
        (http.post("/locks/waits?wait=1s", "").await, "not_acquired"),
    ] {
        assert_eq!(answer.told(), (503, "store_unavailable".into()), "{answer:?}");
        assert_eq!(answer.text("outcome"), outcome, "{answer:?}");
    }
    let began = Instant::now();
    let look = held.get("/locks/held").await;
    assert_eq!((look.field("held"), look.field("mine")), (true.into(), true.into()));
    // What is not on the disk is not there.
    assert_eq!(http.get("/locks/first").await.field("held"), false);
    let listed = http.get("/locks").await;
    let listed = listed.field("locks");
    let keys: Vec<_> = listed.as_array().unwrap().iter().map(|one| &one["key"]).collect();
    assert_eq!(keys, ["held"]);
    assert!(began.elapsed() < Duration::from_secs(20), "a look waited for the disk");
    disk.takes(0);
    // What was refused as certain never happens.
    eventually(PATIENCE, async || {
        (http.post("/locks/after", "").await.status == 201).then_some(())
    })
    .await;
    for key in ["second", "waits"] {
        assert_eq!(http.get(&format!("/locks/{key}")).await.field("held"), false);
    }
    assert_eq!(held.get("/locks/held").await.field("mine"), true);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_nobody_received_stays_however_long_the_disk_took() {
    const CLIENTS: usize = 3_000;
    let disk = Disk::make();
    let service = disk.start(&[]);
    let http = service.http();
    disk.takes(STUCK);
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let address = http.address;
        clients.spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request =
                format!("POST /locks/gone/{number}?ttl=24h HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            stream
        });
        if number % 200 == 199 {
            // Some hang up early, the rest at the end.
            drop(clients.join_next().await);
        }
    }
    let streams = clients.join_all().await;
    eventually(PATIENCE, async || {
        (http.figure("lockkeeper_http_connections").await >= 2_000.0).then_some(())
    })
    .await;
    drop(streams);
    eventually(PATIENCE, async || {
        (http.figure("lockkeeper_http_connections").await <= 1.0).then_some(())
    })
    .await;
    disk.takes(0);
    eventually(PATIENCE, async || {
        let after = http.post("/locks/after?ttl=24h", "").await;
        (after.status == 201).then_some(())
    })
    .await;
    eventually(PATIENCE, async || {
        let listed = http.get("/locks?limit=10").await.field("locks");
        (listed.as_array().unwrap().len() == 1).then_some(())
    })
    .await;
    // Those that had not begun did not run at all.
    let took_back = service.log().matches("undid a grant").count();
    assert!(took_back < CLIENTS / 2, "{took_back} were granted and taken back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_service_whatever_the_disk_does() {
    let disk = Disk::make();
    let service = disk.start(&[("LOCKKEEPER_LIMITS_SHUTDOWN_TIME", "60s")]);
    let http = service.http();
    disk.takes(STUCK);
    let mut asked = JoinSet::new();
    for number in 0..5 {
        let (http, path) = (http.clone(), format!("/locks/{number}"));
        asked.spawn(async move { http.try_send("POST", &path, "").await.is_ok() });
    }
    eventually(PATIENCE, async || {
        (http.figure("lockkeeper_http_connections").await >= 6.0).then_some(())
    })
    .await;
    service.signal("TERM");
    eventually(PATIENCE, async || service.log().contains("shutting down").then_some(())).await;
    let began = Instant::now();
    service.signal("TERM");
    assert_eq!(service.wait(), Some(3));
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_told_to_end_does_so_in_its_time_whatever_the_disk_does() {
    let disk = Disk::make();
    let service = disk.start(&[("LOCKKEEPER_LIMITS_SHUTDOWN_TIME", "1s")]);
    let http = service.http();
    disk.takes(STUCK);
    let mut asked = JoinSet::new();
    asked.spawn(async move { http.try_send("POST", "/locks/a", "").await.is_ok() });
    let http = service.http();
    eventually(PATIENCE, async || {
        (http.figure("lockkeeper_http_connections").await >= 2.0).then_some(())
    })
    .await;
    let began = Instant::now();
    service.signal("TERM");
    assert_eq!(service.wait(), Some(3));
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert_eq!(asked.join_all().await, [false]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_has_failed_ends_the_service_with_one_sentence_and_a_restart_mends_it() {
    let disk = Disk::make();
    let service = disk.start(&[]);
    let http = service.http();
    assert_eq!(acquire(&http, "held", "token-of-the-holder", 600_000).await.status, 201);
    disk.fails(EIO);
    let answer = http.try_send("POST", "/locks/a", "").await.unwrap();
    assert_eq!(answer.told(), (503, "store_unavailable".into()));
    assert_eq!(answer.text("outcome"), "unknown");
    disk.fails(0);
    let log = service.log_to_the_end();
    assert_eq!(service.wait(), Some(4));
    let log = log.whole();
    let told: Vec<_> = log.lines().filter(|line| line.starts_with("lockkeeper: ")).collect();
    assert_eq!(told.len(), 1, "{log}");
    assert!(
        told[0].contains("locks.sqlite") && told[0].contains("restart the service"),
        "{told:?}"
    );
    let service = disk.start(&[]);
    let look = service.http().token("token-of-the-holder").get("/locks/held").await;
    assert_eq!(look.field("mine"), true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_be_copied_into_the_database_ends_the_service_and_loses_nothing() {
    let disk = Disk::make();
    let service = disk.start(&[]);
    let http = service.http();
    disk.fails_in_the_database(EIO);
    let mut granted = 0;
    loop {
        match http.try_send("POST", &format!("/locks/{granted}?ttl=1h"), "").await {
            Ok(answer) if answer.status == 201 => granted += 1,
            _ => break,
        }
        assert!(granted < 5_000, "its log grows and grows");
    }
    disk.fails_in_the_database(0);
    assert_eq!(service.wait(), Some(4));
    let service = disk.start(&[]);
    let held = service.http().figure("lockkeeper_locks_held").await;
    assert!(held >= f64::from(granted), "{held} of {granted}");
}

/// A disk beneath a directory, and a service on it.
pub(super) struct Disk(TempDir);

impl Disk {
    pub(super) fn make() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/embedded_faults/disk.c");
        let built = command("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(directory.path().join("disk.so"))
            .arg(source)
            .status()
            .expect("cc is there: Rust links with it");
        assert!(built.success());
        let disk = Self(directory);
        disk.set([0, 0, 0]);
        disk
    }

    pub(super) fn start(&self, variables: &[(&str, &str)]) -> Process {
        let path = |name| self.0.path().join(name).display().to_string();
        let (shim, state) = (path("disk.so"), path("disk"));
        let ours = [("LD_PRELOAD", shim.as_str()), ("DISK_FILE", state.as_str())];
        let variables = [variables, &ours].concat();
        Process::start(&format!("embedded:{}", path("data")), &variables)
    }

    /// From now on a sync takes so many milliseconds longer.
    fn takes(&self, millis: i64) {
        self.set([millis, 0, 0]);
    }

    /// From now on a sync fails so.
    fn fails(&self, errno: i64) {
        self.set([0, errno, 0]);
    }

    /// From now on a sync of the database fails so, and none of its log.
    fn fails_in_the_database(&self, errno: i64) {
        self.set([0, errno, 1]);
    }

    fn set(&self, numbers: [i64; 3]) {
        let path = self.0.path().join("disk");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let numbers = numbers.map(i64::to_ne_bytes).concat();
        file.unwrap().write_all(&numbers).unwrap();
    }
}

async fn acquire(http: &Http, key: &str, token: &str, ttl_ms: u64) -> Answer {
    let body = format!(r#"{{"token":"{token}","ttl_ms":{ttl_ms}}}"#);
    http.post(&format!("/locks/{key}"), &body).await
}
