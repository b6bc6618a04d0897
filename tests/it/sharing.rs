//! Random histories of `Table` with claims of all kinds, held against what its answers promise: a
//! second statement of the rules, which knows nothing of its lines and leases.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper::lock::lease::{Claim, Lease};
use lockkeeper::lock::slots::Slots;
use lockkeeper::lock::store::{Answer, Ask, Ended, Keep, Target, Win};
use lockkeeper::lock::table::Table;
use lockkeeper::lock::time::{Timestamp, Ttl};
use lockkeeper::lock::token::FencingToken;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::prop_oneof;
use proptest::test_runner::{Config, TestRunner};

use crate::conformance::{claim, key, token};

const HISTORIES: u32 = 4_000;
const STEPS: usize = 80;
const READER: u64 = 1_001;

#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire(u8, u64, Wish, Named),
    Wait(u8, u64, Wish),
    Leave(u8, Keep),
    Refresh(u8),
    Release(u8),
    Force(Option<usize>),
    Pass(u64),
}

/// The slots that a claim names, and its units of them.
type Wish = (Option<u64>, Option<u16>);

/// The lease that a claim names.
#[derive(Clone, Copy, Debug)]
enum Named {
    None,
    Own,
    Another,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = || 0..9_u8;
    let ttl = || 5..60_u64;
    let slots = || {
        prop_oneof![
            2 => Just((None, None)),
            1 => Just((Some(1), None)),
            4 => (2..5_u64).prop_map(|slots| (Some(slots), None)),
            4 => (3..7_u64, 1..4_u16).prop_map(|(slots, units)| (Some(slots), Some(units))),
            2 => Just((Some(READER), None)),
        ]
    };
    let named =
        || prop_oneof![4 => Just(Named::None), 4 => Just(Named::Own), 1 => Just(Named::Another)];
    let step = prop_oneof![
        6 => (who(), ttl(), slots(), named())
            .prop_map(|(who, ttl, slots, named)| Step::Acquire(who, ttl, slots, named)),
        6 => (who(), ttl(), slots()).prop_map(|(who, ttl, slots)| Step::Wait(who, ttl, slots)),
        2 => (who(), prop_oneof![Just(Keep::Place), Just(Keep::Nothing)])
            .prop_map(|(who, keep)| Step::Leave(who, keep)),
        3 => who().prop_map(Step::Refresh),
        5 => who().prop_map(Step::Release),
        1 => proptest::option::of(0..4_usize).prop_map(Step::Force),
        3 => (1..20_u64).prop_map(Step::Pass),
    ];
    vec(step, STEPS)
}

/// A lease as its holder knows it.
#[derive(Clone, Debug)]
struct Known {
    number: u64,
    slots: u64,
    units: u64,
    slot: Option<u16>,
    ttl: u64,
    ends: u64,
}

/// The leases that were granted, and the table that granted them.
struct World {
    table: Table,
    now: u64,
    held: BTreeMap<u8, Known>,
    /// Those who wait, in the order of their places, each with its newest claim.
    line: BTreeMap<u64, (u8, Claim)>,
    /// The places of those who wait, and of those who are away.
    places: BTreeMap<u8, u64>,
    last_place: u64,
    last: u64,
    /// The highest number that each slot has seen, and the highest of all that an exclusive lease
    /// had: the marks of a fenced resource.
    slots: BTreeMap<u16, u64>,
    highest: u64,
    exclusive: u64,
}

impl World {
    fn at(&self) -> Timestamp {
        Timestamp::from_micros(self.now * 1_000)
    }

