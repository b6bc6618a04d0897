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
    assert!(all["grants"] > 200_000 && all["expiries"] > 40_000 && all["unknowns"] > 40_000);
    assert!(all["unordered_grants"] * 20 < all["grants"], "too much is left undecided");
}

/// Each bug, the rules by which it is known, and in how many of a hundred worlds it shows at least.
const BUGS: [(Bug, &[&str], u32); 16] = [
    (Bug::ReleaseWithoutCompare, &["I6", "I1"], 95),
    (Bug::ReleaseIgnoresTheNumber, &["I6"], 2),
    (Bug::RefreshRecreates, &["I7"], 30),
    (Bug::NumbersRepeat, &["I2"], 95),
    (Bug::LastInFirstOut, &["I3"], 90),
    (Bug::LostWakeUp, &["I4"], 10),
    (Bug::GhostStaysInLine, &["I4", "I5"], 5),
    (Bug::RefusalThatGrants, &["no"], 50),
    (Bug::RepeatIsAnotherLease, &["I8"], 95),
    (Bug::RepeatIsRefused, &["I8"], 95),
    (Bug::TwoAreServed, &["I1"], 95),
    (Bug::EndsLittleEarly, &["I9", "I1"], 95),
    (Bug::EndsLate, &["I9"], 40),
    (Bug::RefusalWithoutHolder, &["I10"], 10),
    (Bug::LookSaysMine, &["I12"], 50),
    (Bug::LostWithoutReason, &["I9"], 95),
];

#[test]
fn every_bug_of_a_lock_is_found() {
    for (bug, rules, least) in BUGS {
        let mut found = 0;
        for seed in 0..100 {
            let report = check(&history(seed, Some(bug)));
            // No answer of these worlds is on its way when a client goes, so each ghost counts.
            let counts =
                |violation: &&Violation| violation.promised || code(violation.rule) == "I5";
            let mut broken = report.violations.iter().filter(counts);
            found += u32::from(broken.any(|violation| rules.contains(&code(violation.rule))));
        }
        println!("{bug:?}: found by {rules:?} in {found} of 100");
        assert!(found >= least, "{bug:?}: in {found} of 100 worlds");
    }
}
