//! `deploy/install.sh`, from directories as a release has them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

use crate::support::process::{BINARY, command, succeeds};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/install.sh");

/// A program for tests that install none of ours: it says what `install.sh` asks for.
const PROGRAM: &str = "#!/bin/sh\necho lockkeeper of a test\n";

/// The files of a release, served on loopback.
pub(crate) struct Release {
    directory: TempDir,
    server: Child,
    pub(crate) url: String,
}

impl Release {
    /// A release of the program under test.
    pub(crate) fn real() -> Self {
        Self::of(&fs::read(BINARY).unwrap())
    }

    fn of(program: &[u8]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (name, here) = (name(), directory.path());
        fs::create_dir(here.join(&name)).unwrap();
        fs::write(here.join(&name).join("lockkeeper"), program).unwrap();
        let script = "chmod 755 $0/lockkeeper && tar -c $0 | gzip -1 >$0.tar.gz && rm -r $0 && \
            cp $1 . && sha256sum * >SHA256SUMS";
        succeeds(command("sh").args(["-c", script, &name, SCRIPT]).current_dir(here));
        let mut server = command("python3");
        server.args(["-u", "-m", "http.server", "--bind", "127.0.0.1", "0"]).current_dir(here);
        let mut server = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.split_once(" port ").unwrap().1.split_once(' ').unwrap().0;
        let url = format!("http://127.0.0.1:{port}");
        Self { directory, server, url }
    }

    fn tarball(&self) -> PathBuf {
        self.directory.path().join(format!("{}.tar.gz", name()))
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Somebody without lockkeeper, or with an old one.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn with_an_old_one() -> Self {
        let home = Self::new();
        fs::write(home.program(), "old").unwrap();
        home
    }

    fn program(&self) -> PathBuf {
        self.0.path().join("lockkeeper")
    }

    /// Runs the script by this shell, with these programs first.
    fn installs(&self, releases: &str, shell: &[&str], path: &str) -> Output {
        let mut run = command(shell[0]);
        run.args(&shell[1..]).arg(SCRIPT).env("PATH", path).env("LOCKKEEPER_RELEASES", releases);
        run.env("LOCKKEEPER_DIRECTORY", self.0.path()).output().unwrap()
    }

    fn is_refused(&self, releases: &str, path: &str, reason: &str) {
        let done = self.installs(releases, &["sh"], path);
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(!done.status.success() && said.contains(reason), "{said}");
        assert_eq!(fs::read(self.program()).unwrap(), b"old", "{said}");
        assert_eq!(fs::read_dir(self.0.path()).unwrap().count(), 1, "more than before: {said}");
    }
}

#[test]
fn the_script_installs_what_has_the_right_checksum() {
    let (release, home) = (Release::of(PROGRAM.as_bytes()), Home::with_an_old_one());
    let said = home.installs(&release.url, &["sh"], &path());
    let out = String::from_utf8(said.stdout).unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    assert!(out.starts_with("lockkeeper of a test is in "), "{out}");
    assert!(out.contains("is not on your PATH") && out.contains("/lockkeeper serve'"), "{out}");
    assert_eq!(fs::read(home.program()).unwrap(), PROGRAM.as_bytes());
    assert_eq!(fs::metadata(home.program()).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read_dir(home.0.path()).unwrap().count(), 1, "it leaves something behind");
}

#[test]
fn busybox_is_enough_for_the_script() {
    let (release, home, tools) =
        (Release::of(PROGRAM.as_bytes()), Home::new(), tempfile::tempdir().unwrap());
    succeeds(command("busybox").args(["--install", "-s"]).arg(tools.path()));
    let tools = format!("PATH={}", tools.path().display());
    let done = home.installs(&release.url, &["env", &tools, "busybox", "sh"], &path());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(fs::read(home.program()).unwrap(), PROGRAM.as_bytes());
}

#[test]
fn another_file_than_that_of_the_checksum_is_refused() {
    let (release, home) = (Release::of(PROGRAM.as_bytes()), Home::with_an_old_one());
    let whole = fs::read(release.tarball()).unwrap();
    let mut other = whole.clone();
    *other.last_mut().unwrap() ^= 1;
    for wrong in [&other[..], &whole[..whole.len() - 1], &[]] {
        fs::write(release.tarball(), wrong).unwrap();
        home.is_refused(&release.url, &path(), "is not the file of the release");
    }
    fs::write(release.tarball(), whole).unwrap();
    fs::write(release.directory.path().join("SHA256SUMS"), "").unwrap();
    home.is_refused(&release.url, &path(), "SHA256SUMS has no checksum of ");
}

#[test]
fn a_missing_file_and_a_download_that_breaks_off_are_refused() {
    let (release, home) = (Release::of(PROGRAM.as_bytes()), Home::with_an_old_one());
    fs::remove_file(release.tarball()).unwrap();
    home.is_refused(&release.url, &path(), ".tar.gz");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let half = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        assert!(client.read(&mut [0; 4096]).unwrap() > 0);
        client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").unwrap();
    });
    home.is_refused(&url, &path(), "cannot fetch ");
    half.join().unwrap();
}

#[test]
fn another_system_and_another_processor_are_refused() {
    let (release, home) = (Release::of(PROGRAM.as_bytes()), Home::with_an_old_one());
    for (system, processor, reason) in [
        ("Darwin", "arm64", "releases are for Linux, and this is Darwin"),
        ("Linux", "riscv64", "x86_64 and aarch64, and this is riscv64"),
    ] {
        let tools = tempfile::tempdir().unwrap();
        let uname = tools.path().join("uname");
        let text = format!("#!/bin/sh\n[ $1 = -s ] && echo {system} || echo {processor}\n");
        fs::write(&uname, text).unwrap();
        fs::set_permissions(&uname, fs::Permissions::from_mode(0o755)).unwrap();
        home.is_refused(&release.url, &format!("{}:{}", tools.path().display(), path()), reason);
    }
}

#[test]
fn a_program_that_does_not_run_here_replaces_none() {
    let (release, home) = (Release::of(b"#!/no/such/shell\n"), Home::with_an_old_one());
    home.is_refused(&release.url, &path(), "the program does not run here");
}

#[test]
fn a_script_that_arrives_in_part_does_nothing() {
    let (release, home) = (Release::of(PROGRAM.as_bytes()), Home::new());
    let script = fs::read_to_string(SCRIPT).unwrap();
    let lines: Vec<_> = script.lines().collect();
    for length in 0..lines.len() {
        let mut shell: Command = command("sh");
        shell.env("LOCKKEEPER_RELEASES", &release.url).env("LOCKKEEPER_DIRECTORY", home.0.path());
        let mut shell = shell.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let part = lines[..length].join("\n");
        // A shell may have stopped reading at an error.
        let _ = shell.stdin.take().unwrap().write_all(part.as_bytes());
        shell.wait().unwrap();
        assert!(!Path::exists(&home.program()), "{length} lines of it install");
    }
}

fn path() -> String {
    std::env::var("PATH").unwrap()
}

/// The directory in the tarball of this machine's architecture.
fn name() -> String {
    format!("lockkeeper-{}-{}-linux", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
}
