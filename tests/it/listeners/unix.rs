//! Unix sockets: for curl and the command line, after a crash, and beside a service that lives.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::listeners::{lockkeeper, printed};
use crate::support::Process;
use crate::support::process::command;

fn start(directory: &Path, variables: &[(&str, &str)]) -> Process {
    let store = format!("embedded:{}", directory.join("data").display());
    Process::start_on(&place(directory), &["--store", &store], variables)
}

fn place(directory: &Path) -> String {
    format!("unix:{}", directory.join("socket").display())
}

#[test]
fn a_unix_socket_serves_curl_the_command_line_and_the_health_check() {
    let directory = tempfile::tempdir().unwrap();
    let (place, socket) = (place(directory.path()), directory.path().join("socket"));
    for (mode, bits) in [("", 0o660), ("600", 0o600)] {
        let variables: &[_] =
            if mode.is_empty() { &[] } else { &[("LOCKKEEPER_SOCKET_MODE", mode)] };
        let service = start(directory.path(), variables);
        assert_eq!(service.url(), place);
        assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, bits);
        let curl = command("curl")
            .args(["-sS", "-X", "POST", "--unix-socket"])
            .arg(&socket)
            .arg(format!("http://localhost/locks/{bits}"))
            .output()
            .unwrap();
        assert!(printed(&curl).contains("fencing_token"), "{}", printed(&curl));
        for arguments in [
            &["get", "-u", &place, "a"][..],
            &["exec", "-u", &place, "b", "true"],
            &["healthcheck", "--listen", &place],
        ] {
            let output = lockkeeper(arguments).output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {}", printed(&output));
        }
        let output = lockkeeper(&["get", "a"]).env("LOCKKEEPER_URL", &place).output().unwrap();
        assert!(output.status.success(), "{}", printed(&output));
        service.signal("TERM");
        assert_eq!(service.wait(), Some(0));
        assert!(!socket.exists(), "the file is left behind");
    }
    let gone = lockkeeper(&["get", "-u", &place, "a"]).output().unwrap();
    assert_eq!(gone.status.code(), Some(69));
    assert!(printed(&gone).contains(&format!("no answer from {place}: ")), "{}", printed(&gone));
}

#[test]
fn the_file_of_a_service_that_died_is_replaced_and_that_of_a_living_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    start(directory.path(), &[]).kill();
    assert!(directory.path().join("socket").exists());
    let service = start(directory.path(), &[]);
    let refused = |expected: &str| {
        let output = lockkeeper(&["serve", "--listen", &place(directory.path())])
            .current_dir(directory.path())
            .output()
            .unwrap();
        let told = printed(&output);
        assert!(told.starts_with("lockkeeper: cannot listen on unix:"), "{told}");
        assert!(told.contains(expected), "{told}");
        assert_eq!((output.status.code(), told.lines().count()), (Some(1), 1), "{told}");
    };
    refused("(setting `listen`): another process serves it");
    let place = place(directory.path());
    let output = lockkeeper(&["get", "-u", &place, "a"]).output().unwrap();
    assert!(output.status.success(), "{}", printed(&output));
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
    std::fs::write(directory.path().join("socket"), "precious").unwrap();
    refused("the file is no socket");
    assert_eq!(std::fs::read(directory.path().join("socket")).unwrap(), b"precious");
    std::fs::remove_file(directory.path().join("socket")).unwrap();
    // The socket of another program.
    let _other = std::os::unix::net::UnixListener::bind(directory.path().join("socket")).unwrap();
    refused("another process serves it");
}

#[test]
fn a_client_of_a_unix_socket_that_leaves_gives_up_its_place_and_its_hold() {
    let directory = tempfile::tempdir().unwrap();
    let service = start(directory.path(), &[]);
    let socket = directory.path().join("socket");
    let curl = || {
        let mut curl = command("curl");
        curl.args(["-sSN", "-X", "POST", "--unix-socket"]).arg(&socket);
        curl.stdout(std::process::Stdio::piped());
        curl
    };
    let mut hold = curl().arg("http://localhost/hold/a").spawn().unwrap();
    let mut line = String::new();
    let out = hold.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    assert!(line.contains("acquired"), "{line}");
    hold.kill().unwrap();
    hold.wait().unwrap();
    // The next one in line gets it.
    let next = curl().arg("http://localhost/locks/a?wait=20s").output().unwrap();
    assert!(printed(&next).contains("fencing_token"), "{}", printed(&next));
    drop(service);
}
