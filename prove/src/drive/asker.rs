//! A client's questions: sent byte by byte, timed on the one clock, and recorded with their answers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub(super) use crate::drive::question::{Held, Lease, Question, written};
use crate::history::{Kind, Line, NO_TOKEN, Nanos, Operation, Outcome, Said};
use crate::http::{Connection, Head};
use crate::record::{Recorder, chosen_text};
use crate::servers::Routes;

/// How much longer than its wait a client waits for an answer.
pub(super) const PATIENCE: Duration = Duration::from_millis(2_500);

/// How long a client rests when nobody listens, or nobody can serve it.
pub(super) const REST: Duration = Duration::from_millis(50);

pub(super) const MILLISECOND: Nanos = 1_000_000;

/// What a client knows after a question.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) outcome: Outcome,
    pub(super) status: u16,
    pub(super) code: String,
    pub(super) sent: Nanos,
    pub(super) said: Said,
    /// The lease, if that is what was asked for and granted.
    pub(super) lease: Option<Lease>,
}

impl Told {
    /// Returns the number of the lease that a refusal tells of.
    pub(super) fn own(&self) -> Option<u64> {
        self.said.fencing_token.filter(|_| self.outcome == Outcome::No)
    }

    /// Returns the lease that a refusal tells of, which is not to be relied on.
    pub(super) fn own_lease(&self, question: &Question) -> Option<Lease> {
        let (key, token) = (question.key, question.token.clone()?);
        Some(Lease { key, token, fencing_token: self.own()?, until: 0 })
    }
}

/// The members of an answer that matter.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Body {
    pub(super) code: String,
    pub(super) outcome: String,
    pub(super) event: String,
    pub(super) reason: String,
    pub(super) token: Option<String>,
    /// Of several keys the one that a refusal is about, the leases, and those that are lost.
    pub(super) key: String,
    pub(super) leases: Vec<Value>,
    pub(super) lost: Vec<Value>,
    #[serde(flatten)]
    pub(super) said: Said,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Refused,
    Broken,
    Gone,
}

/// A client: it asks one question after another, over one connection at a time.
#[derive(Debug)]
pub(super) struct Asker {
    pub(super) client: u32,
    pub(super) instance: u16,
    pub(super) recorder: Arc<Recorder>,
    pub(super) addresses: Vec<SocketAddr>,
    /// Whether it leaves a connection by a reset, in place of an orderly end.
    pub(super) resets: bool,
    connection: Option<Connection>,
    /// What it gave up and is delivered later.
    pub(super) late: JoinSet<()>,
}

impl Asker {
    /// A client that has not asked yet; every other one goes through the proxies.
    pub(super) fn new(client: u32, routes: &Routes, recorder: Arc<Recorder>) -> Self {
        let is_proxied = !client.is_multiple_of(2);
        // A proxy cannot tell a client that has gone from one that has said all it will.
        let resets = is_proxied || client.is_multiple_of(4);
        let addresses = if is_proxied { &routes.proxied } else { &routes.direct };
        let instance = (client / 2) as usize % addresses.len();
        let instance = u16::try_from(instance).unwrap_or(0);
        let addresses = addresses.clone();
        let late = JoinSet::new();
        Self { client, instance, recorder, addresses, resets, connection: None, late }
    }

    pub(super) fn turn_to(&mut self, instance: u16) {
        if instance != self.instance {
            self.connection = None;
            self.instance = instance;
        }
    }

    pub(super) fn turn(&mut self) {
        let next = (usize::from(self.instance) + 1) % self.addresses.len();
        self.turn_to(u16::try_from(next).unwrap_or(0));
    }

    /// Returns a new token of the client's own.
    pub(super) fn choose(&self) -> Held {
        let number = self.recorder.new_token();
        Held { number, text: chosen_text(number), chosen: true }
    }

    pub(super) async fn ask(&mut self, question: &Question) -> Told {
        let patience = PATIENCE + Duration::from_millis(question.asked.wait_ms);
        self.ask_for(question, patience).await
    }

    /// Asks, and hangs up if there is no answer within this time.
    pub(super) async fn ask_for(&mut self, question: &Question, patience: Duration) -> Told {
        let (sent, answer) = self.exchange(&written(question), patience).await;
        let rests = rests_after(&answer);
        let told = self.record(question, sent, answer);
        while self.late.try_join_next().is_some() {}
        if rests {
            sleep(REST).await;
        }
        told
    }

    /// Sends a question, and hangs up without an answer within this time; with the moment it was sent.
    pub(super) async fn exchange(
        &mut self,
        text: &str,
        patience: Duration,
    ) -> (Nanos, Result<(u16, Body), Missing>) {
        let connected = self.connect().await;
        let sent = self.recorder.now();
        let answer = match connected {
            Err(_) => Err(Missing::Refused),
            Ok(mut connection) => match timeout(patience, connection.ask(text.as_bytes())).await {
                Err(_) => {
                    if self.resets {
                        connection.reset();
                    }
                    Err(Missing::Gone)
                }
                Ok(Err(_)) => Err(Missing::Broken),
                Ok(Ok((head, body))) => {
                    self.connection = Some(connection).filter(|_| !head.closes);
                    Ok((head.status, read(&body)))
                }
            },
        };
        (sent, answer)
    }

    /// Opens a stream and returns it with its head, or the refusal.
    pub(super) async fn open(&mut self, text: &str) -> Result<(Connection, Head), Missing> {
        let mut connection = self.connect().await.map_err(|_| Missing::Refused)?;
        let asked = async {
            connection.send(text.as_bytes()).await?;
            connection.head().await
        };
        let head = timeout(PATIENCE, asked).await.map_err(|_| Missing::Gone)?;
        let head = head.map_err(|_| Missing::Broken)?;
        Ok((connection, head))
    }

