//! Processes that leave COMMAND's process group or its session end with it all the same.

use std::time::Duration;

use futures_util::future::join_all;

use crate::exec::proxy::Proxy;
use crate::exec::ticker::{Manners, Ticker};
use crate::exec::{Going, Stage, dead, exec, lives, on_terminal};
use crate::support::process::{BINARY, command, signal};
use crate::support::{PATIENCE, eventually};

/// Each starts its arguments in another process group, as a child or as an orphan.
const ESCAPES: [&str; 4] = [
    "timeout 60 \"$@\"; :",
    "set -m; \"$@\" & wait",
    "setsid -w \"$@\"; :",
    "(setsid \"$@\" &); exec sleep 60",
];

/// Forks without end, a process and a child of it each time, which last for two seconds.
const FORKS: &str = r#"
use Time::HiRes qw(sleep);
$SIG{CHLD} = 'IGNORE';
while (1) {
    if (!fork) { fork; sleep 2; exit }
    sleep 0.01;
}
"#;

/// So many of them at once show that it forks, on a busy machine too.
const FORKED: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_process_outside_the_group_is_killed_when_the_lease_is_lost() {
    let stage = Stage::new();
    let rounds = ESCAPES.map(async |escape| {
        let ticker = Ticker::new(stage.path(&key(escape)));
        let going = started(&stage, &["-t", "6s", "-k", "1s"], escape, &ticker);
        let pid = ticker.ticks().await;
        let forced = format!("/admin/locks/{}", key(escape));
        assert_eq!(stage.service.http().delete(&forced).await.status, 200);
        assert_eq!(going.end().code, Some(79), "{escape}");
        assert!(!lives(pid), "{escape}");
    });
    join_all(rounds).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_outside_the_group_is_killed_with_a_command_that_is_told_to_end() {
    let stage = Stage::new();
    for escape in ESCAPES {
        let ticker = Ticker::new(stage.path(&key(escape)));
        let going = started(&stage, &["-k", "200ms"], escape, &ticker);
        let pid = ticker.ticks().await;
        going.signal("TERM");
        assert_eq!(going.end().code, Some(143), "{escape}");
        assert!(!lives(pid), "{escape}");
        assert_eq!(stage.look(&key(escape)).await["held"], false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_outside_the_group_is_killed_when_the_wrapper_cannot() {
    let stage = Stage::new();
    for fault in ["KILL", "STOP"] {
        join_all(ESCAPES.map(|escape| without_wrapper(&stage, fault, escape))).await;
    }
}

async fn without_wrapper(stage: &Stage, fault: &str, escape: &str) {
    let proxy = Proxy::before(stage.service.http().address).await;
    let ticker = Ticker::new(stage.path(&format!("{}-{fault}", key(escape))));
    let words = words(&["-t", "5s", "-k", "500ms"], escape, &ticker);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let going = Going::start(exec(&proxy.url(), &words));
    let pid = ticker.ticks().await;
    going.signal(fault);
    dead(pid).await;
    let (last, end) = (ticker.last(), proxy.answered() + Duration::from_secs(5));
    assert!(last < end, "{fault}, {escape}: it ran until {last:?}, the end was {end:?}");
    if fault == "STOP" {
        going.signal("CONT");
        assert_eq!(going.end().code, Some(79), "{escape}");
    } else {
        let forced = format!("/admin/locks/{}", key(escape));
        assert_eq!(stage.service.http().delete(&forced).await.status, 200);
    }
}

/// Its first thread ends, and another one goes on: /proc shows the process as a zombie.
const HEADLESS: &str = "import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print(os.getpid(), flush=True)
ctypes.CDLL(None).pthread_exit(None)";

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_first_thread_has_ended_is_killed_as_others_are() {
    let stage = Stage::new();
    for (number, fault) in ["a forced release", "KILL"].into_iter().enumerate() {
        let key = format!("headless-{number}");
        let script = "setsid -w python3 -c \"$0\"; :";
        let words = ["-t", "6s", "-k", "1s", &key, "sh", "-c", script, HEADLESS];
        let mut going = Going::start(stage.exec(&words));
        let pid = going.line().parse().unwrap();
        eventually(PATIENCE, async || (!lives(pid)).then_some(())).await;
        assert!(has_threads(pid), "{fault}");
        if fault == "KILL" {
            going.signal("KILL");
            eventually(PATIENCE, async || (!has_threads(pid)).then_some(())).await;
            continue;
        }
        let forced = format!("/admin/locks/{key}");
        assert_eq!(stage.service.http().delete(&forced).await.status, 200);
        assert_eq!(going.end().code, Some(79));
        assert!(!has_threads(pid));
    }
}

/// Returns true if a thread of the process runs.
fn has_threads(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let states = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    states.filter(|stat| !stat.contains(") Z ") && !stat.contains(") X ")).count() > 0
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_command_that_forks_while_it_is_killed() {
    let stage = Stage::new();
    let mark = stage.path("forks");
    std::fs::write(&mark, FORKS).unwrap();
    let flags = ["-t", "10s", "-k", "1s", "key", "perl", &mark];
    let off_terminal = Going::start(stage.exec(&flags));
    alive(&mark, FORKED).await;
    assert_eq!(stage.service.http().delete("/admin/locks/key").await.status, 200);
    assert_eq!(off_terminal.end().code, Some(79));
    assert_eq!(count(&mark), 0);
    // The shell stays, so that the terminal's end kills nobody.
    let line = format!("LOCKKEEPER exec {}; echo shell $?; exec sleep 60", flags.join(" "));
    let mut going = Going::start(on_terminal(&stage, &line));
    alive(&mark, FORKED).await;
    assert_eq!(stage.service.http().delete("/admin/locks/key").await.status, 200);
    assert!(going.line().starts_with("lockkeeper: 'key': COMMAND is ended"));
    assert_eq!(going.line(), "shell 79");
    assert_eq!(count(&mark), 0);
    going.child.kill().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_the_shell_started_before_are_spared() {
    let stage = Stage::new();
    let (helper, ours) = (Ticker::new(stage.path("helper")), Ticker::new(stage.path("ours")));
    let script = "\"$1\" \"$2\" \"$3\" \"$4\" 1 & shift 5; exec \"$0\" exec -q key \"$@\"";
    let mut shell = command("setsid");
    shell.args(["sh", "-c", script, BINARY]).args(helper.words(Manners::Deaf));
    shell.args(ours.words(Manners::Deaf)).env("LOCKKEEPER_URL", stage.url());
    let mut going = Going::start(shell);
    let (spared, killed) = (helper.ticks().await, ours.ticks().await);
    assert_eq!(stage.service.http().delete("/admin/locks/key").await.status, 200);
    // The helper has its standard output, so its end does not come before that of the helper.
    let code = going.ended().await;
    assert_eq!(code, Some(79));
    assert!(!lives(killed));
    assert!(lives(spared));
    signal(spared, "KILL");
    dead(spared).await;
}

/// A key for each.
fn key(escape: &str) -> String {
    format!("key-{}", ESCAPES.iter().position(|known| *known == escape).unwrap())
}

fn words(flags: &[&str], escape: &str, ticker: &Ticker) -> Vec<String> {
    let key = key(escape);
    let words = [flags, &[&key, "bash", "-c", escape, "bash"]].concat();
    let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    words.extend(ticker.words(Manners::Deaf));
    words
}

fn started(stage: &Stage, flags: &[&str], escape: &str, ticker: &Ticker) -> Going {
    let words = words(flags, escape, ticker);
    Going::start(stage.exec(&words.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// Waits until so many processes run this script.
async fn alive(script: &str, least: usize) {
    eventually(PATIENCE, async || (count(script) >= least).then_some(())).await;
}

fn count(script: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let runs = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line == [b"perl\0", script.as_bytes(), b"\0"].concat()
    };
    pids.filter(runs).filter(|pid| lives(*pid)).count()
}
