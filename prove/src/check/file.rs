//! A history in a file, and how long it takes to judge.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fmt, io};

use super::{Report, Wanted, check_wanted};
use crate::history;
use crate::history::Line;

/// A judgement, and the time that it took on one core.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The judgement.
    pub report: Report,
    /// How long the file took to read.
    pub read: Duration,
    /// How long the check took.
    pub checked: Duration,
}

/// Reads and checks a history.
///
/// # Errors
/// The file cannot be read, or is no history.
pub fn check_file(path: &Path, wanted: &Wanted) -> io::Result<Judged> {
    let start = Instant::now();
    let file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let lines = history::read(file).collect::<io::Result<Vec<Line>>>()?;
    let read = start.elapsed();
    let report = check_wanted(&lines, wanted);
    Ok(Judged { report, read, checked: start.elapsed() - read })
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.report)?;
        let operations = self.report.counted.operations as f64;
        let [read, checked] = [self.read, self.checked].map(|time| time.as_secs_f64().max(1e-9));
        let (reads, checks) = (operations / read, operations / checked);
        writeln!(f, "read in {read:.3} s ({reads:.0}/s), checked in {checked:.3} s ({checks:.0}/s)")
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::{Plan, history as simulated};
    use super::*;

    #[test]
    fn a_file_is_judged_as_its_lines_are() {
        let lasts = 6_000_000_000;
        let plan = Plan { seed: 1, lasts, bug: None, faults: true, patient: false };
        let lines = simulated(plan);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        history::write(File::create(&path).unwrap(), &lines).unwrap();
        let judged = check_file(&path, &Wanted::default()).unwrap();
        assert_eq!(judged.report, super::super::check(&lines));
        assert!(judged.to_string().contains("/s)"), "{judged}");
        std::fs::write(&path, "{}\n{}\n").unwrap();
        assert!(check_file(&path, &Wanted::default()).is_err());
    }
}