    fn claim(&self, who: u8, ttl: u64, (slots, units): Wish) -> Claim {
        let slots = slots.and_then(Slots::from_number);
        Claim { slots, units, ..claim("a", &who.to_string(), ttl) }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Acquire(who, ttl, slots, named) => {
                let own = self.held.get(&who).map(|one| one.number);
                let number = match named {
                    Named::None => None,
                    Named::Own => own,
                    Named::Another => Some(own.unwrap_or_default() + 1),
                };
                let named = number.and_then(FencingToken::from_number);
                let claim = Claim { named, ..self.claim(who, ttl, slots) };
                match self.table.ask(&claim, Ask::Once(None), self.at(), 0).unwrap() {
                    Answer::Won(win) => self.won(who, &claim, &win),
                    Answer::Held(status) => {
                        assert_eq!(status.mine, own.map(|_| true), "{who}");
                        self.is_refused(who, &claim);
                    }
                    Answer::Lost(has) => {
                        assert!(number.is_some() && number != own, "{who}");
                        assert_eq!(has.map(FencingToken::number), own);
                    }
                    other => panic!("{other:?}"),
                }
            }
            Step::Wait(who, ttl, slots) => self.wait(who, self.claim(who, ttl, slots)),
            Step::Leave(who, keep) => {
                self.table.leave(&key("a"), &[(token(&who.to_string()), keep)], self.at());
                self.line.retain(|_, (other, _)| *other != who);
                if keep == Keep::Nothing {
                    self.places.remove(&who);
                }
            }
            Step::Refresh(who) => {
                let by = token(&who.to_string());
                let lease =
                    self.table.renew(&Target::of(&key("a"), &by, None), None, self.at()).lease();
                assert_eq!(lease.is_some(), self.held.contains_key(&who), "{who}");
                if let (Some(lease), Some(known)) = (lease, self.held.get_mut(&who)) {
                    assert_eq!(lease.fencing_token.number(), known.number);
                    assert_eq!(lease.share.slot, known.slot);
                    known.ends = known.ends.max(self.now + known.ttl);
                }
            }
            Step::Release(who) => {
                let by = token(&who.to_string());
                let released = self.table.end(&Target::of(&key("a"), &by, None), self.at());
                let held = self.held.remove(&who);
                assert_eq!(matches!(released, Ended::Lease(_)), held.is_some(), "{who}");
                if held.is_none() {
                    self.forget(who);
                }
            }
            Step::Force(which) => {
                let named = which.and_then(|nth| self.held.values().nth(nth)).map(|one| one.number);
                if which.is_some() && named.is_none() {
                    return;
                }
                let number = named.and_then(FencingToken::from_number);
                let ended = self.table.force_release(&key("a"), number, self.at());
                let before = self.held.len();
                self.held.retain(|_, one| named.is_some_and(|named| named != one.number));
                assert_eq!(ended.len(), before - self.held.len());
            }
            Step::Pass(ms) => {
                self.now += ms;
                self.held.retain(|_, one| one.ends > self.now);
            }
        }
        self.serve();
        self.check();
    }

    fn wait(&mut self, who: u8, claim: Claim) {
        match self.table.ask(&claim, Ask::InLine(None), self.at(), 0).unwrap() {
            Answer::Won(win) => self.won(who, &claim, &win),
            Answer::Waiting(_) => {
                self.is_refused(who, &claim);
                self.last_place += 1;
                let place = *self.places.entry(who).or_insert(self.last_place);
                self.line.insert(place, (who, claim));
            }
            Answer::Held(status) => {
                assert_eq!(status.mine, Some(true));
                self.is_refused(who, &claim);
                assert!(self.held.contains_key(&who), "{who} does not wait");
                self.forget(who);
            }
            other => panic!("{other:?}"),
        }
    }

    /// A claim that is not granted has no room or stands behind another. That of a holder asks for
    /// another share without naming its lease, or has no room.
    fn is_refused(&self, who: u8, claim: &Claim) {
        let wished = self.wished(who, claim);
        let room = self.room(who, wished);
        if let Some(own) = self.held.get(&who) {
            let refused =
                if claim.named.is_some() { !room } else { wished != (own.slots, own.units) };
            return assert!(refused, "{who} is not served");
        }
        let place = self.places.get(&who).copied().unwrap_or(u64::MAX);
        let ahead = self.line.range(..place).count();
        assert!(!room || ahead > 0, "{who} is not served");
    }

    /// The slots and units of a claim: those that it names, or those of the lease that it repeats.
    fn wished(&self, who: u8, claim: &Claim) -> (u64, u64) {
        let own = self.held.get(&who).filter(|_| claim.named.is_none());
        let (slots, units) = own.map_or((1, 1), |own| (own.slots, own.units));
        let named = claim.slots.map(|slots| slots.number().into());
        (named.unwrap_or(slots), claim.units.map_or(units, u64::from))
    }

    fn forget(&mut self, who: u8) {
        self.line.retain(|_, (other, _)| *other != who);
        self.places.remove(&who);
    }

    fn room(&self, who: u8, (slots, units): (u64, u64)) -> bool {
        let others = self.held.iter().filter(|(other, _)| **other != who);
        let least = others.clone().map(|(_, one)| one.slots).fold(slots, u64::min);
        units + others.map(|(_, one)| one.units).sum::<u64>() <= least.min(1_000)
    }

    fn won(&mut self, who: u8, claim: &Claim, Win { lease, fresh, replaces, .. }: &Win) {
        let Lease { share, .. } = *lease;
        let number = lease.fencing_token.number();
        let before = self.held.get(&who).cloned();
        let replaced = before.as_ref().filter(|_| *fresh).map(|one| one.number);
        assert_eq!(replaces.map(|before| before.number.number()), replaced);
        assert_eq!(replaced.is_some(), claim.named.is_some(), "{who}");
        let (slots, units) = self.wished(who, claim);
        let changes = before.as_ref().is_some_and(|own| (own.slots, own.units) != (slots, units));
        assert!(!changes || claim.named.is_some(), "{who} has another share");
        assert_eq!((u64::from(share.slots.number()), u64::from(share.units)), (slots, units));
        assert_eq!(share.slot.is_some(), (2..=1_000).contains(&slots) && units == 1);
        if before.is_none() {
            let place = self.places.get(&who).copied().unwrap_or(u64::MAX);
            let ahead = self.line.range(..place).next();
            assert!(ahead.is_none(), "{who} passes {ahead:?}");
        }
        if *fresh {
            assert!(number > self.last, "{number} after {}", self.last);
            self.last = number;
        } else {
            let before = before.expect("a lease that was told");
            assert_eq!(number, before.number);
            assert_eq!(share.slot, before.slot, "a slot is kept");
        }
        // What a fenced resource would see next: the write of this lease.
        if let Some(slot) = share.slot {
            let mark = self.slots.entry(slot).or_default();
            assert!(number >= *mark, "slot {slot} has seen {mark}");
            *mark = number;
        }
        assert!(number >= self.exclusive, "an exclusive lease had {}", self.exclusive);
        if slots == 1 {
            assert!(number >= self.highest);
            self.exclusive = number;
        }
        self.highest = self.highest.max(number);
        self.forget(who);
        let (asked, had) = (self.now + claim.ttl.as_millis(), self.held.get(&who));
        let (ttl, ends) = match had {
            Some(before) if !fresh && before.ends > asked => (before.ttl, before.ends),
            _ => (claim.ttl.as_millis(), asked),
        };
        assert_eq!(lease.ttl.as_millis(), ends - self.now);
        self.held.insert(who, Known { number, slots, units, slot: share.slot, ttl, ends });
    }

    /// Asks for the first in line while the table has rung, as an instance does.
    fn serve(&mut self) {
        // An end that no call has met rings when the next one does.
        self.table.look(&key("a"), (None, 0), self.at());
        while !self.table.take_hints().is_empty() {
            let Some((_, (who, claim))) = self.line.first_key_value() else { continue };
            self.wait(*who, claim.clone());
        }
    }

    /// What holds between two steps.
    fn check(&mut self) {
        let holders = self.held.len() as u64;
        let units = self.held.values().map(|one| one.units).sum::<u64>();
        assert!(self.held.values().all(|one| units <= one.slots.min(1_000)), "{:?}", self.held);
        let mut slots: Vec<_> = self.held.values().filter_map(|one| one.slot).collect();
        slots.sort_unstable();
        assert!(slots.windows(2).all(|two| two[0] < two[1]), "{slots:?}");
        let seen = self.table.look(&key("a"), (None, 0), self.at());
        let alone = u64::from(seen.holder.is_some());
        assert_eq!(seen.sharers.as_ref().map_or(alone, |all| all.holders), holders);
        assert_eq!(seen.sharers.as_ref().map_or(alone, |all| all.units), units);
        assert_eq!(seen.waiters, self.line.len() as u64);
        let (mut told, mut known) = (Vec::new(), Vec::new());
        for one in seen.sharers.iter().flat_map(|all| &all.leases) {
            told.push((one.fencing_token.unwrap().number(), one.share.slot, one.left.unwrap()));
        }
        for one in self.held.values().filter(|_| seen.sharers.is_some()) {
            known.push((one.number, one.slot, Duration::from_millis(one.ends - self.now)));
        }
        told.sort_unstable();
        known.sort_unstable();
        assert_eq!(told, known);
        if let Some((_, (who, claim))) = self.line.first_key_value() {
            self.is_refused(*who, claim);
        }
    }
}

#[test]
fn shared_leases_keep_their_rules_in_random_histories() {
    let mut runner = TestRunner::new(Config { cases: HISTORIES, ..Config::default() });
    let ran = runner.run(&steps(), |steps| {
        let table = Table::restore([], 0).keeping_positions(Ttl::from_millis(60_000));
        let mut world = World {
            table,
            now: 0,
            held: BTreeMap::new(),
            line: BTreeMap::new(),
            places: BTreeMap::new(),
            last_place: 0,
            last: 0,
            slots: BTreeMap::new(),
            highest: 0,
            exclusive: 0,
        };
        for step in steps {
            world.step(step);
        }
        Ok(())
    });
    ran.unwrap();
}
