//! The judge on simulated histories: nothing is found in those of a lock that is right.

use super::little::code;
use super::simulation::{Bug, history};
use super::*;

#[test]
fn nothing_is_found_in_histories_of_a_lock_that_is_right() {
    let mut all = Report::default();
    for seed in 0..3_000 {
        let report = check(&history(seed, None));
        assert!(report.passed(), "seed {seed}: {}", report);
        all.add_trial("", &report);
    }
    let all = all.counts;
    println!("{all:?}");
    // Nothing is found in nothing, too.
    assert!(all["grants"] > 150_000 && all["expiries"] > 20_000 && all["replaced"] > 20_000);
    assert!(all["unordered_grants"] * 20 < all["grants"], "too much is left undecided");
}

/// Each bug, the rules by which it is known, and in how many of so many worlds it shows at least.
const WORLDS: u64 = 300;
const BUGS: [(Bug, &[&str], u32); 26] = [
    (Bug::ReleaseWithoutCompare, &["I6", "I1"], 240),
    (Bug::ReleaseIgnoresTheNumber, &["I6"], 5),
    (Bug::RefreshRecreates, &["I7"], 25),
    (Bug::NumbersRepeat, &["I2"], 240),
    (Bug::LastInFirstOut, &["I3"], 200),
    (Bug::LostWakeUp, &["I4"], 12),
    (Bug::GhostStaysInLine, &["I4", "I5"], 30),
    (Bug::RefusalThatGrants, &["no"], 100),
    (Bug::RepeatIsAnotherLease, &["I8"], 240),
    (Bug::RepeatIsRefused, &["I8"], 150),
    (Bug::TwoAreServed, &["I1"], 240),
    (Bug::EndsLittleEarly, &["I9", "I1"], 240),
    (Bug::EndsLate, &["I9"], 70),
    (Bug::RefusalWithoutHolder, &["I10"], 12),
    (Bug::LookSaysMine, &["I12"], 200),
    (Bug::LostWithoutReason, &["I9"], 240),
    (Bug::StreamTakesLease, &["I1", "I9"], 120),
    (Bug::StreamTakesStream, &["I13"], 170),
    (Bug::ReplacementStays, &["I5"], 2),
    (Bug::RefreshShortens, &["I9"], 220),
    (Bug::ReplacementKeepsItsNumber, &["I13"], 240),
    (Bug::UnheardRepeatCounts, &["I12"], 1),
    (Bug::TakeBackIgnoresHeard, &["I9", "I1"], 80),
    (Bug::CrewGrows, &["left"], 180),
    (Bug::RefreshesEndTheStream, &["I13"], 100),
    (Bug::TimeoutEndsTheLease, &["I1", "I9"], 220),
];

#[test]
fn every_bug_of_a_lock_is_found() {
    for (bug, rules, least) in BUGS {
        let mut found = 0;
        for seed in 0..WORLDS {
            let report = check(&history(seed, Some(bug)));
            // No answer of these worlds is on its way when a client goes, so each ghost counts.
            let counts =
                |violation: &&Violation| violation.promised || code(violation.rule) == "I5";
            let mut broken = report.violations.iter().filter(counts);
            found += u32::from(broken.any(|violation| rules.contains(&code(violation.rule))));
        }
        println!("{bug:?}: found by {rules:?} in {found} of {WORLDS}");
        assert!(found >= least, "{bug:?}: in {found} of {WORLDS} worlds");
    }
}
