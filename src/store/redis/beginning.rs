//! The beginning of a Redis, from what it tells to each new connection: a server that has just begun
//! without data has lost all leases, if it had any.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The age up to which a server without data is taken for one that began so.
const JUST_BEGUN: Duration = Duration::from_secs(60);

/// What is known of a server's beginning.
#[derive(Debug)]
pub(super) struct Beginning {
    /// The start of the line of `INFO` that is there if the database has data.
    data: String,
    /// The last run that began without data, and when.
    empty: Mutex<Option<(String, Instant)>>,
}

impl Beginning {
    /// Nothing is known yet.
    pub(super) fn of_database(number: i64) -> Self {
        Self { data: format!("db{number}:"), empty: Mutex::default() }
    }

    /// Takes an answer to `INFO`. Returns true if it shows another run than before, without data.
    pub(super) fn note(&self, info: &str) -> bool {
        let uptime = setting(info, "uptime_in_seconds:").and_then(|text| text.parse().ok());
        let (Some(run), Some(uptime)) = (setting(info, "run_id:"), uptime.map(Duration::from_secs))
        else {
            return false;
        };
        let mut empty = self.empty.lock().unwrap_or_else(PoisonError::into_inner);
        if empty.as_ref().is_some_and(|(known, _)| known == run) {
            return false;
        }
        let is_empty = info.contains("# Keyspace") && setting(info, &self.data).is_none();
        let began = Instant::now().checked_sub(uptime);
        *empty = began.filter(|_| is_empty && uptime < JUST_BEGUN).map(|at| (run.to_owned(), at));
        empty.is_some()
    }

    /// When it began, if it began without data.
    pub(super) fn empty_since(&self) -> Option<Instant> {
        let empty = self.empty.lock().unwrap_or_else(PoisonError::into_inner);
        empty.as_ref().map(|(_, began)| *began)
    }
}

/// The value of a line of `INFO`.
pub(super) fn setting<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::Beginning;

    fn info(run: &str, uptime: u64, keyspace: &str) -> String {
        let server = format!("# Server\r\nrun_id:{run}\r\nuptime_in_seconds:{uptime}\r\n");
        format!("{server}\r\n# Keyspace\r\n{keyspace}")
    }

    #[test]
    fn only_a_young_server_without_data_has_begun_so() {
        let data = "db0:keys=1,expires=1,avg_ttl=0\r\n";
        for (told, expected) in [
            (info("a", 3, ""), true),
            (info("a", 3, "db1:keys=1,expires=0,avg_ttl=0\r\n"), true),
            (info("a", 3, data), false),
            (info("a", 60, ""), false),
            ("run_id:a\r\nuptime_in_seconds:3\r\n".to_owned(), false),
            ("# Keyspace\r\n".to_owned(), false),
        ] {
            let beginning = Beginning::of_database(0);
            assert_eq!(beginning.note(&told), expected, "{told}");
            assert_eq!(beginning.empty_since().is_some(), expected, "{told}");
        }
    }

    #[test]
    fn a_run_that_began_without_data_is_told_once_and_remembered_until_the_next() {
        let beginning = Beginning::of_database(0);
        assert!(beginning.note(&info("a", 0, "")));
        let data = "db0:keys=1,expires=1,avg_ttl=0\r\n";
        assert!(!beginning.note(&info("a", 2, data)));
        assert!(beginning.empty_since().is_some());
        assert!(!beginning.note(&info("b", 0, data)));
        assert!(beginning.empty_since().is_none());
    }
}
