//! A short campaign over all stores: what is promised holds while something fails all the time.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The stores, in two lanes: each trial waits for seconds until all its leases are over.
const LANES: [[&str; 4]; 2] = [
    ["embedded", "redis", "redis-3", "redis-far"],
    ["sentinel", "cluster", "cluster-replicas", "redlock"],
];

/// How long each store has clients.
const SECONDS: &str = "20";

/// The least over all stores, on a machine that has other things to do; ten times as many are usual.
const KINDS: usize = 10;
const OPERATIONS: u64 = 20_000;

/// What no trial may break: two holders, more than a shared key allows, two of a slot, fencing tokens, a
/// lease that is changed by a request without its number, a definite no that was a yes.
/// What is a matter of time as well is left to longer campaigns, which say under what it was broken.
const SAFETY: [&str; 7] = ["I1 ", "I2 ", "I13 ", "S1 ", "S2 ", "S3 ", "no "];

/// How much of a failed trial's log is printed.
const MOST_LINES: usize = 120;
const MOST_CHARS: usize = 320;

/// What a trial printed.
struct Trial {
    store: &'static str,
    passed: bool,
    out: String,
    log: PathBuf,
}

impl Trial {
    fn is_safe(&self) -> bool {
        let log = self.log();
        let broken = |line: &str| SAFETY.iter().any(|rule| line.starts_with(rule));
        self.passed || operations(&self.out) > 0 && !log.lines().any(broken)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Prints what was broken and what happened around it: elsewhere the file is soon gone.
    fn print_broken(&self) {
        let promised = |line: &&str| !line.starts_with("not promised");
        for line in self.log().lines().filter(promised).take(MOST_LINES) {
            let cut: String = line.chars().take(MOST_CHARS).collect();
            eprintln!("{cut}");
        }
    }
}

#[test]
fn the_promises_hold_on_every_store_while_something_fails_all_the_time() {
    let seed = std::env::var("PROVE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let binary = service();
    let lane = |seed: u64, stores: [&'static str; 4]| -> Vec<Trial> {
        (seed..).zip(stores).map(|(seed, store)| run(&binary, store, seed)).collect()
    };
    let [first, second] = LANES;
    let trials = std::thread::scope(|scope| {
        let other = scope.spawn(|| lane(seed + 1, second));
        let mut trials = lane(seed, first);
        trials.extend(other.join().unwrap());
        trials
    });
    for Trial { store, out, log, .. } in &trials {
        eprintln!("{}: {}, log {}", store, out.lines().last().unwrap_or(""), log.display());
    }
    let failed = trials.iter().filter(|trial| !trial.is_safe());
    let failed: Vec<_> =
        failed.inspect(|trial| trial.print_broken()).map(|one| one.store).collect();
    assert_eq!(failed, [""; 0], "seed {seed}");
    let lines = trials.iter().flat_map(|trial| trial.out.lines());
    let kinds: BTreeSet<_> = lines.filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    assert!(kinds.len() >= KINDS, "only {kinds:?}");
    let operations: u64 = trials.iter().map(|trial| operations(&trial.out)).sum();
    assert!(operations >= OPERATIONS, "only {operations} operations");
}

fn run(binary: &Path, store: &'static str, seed: u64) -> Trial {
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{store}.log"));
    let mut trial = Command::new("setpriv"); // It ends with this test.
    trial.args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_prove")]);
    trial.args(["run", store, SECONDS, &seed.to_string()]);
    trial.env("LOCKKEEPER_BIN", binary).stdout(Stdio::piped());
    let done = trial.stderr(std::fs::File::create(&log).unwrap()).output().unwrap();
    let out = String::from_utf8(done.stdout).unwrap();
    Trial { store, passed: done.status.success(), out, log }
}

fn operations(out: &str) -> u64 {
    let line = out.lines().find_map(|line| line.strip_prefix("operations="));
    line.and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or(0)
}

/// The service: the one that is named, or that of the same build.
fn service() -> PathBuf {
    let beside = || {
        let built = Path::new(env!("CARGO_BIN_EXE_prove")).with_file_name("lockkeeper");
        assert!(built.exists(), "{} is not built; see LOCKKEEPER_BIN", built.display());
        built
    };
    std::env::var_os("LOCKKEEPER_BIN").map_or_else(beside, PathBuf::from)
}
