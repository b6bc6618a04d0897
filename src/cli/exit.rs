//! Exit codes of the commands, and the failures that have them. docs/reference.md has the same
//! table.

use std::fmt::Display;
use std::io;

use crate::cli::voice::Voice;
use crate::client::ClientError;
use crate::lock::key::LockKey;
use crate::wire::Code;

/// A command of the service itself failed, or `serve` cannot start.
const FAILURE: u8 = 1;

/// The exit code of the service's own commands for wrong usage, as in clap.
pub(super) const WRONG_USAGE: u8 = 2;

/// `serve` was ended by a signal before all requests were answered and grants undone.
pub(super) const ENDED_EARLY: u8 = 3;

/// `serve` failed while serving; a supervisor should restart it.
pub(super) const FAILED: u8 = 4;

/// The service is unreachable (EX_UNAVAILABLE).
pub(super) const UNREACHABLE: u8 = 69;

/// Another client holds the key (EX_TEMPFAIL).
pub(super) const BUSY: u8 = 75;

pub(super) const LOST: u8 = 79;

/// An outer `exec` has the key, and its own COMMAND asks for it.
pub(super) const NESTED: u8 = 80;

/// COMMAND ran longer than --max-run, as with `timeout`.
pub(super) const TIMED_OUT: u8 = 124;

/// Wrong usage, a refused request or an internal error. As in `timeout`, like the codes below.
pub(super) const INTERNAL: u8 = 125;

pub(super) const NOT_EXECUTABLE: u8 = 126;

pub(super) const NOT_FOUND: u8 = 127;

/// Standard output has lost its reader, as before `head`: the end of other programs by SIGPIPE.
pub(super) const UNREAD: u8 = 141;

/// The end by a signal of this number, as in shells.
pub(super) fn signalled(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(INTERNAL)
}

/// The failure of a command of the service itself.
pub(super) fn failed(why: String) -> Failure {
    Failure { code: FAILURE, why }
}

/// The reason why a command fails, one sentence, with its exit code.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: u8,
    /// Empty if nobody needs to be told.
    pub(super) why: String,
}

impl Failure {
    /// Reports the reason and returns the exit code; `busy` if another client holds the key. If that
    /// is 0, as suits cron, it is reported to people only: on a terminal, or to a verbose voice.
    pub(super) fn say(self, voice: Voice, busy: u8) -> u8 {
        if self.code == BUSY {
            if busy != 0 || voice.draws() || voice.tells() {
                voice.complain(|| self.why);
            }
            return busy;
        }
        if !self.why.is_empty() {
            voice.complain(|| self.why);
        }
        self.code
    }
}

impl Failure {
    /// The same failure, with its key.
    pub(super) fn about(self, key: &LockKey) -> Self {
        match self.why.is_empty() {
            true => self,
            false => Self { why: about(key, self.why), ..self },
        }
    }
}

/// A sentence with the key that it is about, unless it has that already.
pub(super) fn about(key: &LockKey, what: impl Display) -> String {
    let key = format!("'{key}'");
    let what = what.to_string();
    if what.contains(&key) { what } else { format!("{key}: {what}") }
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self { code: INTERNAL, why }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        error.to_string().into()
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Refused(refusal) if refusal.is(Code::LockLost) => LOST,
            ClientError::Refused(refusal) if refusal.is_busy() => BUSY,
            error if error.may_pass() => UNREACHABLE,
            _ => INTERNAL,
        };
        Self { code, why: error.to_string() }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(_: serde_json::Error) -> Self {
        ClientError::strange().into()
    }
}
