//! The answers: what the instance tells its requests.

use crate::lock::lease::LockStatus;
use crate::lock::store::{Answer, Win};
use crate::lock::table::orders::calls::steps;
use crate::lock::table::orders::state::{Client, Reply, Request, Stage, Tick, World, bit};

/// A request: its client and where it stands among the client's.
pub(super) type Which = (usize, usize);

impl World {
    /// An answer that has no guard.
    pub(super) fn tell_answer(&mut self, party: usize, at: usize, answer: &Answer) {
        let number = |of: &LockStatus| of.holder.as_ref()?.fencing_token;
        let reply = match answer {
            Answer::Won(Win { lease, .. }) => {
                let number = lease.fencing_token.number();
                self.lease_reply((party, at), number, self.now, steps(lease.ttl))
            }
            Answer::Held(status) if status.mine == Some(true) => {
                Reply::Mine(number(status).map_or(0, |number| number.number()))
            }
            Answer::Held(_) | Answer::Waiting(_) => Reply::Held,
            Answer::Lost(number) => Reply::Lost(number.map(|number| number.number())),
            Answer::Superseded | Answer::Cancelled => Reply::Superseded,
        };
        self.tell(party, at, reply);
    }

    /// A lease as its client is told: it may rely on what is left now, counted from its sending,
    /// and the time that it waited.
    pub(super) fn lease_reply(
        &self,
        (party, at): Which,
        number: u64,
        asked: Tick,
        left: Tick,
    ) -> Reply {
        let left = left.saturating_sub(self.now - asked);
        let way = self.parties[party].requests[at].way;
        Reply::Lease { number, left, until: (asked + left).saturating_sub(way) }
    }

    /// Begins to send an answer. What nobody reads is over.
    pub(super) fn tell(&mut self, party: usize, at: usize, reply: Reply) {
        if let Reply::Lease { number, .. } = reply {
            self.told |= bit(number);
        }
        let own = &mut self.parties[party];
        let Request { id, wish, .. } = own.requests[at];
        if matches!(reply, Reply::Held | Reply::Cancelled) {
            own.refused |= 1 << id;
        }
        own.requests[at].stage = match reply {
            Reply::Lease { number, left, .. } if wish.is_stream() && left > 0 => {
                Stage::Holds { number, line: Some(reply), read: None }
            }
            reply => Stage::Told(reply),
        };
    }

    /// Forgets requests whose answers nobody reads.
    pub(super) fn drop_the_gone(&mut self) {
        let is_read =
            |one: &Request| one.client == Client::Listens || !matches!(one.stage, Stage::Told(_));
        self.parties.iter_mut().for_each(|own| own.requests.retain(is_read));
    }
}
