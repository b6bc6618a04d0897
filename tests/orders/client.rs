//! The clients: what they send, what they rely on, and what becomes of their requests on the way.

use crate::lock::table::orders::Rule;
use crate::lock::table::orders::calls::at;
use crate::lock::table::orders::service::{key, token};
use crate::lock::table::orders::state::{
    Belief, Client, Fault, Party, Reply, Request, Stage, Tick, Wish, World,
};

impl Party {
    /// Whether the client may send now: it waits for no answer, but may have a stream.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.iter().all(|request| {
            let has_stream = matches!(request.stage, Stage::Holds { read: Some(_), .. });
            request.client != Client::Listens || has_stream
        })
    }

    /// Whether a request makes sense: a client names only what it was told, and ends or renews only
    /// what it has asked for.
    pub(super) fn may_send(&self, wish: Wish) -> bool {
        (self.knows.is_some() || !wish.names()) && (self.has_asked || wish.is_claim())
    }
}

impl World {
    /// A client sends a request.
    pub(super) fn send(&mut self, party: usize, wish: Wish) {
        let now = self.now;
        let own = &mut self.parties[party];
        own.sent += 1;
        let named = own.knows.filter(|_| wish.names());
        own.requests.push(Request {
            id: own.sent,
            wish,
            claim: own.claim,
            named,
            sent: now,
            way: 0,
            stage: Stage::Sent,
            client: Client::Listens,
            seen_end: 0,
        });
        own.has_asked = true;
        if wish.replaces() && !Rule::NamingGivesUp.is_left_out() {
            own.relies = None;
        }
        own.has_named |= wish.replaces();
        if matches!(wish, Wish::Release | Wish::ReleaseNamed) {
            own.relies = None;
            if !Rule::NewToken.is_left_out() {
                (own.claim, own.has_asked, own.knows) = (own.claim + 1, false, None);
                own.has_named = false;
            }
        }
    }

    /// A client waits no longer, and closes the connection.
    pub(super) fn give_up(&mut self, party: usize, at: usize) {
        let own = &mut self.parties[party];
        own.requests[at].client = Client::Closed;
        if own.requests[at].wish.is_stream() {
            own.relies = own.relies.filter(|belief| !belief.by_stream);
        }
    }

    /// The network between a client and its stream is cut.
    pub(super) fn cut(&mut self, party: usize, at: usize) {
        self.parties[party].requests[at].client = Client::Cut;
    }

    /// An answer, or the next line of a stream, is read.
    pub(super) fn receive(&mut self, party: usize, at: usize) {
        let now = self.now;
        let Request { wish, claim, stage, .. } = self.parties[party].requests[at];
        let reply = match stage {
            Stage::Told(reply) => {
                self.parties[party].requests.remove(at);
                reply
            }
            Stage::Holds { number, line: Some(line), read } => {
                let stage = Stage::Holds { number, line: None, read: Some(now) };
                self.parties[party].requests[at].stage = stage;
                match (line, read) {
                    // A line may have been on its way since the client read the one before.
                    (Reply::Lease { left, .. }, Some(read)) => {
                        return self.goes_on(party, number, read + left);
                    }
                    (line, _) => line,
                }
            }
            _ => return,
        };
        if claim == self.parties[party].claim {
            self.hear(party, wish, reply);
        }
    }

    /// What a client does with an answer to its present claim.
    fn hear(&mut self, party: usize, wish: Wish, reply: Reply) {
        let now = self.now;
        let own = &mut self.parties[party];
        match reply {
            Reply::Lease { number, left, until } => {
                own.knows = Some(number);
                own.has_named &= !wish.replaces();
                if own.has_named && !Rule::UntilNamed.is_left_out() {
                    return;
                }
                let until = if Rule::FromTheSending.is_left_out() { now + left } else { until };
                let by_stream = wish.is_stream();
                let before = own.relies.filter(|belief| belief.number == number);
                let by_stream = by_stream && before.is_none_or(|before| before.by_stream);
                let until = before.map_or(until, |before| before.until.max(until));
                own.relies = Some(Belief { number, until, by_stream });
            }
            Reply::Mine(number) => own.knows = Some(number),
            Reply::Lost(number) => {
                own.knows = number.or(own.knows);
                own.relies = own.relies.filter(|belief| belief.by_stream != wish.is_stream());
            }
            Reply::Held | Reply::Released | Reply::Superseded => (),
            Reply::Cancelled | Reply::Broken => (),
        }
    }

    /// A line says that the lease of a stream goes on.
    fn goes_on(&mut self, party: usize, number: u64, until: Tick) {
        let relies = &mut self.parties[party].relies;
        if let Some(belief) = relies.as_mut().filter(|belief| belief.number == number) {
            belief.until = belief.until.max(until);
        }
    }

    /// What the clients rely on is true: each has its lease at least until then, unless an operator
    /// has ended it, and no two rely on the key at once.
    pub(super) fn judge_beliefs(&mut self) {
        let now = self.now;
        let mut relying = 0;
        for party in 0..self.parties.len() {
            let own = &mut self.parties[party];
            own.relies = own.relies.filter(|belief| belief.until > now);
            let (Some(belief), claim) = (own.relies, own.claim) else { continue };
            if self.was_forced(belief.number) {
                continue;
            }
            relying += 1;
            let own = self.table.entry_of(key(), token(party, claim));
            let lasts = own.is_some_and(|own| {
                own.fencing_token.number() == belief.number && own.ends_at >= at(belief.until)
            });
            if !lasts {
                self.wrong(Fault::EndedEarly);
            }
        }
        if relying > 1 {
            self.fault = Some(Fault::Overlap);
        }
    }
}
