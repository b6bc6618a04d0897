//! A history: everything that clients asked and were told, and everything that was made to fail.
//!
//! One JSON object a line, on one monotonic clock, in nanoseconds since the start of the run. Keys,
//! tokens and clients are numbers that are unique within the run; [`NO_TOKEN`] is no token.

use std::io;
use std::io::BufRead;

use serde::{Deserialize, Serialize};

/// Nanoseconds since the start of the run.
pub(crate) type Nanos = u64;

/// A lease token, numbered by the recorder in the order in which it first saw it.
pub(crate) type Token = u64;

/// In place of a token where the client neither sent nor learned one.
pub(crate) const NO_TOKEN: Token = 0;

/// The `slots` of a question for a lease that is `shared`: more than any number that it could name.
pub(crate) const SHARED: u16 = 1_001;

/// The most leases that can share a key, which answers tell of a lease that is `shared`.
pub(crate) const MOST_SLOTS: u16 = 1_000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub(crate) enum Line {
    Run(Run),             // How the run was made. The first line.
    Operation(Operation), // A question of a client and its answer.
    Fault(Fault),         // Something that was made to fail.
    Left(Left),           // What was left once every client had gone and every lease was over.
}

impl Line {
    pub(crate) fn from_json(text: &str) -> serde_json::Result<Self> {
        // A tag inside of the object costs serde a copy of all members, so operations, which are
        // nearly all lines, are told apart first.
        if text.starts_with(r#"{"line":"operation","#) {
            return serde_json::from_str(text).map(Self::Operation);
        }
        serde_json::from_str(text)
    }
}

/// Returns the lines of a history, one after another.
pub(crate) fn read(from: impl BufRead) -> impl Iterator<Item = io::Result<Line>> {
    (1..).zip(from.lines()).map(|(number, text)| {
        let told = |error| io::Error::other(format!("line {number}: {error}"));
        Line::from_json(&text?).map_err(told)
    })
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// `embedded`, `redis`, `redis-3` (three instances), `redis-far`, `sentinel`, `cluster`,
    /// `cluster-replicas`, `redlock`.
    pub(crate) store: String,
    /// From which everything that was left to chance follows.
    pub(crate) seed: u64,
    /// The longest that a request to a store may take before its caller is told that nobody knows.
    pub(crate) deadline: Nanos,
    /// What is taken off a lease for clocks of different speed, in parts per million; 10 000 on Redlock.
    pub(crate) drift_ppm: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Acquire, // `POST /locks/{key}`, with or without a wait.
    /// `POST /hold/{key}`: a line for the grant, then one [`Kind::Alive`] for each event `alive`, then
    /// one [`Kind::HoldEnd`].
    Hold,
    Alive, // An event `alive` of a stream; `sent` is when the event before it was received.
    /// The end of a stream, `sent` when the event before it was received: `gone` if the client ended it, `code` the event and its reason otherwise
    /// (`lost/expired`, `timeout`, `draining`, `cut`).
    HoldEnd,
    Refresh,      // `PUT /locks/{key}/refresh`.
    Release,      // `DELETE /locks/{key}`.
    ForceRelease, // `DELETE /admin/locks/{key}`.
    Look,         // `GET /locks/{key}`.
}

