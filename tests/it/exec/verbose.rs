//! `--verbose`: who holds the key, the place in line, and how the wait ends.

use std::fs::File;
use std::future::ready;
use std::io::{BufRead, Read};
use std::process::{Child, Stdio};

use crate::exec::proxy::{Mode, Proxy};
use crate::exec::{Going, HOLDER, Ran, Stage, exec, on_terminal};
use crate::support::process::{BINARY, command};
use crate::support::{PATIENCE, eventually};

/// Holds the key until its input ends; shows its token, which its wrapper must not.
const HOLDS: &str = "echo $LOCK_TOKEN; read LINE; exit 0";

/// A waiting command whose standard error is read while it goes on.
struct Waiter {
    child: Child,
    path: String,
}

impl Waiter {
    fn start(stage: &Stage, owner: &str, flags: &[&str]) -> Self {
        let path = stage.path(owner);
        let words = [&["-v", "--owner", owner], flags, &["key", "-c", HOLDS]].concat();
        let mut exec = stage.exec(&words);
        exec.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&path).unwrap());
        Self { child: exec.spawn().unwrap(), path }
    }

    fn told(&self) -> String {
        std::fs::read_to_string(&self.path).unwrap()
    }

    /// Waits until a line has all of these words.
    async fn tells(&self, words: &[&str]) {
        let has_all = |line: &str| words.iter().all(|word| line.contains(word));
        let told = || ready(self.told().lines().any(has_all).then_some(()));
        eventually(PATIENCE, told).await;
    }

    /// Ends COMMAND, and gives its token.
    fn ends(&mut self) -> String {
        drop(self.child.stdin.take());
        let mut token = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut token).unwrap();
        assert!(self.child.wait().unwrap().success());
        token.trim().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verbose_wait_tells_the_holder_and_the_place_when_they_change() {
    let stage = Stage::new();
    let holder = stage.service.http().token(HOLDER);
    // The owner would turn the rest of the line around.
    let answer = holder.post("/locks/key?ttl=1h&owner=web%E2%80%AE1", "").await;
    assert_eq!(answer.status, 201);
    let mut first = Waiter::start(&stage, "first", &[]);
    let words = ["waiting for 'key', place 1 of 1: held for ", " left, by web\\u{202e}1"];
    first.tells(&words).await;
    let mut second = Waiter::start(&stage, "second", &["-w", "1d"]);
    second.tells(&["waiting 23h59m more for 'key', place 2 of 2: held for "]).await;
    stage.let_go("key").await;
    first.tells(&["acquired 'key' after ", ", fencing token "]).await;
    second.tells(&["place 1 of 1: held for ", ", by first"]).await;
    let one = first.ends();
    let two = second.ends();
    for (waiter, told) in [(&first, first.told()), (&second, second.told())] {
        assert!(told.ends_with("released 'key'\n"), "{told}");
        assert!(told.matches("waiting for").count() <= 4, "{}: {told}", waiter.path);
        for token in [HOLDER, &one, &two] {
            assert!(!told.contains(token), "{told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_has_one_line_that_is_redrawn() {
    let stage = Stage::new();
    stage.hold("key").await;
    let mut typed = on_terminal(&stage, "exec LOCKKEEPER exec -v key echo at work");
    typed.stdin(Stdio::piped());
    let mut going = Going::start(typed);
    let mut drawn = Vec::new();
    for _ in 0..3 {
        going.lines.read_until(b'K', &mut drawn).unwrap();
    }
    let drawn = String::from_utf8(drawn).unwrap();
    let lines: Vec<_> = drawn.split("\r\x1b[K").collect();
    let [one, two, three, ""] = lines[..] else { panic!("{drawn:?}") };
    for line in [one, two, three] {
        assert!(line.starts_with("waiting for 'key', place 1 of 1: held for "), "{line:?}");
        assert!(!line.contains('\n'), "{line:?}");
    }
    stage.let_go("key").await;
    let line = (0..100).map(|_| going.line()).find(|line| line.contains("acquired"));
    let line = line.unwrap();
    let (_, last) = line.rsplit_once("\x1b[K").unwrap();
    assert!(last.starts_with("lockkeeper: acquired 'key' after "), "{line:?}");
    let mut rest = String::new();
    going.lines.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("at work") && !rest.contains('\x1b'), "{rest:?}");
    assert_eq!(going.end().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_at_a_terminal_sees_who_is_in_the_way() {
    let stage = Stage::new();
    stage.hold("key").await;
    let typed = |line| Ran::of(on_terminal(&stage, line).output().unwrap());
    let ran = typed("exec LOCKKEEPER exec -w 3 key echo at work");
    assert_eq!(ran.code, Some(75), "{ran:?}");
    assert!(ran.out.contains("for 'key', place 1 of 1: held for "), "{ran:?}");
    assert!(ran.out.contains("lockkeeper: 'key' is held for "), "{ran:?}");
    let ran = typed("exec LOCKKEEPER exec -q -w 2 key true");
    assert_eq!((ran.code, &*ran.out), (Some(75), ""));
    let ran = typed("exec LOCKKEEPER exec -n -E 0 key true");
    assert!(ran.code == Some(0) && ran.out.starts_with("lockkeeper: 'key' is held "), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_fails_costs_its_line_and_nothing_else() {
    let stage = Stage::new();
    stage.hold("key").await;
    let proxy = Proxy::before(stage.service.http().address).await;
    proxy.plan(&[Mode::Pass, Mode::HangUp]);
    let going = Going::start(exec(&proxy.url(), &["-v", "key", "true"]));
    let mut asked = Vec::new();
    let looked = || {
        asked.extend(proxy.requests());
        ready(asked.iter().find(|request| request.starts_with("GET ")).cloned())
    };
    let look = eventually(PATIENCE, looked).await;
    assert!(!look.to_lowercase().contains("lock-token"), "{look}");
    stage.let_go("key").await;
    let ran = going.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told: Vec<_> = ran.err.lines().filter(|line| !line.contains("waiting for")).collect();
    let [acquired, released] = told[..] else { panic!("{}", ran.err) };
    assert!(acquired.contains("acquired 'key'") && released.contains("released 'key'"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_the_begin_and_the_end_of_a_wait_are_a_line_each() {
    let stage = Stage::new();
    let holder = stage.service.http().token(HOLDER);
    assert_eq!(holder.post("/locks/key?owner=web-1&ttl=1h", "").await.status, 201);
    let exec = stage.exec(&["-w", "8", "key", "true"]);
    let mut acquire = command(BINARY);
    acquire.args(["acquire", "-w", "8", "key"]).env("LOCKKEEPER_URL", stage.url());
    let waits = [Going::start(exec), Going::start(acquire)];
    for wait in waits {
        let ran = wait.end();
        assert_eq!((ran.code, &*ran.out), (Some(75), ""), "{ran:?}");
        let [begin, end] = ran.err.lines().collect::<Vec<_>>()[..] else { panic!("{ran:?}") };
        assert!(begin.starts_with("lockkeeper: waiting "), "{ran:?}");
        assert!(begin.contains("s more for 'key', place "), "{ran:?}");
        assert!(begin.ends_with("s left, by web-1") && begin.contains(": held for "), "{ran:?}");
        assert!(end.starts_with("lockkeeper: 'key' is held for "), "{ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_wait_looks_at_nothing() {
    let stage = Stage::new();
    stage.hold("key").await;
    let proxy = Proxy::before(stage.service.http().address).await;
    let ran = exec(&proxy.url(), &["-q", "-w", "2", "key", "true"]).output().unwrap();
    assert_eq!((ran.status.code(), &*ran.stderr), (Some(75), &b""[..]));
    assert!(proxy.requests().iter().all(|request| request.starts_with("POST ")));
}
