//! A standard error that nobody reads stops nothing.

use std::io::{PipeReader, PipeWriter, Write};
use std::process::Command;

use rustix::io::ioctl_fionbio;

use crate::exec::ticker::{Manners, Ticker};
use crate::exec::{Going, Stage, exec, lives};
use crate::support::NOWHERE;

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_ends_the_command_whoever_reads_of_it() {
    let stage = Stage::new();
    let ticker = Ticker::new(stage.path("ticks"));
    let words = ticker.words(Manners::Deaf);
    let flags = ["-v", "-t", "9s", "-k", "1s", "key"];
    let words: Vec<&str> = flags.into_iter().chain(words.iter().map(String::as_str)).collect();
    let (mut going, _unread) = stuck(stage.exec(&words));
    let pid = ticker.ticks().await;
    assert_eq!(stage.service.http().delete("/admin/locks/key").await.status, 200);
    let code = going.ended().await;
    assert_eq!(code, Some(79));
    assert!(!lives(pid));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_runs_for_too_long_is_ended_whoever_reads_of_it() {
    let stage = Stage::new();
    for flags in [&["-T", "300ms"][..], &["-T", "300ms", "--on-lost", "warn"]] {
        let words = [flags, &["-k", "300ms", "key", "sleep", "60"]].concat();
        let (mut going, _unread) = stuck(stage.exec(&words));
        let code = going.ended().await;
        assert_eq!(code, Some(124), "{flags:?}");
        assert_eq!(stage.look("key").await["held"], false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_without_a_lease_starts_whoever_reads_of_it() {
    let url = format!("http://{NOWHERE}");
    let flags = ["-n", "--if-down", "run", "key", "sh", "-c", "echo started"];
    let (mut going, _unread) = stuck(exec(&url, &flags));
    assert_eq!(going.line(), "started");
    let code = going.ended().await;
    assert_eq!(code, Some(0));
}

/// Starts a command whose standard error is a full pipe that nobody reads.
fn stuck(mut command: Command) -> (Going, PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    fill(&writer);
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(writer).spawn().unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap());
    (Going { child, lines }, reader)
}

fn fill(mut writer: &PipeWriter) {
    ioctl_fionbio(writer, true).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    while writer.write(b"x").is_ok() {}
    ioctl_fionbio(writer, false).unwrap();
}
