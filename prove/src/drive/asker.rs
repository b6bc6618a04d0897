//! A client's questions: sent byte by byte, timed on the one clock, and recorded with their answers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::history::{Asked, Kind, Line, NO_TOKEN, Nanos, Operation, Outcome, SHARED, Said, Token};
use crate::http::{AUTHORIZED, Connection, Head, request};
use crate::record::{Recorder, chosen_text};
use crate::servers::Routes;

/// How much longer than its wait a client waits for an answer.
pub(super) const PATIENCE: Duration = Duration::from_millis(2_500);

/// How long a client rests when nobody listens, or nobody can serve it.
pub(super) const REST: Duration = Duration::from_millis(50);

pub(super) const MILLISECOND: Nanos = 1_000_000;

/// A token, as the client has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) number: Token,
    pub(super) text: String,
    /// Whether the client chose it.
    pub(super) chosen: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) kind: Kind,
    pub(super) key: u32,
    /// The token that is sent, if any.
    pub(super) token: Option<Held>,
    pub(super) asked: Asked,
}

impl Question {
    /// A question without options.
    pub(super) fn of(kind: Kind, key: u32, token: Option<Held>) -> Self {
        Self { kind, key, token, asked: Asked::default() }
    }

    /// A question for an exclusive lease, which does not wait.
    pub(super) fn claim(key: u32, token: Option<Held>, ttl_ms: u64) -> Self {
        Self::of(Kind::Acquire, key, token).lasting(ttl_ms)
    }

    /// A question about the lease that a token has.
    pub(super) fn about(kind: Kind, lease: &Lease) -> Self {
        Self::of(kind, lease.key, Some(lease.token.clone()))
    }

    /// A question about a lease, by its number.
    pub(super) fn named(kind: Kind, lease: &Lease) -> Self {
        let mut question = Self::about(kind, lease);
        question.asked.fencing_token = Some(lease.fencing_token);
        question
    }

    pub(super) fn lasting(mut self, ttl_ms: u64) -> Self {
        self.asked.ttl_ms = Some(ttl_ms);
        self
    }

    pub(super) fn waiting(mut self, wait_ms: u64) -> Self {
        self.asked.wait_ms = wait_ms;
        self
    }

    /// A question that asks for a lease in the place of that of a number, which never waits.
    pub(super) fn naming(mut self, number: u64) -> Self {
        (self.asked.fencing_token, self.asked.wait_ms) = (Some(number), 0);
        self
    }

    /// A claim with these slots, and with its units as far as they go.
    pub(super) fn sharing(mut self, slots: Option<u16>) -> Self {
        self.asked.slots = slots;
        let units = self.asked.units;
        self.taking(units)
    }

    /// A claim that takes several of its slots, if it has so many.
    pub(super) fn taking(mut self, units: Option<u16>) -> Self {
        let slots = self.asked.slots.filter(|slots| *slots != SHARED).unwrap_or(0);
        self.asked.units = units.filter(|units| *units <= slots);
        self
    }
}

/// A lease, as its holder knows it.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) key: u32,
    pub(super) token: Held,
    pub(super) fencing_token: u64,
    /// Until when the holder may rely on it.
    pub(super) until: Nanos,
}

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

pub(super) fn written(question: &Question) -> String {
    let Question { kind, key, token, asked } = question;
    let (method, path) = match kind {
        Kind::Acquire => ("POST", format!("/locks/k{key}")),
        Kind::Hold | Kind::Alive | Kind::HoldEnd => ("POST", format!("/hold/k{key}")),
        Kind::Refresh => ("PUT", format!("/locks/k{key}/refresh")),
        Kind::Release => ("DELETE", format!("/locks/k{key}")),
        Kind::ForceRelease => ("DELETE", format!("/admin/locks/k{key}")),
        Kind::Look => ("GET", format!("/locks/k{key}")),
    };
    let mut options = Vec::new();
    options.extend(asked.ttl_ms.map(|ttl| format!("ttl={ttl}ms")));
    if asked.wait_ms > 0 {
        options.push(format!("wait={}ms", asked.wait_ms));
    }
    if asked.linger_ms > 0 {
        options.push(format!("linger={}ms", asked.linger_ms));
    }
    options.extend(asked.slots.map(|slots| match slots {
        SHARED => "shared=true".to_owned(),
        _ => format!("slots={slots}"),
    }));
    options.extend(asked.units.map(|units| format!("units={units}")));
    options.extend(asked.fencing_token.map(|number| format!("fencing_token={number}")));
    let query = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
    // A key is wrong or absent, by the number of the lock.
    let authorization = match (asked.unauthorized, key % 2) {
        (false, _) => AUTHORIZED,
        (true, 0) => "authorization: Bearer key-of-nobody\r\n",
        (true, _) => "",
    };
    let token = token.as_ref().map(|token| token.text.as_str());
    request(&format!("{method} {path}{query}"), authorization, token)
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
    fn a_share_is_an_option_of_its_own_kind() {
        let line = |slots| {
            let asked = Asked { wait_ms: 5, slots, ..Asked::default() };
            let text = written(&Question { kind: Kind::Acquire, key: 1, token: None, asked });
            text.split(" HTTP").next().unwrap().to_owned()
        };
        assert_eq!(line(Some(3)), "POST /locks/k1?wait=5ms&slots=3");
        assert_eq!(line(Some(SHARED)), "POST /locks/k1?wait=5ms&shared=true");
        assert_eq!(line(None), "POST /locks/k1?wait=5ms");
        let units = |slots| Question::claim(1, None, 9).sharing(slots).taking(Some(3)).asked.units;
        assert_eq!([Some(3), Some(2), Some(SHARED), None].map(units), [Some(3), None, None, None]);
        let told = read(br#"{"code":"lock_held","holders":5,"slots":5,"mine":true}"#).said;
        assert_eq!((told.holders, told.slots, told.mine), (Some(5), Some(5), Some(true)));
    }
}
