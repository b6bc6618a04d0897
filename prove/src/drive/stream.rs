//! Leases that live as long as a connection: ended, taken over, released behind its back, or lost.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::drive::asker::{Asker, Body, Missing, Question, Told, read, written};
use crate::drive::client::{Client, Lease, Wish, granted};
use crate::history::{Kind, Nanos, Outcome, Said};
use crate::http::Connection;

/// How long after its TTL a stream may be silent before the client hangs up.
const PATIENCE: Duration = Duration::from_millis(2_500);

/// How many more events a client waits for after a release of which it knows nothing.
const AFTER_RELEASE: u32 = 6;

const MILLISECOND: Nanos = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    HangUp,
    /// By a release with its token on any connection.
    Release,
    /// By a release, after which the token has the key anew while the stream is still there.
    Again,
    /// By a hang-up, after which the token is used for the same lease within its linger.
    TakeOver,
}

impl Client {
    /// Holds a key by a stream.
    pub(super) async fn hold(&mut self, key: u32) {
        let end = match self.chance.u32(..6) {
            0 => End::Release,
            1 => End::Again,
            2 => End::TakeOver,
            _ => End::HangUp,
        };
        let token = match end {
            End::HangUp => self.maybe_token(),
            _ => Some(self.asker.choose()),
        };
        let wait_ms = if self.chance.bool() { 0 } else { self.chance.u64(50..2_000) };
        let ttl_ms = self.chance.u64(150..1_200);
        let wish = Wish { key, token, ttl_ms, wait_ms, slots: self.slots };
        let mut question = wish.question(Kind::Hold);
        if end == End::TakeOver || self.chance.u32(..4) == 0 {
            question.asked.linger_ms = self.chance.u64(50..800);
        }
        let Some((mut connection, told)) = self.open(&question).await else { return };
        let Some(mut lease) = granted(&wish, &told) else { return };
        self.write(&lease);
        let alive = self.chance.u32(..4);
        let patience = PATIENCE + Duration::from_millis(ttl_ms);
        let mut stream = Stream { question, last: told.sent, patience };
        for _ in 0..alive {
            if !self.asker.hear(&mut connection, &mut stream, &mut lease).await {
                return;
            }
            self.write(&lease);
        }
        self.end(connection, stream, lease, end).await;
    }

    /// Opens a stream and returns it with its grant, once there is one.
    async fn open(&mut self, question: &Question) -> Option<(Connection, Told)> {
        let (connection, told) = self.asker.open_stream(question).await;
        if told.outcome == Outcome::No && connection.is_none() {
            self.doubt(question, &told).await;
        }
        Some((connection.filter(|_| told.outcome == Outcome::Yes)?, told))
    }

    async fn end(&mut self, connection: Connection, stream: Stream, lease: Lease, end: End) {
        let (mut connection, mut stream, mut lease) = (connection, stream, lease);
        let (mut later, mut lasts) = (None, true);
        if matches!(end, End::Release | End::Again) {
            if self.chance.bool() {
                self.asker.turn();
            }
            self.release(&lease).await;
            let mut events = AFTER_RELEASE;
            if end == End::Again {
                later = self.acquire_anew(&lease).await;
                events = self.chance.u32(..3);
            }
            for _ in 0..events {
                lasts = lasts && self.asker.hear(&mut connection, &mut stream, &mut lease).await;
            }
        }
        if lasts {
            // The client has given up before its connection ends.
            self.asker.record(&stream.about(&lease), stream.last, Err(Missing::Gone));
        }
        if self.chance.bool() {
            connection.reset();
        } else {
            drop(connection);
        }
        if end == End::TakeOver {
            later = self.acquire_anew(&lease).await;
        }
        if let Some(later) = later {
            self.rest(100_000).await;
            self.work(later).await;
        } else if self.chance.u32(..4) == 0 {
            self.look(&lease).await;
        }
    }

    /// Holds a key that nobody else wants, and goes on with the token over the next instance once the
    /// stream is silent for its TTL. The end of its connection may be seen long after that.
    pub(super) async fn hold_until_silent(&mut self) {
        let (key, token) = (self.shared.amount.own_key(self.asker.client), self.maybe_token());
        let wish = Wish { key, token, ttl_ms: 400, wait_ms: 0, slots: None };
        let question = wish.question(Kind::Hold);
        let Some((mut connection, told)) = self.open(&question).await else { return };
        let Some(mut lease) = granted(&wish, &told) else { return };
        let patience = Duration::from_millis(wish.ttl_ms);
        let mut stream = Stream { question, last: told.sent, patience };
        for _ in 0..8 {
            if !self.asker.hear(&mut connection, &mut stream, &mut lease).await {
                self.asker.turn();
                let (token, ttl_ms) = (Some(lease.token), self.chance.u64(1_500..3_000));
                let Some(lease) = self.acquire(&Wish { token, ttl_ms, ..wish }).await else {
                    return;
                };
                self.rest(500_000).await;
                connection.reset();
                self.rest(ttl_ms * 800).await;
                self.look(&lease).await;
                return self.work(lease).await;
            }
        }
        self.asker.record(&stream.about(&lease), stream.last, Err(Missing::Gone));
    }

