//! The rules of a lock as a pure state machine: no I/O, no clock, no randomness. Time, tokens and
//! the proposed fencing token are arguments.
//!
//! The embedded store is this table with a durable log; the tests compare every other store with
//! it. When a lease ends, the key is handed to the head of its line for a short while; the next
//! lease begins when the head confirms by asking.

mod holders;
mod leases;
mod look;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Holder, LockStatus, Origin, Receipt, State};
use crate::lock::line::Line;
use crate::lock::prefixes::Prefixes;
use crate::lock::store::{
    Answer, Ask, Condition, Ended, Keep, Page, Renewed, Target, Waiting, Win,
};
use crate::lock::table::holders::Holders;
use crate::lock::time::{Timestamp, Ttl};
use crate::lock::token::{FencingToken, LeaseToken};

pub use crate::lock::table::holders::Entry;

/// The time limit to confirm a hand-off: microseconds within one process, unless it is suspended.
const CONFIRM_WITHIN: Ttl = Ttl::from_millis(3_000);

/// The identity of a lease: no two leases of a key have one number.
pub(crate) type LeaseId = (LockKey, FencingToken);

/// All leases of a store, and their lines.
#[derive(Debug)]
pub struct Table {
    leases: BTreeMap<LockKey, Holders>,
    lines: HashMap<LockKey, Line>,
    /// The time for which an absent claim keeps its place.
    position_kept: Ttl,
    /// The longest time that a lease lasts.
    prefixes: Prefixes,
    /// See [`Table::take_hints`].
    hints: Vec<(LockKey, Option<u64>)>,
    last_place: u64, // Over all keys.
    /// The same leases by their ends, to find expired ones without a search.
    ends: BTreeSet<(Timestamp, LeaseId)>,
    /// The highest fencing token so far, over all keys: one number for all, so a free key costs
    /// nothing.
    last_fencing_token: u64,
    /// The time by which a lease may outlast its TTL.
    slack: Duration,
    /// The leases that began, changed or ended since [`Table::take_changes`], as they were before.
    changes: BTreeMap<LeaseId, Option<Entry>>,
}

impl Table {
    /// A table of earlier leases; `last_fencing_token` is the highest number given so far.
    pub fn restore(
        leases: impl IntoIterator<Item = (LockKey, Entry)>,
        last_fencing_token: u64,
    ) -> Self {
        let (mut by_key, mut ends) = (BTreeMap::<_, Holders>::new(), BTreeSet::new());
        for (key, entry) in leases {
            ends.insert((entry.ends_at, (key.clone(), entry.fencing_token)));
            by_key.entry(key).or_default().push(entry);
        }
        for holders in by_key.values_mut() {
            holders.sort_unstable_by_key(|entry| entry.fencing_token);
        }
        Self {
            leases: by_key,
            lines: HashMap::new(),
            position_kept: Ttl::from_millis(5_000),
            prefixes: Prefixes::default(),
            hints: Vec::new(),
            last_place: 0,
            ends,
            last_fencing_token,
            slack: Duration::ZERO,
            changes: BTreeMap::new(),
        }
    }

    /// The same table, in which an absent claim keeps its place for `position_kept`.
    pub fn keeping_positions(self, position_kept: Ttl) -> Self {
        Self { position_kept, ..self }
    }

    /// The same table, in which no lease lasts longer than the `max_hold` of its key, and one
    /// outlasts its TTL by `slack`, or by a twentieth of the TTL, at least 25 ms, if that is less:
    /// its holder has the whole TTL although an answer takes time.
    pub fn with_terms(self, prefixes: Prefixes, slack: Duration) -> Self {
        Self { prefixes, slack, ..self }
    }