    /// Records an answer, and returns what it means.
    pub(super) fn record(
        &self,
        question: &Question,
        sent: Nanos,
        answer: Result<(u16, Body), Missing>,
    ) -> Told {
        let (operation, made) = self.operation(question, sent, answer);
        let Operation { outcome, status, ref code, ref said, .. } = operation;
        let granted = made.zip(said.fencing_token).zip(said.ttl_ms);
        let lease = granted.map(|((token, number), ttl_ms)| {
            let until = sent + (said.waited_ms.unwrap_or(0) + ttl_ms) * MILLISECOND;
            Lease { key: question.key, token, fencing_token: number, until }
        });
        let told = Told { outcome, status, code: code.clone(), sent, said: said.clone(), lease };
        self.recorder.write(Line::Operation(operation));
        told
    }

    /// Returns a question with its answer as it stands in the history, and the token of a grant.
    pub(super) fn operation(
        &self,
        question: &Question,
        sent: Nanos,
        answer: Result<(u16, Body), Missing>,
    ) -> (Operation, Option<Held>) {
        let now = self.recorder.now();
        let (outcome, code) = judged(question.kind, &answer);
        let (answered, gone) = match &answer {
            Ok(_) => (Some(now), None),
            Err(Missing::Gone) => (None, Some(now)),
            Err(_) => (None, None),
        };
        let (status, mut body) = answer.unwrap_or_default();
        body.said.leaked = leaks(question, outcome, &body);
        let made = body.token.filter(|_| outcome == Outcome::Yes).map(|text| Held {
            number: self.recorder.number(&text),
            chosen: question.token.as_ref().is_some_and(|token| token.chosen),
            text,
        });
        let known = made.as_ref().or(question.token.as_ref());
        let operation = Operation {
            client: self.client,
            instance: self.instance,
            kind: question.kind,
            key: question.key,
            sent,
            answered,
            gone,
            late: None,
            outcome,
            status,
            code,
            token: known.map_or(NO_TOKEN, |token| token.number),
            chosen: question.token.as_ref().is_some_and(|token| token.chosen),
            asked: question.asked.clone(),
            said: body.said,
        };
        (operation, made)
    }

    async fn connect(&mut self) -> io::Result<Connection> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let address = self.addresses[usize::from(self.instance)];
        let opened = timeout(PATIENCE, Connection::open(address)).await;
        opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Whether nobody listens, or nobody can serve the client.
pub(super) fn rests_after(answer: &Result<(u16, Body), Missing>) -> bool {
    match answer {
        Ok((status, _)) => *status == 503,
        Err(missing) => *missing != Missing::Gone,
    }
}

/// Returns what an answer says; nothing if it is no JSON.
pub(super) fn read(body: &[u8]) -> Body {
    serde_json::from_slice(body).unwrap_or_default()
}

/// Whether an answer contains a token that its client neither sent nor was granted.
fn leaks(question: &Question, outcome: Outcome, body: &Body) -> bool {
    let Some(text) = &body.token else { return false };
    match &question.token {
        Some(token) => token.text != *text,
        None => outcome != Outcome::Yes || !matches!(question.kind, Kind::Acquire | Kind::Hold),
    }
}

/// Returns what the client knows, and the code with its outcome.
fn judged(kind: Kind, answer: &Result<(u16, Body), Missing>) -> (Outcome, String) {
    let (status, body) = match answer {
        Ok((status, body)) => (*status, body),
        Err(Missing::Refused) => return (Outcome::No, "refused".to_owned()),
        Err(_) => return (Outcome::Unknown, String::new()),
    };
    let sure = body.outcome == "not_acquired" || ["draining", "not_ready"].contains(&&*body.code);
    let outcome = match status {
        200..300 => Outcome::Yes,
        400..500 => Outcome::No,
        503 if sure => Outcome::No,
        // A look that failed has changed nothing.
        503 if kind == Kind::Look => Outcome::No,
        _ => Outcome::Unknown,
    };
    let code = match body.outcome.is_empty() {
        true => body.code.clone(),
        false => format!("{}/{}", body.code, body.outcome),
    };
    (outcome, code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(kind: Kind, status: u16, body: &str) -> (Outcome, String) {
        judged(kind, &Ok((status, read(body.as_bytes()))))
    }

    #[test]
    fn only_a_503_that_says_so_is_a_no() {
        let unknown = r#"{"code":"store_unavailable","outcome":"unknown"}"#;
        let sure = r#"{"code":"store_unavailable","outcome":"not_acquired"}"#;
        assert_eq!(known(Kind::Acquire, 503, unknown).0, Outcome::Unknown);
        assert_eq!(known(Kind::Acquire, 503, sure).0, Outcome::No);
        assert_eq!(known(Kind::Acquire, 503, r#"{"code":"draining"}"#).0, Outcome::No);
        assert_eq!(known(Kind::Acquire, 502, "").0, Outcome::Unknown);
        assert_eq!(known(Kind::Acquire, 503, sure).1, "store_unavailable/not_acquired");
    }

    #[test]
    fn a_refusal_tells_of_the_leases_of_its_key() {
        let told = read(br#"{"code":"lock_held","holders":5,"slots":5,"mine":true}"#).said;
        assert_eq!((told.holders, told.slots, told.mine), (Some(5), Some(5), Some(true)));
    }
}
