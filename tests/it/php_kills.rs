//! Leases that the PHP package holds, and `kill -9` of the process that holds them, again and again: the
//! key is free soon, its next holder and everybody else keep theirs.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

use crate::examples::php_fpm::fpm;
use crate::support::process::command;
use crate::support::{Http, PATIENCE, Process, eventually};

/// Kills of each kind of process; so many at a time.
const ROUNDS: usize = 30;
const AT_A_TIME: usize = 5;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/php/held.php");

/// Somebody who has another key, before the first kill and after the last.
const NEIGHBOUR: &str = "token-of-the-neighbour";

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_script_leaves_no_lease() {
    kills(|url, prefix, file| Some(script("hold", url, prefix, file))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_schedule_run_leaves_no_mutex() {
    kills(|url, prefix, file| Some(script("schedule", url, prefix, file))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_queue_worker_leaves_no_lock_of_its_job() {
    kills(|url, prefix, file| Some(script("worker", url, prefix, file))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_child_of_php_fpm_leaves_no_lease() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let settings = format!(
        "[global]\ndaemonize = no\nerror_log = {0}/log\n[shop]\nlisten = {0}/socket\npm = static\n\
         pm.max_children = {AT_A_TIME}\n",
        place.path().display()
    );
    std::fs::write(place.path().join("pool.conf"), settings).unwrap();
    let mut fpm = command(fpm());
    fpm.args(["-R", "-y", "pool.conf", "-p"]).arg(place.path()).current_dir(place.path());
    let mut fpm = fpm.spawn().expect("php-fpm is there: `make test` installs it");
    eventually(PATIENCE, async || UnixStream::connect(&socket).ok()).await;
    kills(|url, prefix, file| {
        request(&socket, &[("PREFIX", prefix), ("LOCKKEEPER_URL", url), ("FILE", file)]);
        None
    })
    .await;
    kill_process(Pid::from_child(&fpm), Signal::TERM).unwrap();
    fpm.wait().unwrap();
}

/// Starts what holds a key below a prefix, and kills it, in all rounds.
async fn kills(start: impl Fn(&str, &str, &str) -> Option<Child>) {
    let place = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", place.path().join("store").display());
    let service = Process::start(&store, &[]);
    let http = service.http();
    let neighbour = http.token(NEIGHBOUR).post("/locks/neighbour?ttl=1h", "").await;
    let lanes = (0..AT_A_TIME).map(|lane| {
        let (http, start, place) = (http.clone(), &start, place.path());
        async move {
            for round in 0..ROUNDS / AT_A_TIME {
                let file = place.join(format!("{lane}-{round}"));
                let started = start(&http.url(), &format!("{lane}/"), file.to_str().unwrap());
                kill(&http, &file, lane + round, started).await;
            }
        }
    });
    futures_util::future::join_all(lanes).await;
    let after = http.get("/locks/neighbour").await;
    assert_eq!(after.number("fencing_token"), neighbour.number("fencing_token"));
    assert_eq!(http.get("/locks").await.json()["locks"].as_array().unwrap().len(), 1);
}

/// Kills the process that says that it holds a key, and has somebody else take it.
async fn kill(http: &Http, file: &Path, looks: usize, started: Option<Child>) {
    let said = eventually(PATIENCE, async || std::fs::read_to_string(file).ok()).await;
    let (pid, key) = said.split_once(' ').unwrap();
    let mut held = 0;
    for _ in 0..=looks {
        let look = http.get(&format!("/locks/{key}")).await;
        assert_eq!(look.field("held"), true, "{key}");
        held = look.number("fencing_token");
    }
    kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    let next = eventually(PATIENCE, async || {
        let answer = http.post(&format!("/locks/{key}?wait=5s&ttl=1h"), "").await;
        (answer.status == 201).then_some(answer)
    });
    let next = next.await;
    assert!(next.number("fencing_token") > held);
    started.map(|mut process| process.wait().unwrap());
    let token = http.token(&next.text("token"));
    assert_eq!(token.get(&format!("/locks/{key}")).await.field("mine"), true);
    assert_eq!(token.delete(&format!("/locks/{key}")).await.status, 204);
}

fn script(what: &str, url: &str, prefix: &str, file: &str) -> Child {
    let mut php = command("php");
    php.args([SCRIPT, what, prefix, file]).env("LOCKKEEPER_URL", url).spawn().unwrap()
}

/// Sends a request for the script to php-fpm; nobody waits for its answer.
fn request(socket: &Path, parameters: &[(&str, &str)]) {
    const RESPONDER: [u8; 8] = [0, 1, 0, 0, 0, 0, 0, 0];
    let mut pairs = Vec::new();
    let own = [("SCRIPT_FILENAME", SCRIPT), ("REQUEST_METHOD", "GET")];
    for (name, value) in own.iter().chain(parameters) {
        pairs.extend([name.len() as u8]);
        pairs.extend((0x8000_0000 | value.len() as u32).to_be_bytes());
        pairs.extend(name.bytes().chain(value.bytes()));
    }
    let mut stream = UnixStream::connect(socket).unwrap();
    for (kind, content) in [(1, &RESPONDER[..]), (4, &pairs), (4, &[]), (5, &[])] {
        let [high, low] = (content.len() as u16).to_be_bytes();
        stream.write_all(&[1, kind, 0, 1, high, low, 0, 0]).unwrap();
        stream.write_all(content).unwrap();
    }
}
