//! The line of one key in the table: claims by their places, absent ones apart. Pure, as the table
//! is.

use std::collections::{BTreeMap, BTreeSet, HashMap};

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
    /// Absent claims that keep a place until this moment; they are passed over.
    away: BTreeMap<u64, (LeaseToken, Timestamp)>,
    away_ends: BTreeSet<(Timestamp, u64)>,
    /// The claim that the key was handed to, and the deadline for its confirmation.
    handed: Option<(LeaseToken, Timestamp)>,
}

/// A claim with a place, present or absent.
#[derive(Debug)]
struct Joined {
    place: u64,
    since: Timestamp,
    owner: Option<Owner>,
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
            Joined { place: self.next, since: now, owner: None }
        });
        let place = joined.place;
        joined.owner = claim.owner.clone(); // The newest request sets it.
        self.come_back(place);
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
        if let Some(place) = self.place(token) {
            self.come_back(place);
            self.waiting.remove(&place);
            self.away.insert(place, (token.clone(), until));
            self.away_ends.insert((until, place));
        }
    }

    /// Gives an absent claim the place back that it had, until `until`.
    pub(crate) fn give_back(
        &mut self,
        token: &LeaseToken,
        place: u64,
        (now, until): (Timestamp, Timestamp),
    ) {
        if self.place(token).is_none() {
            self.places.insert(token.clone(), Joined { place, since: now, owner: None });
            self.park(token, until);
        }
    }

    /// Takes a claim out of the line. Returns the place that it had.
    pub(crate) fn drop(&mut self, token: &LeaseToken) -> Option<u64> {
        let Joined { place, .. } = self.places.remove(token)?;
        self.come_back(place);
        self.waiting.remove(&place);
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

    /// Hands the key to the head until `until`, keeping its place until `keep_until`. `None` if no
    /// claim is present.
    pub(crate) fn hand_on(&mut self, until: Timestamp, keep_until: Timestamp) -> Option<()> {
        self.handed = None;
        let (_, token) = self.head()?;
        let token = token.clone();
        self.park(&token, keep_until);
        self.handed = Some((token, until));
        Some(())
    }

    /// The hand-off, unless it was confirmed or has lapsed.
    pub(crate) fn handed(&self) -> Option<&(LeaseToken, Timestamp)> {
        self.handed.as_ref()
    }

    pub(crate) fn take_handed(&mut self) {
        self.handed = None;
    }

    /// Ends expired places, and an unconfirmed hand-off whose time is up. Returns true if that
    /// lapsed.
    pub(crate) fn expire(&mut self, now: Timestamp) -> bool {
        while let Some(&(until, place)) = self.away_ends.first() {
            if until > now {
                break;
            }
            if let Some((token, _)) = self.away.get(&place) {
                let token = token.clone();
                self.drop(&token);
            }
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

    fn come_back(&mut self, place: u64) {
        if let Some((_, until)) = self.away.remove(&place) {
            self.away_ends.remove(&(until, place));
        }
    }
}
