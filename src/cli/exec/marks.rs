//! The marks of COMMAND in its environment, which its children inherit: the processes are found by
//! them once the wrapper is dead.

/// The variable with the marks of all `exec` above a process, outermost first.
pub(super) const MARKS: &str = "LOCK_EXEC";

/// The separator of marks in the variable.
const BETWEEN: char = ':';

/// The marks of a child that gets `mark` in addition.
pub(super) fn with_mark(marks: Option<String>, mark: &str) -> String {
    match marks.filter(|marks| !marks.is_empty()) {
        Some(marks) => format!("{marks}{BETWEEN}{mark}"),
        None => mark.to_owned(),
    }
}

/// Returns whether this mark is in an environment.
pub(super) fn has_mark(environment: &[u8], mark: &str) -> bool {
    let environment = String::from_utf8_lossy(environment);
    let mut variables = environment.split('\0').filter_map(|variable| variable.split_once('='));
    variables.any(|(name, marks)| name == MARKS && marks.split(BETWEEN).any(|one| one == mark))
}

#[cfg(test)]
mod tests {
    use super::{has_mark, with_mark};

    #[test]
    fn a_process_has_the_marks_of_all_that_it_runs_under() {
        let marks = with_mark(Some(with_mark(None, "1-10")), "2-20");
        let environment = format!("A=b\0LOCK_EXEC={marks}\0C=d\0");
        for (mark, found) in [("1-10", true), ("2-20", true), ("2-2", false), ("-10", false)] {
            assert_eq!(has_mark(environment.as_bytes(), mark), found, "{mark}");
        }
        assert!(!has_mark(b"NO_LOCK_EXEC=1-10\0", "1-10"));
    }
}