    /// Has its second voice end by force whatever has a key of its own, as a stream is granted it.
    pub(super) async fn force_across_its_stream(&mut self) {
        let (key, token) = (self.shared.amount.own_key(self.asker.client), self.maybe_token());
        let wish = Wish { key, token, ttl_ms: 4_000, wait_ms: 0, slots: None };
        let question = wish.question(Kind::Hold);
        let force = Question::of(Kind::ForceRelease, key, None);
        self.twin.turn_to(self.asker.instance);
        let most_us = if self.shared.amount.far { 60_000 } else { 4_000 };
        let after = Duration::from_micros(self.chance.u64(..most_us));
        let ((connection, told), forced) =
            tokio::join!(self.asker.open_stream(&question), self.twin.ask_after(after, &force));
        let (Some(mut connection), Some(mut lease)) = (connection, granted(&wish, &told)) else {
            return;
        };
        let patience = Duration::from_millis(wish.ttl_ms);
        let mut stream = Stream { question, last: told.sent, patience };
        let ended = forced.said.fencing_token == Some(lease.fencing_token);
        if !ended || self.asker.hear(&mut connection, &mut stream, &mut lease).await {
            self.asker.record(&stream.about(&lease), stream.last, Err(Missing::Gone));
        }
    }

    /// Asks for the key of a lease with its token once more.
    async fn acquire_anew(&mut self, lease: &Lease) -> Option<Lease> {
        let (key, token) = (lease.key, Some(lease.token.clone()));
        let slots = self.slots.filter(|_| self.chance.bool());
        let wish = Wish { key, token, ttl_ms: self.ttl_ms(), wait_ms: 0, slots };
        self.acquire(&wish).await
    }
}

impl Asker {
    /// Opens a stream and returns what it says of its grant, with its connection if it is a stream.
    async fn open_stream(&mut self, question: &Question) -> (Option<Connection>, Told) {
        let sent = self.recorder.now();
        let (mut connection, head) = match self.open(&written(question)).await {
            Ok(opened) => opened,
            Err(missing) => {
                let told = self.record(question, sent, Err(missing));
                sleep(Duration::from_millis(20)).await;
                return (None, told);
            }
        };
        if head.status != 200 {
            let body = connection.body(head.length.unwrap_or(0)).await;
            let answer = body.map(|body| (head.status, read(&body)));
            return (None, self.record(question, sent, answer.map_err(|_| Missing::Broken)));
        }
        let patience = PATIENCE + Duration::from_millis(question.asked.wait_ms);
        let event = timeout(patience, async {
            let mut queued_at = None;
            loop {
                let mut body = read(&connection.line().await?);
                if body.event != "waiting" {
                    body.said.queued_at = queued_at;
                    return std::io::Result::Ok(body);
                }
                queued_at = queued_at.or_else(|| Some(self.recorder.now()));
            }
        });
        let answer = match event.await {
            Err(_) => Err(Missing::Gone),
            Ok(Err(_)) => Err(Missing::Broken),
            Ok(Ok(body)) if body.event == "acquired" => Ok((200, body)),
            // The stream ended before there was a lease; as an acquire it would be a 409.
            Ok(Ok(body)) => Ok((409, Body { code: named(&body), ..body })),
        };
        let told = self.record(question, sent, answer);
        (Some(connection), told)
    }

    /// Waits for the next event; whether it says that the lease lives.
    async fn hear(
        &mut self,
        connection: &mut Connection,
        stream: &mut Stream,
        lease: &mut Lease,
    ) -> bool {
        let answer = match timeout(stream.patience, connection.line()).await {
            Err(_) => Err(Missing::Gone),
            Ok(Err(_)) => Ok((0, Body { code: "cut".to_owned(), ..Body::default() })),
            Ok(Ok(line)) => Ok((200, read(&line))),
        };
        let about = stream.about(lease);
        let sent = std::mem::replace(&mut stream.last, self.recorder.now());
        match answer {
            Ok((200, body)) if body.event == "alive" => {
                if let Some(ttl_ms) = body.said.ttl_ms {
                    lease.until = lease.until.max(sent + ttl_ms * MILLISECOND);
                }
                let alive = Question { kind: Kind::Alive, ..about };
                self.record(&alive, sent, Ok((200, body)));
                return true;
            }
            Ok((200, body)) => {
                let ended = Body { code: named(&body), said: Said::default(), ..Body::default() };
                self.record(&about, sent, Ok((200, ended)));
            }
            silent_or_cut => drop(self.record(&about, sent, silent_or_cut)),
        }
        false
    }
}

#[derive(Debug)]
struct Stream {
    question: Question,
    /// When the last event was received.
    last: Nanos,
    /// How long it may be silent before the client goes.
    patience: Duration,
}

impl Stream {
    /// Its end, as a line of the history; the lease may have a token that the service made.
    fn about(&self, lease: &Lease) -> Question {
        let token = Some(lease.token.clone());
        Question { kind: Kind::HoldEnd, token, ..self.question.clone() }
    }
}

/// Returns an event and its reason.
fn named(body: &Body) -> String {
    match body.reason.is_empty() {
        true => body.event.clone(),
        false => format!("{}/{}", body.event, body.reason),
    }
}
