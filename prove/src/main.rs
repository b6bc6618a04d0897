//! The proof of lockkeeper: what clients are told while things fail, held against what is promised.
//!
//! `history` is the record, on one monotonic clock. `drive` asks and records, `servers` runs the
//! service and its stores, `proxy` and `nemesis` make things fail, `campaign` puts them together,
//! `check` judges, and `outside` judges a second time. All of it knows the HTTP contract and nothing
//! of the service's code.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test stops at the first surprise"))]

mod campaign;
mod check;
mod drive;
mod history;
mod http;
mod nemesis;
mod outside;
mod proxy;
mod record;
mod servers;

use std::fs::File;
use std::io;
use std::io::BufReader;
use std::num::NonZero;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::campaign::seeded::hunt_all;
use crate::campaign::trial::Trial;
use crate::campaign::{Campaign, binary, directory, show, wanted};
use crate::check::{Report, check, check_wanted};
use crate::history::{Line, read};
use crate::servers::Store;

/// How many rejected windows are shown.
const SHOWN: usize = 3;

const USAGE: &str = "usage: prove | prove run STORE SECONDS SEED | prove check FILE
       | prove outside STORE SECONDS SEED | prove outside FILE | prove edn FILE DIRECTORY
       | prove seeded SECONDS TRIALS [BUG...]
PROVE_SECONDS (600), PROVE_SEED, PROVE_STORES, PROVE_KINDS and LOCKKEEPER_BIN are
what a campaign follows. A run keeps its history.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let passed = match words[..] {
        [] => campaign(),
        ["run", store, seconds, seed] => run(store, seconds, seed),
        ["outside", store, seconds, seed] => lasting(store, seconds, seed),
        ["outside", file] => stored(file).map(|lines| judged_outside(&lines)),
        ["edn", file, directory] => as_edn(file, directory),
        ["check", file] => check_file(file),
        ["seeded", seconds, trials, ref names @ ..] => seeded(seconds, trials, names),
        _ => Err(usage()),
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Runs a campaign; whether it found nothing.
fn campaign() -> io::Result<bool> {
    let campaign = Campaign::from_env()?;
    let outcome = runtime()?.block_on(campaign.run())?;
    for (rule, count) in outcome.not_promised() {
        eprintln!("not promised: {rule} {count} times");
    }
    for why in &outcome.refused {
        eprintln!("refused: {why}");
    }
    told(&outcome, campaign.seed);
    Ok(outcome.passed())
}

fn usage() -> io::Error {
    io::Error::other(USAGE)
}

fn number<N: FromStr>(text: &str) -> io::Result<N> {
    text.parse().map_err(|_| usage())
}

/// Reads the words that describe a trial.
fn trial(store: &str, seconds: &str, seed: &str) -> io::Result<Trial> {
    let store = Store::of(store).ok_or_else(usage)?;
    let lasts = Duration::from_secs(number(seconds)?);
    Ok(Trial::new(store, lasts, number(seed)?, &binary()?, &directory()))
}

/// Runs one trial; whether it found nothing.
fn run(store: &str, seconds: &str, seed: &str) -> io::Result<bool> {
    let trial = trial(store, seconds, seed)?;
    let lines = runtime()?.block_on(trial.run())?;
    let report = check_wanted(&lines, &wanted(trial.store, trial.lasts));
    show::report(&report, &lines);
    told(&report, trial.seed);
    Ok(report.passed())
}

/// Runs one trial for the judge from outside; whether it found nothing.
fn lasting(store: &str, seconds: &str, seed: &str) -> io::Result<bool> {
    let trial = trial(store, seconds, seed)?;
    Ok(judged_outside(&runtime()?.block_on(trial.lasting())?))
}

/// Prints what the judge from outside says of a history; whether it found nothing.
fn judged_outside(lines: &[Line]) -> bool {
    let began = Instant::now();
    let verdict = outside::judge(lines);
    for window in verdict.rejected.iter().take(SHOWN) {
        eprintln!("{window}");
    }
    if verdict.rejected.is_empty() && !verdict.passed() {
        eprintln!("refused: less than half of the operations could be judged");
    }
    println!("{verdict} seconds={:.1}", began.elapsed().as_secs_f64());
    verdict.passed()
}

/// Hunts seeded bugs; whether each was found.
fn seeded(seconds: &str, trials: &str, names: &[&str]) -> io::Result<bool> {
    let trials: NonZero<usize> = number(trials)?;
    hunt_all(names, number(seconds)?, trials.get())
}

/// Prints what trials came to; the last line is for programs.
fn told(outcome: &Report, seed: u64) {
    for (kind, count) in &outcome.faults {
        println!("{kind}: {count}");
    }
    println!("{}", outcome.line(seed));
}

/// Checks a stored history; whether it is in order.
fn check_file(file: &str) -> io::Result<bool> {
    let lines = stored(file)?;
    let report = check(&lines);
    show::report(&report, &lines);
    Ok(report.passed())
}

/// Writes each exclusive key of a stored history as a file of its own; whether there is one.
fn as_edn(file: &str, directory: &str) -> io::Result<bool> {
    let keys = outside::edn::written(&stored(file)?);
    std::fs::create_dir_all(directory)?;
    for (key, text) in &keys {
        std::fs::write(format!("{directory}/k{key}.edn"), text)?;
    }
    Ok(!keys.is_empty())
}

fn stored(file: &str) -> io::Result<Vec<Line>> {
    read(BufReader::new(File::open(file)?)).collect()
}

/// Processes under test end with the thread that started them, which is this one.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}
