//! The beginning, the change and the end of a lease in the table.

use std::time::Duration;

use crate::lock::entry::Entry;
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Lease, LockStatus, Renewals};
use crate::lock::store::{Attempt, Win};
use crate::lock::table::{Table, holders};
use crate::lock::time::{Timestamp, Ttl};
use crate::lock::token::FencingToken;

/// The slack of a short lease: a usual disk write.
const LEAST_SLACK: Duration = Duration::from_millis(25);

impl Table {
    /// Grants the key to a token that has a lease of it, with as many slots as it asks for if the
    /// other holders allow them. Its place in line does not matter: who is ahead may wait for it.
    pub(super) fn again(
        &mut self,
        claim: &Claim,
        own: Entry,
        now: Timestamp,
        proposal: u64,
    ) -> Option<Attempt> {
        let slots = claim.slots.unwrap_or(own.share.slots);
        if !holders::room(self.entries(&claim.key), &claim.token, slots) {
            let refusal = self.refusal(claim, now);
            return Some(Attempt::Held(LockStatus { mine: Some(true), ..refusal }));
        }
        if own.share.slots.begins_anew_as(slots) {
            self.take_out(&claim.key, own.fencing_token);
            return self.begin(claim, Some(&own), now, proposal).map(Attempt::Won);
        }
        let share = holders::share(self.entries(&claim.key), slots, own.share.slot);
        if let Some(line) = self.lines.get_mut(&claim.key) {
            line.drop(&claim.token); // It waited for the slots that it has now.
            self.forget_empty_line(&claim.key);
        }
        let renewals = own.renewals.taken_over();
        let entry = Entry { owner: claim.owner.clone(), renewals, share, ..own };
        let lease = self.grant(&claim.key, entry, claim.ttl, now);
        self.ring(&claim.key);
        Some(Attempt::Won(Win { lease, fresh: false, replaces: None, in_doubt: None }))
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
        if let Some(line) = self.lines.get_mut(&claim.key) {
            line.take_handed();
            line.drop(&claim.token);
            self.forget_empty_line(&claim.key);
        }
        let entry = Entry {
            token: claim.token.clone(),
            owner: claim.owner.clone(),
            fencing_token,
            since: before.map_or(now, |before| before.since),
            ttl: claim.ttl,
            ends_at: now,
            renewals: Renewals::default(),
            share: holders::share(self.entries(&claim.key), claim.slots(), None),
        };
        let lease = self.grant(&claim.key, entry, claim.ttl, now);
        self.ring(&claim.key);
        Some(Win {
            lease,
            fresh: true,
            replaces: before.map(|before| before.fencing_token),
            in_doubt: None,
        })
    }

    /// The latest end of a lease: when it has lasted for its `max_hold`. It ends no earlier than it
    /// would.
    fn limit(&self, key: &LockKey, entry: &Entry) -> Option<Timestamp> {
        let limit = entry.since.after(self.prefixes.max_hold(key)?);
        Some(limit.max(entry.ends_at))
    }

    pub(super) fn grant(
        &mut self,
        key: &LockKey,
        mut entry: Entry,
        asked: Ttl,
        now: Timestamp,
    ) -> Lease {
        let limit = self.limit(key, &entry);
        let ttl = limit.map_or(asked, |limit| asked.min(Ttl::until(limit, now)));
        entry.ttl = ttl;
        let slack = self.slack.min(LEAST_SLACK.max(ttl.as_duration() / 20));
        entry.ends_at = now.after(ttl).plus(slack);
        entry.ends_at = limit.map_or(entry.ends_at, |limit| limit.min(entry.ends_at));
        let lease = Lease {
            key: key.clone(),
            owner: entry.owner.clone(),
            fencing_token: entry.fencing_token,
            ttl,
            renewals: entry.renewals,
            capped: ttl < asked,
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
    pub(super) fn end(&mut self, key: &LockKey, number: FencingToken, now: Timestamp) {
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
