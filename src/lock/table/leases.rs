//! The beginning, the change and the end of a lease in the table.

use std::time::Duration;

use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Lease, LockStatus, Renewals};
use crate::lock::store::{Answer, Win};
use crate::lock::table::{Entry, Table, holders};
use crate::lock::time::{Timestamp, Ttl};
use crate::lock::token::FencingToken;

/// The slack of a short lease: a usual disk write.
const LEAST_SLACK: Duration = Duration::from_millis(25);

impl Table {
    /// Grants the key again to a token that has a lease of it. Its share changes only if the claim
    /// names the lease and the other holders allow that. Its place in line does not matter: who is
    /// ahead may wait for it.
    pub(super) fn again(
        &mut self,
        claim: &Claim,
        own: Entry,
        now: Timestamp,
        proposal: u64,
    ) -> Option<Answer> {
        let slots = claim.slots.unwrap_or(own.share.slots);
        let room = || holders::room(self.entries(&claim.key), &claim.token, slots);
        if slots != own.share.slots && (claim.named.is_none() || !room()) {
            let refusal = self.refusal(claim, now);
            return Some(Answer::Held(LockStatus { mine: Some(true), ..refusal }));
        }
        if own.share.slots.begins_anew_as(slots) {
            self.take_out(&claim.key, own.fencing_token);
            return self.begin(claim, Some(&own), now, proposal).map(Answer::Won);
        }
        let share = holders::share(self.entries(&claim.key), slots, own.share.slot);
        let place = self.lines.get_mut(&claim.key).and_then(|line| line.drop(&claim.token));
        let renewals = own.renewals.taken_over();
        let entry = Entry { owner: claim.owner.clone(), renewals, share, ..own };
        let lease = self.extend(&claim.key, entry, (claim.ttl, false), now);
        self.ring(&claim.key);
        Some(Answer::Won(Win { lease, fresh: false, replaces: None, place, by: 0 }))
    }

    /// Begins a lease, in place of an earlier one of its token if there is one: its holder has had
    /// the key since then, and has it for no shorter time.
    pub(super) fn begin(
        &mut self,
        claim: &Claim,
        before: Option<&Entry>,
        now: Timestamp,
        proposal: u64,
    ) -> Option<Win> {
        let next = self.last_fencing_token + 1;
        let fencing_token = FencingToken::from_number(proposal.max(next))
            .or_else(|| FencingToken::from_number(next))?;
        self.last_fencing_token = fencing_token.number();
        let place = self.lines.get_mut(&claim.key).and_then(|line| {
            line.take_handed();
            line.drop(&claim.token)
        });
        let entry = Entry {
            token: claim.token.clone(),
            owner: claim.owner.clone(),
            fencing_token,
            since: before.map_or(now, |before| before.since),
            ttl: before.map_or(claim.ttl, |before| before.ttl),
            ends_at: before.map_or(now, |before| before.ends_at),
            renewals: Renewals::default(),
            share: holders::share(self.entries(&claim.key), claim.slots(), None),
        };
        let lease = self.extend(&claim.key, entry, (claim.ttl, false), now);
        self.ring(&claim.key);
        let replaces = before.map(|before| before.fencing_token);
        Some(Win { lease, fresh: true, replaces, place, by: 0 })
    }

    /// Makes a lease last for `asked` from now. One that lasts longer anyway ends earlier only if it
    /// may.
    pub(super) fn extend(
        &mut self,
        key: &LockKey,
        entry: Entry,
        (asked, earlier): (Ttl, bool),
        now: Timestamp,
    ) -> Lease {
        let (ttl, ends_at) = self.term(key, &entry, asked, now);
        match entry.ends_at > ends_at && !earlier {
            true => self.note(key, entry, false, now),
            false => self.note(key, Entry { ttl, ends_at, ..entry }, ttl < asked, now),
        }
    }

    /// The TTL of a lease, and its end, if it is renewed now for `asked`.
    fn term(&self, key: &LockKey, entry: &Entry, asked: Ttl, now: Timestamp) -> (Ttl, Timestamp) {
        // When it has lasted for its `max_hold`, but no earlier than it would end.
        let most = self.prefixes.max_hold(key);
        let limit = most.map(|most| entry.since.after(most).max(entry.ends_at));
        let ttl = limit.map_or(asked, |limit| asked.min(Ttl::lasting(limit.left(now))));
        let slack = self.slack.min(LEAST_SLACK.max(ttl.as_duration() / 20));
        let ends_at = now.after(ttl).plus(slack);
        (ttl, limit.map_or(ends_at, |limit| limit.min(ends_at)))
    }

    /// Writes a lease, and returns it as its holder is told.
    fn note(&mut self, key: &LockKey, entry: Entry, capped: bool, now: Timestamp) -> Lease {
        let lease = Lease {
            key: key.clone(),
            owner: entry.owner.clone(),
            fencing_token: entry.fencing_token,
            ttl: Ttl::lasting(entry.left(now)),
            renewals: entry.renewals,
            capped,
            share: entry.share,
        };
        let (ends_at, id) = (entry.ends_at, (key.clone(), entry.fencing_token));
        let holders = self.leases.entry(key.clone()).or_default();
        let before = holders.iter_mut().find(|other| other.fencing_token == entry.fencing_token);
        let before = match before {
            Some(before) => Some(std::mem::replace(before, entry)),
            None => {
                holders.push(entry); // Its number is the highest.
                None
            }
        };
        if let Some(before) = &before {
            self.ends.remove(&(before.ends_at, id.clone()));
        }
        self.ends.insert((ends_at, id.clone()));
        self.changes.entry(id).or_insert(before);
        lease
    }

    /// Ends a lease, and hands the key to the head of the line, or tells it that there may be room.
    pub(super) fn end_lease(&mut self, key: &LockKey, number: FencingToken, now: Timestamp) {
        self.take_out(key, number);
        self.hand_on_if_free(key, now);
        self.ring(key);
    }

    fn take_out(&mut self, key: &LockKey, number: FencingToken) {
        let Some(holders) = self.leases.get_mut(key) else { return };
        let Some(at) = holders.iter().position(|entry| entry.fencing_token == number) else {
            return;
        };
        let entry = holders.remove(at);
        if holders.is_empty() {
            self.leases.remove(key);
        }
        let id = (key.clone(), number);
        self.ends.remove(&(entry.ends_at, id.clone()));
        self.changes.entry(id).or_insert(Some(entry));
    }
}
