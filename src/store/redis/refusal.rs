//! The meaning of a failed call to Redis: its effect, and the fault of the node.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::lock::error::{Effect, StoreError, Verb};

/// Error codes of Redis itself that precede a script's first write: checked before the script runs,
/// or on a write only while the script has not written.
const BEFORE_THE_FIRST_WRITE: &[&str] = &[
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOPERM",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
];

/// The codes among them that Redis 6.2 reports as the text of a script's error, and checks the same
/// way.
const INSIDE_A_SCRIPT: &[&str] = &["OOM", "READONLY"];

/// Codes with which a usable node refuses a heartbeat.
const ALIVE: &[&str] = &["BUSY", "NOPERM"];

/// The fault of a Redis that is unreachable, or too slow.
const SILENT: &str = "Redis gave no answer";

/// The failure of a call to one Redis.
#[derive(Debug, thiserror::Error)]
pub(in crate::store) enum NodeError {
    /// Refused by the server, or cut off by a broken connection.
    #[error("{node}: {error}")]
    Failed { node: String, error: RedisError },
    /// Not connected, or no answer in time.
    #[error("{node}: {reason}")]
    Unreachable { node: String, effect: Effect, reason: String },
    /// No usable answer for another reason.
    #[error("{1}")]
    Unusable(Effect, &'static str),
}

impl NodeError {
    /// The same failure as that of a verb.
    pub(in crate::store) fn of(self, verb: Verb) -> StoreError {
        let effect = match &self {
            Self::Failed { error, .. } => effect(error),
            Self::Unreachable { effect, .. } | Self::Unusable(effect, _) => *effect,
        };
        StoreError { verb, effect, fault: self.fault(), reason: self.into() }
    }

    /// The fault for clients.
    fn fault(&self) -> &'static str {
        match self {
            Self::Failed { error, .. } if !is_answer(error) => SILENT,
            Self::Failed { error, .. } if takes_no_writes(error) => "Redis takes no writes",
            Self::Failed { error, .. } => match wrapped_code(error).or_else(|| error.code()) {
                Some("OOM") => "Redis has no memory",
                Some("MISCONF" | "NOREPLICAS") => "Redis takes no writes",
                _ => "Redis refused it",
            },
            Self::Unreachable { .. } => SILENT,
            Self::Unusable(..) => "Redis failed",
        }
    }

    /// Returns true if the call was sent, and has no answer.
    pub(super) fn may_be_on_its_way(&self) -> bool {
        match self {
            Self::Failed { error, .. } => !is_answer(error),
            Self::Unreachable { effect, .. } => *effect == Effect::Unknown,
            Self::Unusable(..) => false,
        }
    }

    /// Returns true if the failure suggests that the Cluster has other masters by now: the node is
    /// unreachable, or says that the Cluster is down.
    pub(super) fn suggests_other_masters(&self) -> bool {
        match self {
            Self::Failed { error, .. } => {
                !is_answer(error) || error.kind() == ServerErrorKind::ClusterDown.into()
            }
            Self::Unreachable { .. } => true,
            Self::Unusable(..) => false,
        }
    }
}

/// Returns true if a call failed because its hash slot moves: its keys may be on two nodes.
pub(super) fn is_moving(error: &StoreError) -> bool {
    let Some(NodeError::Failed { error, .. }) = error.reason.downcast_ref() else { return false };
    error.kind() == ServerErrorKind::TryAgain.into() || error.redirect_node().is_some()
}

/// The effect of a script that failed with this error. Only a code known to precede the first write
/// proves that it did nothing: a proxy before Redis has its own errors.
pub(super) fn effect(error: &RedisError) -> Effect {
    let refused = match wrapped_code(error) {
        Some(code) => INSIDE_A_SCRIPT.contains(&code),
        None => code_of(error).is_some_and(|code| {
            BEFORE_THE_FIRST_WRITE.contains(&code) && !is_inside_a_script(error)
        }),
    };
    if refused { Effect::None } else { Effect::Unknown }
}

