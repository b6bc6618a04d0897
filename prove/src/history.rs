//! A history: everything that clients asked and were told, and everything that was made to fail.
//!
//! One JSON object a line, on one monotonic clock, in nanoseconds since the start of the run. Keys,
//! tokens and clients are numbers that are unique within the run; [`NO_TOKEN`] is no token.

use serde::Deserialize;
use serde::Serialize;

/// Nanoseconds since the start of the run.
pub type Nanos = u64;

/// A lease token, numbered by the recorder in the order in which it first saw it.
pub type Token = u64;

/// In place of a token where the client neither sent nor learned one.
pub const NO_TOKEN: Token = 0;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum Line {
    /// How the run was made. The first line.
    Run(Run),
    /// A question of a client and its answer.
    Operation(Operation),
    /// Something that was made to fail.
    Fault(Fault),
    /// A write to the resource that a key guards.
    Write(Write),
    /// What was left once every client had gone and every lease was over.
    Left(Left),
}

/// How a run was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// `embedded`, `redis`, `redis-3` (three instances), `sentinel`, `cluster`, `redlock`.
    pub store: String,
    /// From which everything that was left to chance follows.
    pub seed: u64,
    /// How many instances of the service there were.
    pub instances: u16,
    /// The longest that a request to a store may take before its caller is told that nobody knows.
    pub deadline: Nanos,
    /// What is taken off a lease for clocks of different speed, in parts per million; 10 000 on Redlock.
    pub drift_ppm: u32,
}

/// What a client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// `POST /locks/{key}`, with or without a wait.
    Acquire,
    /// `POST /hold/{key}`: a line for the grant, then one [`Kind::Alive`] for each event `alive`, then
    /// one [`Kind::HoldEnd`].
    Hold,
    /// An event `alive` of a stream; `sent` is when the event before it was received.
    Alive,
    /// The end of a stream: `gone` if the client ended it, `code` the event and its reason otherwise
    /// (`lost/expired`, `timeout`, `draining`, `cut`).
    HoldEnd,
    /// `PUT /locks/{key}/refresh`.
    Refresh,
    /// `DELETE /locks/{key}`.
    Release,
    /// `DELETE /admin/locks/{key}`.
    ForceRelease,
    /// `GET /locks/{key}`.
    Look,
}

/// What the client knows after its question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// 200, 201, 204.
    Yes,
    /// It certainly had no effect and will have none: refused before a byte was sent, 4xx, 503 with
    /// `not_acquired`, `draining`.
    No,
    /// Nobody knows: no answer, a broken connection, any other 5xx.
    Unknown,
}

/// A question and its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Who asked. One client asks one thing after another.
    pub client: u32,
    /// Which instance of the service was asked.
    pub instance: u16,
    pub kind: Kind,
    pub key: u32,
    /// Just before the first byte was sent.
    pub sent: Nanos,
    /// Just after the last byte of the answer was received; nothing if there was none.
    pub answered: Option<Nanos>,
    /// When the client hung up, if it did so before the answer.
    pub gone: Option<Nanos>,
    pub outcome: Outcome,
    /// The HTTP status; 0 without an answer.
    pub status: u16,
    /// The problem's `code`, with `/` and its `outcome` if it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// The token that was sent, or the one that was learned from the grant.
    pub token: Token,
    /// Whether the client chose the token; otherwise the service made it.
    pub chosen: bool,
    /// What was asked for.
    pub asked: Asked,
    /// What was answered.
    pub said: Said,
}

/// The options of a question.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    pub ttl_ms: Option<u64>,
    /// Milliseconds; 0 does not wait.
    pub wait_ms: u64,
    /// The number of the lease that is meant, in a refresh and a release.
    pub fencing_token: Option<u64>,
    /// For how long a stream's lease stays after its end.
    pub linger_ms: u64,
}

/// The members of an answer that a rule speaks of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Said {
    pub fencing_token: Option<u64>,
    pub ttl_ms: Option<u64>,
    pub waited_ms: Option<u64>,
    pub retry_after_ms: Option<u64>,
    pub waiters: Option<u64>,
    pub held: Option<bool>,
    pub mine: Option<bool>,
}

/// Something that was made to fail, from its start to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Its name, as in the table of faults.
    pub kind: String,
    /// What it struck: an instance, a store, a link, a file.
    pub target: String,
    pub from: Nanos,
    pub until: Nanos,
    /// What the store may lose by it: leases that were granted before its end may be forgotten.
    #[serde(default)]
    pub forgets: bool,
}

/// A write to the resource that a key guards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Write {
    pub key: u32,
    pub token: Token,
    pub fencing_token: u64,
    pub at: Nanos,
    /// Whether the resource took it.
    pub taken: bool,
    /// Whether the writer knew that its lease was over.
    pub late: bool,
}

/// What was left at the end, after every lease and its bookkeeping should be over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Left {
    /// What was counted: `waiters`, `held`, `redis keys without an end`, `descriptors`, `memory`.
    pub what: String,
    pub count: u64,
    /// The most that is no fault.
    pub allowed: u64,
}