/// What the client knows after its question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Yes, // 200, 201, 204.
    /// It certainly had no effect and will have none: refused before a byte was sent, 4xx, 503 with
    /// `not_acquired`, `draining`.
    No,
    Unknown, // Nobody knows: no answer, a broken connection, any other 5xx.
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Operation {
    /// Who asked. One client asks one thing after another.
    pub(crate) client: u32,
    pub(crate) instance: u16,
    pub(crate) kind: Kind,
    pub(crate) key: u32,
    /// Just before the first byte was sent.
    pub(crate) sent: Nanos,
    /// Just after the last byte of the answer was received; nothing if there was none.
    pub(crate) answered: Option<Nanos>,
    /// When the client hung up, if it did so before the answer.
    pub(crate) gone: Option<Nanos>,
    /// When its connection to the service ended, if that held it back until after the client had gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) late: Option<Nanos>,
    /// What the client knows since.
    pub(crate) outcome: Outcome,
    /// The HTTP status; 0 without an answer.
    pub(crate) status: u16,
    /// The problem's `code`, with `/` and its `outcome` if it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) code: String,
    /// The token that was sent, or the one that was learned from the grant.
    pub(crate) token: Token,
    /// Whether the client chose the token; otherwise the service made it.
    pub(crate) chosen: bool,
    pub(crate) asked: Asked,
    pub(crate) said: Said,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Asked {
    /// The length of the lease; the default of the service (30 s), or that of the lease, if absent.
    pub(crate) ttl_ms: Option<u64>,
    /// Milliseconds; 0 does not wait, `u64::MAX` waits without an end.
    pub(crate) wait_ms: u64,
    /// The number of the lease that is meant, or that a claim replaces.
    pub(crate) fencing_token: Option<u64>,
    /// For how long a stream's lease stays after its end.
    pub(crate) linger_ms: u64,
    /// How many units of all leases the lease allows on its key; [`SHARED`] for `shared=true`, and
    /// exclusive, or as it is, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slots: Option<u16>,
    /// The units of these that the lease takes; one, or as it is, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) units: Option<u16>,
    /// Whether the question named several keys; each has a line of its own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) several: bool,
    /// Whether the question came without the right API key, on purpose.
    pub(crate) unauthorized: bool,
}

/// The members of an answer that a rule speaks of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Said {
    /// The number of the lease; in a refusal, that of the lease that the token has.
    pub(crate) fencing_token: Option<u64>,
    /// What is left of the lease.
    pub(crate) ttl_ms: Option<u64>,
    /// How long the request waited, in the service.
    pub(crate) waited_ms: Option<u64>,
    /// How many claims wait.
    pub(crate) waiters: Option<u64>,
    /// How many leases share the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holders: Option<u16>,
    /// How many units the lease allows on the key; of a key, the least that its leases allow.
    /// Absent for an exclusive lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slots: Option<u16>,
    /// The units of the lease or, of a key, of all its leases; absent if each has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) units: Option<u16>,
    /// The number of the lease's slot, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<u16>,
    /// Whether anybody holds the key.
    pub(crate) held: Option<bool>,
    /// Whether the token that was sent holds the key.
    pub(crate) mine: Option<bool>,
    /// When a stream said that it waits in line (its event `waiting`).
    pub(crate) queued_at: Option<Nanos>,
    /// Whether the answer contained a token that its client neither sent nor was granted.
    pub(crate) leaked: bool,
}

/// Something that was made to fail, from its start to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) kind: String,
    /// What it struck: an instance, a store, a link, a file.
    ///
    /// `client...` for a link between a client and the service, `instance...` for a process of the
    /// service, and anything else for what stands behind it.
    pub(crate) target: String,
    pub(crate) from: Nanos,
    /// When all was as before.
    pub(crate) until: Nanos,
    /// What the store may lose by it: leases that were granted before its end may be forgotten.
    #[serde(default)]
    pub(crate) forgets: bool,
}

/// What was left at the end, after every lease and its bookkeeping should be over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Left {
    /// What was counted: `waiters`, `held`, `redis keys without an end`, `descriptors`, `memory`.
    pub(crate) what: String,
    pub(crate) count: u64,
    /// The most that is no fault.
    pub(crate) allowed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::little::grant;

    #[test]
    fn a_written_history_is_read() {
        let left = Left { what: "waiters".to_owned(), count: 1, allowed: 0 };
        let lines = [Line::Operation(grant(1, 1 << 52, (2, 4), 1_000)), Line::Left(left)];
        let written = lines.each_ref().map(|line| serde_json::to_string(line).unwrap()).join("\n");
        assert!(written.starts_with(r#"{"line":"operation","#), "or reading is slow");
        let told: Vec<Line> = read(written.as_bytes()).map(Result::unwrap).collect();
        assert_eq!(told, lines);
        let error = read(&written.as_bytes()[..written.len() - 3]).find_map(Result::err).unwrap();
        assert!(error.to_string().starts_with("line 2: "), "{error}");
    }
}
