//! Hosts with other mounts, in mount namespaces of their own; they need root.

use std::io::{BufRead, BufReader};
use std::time::Instant;

use crate::exec::{Going, Ran, Stage};
use crate::support::process::{BINARY, command};
use crate::support::{NOWHERE, PATIENCE, eventually};

#[test]
fn a_host_without_proc_is_told_before_a_lease_is_asked_for() {
    let mut shell = command("unshare");
    let script = "mount -t tmpfs none /proc && exec \"$0\" exec key true";
    shell.args(["-m", "sh", "-c", script, BINARY]);
    let ran = Ran::of(shell.env("LOCKKEEPER_URL", format!("http://{NOWHERE}")).output().unwrap());
    assert_eq!(ran.code, Some(125), "{ran:?}");
    assert!(ran.err.starts_with("lockkeeper: mount /proc, which this command needs: "), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_does_not_resolve_yet_is_an_absence() {
    let stage = Stage::with(&[("LOCKKEEPER_ALLOWED_HOSTS", "locks.test")]);
    let hosts = stage.path("hosts");
    std::fs::write(&hosts, "127.0.0.1 localhost\n").unwrap();
    let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    let mut exec = command("unshare");
    exec.args(["-m", "sh", "-c", script, &hosts, BINARY]);
    exec.args(["exec", "-v", "-w", "5m", "key", "echo", "ran"]);
    let port = stage.service.http().address.port();
    exec.env("LOCKKEEPER_URL", format!("http://locks.test:{port}"));
    let began = Instant::now();
    let mut going = Going::start(exec);
    let mut said = BufReader::new(going.child.stderr.take().unwrap()).lines();
    let told = said.next().unwrap().unwrap();
    assert!(told.starts_with("lockkeeper: 'key': no answer from http://locks.test:"), "{told}");
    // Longer than the absence that a claim outlasts which does not wait.
    eventually(PATIENCE, async || (began.elapsed().as_secs() >= 7).then_some(())).await;
    std::fs::write(&hosts, "127.0.0.1 localhost locks.test\n").unwrap();
    assert_eq!(going.line(), "ran");
    assert_eq!(going.end().code, Some(0));
}
