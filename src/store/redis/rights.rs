//! The check of a new connection's user: the rights that the scripts need. Without one of them a
//! script fails after others of its commands have run.

use std::collections::BTreeSet;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Script, ServerErrorKind};

/// Finds the rights that a user lacks for the scripts beside it.
pub(super) const RIGHTS: &str =
    concat!(include_str!("scripts/rights.lua"), include_str!("scripts/withheld.lua"));

/// The rights without which leases are kept all the same.
const SPARE: &[&str] = &["&lk//*", "+publish", "+scan"];

/// Checks the rights of the connection's user by this script. Returns those that are missing and that
/// it can do without; the error names the others, or says why the node cannot be asked.
pub(super) async fn check(
    connection: &mut MultiplexedConnection,
    script: &str,
) -> Result<String, String> {
    let mut missing = BTreeSet::new();
    for (command, word) in [("eval", script), ("evalsha", Script::new(script).get_hash())] {
        let mut call = redis::cmd(command);
        match call.arg(word).arg(0).query_async::<Vec<String>>(connection).await {
            Ok(told) => missing.extend(told),
            // Only if it could not be sent whole.
            Err(error) if error.kind() == ServerErrorKind::NoScript.into() => (),
            Err(error) if is_withheld(&error) => _ = missing.insert(format!("+{command}")),
            Err(error) => return Err(error.to_string()),
        }
    }
    let (spare, needed): (Vec<_>, Vec<_>) =
        missing.iter().map(String::as_str).partition(|right| SPARE.contains(right));
    match needed.is_empty() {
        true => Ok(spare.join(" ")),
        false => Err(format!("the Redis user lacks the rights {}", needed.join(" "))),
    }
}

/// Returns true if the user may not run a command, or the server has it under another name.
fn is_withheld(error: &RedisError) -> bool {
    let is_unknown = || error.detail().is_some_and(|text| text.starts_with("unknown command"));
    error.code() == Some("NOPERM") || is_unknown()
}
