//! A disk that is full, and one that fails: nothing is granted that is not safe.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::process::command;
use crate::support::{Answer, Http, Process, eventually};

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_new_leases_keeps_the_old_ones_and_recovers_by_itself() {
    let disk = SmallDisk::mount();
    let store = format!("embedded:{}", disk.path().join("data").display());
    let ballast = disk.path().join("ballast");
    let mut service = Process::start(&store, &[]);
    let mut held = Vec::new();
    for round in 0..3 {
        let http = service.http();
        grant(&http, &mut held, 20).await;
        fill(&ballast);
        for _ in 0..5 {
            let name = refused(&http, round, &mut held).await;
            let free = eventually(PATIENCE, async || looked(&http, &name).await).await;
            assert_eq!(free.field("held"), false, "{name} was refused: {free:?}");
        }
        assert_held(&http, &held).await;

        if round == 1 {
            // It can also be started while the disk is full.
            service.kill();
            service = Process::start(&store, &[]);
            assert_held(&service.http(), &held).await;
            refused(&service.http(), round, &mut held).await;
        }
        let http = service.http();
        std::fs::remove_file(&ballast).unwrap();
        let name = format!("room/{round}");
        eventually(PATIENCE, async || (acquire(&http, &name).await.status == 201).then_some(()))
            .await;
        held.push(name);
        service.logs("the store answers again").await;
        grant(&http, &mut held, 5).await;
        assert_held(&http, &held).await;
        let given_up = held.remove(0);
        assert_eq!(release(&http, &given_up).await.status, 204);

        service.kill();
        service = Process::start(&store, &[]);
        assert_held(&service.http(), &held).await;
        let http = service.http();
        assert_eq!(http.get(&path(&given_up)).await.field("held"), false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_that_fails_grants_nothing_then_or_later() {
    // What a disk says that is broken, and one that was promised more than it has.
    for (number, error) in ["EIO", "ENOSPC"].iter().enumerate() {
        for nth in 1..=3 {
            let directory = tempfile::tempdir().unwrap();
            let store = format!("embedded:{}", directory.path().display());
            let service = Process::start(&store, &[]);
            let http = service.http();
            let mut held = Vec::new();
            grant(&http, &mut held, 5).await;
            let fault = Fault::inject(&service, &format!("error={error}:when={nth}"));
            let in_doubt = loop {
                let name = format!("{number}/{nth}/{}", held.len());
                let answer = acquire(&http, &name).await;
                if answer.status != 201 {
                    assert_eq!(answer.told(), (503, "store_unavailable".to_owned()));
                    assert_eq!(answer.text("outcome"), "unknown", "{answer:?}");
                    break name;
                }
                held.push(name);
                assert!(held.len() < 20, "the sync never failed");
            };
            drop(fault);
            // The disk does as if all were well now, and is not believed.
            for tries in 0..30 {
                let later = path(&format!("later/{tries}"));
                match http.try_send("POST", &later, &body("later")).await {
                    Ok(answer) => assert_not_granted(&answer),
                    Err(_) => break,
                }
            }
            assert_eq!(service.wait(), Some(4), "a supervisor restarts it");

            let service = Process::start(&store, &[]);
            let http = service.http();
            assert_held(&http, &held).await;
            // In doubt is in doubt: the same token may ask again.
            let again = acquire(&http, &in_doubt).await;
            assert!([200, 201].contains(&again.status), "{again:?}");
            for tries in 0..30 {
                let free = http.get(&path(&format!("later/{tries}"))).await;
                assert_eq!(free.field("held"), false);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_sync_loses_nothing_that_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let mut held = Vec::new();
    for nth in 1..=12 {
        let service = Process::start(&store, &[]);
        let http = service.http();
        let _fault = Fault::inject(&service, &format!("signal=SIGKILL:when={nth}"));
        loop {
            let name = format!("crash/{nth}/{}", held.len());
            let body = body(&name);
            let Ok(answer) = http.try_send("POST", &path(&name), &body).await else { break };
            assert_eq!(answer.status, 201, "{answer:?}");
            held.push(name);
        }
        service.kill();
        let service = Process::start(&store, &[]);
        assert_held(&service.http(), &held).await;
        service.kill();
    }
}

/// A file system of a megabyte or two; unmounted when it is dropped.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Self {
        let directory = tempfile::tempdir().unwrap();
        run(command("mount").args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(directory.path()));
        Self(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, for a service of the test may not have ended yet.
        let _ = command("umount").arg("--lazy").arg(self.path()).status();
    }
}

/// What a process is told by its disk while this lives.
struct Fault(Child);

impl Fault {
    fn inject(service: &Process, fault: &str) -> Self {
        let mut strace = command("strace")
            .args(["-f", "-e", "trace=fsync", "-e", &format!("inject=fsync:{fault}")])
            .args(["-p", &service.pid().to_string()])
            .stderr(Stdio::piped())
            .spawn()
            .expect("strace is there: `make test` installs it");
        let mut lines = BufReader::new(strace.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        assert!(first.contains("attached"), "{first}");
        // It must not end of a pipe that nobody reads.
        std::thread::spawn(move || lines.for_each(drop));
        Self(strace)
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        // The process that it watched may have ended, and it with it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes all room that is left.
fn fill(ballast: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(ballast).unwrap();
    while file.write_all(&[7; 512]).is_ok() {}
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

async fn grant(http: &Http, held: &mut Vec<String>, number: usize) {
    for _ in 0..number {
        let name = format!("held/{}", held.len());
        let name = if held.contains(&name) { format!("{name}/again") } else { name };
        let answer = acquire(http, &name).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        held.push(name);
    }
}

async fn acquire(http: &Http, name: &str) -> Answer {
    http.post(&path(name), &body(name)).await
}

async fn release(http: &Http, name: &str) -> Answer {
    http.token(&token(name)).delete(&path(name)).await
}

async fn assert_held(http: &Http, names: &[String]) {
    for name in names {
        let asker = http.token(&token(name));
        let found = eventually(PATIENCE, async || looked(&asker, name).await).await;
        assert_eq!(found.field("mine"), true, "{name}: {found:?}");
    }
}

/// By a full disk, which does not show whether a token of the client has the key from before.
/// Acquires until a lease is refused, and returns its key. The file has a last bit of room at times,
/// also after a restart; what is granted in it is `held`.
async fn refused(http: &Http, round: usize, held: &mut Vec<String>) -> String {
    loop {
        let name = format!("full/{round}/{}", held.len());
        let answer = acquire(http, &name).await;
        if answer.status != 201 {
            assert_refused(&answer);
            assert!(answer.text("detail").starts_with("the disk is full: "), "{answer:?}");
            return name;
        }
        held.push(name);
    }
}

fn assert_refused(answer: &Answer) {
    assert_eq!(answer.told(), (503, "store_unavailable".to_owned()), "{answer:?}");
    assert_eq!(answer.text("outcome"), "unknown", "{answer:?}");
    assert_eq!(answer.header("retry-after"), Some("1"));
}

/// By a service that has failed, or ends for it.
fn assert_not_granted(answer: &Answer) {
    let told = answer.told();
    assert!(told.0 == 503 && ["store_unavailable", "draining"].contains(&&*told.1), "{answer:?}");
}

/// A look at a key, once the store answers again.
async fn looked(http: &Http, name: &str) -> Option<Answer> {
    let found = http.get(&path(name)).await;
    assert!([200, 503].contains(&found.status), "{found:?}");
    (found.status == 200).then_some(found)
}

fn path(name: &str) -> String {
    format!("/locks/{name}")
}

fn token(name: &str) -> String {
    format!("token-of-the-one-that-has/{name}")
}

fn body(name: &str) -> String {
    format!(r#"{{"token":"{}","ttl_ms":600000}}"#, token(name))
}
