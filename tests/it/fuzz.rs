//! The inputs of the fuzzer as a test: those that are kept, and changes of them by chance. `make fuzz` goes on
//! from there with coverage as its guide.

use std::path::Path;

#[path = "../../fuzz/inputs/mod.rs"]
mod inputs;

use crate::fuzz::inputs::{connection, file, request, settings};

/// How many changes of each kept input are tried.
const CHANGES: usize = 40;

#[test]
fn no_request_is_a_fault_of_the_service() {
    replay("request", request::judge);
}

#[test]
fn no_bytes_on_a_connection_are_a_fault_of_the_service() {
    replay("connection", connection::judge);
}

#[test]
fn settings_are_read_or_refused_in_one_line() {
    replay("settings", settings::judge);
}

#[test]
fn a_damaged_file_is_refused_or_whole() {
    replay("file", file::judge);
}

fn replay(target: &str, judge: fn(&[u8])) {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> = corpus
        .read_dir()
        .unwrap()
        .map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
        .collect();
    files.sort();
    assert!(files.len() > 5);
    for file in &files {
        judge(file);
        for _ in 0..CHANGES {
            judge(&changed(file, &files, &mut chance));
        }
    }
}

/// The input with a few bytes changed, doubled or left out, or joined to the end of another.
fn changed(input: &[u8], others: &[Vec<u8>], chance: &mut fastrand::Rng) -> Vec<u8> {
    let mut changed = input.to_vec();
    for _ in 0..chance.usize(1..4) {
        let at = chance.usize(..=changed.len());
        let to = chance.usize(at..=changed.len().min(at + 8));
        match chance.u8(..4) {
            0 if to > at => changed[at] = chance.u8(..),
            1 => drop(changed.drain(at..to)),
            2 => changed
                .splice(to..to, input.get(at..to).unwrap_or_default().to_vec())
                .for_each(drop),
            _ => {
                let other = &others[chance.usize(..others.len())];
                changed.truncate(at);
                changed.extend(&other[chance.usize(..=other.len())..]);
            }
        }
    }
    changed
}