    /// Rules 4 to 7. Grants the key if all leases that would then hold it allow their units and no
    /// present claim is ahead, or again to a holder's token; otherwise a claim that asks in line
    /// joins it. The fencing token of a new lease is `proposal`, or the next number if that is
    /// higher.
    ///
    /// Returns `None` if all 2^53 fencing tokens are used up.
    pub fn ask(
        &mut self,
        claim: &Claim,
        ask: Ask,
        now: Timestamp,
        proposal: u64,
    ) -> Option<Answer> {
        self.expire_and_hand_on(&claim.key, now);
        let own = self.entry_of(&claim.key, &claim.token).cloned();
        let answer = match (own, claim.named, ask) {
            (own, Some(_), _) => self.replace(claim, own, now, proposal)?,
            (Some(own), None, Ask::Once(_)) => self.repeat(claim, own, now),
            (Some(own), None, Ask::InLine(_)) => {
                self.leave(&claim.key, &[(claim.token.clone(), Keep::Nothing)], now);
                self.repeat(claim, own, now)
            }
            (None, None, _) if self.is_turn_of(claim) => {
                Answer::Won(self.begin(claim, None, now, proposal)?)
            }
            (None, None, Ask::Once(_)) => {
                self.hand_on_if_free(&claim.key, now);
                Answer::Held(self.refusal(claim, now))
            }
            (None, None, Ask::InLine(_)) => self.in_line(claim, now),
        };
        if let (Ask::Once(_), Answer::Won(Win { place: Some(place), .. })) = (ask, &answer) {
            self.hints.push((claim.key.clone(), Some(*place)));
        }
        Some(answer)
    }

    /// Joins the line, or keeps the claim's place in it.
    fn in_line(&mut self, claim: &Claim, now: Timestamp) -> Answer {
        let last = self.last_place;
        let line = self.lines.entry(claim.key.clone()).or_insert_with(|| Line::after(last));
        let (place, new) = line.join(claim, now);
        self.last_place = last.max(place);
        self.hand_on_if_free(&claim.key, now);
        let line = &self.lines[&claim.key];
        let held = holders::makes_room(self.entries(&claim.key), claim.slots());
        let left = held.map(|entry| entry.left(now)).or_else(|| line.handed_for(now));
        Answer::Waiting(Waiting {
            place,
            ahead: line.ahead(place),
            new,
            recheck_after: left.unwrap_or_default(),
            lasts: Duration::ZERO,
            handed: line.handed().map(|(token, _)| token.clone()),
        })
    }

    /// Takes claims out of the line. A hand-off to one of them goes on to the next claim; a lease
    /// stays.
    pub fn leave(&mut self, key: &LockKey, claims: &[(LeaseToken, Keep)], now: Timestamp) {
        self.expire_and_hand_on(key, now);
        let until = now.after(self.position_kept);
        let Some(line) = self.lines.get_mut(key) else { return };
        let mut was_handed = false;
        for (token, keep) in claims {
            was_handed |= line.handed().is_some_and(|(handed, _)| handed == token);
            match keep {
                Keep::Place => line.park(token, until),
                Keep::Nothing => _ = line.drop(token),
            }
        }
        if was_handed {
            line.take_handed();
            self.hand_on_if_free(key, now);
        }
        self.ring(key);
    }

    /// Rule 13, and the keeper of rule 16. Makes a lease last for `ttl` from now, or for its last
    /// TTL, if that is longer than it would.
    pub fn renew(&mut self, of: &Target, ttl: Option<Ttl>, now: Timestamp) -> Renewed {
        self.expire_and_hand_on(&of.key, now);
        let Some(entry) = self.lease(of).cloned() else { return Renewed::Lost(self.has(of)) };
        let is_kept = entry.state == State::Kept;
        let asked = ttl.unwrap_or(entry.ttl);
        Renewed::Lease(match of.only {
            Condition::Kept if is_kept => self.extend(&of.key, entry, asked, now),
            Condition::LetGo { .. } if is_kept => {
                let entry = Entry { state: State::Heard, ..entry };
                self.let_go(&of.key, entry, ttl, now)
            }
            Condition::Kept | Condition::LetGo { .. } => return Renewed::Lost(None),
            _ if is_kept => return Renewed::Kept(entry.fencing_token),
            _ => self.extend(&of.key, Entry { state: State::Heard, ..entry }, asked, now),
        })
    }

