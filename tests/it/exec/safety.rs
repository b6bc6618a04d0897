//! COMMAND never runs without its lease: many rounds, in each of which something goes wrong at a
//! moment by chance, and COMMAND's last sign of life is held against the lease's end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::exec::proxy::{Mode, Proxy};
use crate::exec::ticker::{Manners, Ticker, now};
use crate::exec::{Going, Stage, dead, exec, lives};
use crate::support::{PATIENCE, eventually};

const TTL: Duration = Duration::from_secs(1);

/// At a time; each batch takes about two seconds.
const AT_ONCE: usize = 10;
const BATCHES: usize = 10;

/// What goes wrong in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    HangUp,
    Swallow,
    LoseAnswer,
    KeepAnswer,
    /// The wrapper is stopped.
    Stop,
    /// The wrapper is killed.
    Kill,
}

const FAULTS: [Fault; 6] =
    [Fault::HangUp, Fault::Swallow, Fault::LoseAnswer, Fault::KeepAnswer, Fault::Stop, Fault::Kill];

#[tokio::test(flavor = "multi_thread")]
async fn the_command_is_dead_before_its_lease_ends() {
    let stage = Arc::new(Stage::new());
    let (mut held, mut least) = (0, BTreeMap::new());
    for batch in 0..BATCHES {
        let mut rounds = JoinSet::new();
        for number in batch * AT_ONCE..(batch + 1) * AT_ONCE {
            let stage = stage.clone();
            rounds.spawn(async move { round(&stage, number).await });
        }
        while let Some(round) = rounds.join_next().await {
            let Some((fault, margin)) = round.unwrap() else { continue };
            held += 1;
            let least = least.entry(fault).or_insert(margin);
            *least = margin.min(*least);
        }
    }
    println!("{held} rounds; the smallest margins before the end: {least:?}");
    assert!(held > AT_ONCE * BATCHES / 2, "COMMAND ran in {held} rounds only");
}

/// How much of the lease was left when COMMAND last showed that it lives; nothing if it did not.
async fn round(stage: &Stage, number: usize) -> Option<(Fault, Duration)> {
    let fault = FAULTS[number % FAULTS.len()];
    let proxy = Proxy::before(stage.service.http().address).await;
    let ticker = Ticker::new(stage.path(&format!("ticks-{number}")));
    let manners = if number.is_multiple_of(4) { Manners::Polite } else { Manners::Deaf };
    let words = match number % 3 {
        0 => ticker.words_of_a_grandchild(manners),
        _ => ticker.words(manners),
    };
    let key = format!("key-{number}");
    let flags = ["-q", "-t", "1s", "-k", "200ms", &key];
    let arguments: Vec<&str> = flags.into_iter().chain(words.iter().map(String::as_str)).collect();
    let going = Going::start(exec(&proxy.url(), &arguments));
    // Under a lease this short a busy machine may be too late to start it at all.
    let pid = tokio::select! {
        pid = ticker.ticks() => pid,
        () = ended(going.child.id()) => {
            let ran = going.end();
            assert_eq!(ran.code, Some(79), "{ran:?}");
            return None;
        }
    };
    let at = now() + Duration::from_millis(fastrand::u64(0..700));
    eventually(PATIENCE, async || (now() > at).then_some(())).await;
    match fault {
        Fault::HangUp => proxy.set(Mode::HangUp),
        Fault::Swallow => proxy.set(Mode::Swallow),
        Fault::LoseAnswer => proxy.set(Mode::LoseAnswer),
        Fault::KeepAnswer => proxy.set(Mode::KeepAnswer),
        Fault::Stop => going.signal("STOP"),
        Fault::Kill => going.signal("KILL"),
    }
    dead(pid).await;
    if fault == Fault::Stop {
        going.signal("CONT");
    }
    let ran = going.end();
    // On a busy machine the lease may have been lost before the wrapper was killed.
    let killed = fault == Fault::Kill && ran.code.is_none();
    assert!(killed || ran.code == Some(79), "{fault:?}: {ran:?}");
    let end = proxy.answered() + TTL;
    let margin = end.checked_sub(ticker.last());
    let margin = margin.unwrap_or_else(|| {
        panic!("{fault:?}: COMMAND ran {:?} after its lease had ended", ticker.last() - end)
    });
    Some((fault, margin))
}

/// Waits until a child of ours has ended.
async fn ended(pid: u32) {
    eventually(PATIENCE, async || (!lives(pid)).then_some(())).await;
}