/// Returns true for an answer of the server, false for a broken connection.
pub(super) fn is_answer(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// Returns true if the answer comes from a node that is not a master, or not yet.
pub(super) fn takes_no_writes(error: &RedisError) -> bool {
    let kinds =
        [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown, ServerErrorKind::BusyLoading];
    kinds.iter().any(|kind| error.kind() == (*kind).into())
        || wrapped_code(error) == Some("READONLY")
}

/// Returns true if an error in answer to a heartbeat still shows a working connection.
pub(super) fn shows_life(error: &RedisError) -> bool {
    code_of(error).is_some_and(|code| ALIVE.contains(&code))
}

fn code_of(error: &RedisError) -> Option<&str> {
    is_answer(error).then(|| error.code()).flatten()
}

/// The code of a command that failed within a script, in the format of Redis before 7.0:
/// `Error running script (call to f_...): @user_script:1: @user_script: 1: -OOM command not ...`.
fn wrapped_code(error: &RedisError) -> Option<&str> {
    let text = error.detail().filter(|text| text.starts_with("Error running script"))?;
    text.rsplit_once(": -")?.1.split_whitespace().next()
}

/// Returns true if a permission was missing within a script, in the format of Redis since 7.2.
fn is_inside_a_script(error: &RedisError) -> bool {
    error.detail().is_some_and(|text| text.starts_with("ACL failure in script"))
}

#[cfg(test)]
mod tests {
    use redis::{RedisError, Value};

    use super::{effect, shows_life, takes_no_writes};
    use crate::lock::error::Effect;

    fn said(line: &str) -> RedisError {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        Value::extract_error(value).unwrap_err()
    }

    fn script(error: &str) -> String {
        let call = "Error running script (call to f_0123456789abcdef)";
        format!("ERR {call}: @user_script:14: @user_script: 14: -{error}")
    }

    #[test]
    fn only_what_comes_before_the_first_write_is_a_no() {
        for line in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            "READONLY You can't write against a read only replica. script: f_0, on @user_script:5.",
            "MISCONF Errors writing to the AOF file: No space left on device",
            "NOREPLICAS Not enough good replicas to write.",
            "BUSY Redis is busy running a script.",
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "NOAUTH Authentication required.",
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "CLUSTERDOWN The cluster is down",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "MOVED 3999 127.0.0.1:6381",
            "ASK 3999 127.0.0.1:6381",
            &script("OOM command not allowed when used memory > 'maxmemory'."),
            &script("READONLY You can't write against a read only replica."),
        ] {
            assert_eq!(effect(&said(line)), Effect::None, "{line}");
        }
    }

    #[test]
    fn an_error_that_may_come_after_a_write_is_unknown() {
        for line in [
            "ERR The user executing the script can't run this command script: f_0, on @user_script:9.",
            "NOPERM ACL failure in script: User svc has no permissions to run the 'pexpire' command",
            "WRONGTYPE Operation against a key holding the wrong kind of value script: f_0",
            "ERR upstream failure",
            "upstream failure",
            "TIMEOUT no answer of the upstream",
            &script("NOPERM The user executing the script can't run this command or subcommand"),
            &script("WRONGTYPE Operation against a key holding the wrong kind of value"),
        ] {
            assert_eq!(effect(&said(line)), Effect::Unknown, "{line}");
        }
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert_eq!(effect(&broken.into()), Effect::Unknown);
    }

    #[test]
    fn a_replica_is_known_by_its_refusals_also_from_within_a_script() {
        assert!(takes_no_writes(&said("READONLY You can't write against a read only replica.")));
        assert!(takes_no_writes(&said(&script("READONLY You can't write against it."))));
        assert!(!takes_no_writes(&said(&script("OOM command not allowed"))));
        assert!(!takes_no_writes(&said("OOM command not allowed")));
    }

    #[test]
    fn a_ping_that_is_refused_for_its_right_alone_came_through() {
        assert!(shows_life(&said("NOPERM this user has no permissions to run the 'ping' command")));
        assert!(shows_life(&said("BUSY Redis is busy running a script.")));
        assert!(!shows_life(&said("upstream failure")));
        assert!(!shows_life(&said("NOAUTH Authentication required.")));
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(!shows_life(&broken.into()));
    }
}
