//! The beginning, the change and the end of a lease in the table.

use std::time::Duration;

use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Lease, LockStatus, Replaced, State};
use crate::lock::store::{Answer, Win};
use crate::lock::table::{Entry, Table, holders};
use crate::lock::time::{Timestamp, Ttl};
use crate::lock::token::FencingToken;

/// The slack of a short lease: a usual disk write.
const LEAST_SLACK: Duration = Duration::from_millis(25);

impl Table {
    /// Rules 4 and 5. Grants the key again to a token that has a lease of it, if the claim asks for
    /// nothing else. Its place in line does not matter: who is ahead may wait for it.
    pub(super) fn repeat(&mut self, claim: &Claim, own: Entry, now: Timestamp) -> Answer {
        if claim.kept || own.state == State::Kept || !claim.keeps(own.share) {
            return self.mine(claim, &own, now);
        }
        let place = self.lines.get_mut(&claim.key).and_then(|line| line.drop(&claim.token));
        let entry = Entry { owner: claim.owner.clone(), state: State::Heard, ..own };
        let lease = self.extend(&claim.key, entry, claim.ttl, now);
        Answer::Won(Win { lease, fresh: false, replaces: None, place, by: 0 })
    }

    /// Rule 6. Begins a lease in place of the one that a claim names, if the other holders allow its
    /// share.
    pub(super) fn replace(
        &mut self,
        claim: &Claim,
        own: Option<Entry>,
        now: Timestamp,
        proposal: u64,
    ) -> Option<Answer> {
        let has = own.as_ref().map(|own| own.fencing_token);
        let Some(own) = own.filter(|_| has == claim.named) else { return Some(Answer::Lost(has)) };
        let most = self.prefixes.max_hold(&claim.key);
        if most.is_some_and(|most| own.since.after(most) <= now) {
            return Some(Answer::Lost(None));
        }
        if !holders::room(self.entries(&claim.key), &claim.token, claim.share()) {
            return Some(self.mine(claim, &own, now));
        }
        self.take_out(&claim.key, own.fencing_token);
        self.begin(claim, Some(&own), now, proposal).map(Answer::Won)
    }

    /// The refusal of a claim by the lease of its own token.
    fn mine(&self, claim: &Claim, own: &Entry, now: Timestamp) -> Answer {
        let holder = Some(own.holder(now));
        let mine = Some(true);
        Answer::Held(LockStatus { holder, mine, ..self.refusal(claim, now) })
    }

    /// Begins a lease, in place of an earlier one of its token if there is one: its holder has had
    /// the key since then.
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
            ttl: claim.ttl,
            ends_at: now,
            state: State::of_new(claim.kept),
            share: holders::numbered(self.entries(&claim.key), claim.share()),
        };
        let lease = self.extend(&claim.key, entry, claim.ttl, now);
        self.ring(&claim.key);
        // One that is kept ends with its stream, which is told now that it is replaced.
        let left = |before: &Entry| match before.state {
            State::Kept => Duration::ZERO,
            State::New | State::Heard => before.left(now),
        };
        let replaces = before.map(|before| Replaced {
            number: before.fencing_token,
            ends_at: now.plus(left(before)).as_micros(),
        });
        Some(Win { lease, fresh: true, replaces, place, by: 0 })
    }

    /// Makes a lease last for `asked` from now, if that is longer than it would.
    pub(super) fn extend(
        &mut self,
        key: &LockKey,
        entry: Entry,
        asked: Ttl,
        now: Timestamp,
    ) -> Lease {
        let (ttl, ends_at) = self.term(key, &entry, asked, now);
        if entry.ends_at > ends_at {
            return self.note(key, entry, false, now);
        }
        // Its holder may have been told a part of the slack.
        let told = ttl.max(Ttl::lasting(entry.left(now)));
        self.note(key, Entry { ttl: told, ends_at, ..entry }, ttl < asked, now)
    }

    /// Lets a lease end when its `linger` has passed, or leaves its end without one.
    pub(super) fn let_go(
        &mut self,
        key: &LockKey,
        entry: Entry,
        linger: Option<Ttl>,
        now: Timestamp,
    ) -> Lease {
        let Some(linger) = linger else { return self.note(key, entry, false, now) };
        let (ttl, ends_at) = self.term(key, &entry, linger, now);
        self.note(key, Entry { ttl, ends_at, ..entry }, ttl < linger, now)
    }

    /// Rule 8, for a lease that has replaced another one: lets it go, and lets it end when that one
    /// would have.
    pub(super) fn put_back(
        &mut self,
        key: &LockKey,
        entry: Entry,
        would_end_at: Timestamp,
        now: Timestamp,
    ) {
        let ends_at = entry.ends_at.min(would_end_at);
        self.note(key, Entry { state: State::Heard, ends_at, ..entry }, false, now);
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
            capped,
            share: entry.share,
        };
        let ends_at = entry.ends_at;
        let id = (key.clone(), entry.fencing_token);
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
