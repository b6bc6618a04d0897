//! The line of one key in the table: claims by their places, absent ones apart. Pure, as the table
//! is.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::lock::lease::{Claim, Owner, Waiter};
use crate::lock::time::Timestamp;
use crate::lock::token::LeaseToken;

/// Claims in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Line {
    next: u64,
    places: HashMap<LeaseToken, Joined>,
    /// Present claims, which may be handed the key.
    waiting: BTreeMap<u64, LeaseToken>,
    /// Absent claims by the moments until which they keep their places; they are passed over.
    away: BTreeMap<(Timestamp, u64), LeaseToken>,
    /// The claim that the key was handed to, and the deadline for its confirmation.
    handed: Option<(LeaseToken, Timestamp)>,
}

/// A claim with a place, present or absent.
#[derive(Debug)]
struct Joined {
    place: u64,
    since: Timestamp,
    owner: Option<Owner>,
    /// The moment until which it keeps its place, if it is absent.
    away_until: Option<Timestamp>,
}

impl Line {
    /// A line whose places are above this one, the last of an earlier line of the key: a claim of
    /// that may get its place back.
    pub(crate) fn after(last: u64) -> Self {
        Self { next: last, ..Self::default() }
    }

    /// Joins a claim, at its old place or else at the end. Returns the place, and true if it is
    /// new.
    pub(crate) fn join(&mut self, claim: &Claim, now: Timestamp) -> (u64, bool) {
        let last = self.next;
        let joined = self.places.entry(claim.token.clone()).or_insert_with(|| {
            self.next += 1;
            Joined { place: self.next, since: now, owner: None, away_until: None }
        });
        let place = joined.place;
        joined.owner = claim.owner.clone(); // The newest request sets it.
        if let Some(until) = joined.away_until.take() {
            self.away.remove(&(until, place));
        }
        self.waiting.insert(place, claim.token.clone());
        (place, place > last)
    }

    /// The first `most` present claims.
    pub(crate) fn first(&self, most: usize, now: Timestamp) -> Vec<Waiter> {
        let joined = self.waiting.values().filter_map(|token| self.places.get(token));
        let waiter = |joined: &Joined| Waiter {
            owner: joined.owner.clone(),
            waited: Some(now.left(joined.since)),
        };
        joined.take(most).map(waiter).collect()
    }

    /// Keeps the place of an absent claim until `until`, and passes over it meanwhile.
    pub(crate) fn park(&mut self, token: &LeaseToken, until: Timestamp) {
        let Some(joined) = self.places.get_mut(token) else { return };
        match joined.away_until.replace(until) {
            Some(before) => _ = self.away.remove(&(before, joined.place)),
            None => _ = self.waiting.remove(&joined.place),
        }
        self.away.insert((until, joined.place), token.clone());
    }

    /// Gives an absent claim the place back that it had, until `until`.
    pub(crate) fn give_back(
        &mut self,
        token: &LeaseToken,
        place: u64,
        (now, until): (Timestamp, Timestamp),
    ) {
        if self.place(token).is_none() {
            let joined = Joined { place, since: now, owner: None, away_until: None };
            self.places.insert(token.clone(), joined);
            self.park(token, until);
        }
    }

    /// Takes a claim out of the line. Returns the place that it had.
    pub(crate) fn drop(&mut self, token: &LeaseToken) -> Option<u64> {
        let Joined { place, away_until, .. } = self.places.remove(token)?;
        match away_until {
            Some(until) => _ = self.away.remove(&(until, place)),
            None => _ = self.waiting.remove(&place),
        }
        Some(place)
    }

    /// The oldest present claim.
    pub(crate) fn head(&self) -> Option<(u64, &LeaseToken)> {
        self.waiting.first_key_value().map(|(place, token)| (*place, token))
    }

    /// The place of a claim, present or absent.
    pub(crate) fn place(&self, token: &LeaseToken) -> Option<u64> {
        self.places.get(token).map(|joined| joined.place)
    }

    /// The number of present claims ahead of a place.
    pub(crate) fn ahead(&self, place: u64) -> u64 {
        self.waiting.range(..place).count() as u64
    }

    /// The number of present claims.
    pub(crate) fn len(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Hands the key to the head until `until`, keeping its place until `keep_until`. Returns false
    /// if no claim is present.
    pub(crate) fn hand_on(&mut self, until: Timestamp, keep_until: Timestamp) -> bool {
        self.handed = self.head().map(|(_, token)| (token.clone(), until));
        let Some((token, _)) = self.handed.clone() else { return false };
        self.park(&token, keep_until);
        true
    }

    /// The hand-off, unless it was confirmed or has lapsed.
    pub(crate) fn handed(&self) -> Option<&(LeaseToken, Timestamp)> {
        self.handed.as_ref()
    }

    /// The time left of the hand-off.
    pub(crate) fn handed_for(&self, now: Timestamp) -> Option<Duration> {
        self.handed.as_ref().map(|(_, until)| until.left(now))
    }

    pub(crate) fn take_handed(&mut self) {
        self.handed = None;
    }

    /// Ends expired places, and an unconfirmed hand-off whose time is up. Returns true if that
    /// lapsed.
    pub(crate) fn expire(&mut self, now: Timestamp) -> bool {
        while let Some((&(until, _), token)) = self.away.first_key_value()
            && until <= now
        {
            let token = token.clone();
            self.drop(&token);
        }
        let lapsed = self.handed.as_ref().is_some_and(|(_, until)| *until <= now);
        if lapsed {
            self.handed = None;
        }
        lapsed
    }

    /// Returns true if the line has neither places nor a hand-off.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty() && self.handed.is_none()
    }
}