    /// Rule 14, and what takes a grant back by rule 8. Ends a lease, or gives up its token's place
    /// in line if no lease is named.
    pub fn end(&mut self, of: &Target, now: Timestamp) -> Ended {
        self.expire_and_hand_on(&of.key, now);
        let Some(entry) = self.lease(of).cloned() else { return self.give_up_place(of, now) };
        if let Condition::Unheard(receipt) = of.only {
            match receipt.replaced {
                _ if entry.state == State::Heard => return Ended::Nothing(None),
                Some(before) if Timestamp::from_micros(before.ends_at) > now => {
                    self.put_back(&of.key, entry, Timestamp::from_micros(before.ends_at), now);
                    return Ended::Nothing(None);
                }
                _ => self.give_back(of, receipt, now),
            }
        }
        self.end_lease(&of.key, entry.fencing_token, now);
        Ended::Lease(entry.holder(now))
    }

    /// Gives the claim of a lease its place in line back, as one that has left.
    fn give_back(&mut self, of: &Target, receipt: Receipt, now: Timestamp) {
        let Receipt { origin: Origin::Client, place: Some(place), .. } = receipt else { return };
        let line = self.lines.entry(of.key.clone());
        let line = line.or_insert_with(|| Line::after(self.last_place));
        line.give_back(&of.token, place, (now, now.after(self.position_kept)));
    }

    /// Gives up a token's place in line, if no lease is named.
    fn give_up_place(&mut self, of: &Target, now: Timestamp) -> Ended {
        if of.number.is_some() {
            return Ended::Nothing(self.has(of));
        }
        let place = self.lines.get(&of.key).is_some_and(|line| line.place(&of.token).is_some());
        self.leave(&of.key, &[(of.token.clone(), Keep::Nothing)], now);
        if place { Ended::Place } else { Ended::Nothing(None) }
    }

    /// Ends the leases of the key, only the one `named`, if given, and returns their holders.
    pub fn force_release(
        &mut self,
        key: &LockKey,
        named: Option<FencingToken>,
        now: Timestamp,
    ) -> Vec<Holder> {
        self.expire_and_hand_on(key, now);
        let meant = |number| named.is_none_or(|named| named == number);
        let ended = self.entries(key).iter().filter(|entry| meant(entry.fencing_token));
        let ended: Vec<_> = ended.map(|entry| (entry.fencing_token, entry.holder(now))).collect();
        for (number, _) in &ended {
            self.end_lease(key, *number, now);
        }
        ended.into_iter().map(|(_, holder)| holder).collect()
    }

    /// The status of a key, and the first `most` claims of its line.
    pub fn look(
        &mut self,
        key: &LockKey,
        (token, most): (Option<&LeaseToken>, usize),
        now: Timestamp,
    ) -> LockStatus {
        self.expire_and_hand_on(key, now);
        self.status_and_line(key, self.entries(key).iter(), (token, most), now)
    }

    /// A page of the held keys.
    pub fn list(&mut self, page: &Page, now: Timestamp) -> Vec<LockStatus> {
        let lasts = |leases: &Holders| leases.iter().any(|entry| entry.ends_at > now);
        let held = self.page(page).filter(|(_, leases)| lasts(leases)).take(page.limit);
        let status = |(key, leases): (_, &Holders)| {
            let lasting = leases.iter().filter(|entry| entry.ends_at > now);
            self.status(key, lasting, None, now)
        };
        held.map(status).collect()
    }

