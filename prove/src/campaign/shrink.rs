//! Fewer faults that suffice for a violation: half of the kinds at a time, within a bound.

use crate::campaign::trial::Trial;
use crate::campaign::wanted;
use crate::check::check_wanted;
use crate::nemesis::kinds::Kind;

/// How many trials a search may take. Each is as long as the first.
const MOST: u32 = 8;

/// Runs a trial again with fewer kinds of faults, and prints the fewest with which it still fails.
pub(crate) async fn shrink(trial: &Trial) {
    let mut kinds = trial.kinds.clone();
    let mut left = MOST;
    'smaller: while kinds.len() > 1 && left > 0 {
        let (first, second) = kinds.split_at(kinds.len() / 2);
        for half in [first.to_vec(), second.to_vec()] {
            if left == 0 {
                break;
            }
            left -= 1;
            if fails(trial, &half).await {
                kinds = half;
                continue 'smaller;
            }
        }
        break;
    }
    let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    eprintln!("it still fails with {}", names.join(" "));
}

/// Whether what is promised is broken as well with these kinds of faults.
async fn fails(trial: &Trial, kinds: &[Kind]) -> bool {
    let mut directory = trial.directory.clone().into_os_string();
    directory.push("-smaller");
    let smaller = Trial { kinds: kinds.to_vec(), directory: directory.into(), ..trial.clone() };
    let lines = smaller.run().await;
    let report = lines.map(|lines| check_wanted(&lines, &wanted(trial.store, trial.lasts)));
    report.is_ok_and(|report| report.broken().next().is_some())
}
