//! Leases that live as long as a connection: ended, taken over, released behind its back, or lost.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::drive::asker::{
    Asker, Body, Lease, MILLISECOND, Missing, Question, Told, read, written,
};
use crate::drive::client::Client;
use crate::history::{Kind, Nanos, Outcome, Said};
use crate::http::Connection;

/// How long after its TTL a stream may be silent before the client hangs up.
const PATIENCE: Duration = Duration::from_millis(2_500);

/// How many more events a client waits for after a release of which it knows nothing.
const AFTER_RELEASE: u32 = 6;

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
        let mut question = self.claim(key, token, ttl_ms).waiting(wait_ms);
        if end == End::TakeOver || self.chance.u32(..4) == 0 {
            question.asked.linger_ms = self.chance.u64(50..800);
        }
        let patience = PATIENCE + Duration::from_millis(ttl_ms);
        let Some(mut stream) = self.open(question, patience).await else { return };
        self.write(&stream.lease);
        for _ in 0..self.chance.u32(..4) {
            if !self.asker.hear(&mut stream).await {
                return;
            }
            self.write(&stream.lease);
        }
        self.end(stream, end).await;
    }

    /// Opens a stream for a claim and returns it with its grant, once there is one.
    async fn open(&mut self, claim: Question, patience: Duration) -> Option<Stream> {
        let question = Question { kind: Kind::Hold, ..claim };
        let (connection, told) = self.asker.open_stream(&question).await;
        if told.outcome == Outcome::No && connection.is_none() {
            self.doubt(&question, &told).await;
        }
        Stream::granted(connection, question, told, patience)
    }

    async fn end(&mut self, mut stream: Stream, end: End) {
        let (mut later, mut lasts) = (None, true);
        if matches!(end, End::Release | End::Again) {
            if self.chance.bool() {
                self.asker.turn();
            }
            self.release(&stream.lease).await;
            let mut events = AFTER_RELEASE;
            if end == End::Again {
                later = self.acquire_anew(&stream.lease).await;
                events = self.chance.u32(..3);
            }
            for _ in 0..events {
                lasts = lasts && self.asker.hear(&mut stream).await;
            }
        }
        if lasts {
            // The client has given up before its connection ends.
            self.asker.leave(&stream);
        }
        let Stream { connection, lease, .. } = stream;
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
        let (token, ttl_ms) = (self.maybe_token(), 400);
        let claim = self.own_claim(token, ttl_ms);
        let patience = Duration::from_millis(ttl_ms);
        let Some(mut stream) = self.open(claim.clone(), patience).await else { return };
        for _ in 0..8 {
            if !self.asker.hear(&mut stream).await {
                self.asker.turn();
                let (token, ttl_ms) = (Some(stream.lease.token), self.chance.u64(1_500..3_000));
                let again = Question { token, ..claim }.lasting(ttl_ms);
                let Some(lease) = self.acquire(&again).await else { return };
                self.rest(500_000).await;
                stream.connection.reset();
                self.rest(ttl_ms * 800).await;
                self.look(&lease).await;
                return self.work(lease).await;
            }
        }
        self.asker.leave(&stream);
    }

    /// Has its second voice end by force whatever has a key of its own, as a stream is granted it.
    pub(super) async fn force_across_its_stream(&mut self) {
        let token = self.maybe_token();
        let question = Question { kind: Kind::Hold, ..self.own_claim(token, 4_000) };
        let force = Question::of(Kind::ForceRelease, question.key, None);
        self.twin.turn_to(self.asker.instance);
        let most_us = if self.shared.amount.far { 60_000 } else { 4_000 };
        let after = Duration::from_micros(self.chance.u64(..most_us));
        let ((connection, told), forced) =
            tokio::join!(self.asker.open_stream(&question), self.twin.ask_after(after, &force));
        let patience = Duration::from_millis(4_000);
        let stream = Stream::granted(connection, question, told, patience);
        let Some(mut stream) = stream else { return };
        let ended = forced.said.fencing_token == Some(stream.lease.fencing_token);
        if !ended || self.asker.hear(&mut stream).await {
            self.asker.leave(&stream);
        }
    }

    /// Asks for the key of a lease with its token once more.
    async fn acquire_anew(&mut self, lease: &Lease) -> Option<Lease> {
        let slots = self.slots.filter(|_| self.chance.bool());
        let claim = Question::claim(lease.key, Some(lease.token.clone()), self.ttl_ms());
        self.acquire(&claim.sharing(slots)).await
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
    async fn hear(&mut self, stream: &mut Stream) -> bool {
        let waits_from = self.recorder.now();
        let answer = match timeout(stream.patience, stream.connection.line()).await {
            Err(_) => Err(Missing::Gone),
            Ok(Err(_)) => Ok((0, Body { code: "cut".to_owned(), ..Body::default() })),
            Ok(Ok(line)) => Ok((200, read(&line))),
        };
        let about = stream.about();
        let sent = std::mem::replace(&mut stream.last, self.recorder.now());
        match answer {
            Ok((200, body)) if body.event == "alive" => {
                if let Some(ttl_ms) = body.said.ttl_ms {
                    let until = sent + ttl_ms * MILLISECOND;
                    stream.lease.until = stream.lease.until.max(until);
                }
                let alive = Question { kind: Kind::Alive, ..about };
                // One that came while the client did other things says nothing of the time since.
                self.record(&alive, waits_from, Ok((200, body)));
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

    /// Records that the client gives a stream up.
    fn leave(&self, stream: &Stream) {
        self.record(&stream.about(), stream.last, Err(Missing::Gone));
    }
}

#[derive(Debug)]
struct Stream {
    connection: Connection,
    question: Question,
    lease: Lease,
    /// When the last event was received.
    last: Nanos,
    /// How long it may be silent before the client goes.
    patience: Duration,
}

impl Stream {
    fn granted(
        connection: Option<Connection>,
        question: Question,
        told: Told,
        patience: Duration,
    ) -> Option<Self> {
        Some(Self {
            connection: connection?,
            lease: told.lease?,
            question,
            last: told.sent,
            patience,
        })
    }

    /// Its end, as a line of the history; the lease may have a token that the service made.
    fn about(&self) -> Question {
        let token = Some(self.lease.token.clone());
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
