//! On a terminal COMMAND is in the foreground as if it had been typed itself.

use std::io::Write;
use std::process::Stdio;

use crate::exec::ticker::{Manners, Ticker};
use crate::exec::{Going, Stage, dead, on_terminal};
use crate::support::process::signal;

/// Counts Ctrl-C, and ends 300 ms after the first.
const COUNTS: &str = r#"
$SIG{INT} = sub { $n++ }; $| = 1; print "ready\n";
select undef, undef, undef, 0.05 until $n;
select undef, undef, undef, 0.3; print "count $n\n"; exit 42;
"#;

#[test]
fn ctrl_c_reaches_the_command_once() {
    let stage = Stage::new();
    let script = stage.path("counts.pl");
    std::fs::write(&script, COUNTS).unwrap();
    let mut typed = on_terminal(&stage, &format!("exec LOCKKEEPER exec key perl {script}"));
    typed.stdin(Stdio::piped());
    let mut going = Going::start(typed);
    assert_eq!(going.line(), "ready");
    let mut keyboard = going.child.stdin.take().unwrap();
    keyboard.write_all(b"\x03").unwrap();
    assert_eq!(going.line().trim_start_matches("^C"), "count 1");
    assert_eq!(going.end().code, Some(42));
}

#[test]
fn a_signal_that_is_sent_to_the_wrapper_reaches_the_command_too() {
    let stage = Stage::new();
    let script = stage.path("hears.pl");
    let hears = "$SIG{$ARGV[0]} = sub { print \"heard\\n\"; exit 42 };
                 $| = 1; print getppid, \"\\n\"; select undef, undef, undef, 0.05 while 1;";
    std::fs::write(&script, hears).unwrap();
    for name in ["INT", "QUIT", "HUP", "TERM"] {
        let line = format!("LOCKKEEPER exec key perl {script} {name}; echo shell $?");
        let mut going = Going::start(on_terminal(&stage, &line));
        signal(going.line().parse().unwrap(), name);
        assert_eq!(going.line(), "heard", "{name}");
        assert_eq!(going.line(), "shell 42");
        assert_eq!(going.end().code, Some(0));
    }
}

#[test]
fn the_command_reads_from_the_terminal() {
    let stage = Stage::new();
    let mut typed =
        on_terminal(&stage, "exec LOCKKEEPER exec -c 'echo ready; read LINE; echo got $LINE' key");
    typed.stdin(Stdio::piped());
    let mut going = Going::start(typed);
    assert_eq!(going.line(), "ready");
    let mut keyboard = going.child.stdin.take().unwrap();
    keyboard.write_all(b"words\n").unwrap();
    assert_eq!(going.line(), "words");
    assert_eq!(going.line(), "got words");
    assert_eq!(going.end().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_of_the_command_are_killed_with_it_and_our_parent_is_not() {
    let stage = Stage::new();
    let ticker = Ticker::new(stage.path("ticks"));
    let script = stage.path("starts.sh");
    std::fs::write(&script, format!("{} & wait; wait\n", quoted(&ticker))).unwrap();
    let line = format!("LOCKKEEPER exec -q -T 4s -k 200ms key sh {script}; echo shell $?");
    let mut going = Going::start(on_terminal(&stage, &line));
    let pid = ticker.ticks().await;
    assert_eq!(going.line(), "shell 124");
    assert_eq!(going.end().code, Some(0));
    dead(pid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_killed_whose_wrapper_stands_still_past_its_lease() {
    let stage = Stage::new();
    let ticker = Ticker::new(stage.path("ticks"));
    let script = stage.path("starts.sh");
    std::fs::write(&script, format!("echo $PPID; {}\n", quoted(&ticker))).unwrap();
    let line = format!("LOCKKEEPER exec -q -t 5s -k 200ms key sh {script}; echo shell $?");
    let mut going = Going::start(on_terminal(&stage, &line));
    let wrapper: u32 = going.line().parse().unwrap();
    let pid = ticker.ticks().await;
    signal(wrapper, "STOP");
    dead(pid).await;
    signal(wrapper, "CONT");
    assert_eq!(going.line(), "shell 79");
    assert_eq!(going.end().code, Some(0));
}

/// A ticker as a shell reads it.
fn quoted(ticker: &Ticker) -> String {
    let words = ticker.words(Manners::Deaf);
    let quoted = |word: &String| format!("\"{}\"", word.replace('$', "\\$").replace('"', "\\\""));
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}
