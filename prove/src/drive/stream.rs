//! Leases that live as long as a connection: ended, replaced, resumed, released behind its back, or lost.

use std::time::Duration;

use tokio::time::timeout;

use crate::drive::asker::{
    Asker, Body, Lease, MILLISECOND, Missing, Question, Told, read, written,
};
use crate::drive::client::Client;
use crate::history::{Kind, Line, Nanos, Outcome};
use crate::http::Connection;

/// How long after its TTL a stream may be silent before the client hangs up.
const PATIENCE: Duration = Duration::from_millis(2_500);

/// How many more events a client waits for after a release of which it knows nothing.
const AFTER_RELEASE: u32 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    HangUp,
    Release,  // By a release with its token on any connection.
    Again, // By a release, after which the token has the key anew while the stream is still there.
    ComeBack, // By a hang-up, after which its client comes back with the token.
    Replace, // By a request that names it.
}

impl Client {
    /// Holds a key by a stream.
    pub(super) async fn hold(&mut self, key: u32) {
        let wait_ms = if self.chance.bool() { 0 } else { self.chance.u64(50..2_000) };
        let ttl_ms = self.chance.u64(150..1_200);
        let token = self.maybe_token();
        self.hold_for(self.claim(key, token, ttl_ms).waiting(wait_ms)).await;
    }

    /// Holds a key by a stream for a claim.
    pub(super) async fn hold_for(&mut self, claim: Question) {
        let end = match self.chance.u32(..7) {
            0 => End::Release,
            1 => End::Again,
            2 => End::ComeBack,
            3 => End::Replace,
            _ => End::HangUp,
        };
        let mut claim = claim;
        if end != End::HangUp {
            claim.token.get_or_insert_with(|| self.asker.choose());
        }
        if end == End::ComeBack || self.chance.u32(..4) == 0 {
            claim.asked.linger_ms = self.chance.u64(50..800);
        }
        let patience = PATIENCE + Duration::from_millis(claim.asked.ttl_ms.unwrap_or_default());
        let Some(mut stream) = self.open(claim.clone(), patience).await else { return };
        for _ in 0..self.chance.u32(..4) {
            if self.chance.u32(..6) == 0 {
                self.meddle_with_its_stream(&stream.lease).await;
            }
            if !self.asker.hear(&mut stream).await {
                return self.go_on_after(stream).await;
            }
        }
        self.end(stream, end, claim).await;
    }

    /// Asks for what the stream has to itself.
    async fn meddle_with_its_stream(&mut self, lease: &Lease) {
        self.bring_twin();
        let kinds = [Kind::Refresh, Kind::Acquire, Kind::Look];
        let kind = kinds[self.chance.usize(..kinds.len())];
        let question =
            Question::about(kind, lease).sharing(self.slots.filter(|_| kind == Kind::Acquire));
        let told = self.twin.ask(&question).await;
        if let Some(lease) = told.lease.filter(|_| kind == Kind::Acquire) {
            // The stream is over, and its end on its way.
            self.release(&lease).await;
        }
    }

    /// Goes on with a lease that a stream left when its instance drained: nothing keeps it.
    async fn go_on_after(&mut self, stream: Stream) {
        if stream.drained {
            self.asker.turn();
            let mut lease = stream.lease;
            if self.refresh(&mut lease).await {
                self.work(lease).await;
            }
        }
    }

    /// Opens a stream for a claim and returns it with its grant, once there is one. A lease that its token
    /// has is named.
    async fn open(&mut self, claim: Question, patience: Duration) -> Option<Stream> {
        let mut question = Question { kind: Kind::Hold, ..claim };
        for _ in 0..3 {
            let (connection, told) = self.asker.open_stream(&question).await;
            match told.own() {
                Some(number) => question = question.naming(number),
                None if told.outcome == Outcome::No && connection.is_none() => {
                    self.doubt(&question, &told).await;
                    return None;
                }
                None => return Stream::granted(connection, question, told, patience),
            }
        }
        None
    }

    async fn end(&mut self, mut stream: Stream, end: End, claim: Question) {
        let (mut later, mut lasts) = (None, true);
        if matches!(end, End::Release | End::Again) {
            if self.chance.bool() {
                self.asker.turn();
            }
            self.release(&stream.lease).await;
        }
        match end {
            End::Again => later = self.acquire_anew(&stream.lease).await,
            End::Replace if self.chance.bool() => later = self.replace(&claim, &stream.lease).await,
            End::Replace => {
                let named = claim.naming(stream.lease.fencing_token);
                if let Some(other) = self.open(named, stream.patience).await {
                    self.asker.leave(&other);
                }
            }
            _ => (),
        }
        let events = match end {
            End::Release => AFTER_RELEASE,
            End::Again | End::Replace => self.chance.u32(..3),
            _ => 0,
        };
        for _ in 0..events {
            lasts = lasts && self.asker.hear(&mut stream).await;
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
        if end == End::ComeBack {
            later = self.acquire_anew(&lease).await;
        }
        if let Some(later) = later {
            self.rest(100_000).await;
            self.work(later).await;
        } else if self.chance.u32(..4) == 0 {
            self.look(&lease).await;
        }
    }

    /// Has a stream for a moment, and returns its lease.
    pub(super) async fn hold_briefly(&mut self, claim: &Question) -> Option<Lease> {
        let stream = self.open(claim.clone(), PATIENCE).await?;
        self.asker.leave(&stream);
        Some(stream.lease)
    }

    /// Opens a stream and hangs up after so long, whatever it has said by then.
    pub(super) async fn open_for(&mut self, claim: Question, patience: Duration) {
        let question = Question { kind: Kind::Hold, ..claim };
        let sent = self.asker.recorder.now();
        match timeout(patience, self.asker.open_stream(&question)).await {
            Err(_) => drop(self.asker.record(&question, sent, Err(Missing::Gone))),
            Ok((connection, told)) => {
                if let Some(stream) = Stream::granted(connection, question, told, PATIENCE) {
                    self.asker.leave(&stream);
                }
            }
        }
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
            Ok((200, mut body)) if body.event == "alive" => {
                body.said.fencing_token = Some(stream.lease.fencing_token);
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
                stream.drained = body.event == "draining";
                self.record_end(stream, sent, Ok(named(&body)));
            }
            Ok((_, body)) => self.record_end(stream, sent, Ok(body.code)),
            Err(missing) => self.record_end(stream, sent, Err(missing)),
        }
        false
    }

    fn record_end(&self, stream: &Stream, sent: Nanos, end: Result<String, Missing>) {
        let ended = end.map(|code| (200, Body { code, ..Body::default() }));
        let (mut operation, _) = self.operation(&stream.about(), sent, ended);
        operation.said.fencing_token = Some(stream.lease.fencing_token);
        self.recorder.write(Line::Operation(operation));
    }

    /// Records that the client gives a stream up.
    fn leave(&self, stream: &Stream) {
        self.record_end(stream, stream.last, Err(Missing::Gone));
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
    /// Whether its instance drained, and left the lease to its client.
    drained: bool,
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
            drained: false,
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