    /// Ends leases that are over, at most `most`: many may end in one moment, and the calls do not
    /// wait for all of them. A verb ends those of its own key first. Returns true if more may be over.
    pub fn expire(&mut self, most: usize, now: Timestamp) -> bool {
        let over = self.ends.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| id.clone());
        let over: Vec<_> = over.take(most).collect();
        for (key, number) in &over {
            self.end_lease(key, *number, now);
        }
        over.len() == most
    }

    /// Forgets expired places, and empty lines. To be called from time to time.
    pub fn sweep(&mut self, now: Timestamp) {
        self.lines.retain(|_, line| {
            line.expire(now);
            !line.is_empty()
        });
    }

    /// Takes the leases that began, changed or ended since the last call, as they were before.
    pub(crate) fn take_changes(&mut self) -> BTreeMap<LeaseId, Option<Entry>> {
        std::mem::take(&mut self.changes)
    }

    /// Takes the keys whose first claims have to ask, because they were handed the key or there may
    /// be room; with a place, its claim was granted to a request that did not wait.
    pub fn take_hints(&mut self) -> Vec<(LockKey, Option<u64>)> {
        std::mem::take(&mut self.hints)
    }

    /// Ends expired leases, places and hand-offs of the key, which is then handed on.
    fn expire_and_hand_on(&mut self, key: &LockKey, now: Timestamp) {
        let over = self.entries(key).iter().filter(|entry| entry.ends_at <= now);
        let over: Vec<_> = over.map(|entry| entry.fencing_token).collect();
        over.into_iter().for_each(|number| self.end_lease(key, number, now));
        if self.lines.get_mut(key).is_some_and(|line| line.expire(now)) {
            self.hand_on_if_free(key, now);
        }
    }

    /// The number of the lease that a token has, whichever is named.
    fn has(&self, of: &Target) -> Option<FencingToken> {
        self.entry_of(&of.key, &of.token).map(|own| own.fencing_token)
    }

    /// The lease of a token; only the one that is named, if one is.
    fn lease(&self, of: &Target) -> Option<&Entry> {
        let own = self.entry_of(&of.key, &of.token)?;
        of.number.is_none_or(|number| number == own.fencing_token).then_some(own)
    }

    /// Returns true if a claim would get the key by asking: there is room, and the key was handed to
    /// this claim, or to no claim while no present claim is ahead.
    fn is_turn_of(&self, claim: &Claim) -> bool {
        let Claim { key, token, .. } = claim;
        if !holders::room(self.entries(key), token, claim.share()) {
            return false;
        }
        let Some(line) = self.lines.get(key) else { return true };
        match (line.handed(), line.head()) {
            (Some((handed, _)), _) => handed == token,
            (None, Some((head, _))) => line.place(token).is_some_and(|place| place <= head),
            (None, None) => true,
        }
    }

    fn hand_on_if_free(&mut self, key: &LockKey, now: Timestamp) {
        let Some(line) = self.lines.get_mut(key) else { return };
        if self.leases.contains_key(key) || line.handed().is_some() {
            return;
        }
        let until = now.after(CONFIRM_WITHIN);
        if line.hand_on(until, until.after(self.position_kept)) {
            self.hints.push((key.clone(), None));
        }
    }

    /// Makes the first claims in line ask if the key is shared: there may be room for them.
    fn ring(&mut self, key: &LockKey) {
        let shares = self.entries(key).first().is_some_and(|entry| !entry.share.slots.is_alone());
        if shares && self.lines.get(key).is_some_and(|line| line.head().is_some()) {
            self.hints.push((key.clone(), None));
        }
    }

    /// The status of a key for a claim that is not granted.
    fn refusal(&self, claim: &Claim, now: Timestamp) -> LockStatus {
        let leases = self.entries(&claim.key);
        let holder = holders::makes_room(leases, claim.slots()).map(|entry| entry.holder(now));
        let status = self.status(&claim.key, leases.iter(), None, now);
        LockStatus { holder: holder.or(status.holder), ..status }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Table;
    use crate::lock::lease::{Origin, Receipt};
    use crate::lock::prefixes::Prefixes;
    use crate::lock::sample::{claim, key, token};
    use crate::lock::store::{Answer, Ask, Condition, Keep, Page, Target, Win};
    use crate::lock::time::{Timestamp, Ttl};
    use crate::lock::token::FencingToken;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_micros(ms * 1_000)
    }

    fn of(key_text: &str, name: &str, number: Option<FencingToken>) -> Target {
        Target::of(&key(key_text), &token(name), number)
    }

    fn table() -> Table {
        Table::restore([], 0)
    }

    fn fence(attempt: Option<Answer>) -> Option<u64> {
        match attempt? {
            Answer::Won(win) => Some(win.lease.fencing_token.number()),
            _ => None,
        }
    }

    #[test]
    fn a_lease_lasts_to_the_last_microsecond_and_not_one_longer() {
        let mut table = table();
        table.ask(&claim("a", "one", 1_000), Ask::Once(None), at(0), 5);
        let last = Timestamp::from_micros(999_999);
        let status = table.look(&key("a"), (None, 0), last);
        assert_eq!(status.holder.unwrap().left, Some(Duration::from_micros(1)));
        assert_eq!(fence(table.ask(&claim("a", "two", 1_000), Ask::Once(None), last, 5)), None);
        assert_eq!(
            fence(table.ask(&claim("a", "two", 1_000), Ask::Once(None), at(1_000), 5)),
            Some(6)
        );
        assert_eq!(table.renew(&of("a", "one", None), None, at(1_000)).lease(), None);
    }

    #[test]
    fn with_slack_a_lease_outlasts_its_ttl_a_little_and_says_so_to_nobody() {
        let terms = || table().with_terms(Prefixes::default(), Duration::from_millis(100));
        let mut table = terms();
        table.ask(&claim("a", "one", 1_000), Ask::Once(None), at(0), 5);
        table.ask(&claim("b", "one", 10_000), Ask::Once(None), at(0), 5);
        let holder = |table: &mut Table, name, now| table.look(&key(name), (None, 0), now).holder;
        assert_eq!(holder(&mut table, "a", at(0)).unwrap().left, Some(Duration::from_secs(1)));
        assert_eq!(
            holder(&mut table, "a", at(1_049)).unwrap().left,
            Some(Duration::from_millis(1))
        );
        assert_eq!(holder(&mut table, "a", at(1_050)), None);
        // Of two refreshes that were told what is left, the later one is not told less.
        let mut told = |ttl, now| {
            let lease = table.renew(&of("b", "one", None), Some(Ttl::from_millis(ttl)), at(now));
            lease.lease().unwrap().ttl
        };
        assert_eq!(told(1_000, 1_000), Ttl::from_millis(9_100));
        assert_eq!(told(9_050, 1_000), Ttl::from_millis(9_100));
        let mut table = terms();
        table.ask(&claim("b", "one", 10_000), Ask::Once(None), at(0), 5);
        assert!(holder(&mut table, "b", at(10_099)).is_some());
        assert_eq!(holder(&mut table, "b", at(10_100)), None);
    }

    #[test]
    fn of_many_ends_in_one_moment_some_are_ended_and_all_are_over() {
        let mut table = table();
        for name in ["a", "b", "c", "d"] {
            table.ask(&claim(name, "one", 1_000), Ask::Once(None), at(0), 1);
        }
        assert!(table.expire(2, at(1_000)));
        assert_eq!(table.len(), 2);
        let all = Page { prefixes: [String::new()].into(), after: None, limit: 10 };
        assert_eq!(table.list(&all, at(999)).len(), 2);
        assert_eq!(table.list(&all, at(1_000)), []);
        assert_eq!(
            fence(table.ask(&claim("d", "two", 1_000), Ask::Once(None), at(1_000), 1)),
            Some(5)
        );
        assert!(!table.expire(2, at(1_000)));
        assert_eq!(table.list(&all, at(1_000)).len(), 1);
    }

    #[test]
    fn a_change_comes_with_the_state_before_it() {
        let mut table = table();
        table.ask(&claim("a", "one", 1_000), Ask::Once(None), at(0), 5);
        assert_eq!(table.take_changes().into_values().collect::<Vec<_>>(), [None]);
        let before = table.entries(&key("a")).first().cloned();
        table.renew(&of("a", "one", None), None, at(1)).lease();
        table.end(&of("a", "one", None), at(2));
        table.ask(&claim("a", "two", 1_000), Ask::Once(None), at(3), 6);
        assert_eq!(table.take_changes().into_values().collect::<Vec<_>>(), [before, None]);
        table.look(&key("a"), (None, 0), at(1_003));
        let changed: Vec<_> = table.take_changes().into_keys().map(|(key, _)| key).collect();
        assert_eq!(changed, [key("a")], "an end by time is one");
    }

    #[test]
    fn a_fencing_token_rises_whatever_is_proposed_and_over_all_keys() {
        let mut table = table();
        assert_eq!(
            fence(table.ask(&claim("a", "one", 10), Ask::Once(None), at(0), 100)),
            Some(100)
        );
        assert_eq!(fence(table.ask(&claim("b", "one", 10), Ask::Once(None), at(0), 7)), Some(101));
        assert_eq!(
            fence(table.ask(&claim("a", "two", 10), Ask::Once(None), at(20), 1 << 53)),
            Some(102)
        );
        let mut used_up = Table::restore([], (1 << 53) - 1);
        assert_eq!(used_up.ask(&claim("a", "one", 10), Ask::Once(None), at(0), 1), None);
        assert!(used_up.is_empty());
    }

    #[test]
    fn a_lease_that_is_taken_back_gives_its_claim_its_place_again() {
        let mut table = table();
        table.ask(&claim("a", "holder", 1_000), Ask::Once(None), at(0), 1);
        for name in ["one", "two"] {
            table.ask(&claim("a", name, 1_000), Ask::InLine(None), at(1), 1);
        }
        table.end(&of("a", "holder", None), at(2));
        let turn = table.ask(&claim("a", "one", 1_000), Ask::InLine(None), at(3), 1).unwrap();
        let Answer::Won(win) = turn else { panic!("{turn:?}") };
        let Win { lease, place, by, .. } = win;
        let receipt = Receipt { origin: Origin::Client, place, replaced: None, by };
        let grant = of("a", "one", Some(lease.fencing_token)).only(Condition::Unheard(receipt));
        table.end(&grant, at(4));
        let turn = table.ask(&claim("a", "two", 1_000), Ask::InLine(None), at(5), 1).unwrap();
        assert!(matches!(turn, Answer::Won(_)), "it is passed over: {turn:?}");
        table.ask(&claim("a", "three", 1_000), Ask::InLine(None), at(6), 1);
        let turn = table.ask(&claim("a", "one", 1_000), Ask::InLine(None), at(7), 1).unwrap();
        let Answer::Waiting(waiting) = turn else { panic!("{turn:?}") };
        assert_eq!((waiting.ahead, waiting.new), (0, false));
        table.end(&grant, at(8));
        assert!(table.entry_of(&key("a"), &token("two")).is_some(), "it ends no other");
    }

    #[test]
    fn a_read_notices_that_a_lease_or_a_hand_off_is_over() {
        let mut table = table();
        table.ask(&claim("a", "one", 1_000), Ask::Once(None), at(0), 1);
        table.ask(&claim("a", "two", 1_000), Ask::InLine(None), at(0), 1);
        let over = |table: &Table, now| {
            table.has_ended(&key("a"), table.entries(&key("a")).iter(), at(now))
        };
        assert_eq!([999, 1_000].map(|now| over(&table, now)), [false, true]);
        assert!(!table.expire(2, at(1_000)));
        assert_eq!([3_999, 4_000].map(|now| over(&table, now)), [false, true]);
    }

    #[test]
    fn a_line_without_claims_takes_no_memory() {
        let mut table = table();
        table.ask(&claim("a", "holder", 1_000), Ask::Once(None), at(0), 1);
        for keep in [Keep::Nothing, Keep::Place] {
            table.ask(&claim("a", "one", 1_000), Ask::InLine(None), at(0), 1);
            table.leave(&key("a"), &[(token("one"), keep)], at(0));
            table.sweep(at(0));
            assert_eq!(table.lines.is_empty(), keep == Keep::Nothing);
        }
        table.sweep(at(5_000));
        assert!(table.lines.is_empty());
    }
}
