//! Random histories: each store does what the rules of `Table` say.

mod said;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockkeeper::lock::lease::{Claim, Receipt};
use lockkeeper::lock::slots::Slots;
use lockkeeper::lock::store::{Answer, Ask, Condition, Keep, Page, Target, Win};
use lockkeeper::lock::table::Table;
use lockkeeper::lock::time::{Timestamp, Ttl};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::prop_oneof;
use proptest::test_runner::{Config, TestRunner};

use crate::conformance::{Stage, claim, key, token};
use crate::model::said::{Said, answer, holder, lease, listed, released, renewed, status};
use crate::support::{PATIENCE, eventually};

/// Histories a store, and steps a history.
const HISTORIES: u32 = 96;
const STEPS: usize = 60;

/// How long a place is kept: no kept place ends within a history, and no hand-off lapses. Both run
/// in real time on Redis, in a window of its own that is moved by questions, so they have tests of
/// their own.
const KEPT: Ttl = Ttl::from_millis(60_000);

/// A history that takes longer on a busy machine is cut off: what was handed would lapse.
const IN_TIME: Duration = Duration::from_secs(2);

/// TTLs are so many of these that no lease ends by itself within a history.
const MINUTE: u64 = 60_000;
const LONG: u64 = 60 * MINUTE;
/// Short enough to be waited for.
const SHORT: u64 = 100;

/// A step of a history: what is done, to which of two keys, by which of four tokens.
#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire(u8, u8, Wish),
    /// A lease that is over before the next step.
    Pass(u8, u8),
    Refresh(u8, u8, Option<u64>),
    Wait(u8, u8, Wish),
    Leave(u8, u8, Keep),
    Release(u8, u8),
    ForceRelease(u8),
    /// What is done to a lease by its number: one of the newest, which may be over by now.
    Of(usize, Act),
    Inspect(u8, u8),
    List,
}

/// What a claim asks for: its TTL, its slots and units, and whether it is a stream's.
type Wish = (u64, (Option<u64>, Option<u16>), bool);

/// What somebody does who knows one lease of a token.
#[derive(Clone, Copy, Debug)]
enum Act {
    Refresh,
    Release,
    Keep,
    LetGo(Option<u64>),
    /// Replaces it.
    Acquire(Wish),
    TakeBack,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0..2_u8;
    let token = || 0..4_u8;
    let long = || (60..70_u64).prop_map(|minutes| minutes * MINUTE);
    let slots = || {
        prop_oneof![
            6 => Just((None, None)),
            1 => Just((Some(1), None)),
            3 => (2..4_u64).prop_map(|slots| (Some(slots), None)),
            3 => (3..6_u64, 1..4_u16).prop_map(|(slots, units)| (Some(slots), Some(units))),
            2 => Just((Some(u64::from(Slots::SHARED.number())), None)),
        ]
    };
    let wish = || (long(), slots(), proptest::bool::weighted(0.3));
    let keep = || prop_oneof![Just(Keep::Place), Just(Keep::Nothing)];
    let act = prop_oneof![
        Just(Act::Refresh),
        Just(Act::Release),
        Just(Act::Keep),
        proptest::option::of(long()).prop_map(Act::LetGo),
        wish().prop_map(Act::Acquire),
        wish().prop_map(Act::Acquire),
        Just(Act::TakeBack),
    ];
    let step = prop_oneof![
        5 => (key(), token(), wish())
            .prop_map(|(key, token, wish)| Step::Acquire(key, token, wish)),
        1 => (key(), token()).prop_map(|(key, token)| Step::Pass(key, token)),
        3 => (key(), token(), proptest::option::of(long()))
            .prop_map(|(key, token, ttl)| Step::Refresh(key, token, ttl)),
        9 => (key(), token(), wish()).prop_map(|(key, token, wish)| Step::Wait(key, token, wish)),
        4 => (key(), token(), keep()).prop_map(|(key, token, keep)| Step::Leave(key, token, keep)),
        6 => (key(), token()).prop_map(|(key, token)| Step::Release(key, token)),
        1 => key().prop_map(Step::ForceRelease),
        4 => (0..4_usize, act).prop_map(|(which, act)| Step::Of(which, act)),
        2 => (key(), token()).prop_map(|(key, token)| Step::Inspect(key, token)),
        1 => Just(Step::List),
    ];
    vec(step, STEPS)
}

/// The store beside the model, in one history.
struct Both<'a> {
    stage: &'a Stage,
    table: Table,
    now: Timestamp,
    history: u32,
    /// The store's fencing tokens in the order in which they were given: the model gives their
    /// places in it.
    given: Vec<u64>,
    /// The claims that were granted, and their leases as the store and as the model knows them.
    leases: Vec<(Claim, [Target; 2])>,
    /// The places of those that wait, by key and token, each with the model's.
    places: BTreeMap<(u8, u8), (u64, u64)>,
    /// Set if the two may differ from here on.
    over: bool,
}

impl Both<'_> {
    async fn step(&mut self, step: Step) {
        let store = &self.stage.store;
        let (said, expected) = match step {
            Step::Acquire(at, by, wish) => {
                let (said, expected) = self.acquire(&self.claim(at, by, wish)).await;
                if !said.what.starts_with("held") {
                    self.forget_place(at, by);
                }
                (said, expected)
            }
            Step::Pass(at, by) => {
                let (said, expected) =
                    self.pass(&self.claim(at, by, (SHORT, (None, None), false))).await;
                if !said.what.starts_with("held") {
                    self.forget_place(at, by);
                }
                (said, expected)
            }
            Step::Refresh(at, by, ttl) => {
                let of = Target::of(&self.key(at), &token(&by.to_string()), None);
                let ttl = ttl.map(Ttl::from_millis);
                let said = store.renew(&of, ttl).await.unwrap();
                (renewed(said), renewed(self.table.renew(&of, ttl, self.now)))
            }
            Step::Wait(key, token, wish) => {
                self.wait(key, token, self.claim(key, token, wish)).await
            }
            Step::Leave(at, by, keep) => {
                let (key, token) = (self.key(at), token(&by.to_string()));
                store.leave(&key, &[(token.clone(), keep)]).await.unwrap();
                self.table.leave(&key, &[(token.clone(), keep)], self.now);
                if keep == Keep::Nothing {
                    self.forget_place(at, by);
                }
                let said = store.look(&key, Some(&token), 0).await.unwrap();
                (status(&said), status(&self.table.look(&key, (Some(&token), 0), self.now)))
            }
            Step::Release(at, by) => {
                let of = Target::of(&self.key(at), &token(&by.to_string()), None);
                let said = store.end(&of).await.unwrap();
                self.forget_place(at, by);
                (released(said), released(self.table.end(&of, self.now)))
            }
            Step::ForceRelease(at) => {
                let key = self.key(at);
                let said = self.stage.forced(key.as_str()).await;
                (
                    holder(said.as_ref()),
                    holder(self.table.force_release(&key, None, self.now).first()),
                )
            }
            Step::Of(which, act) => match self.leases.iter().rev().nth(which).cloned() {
                Some(lease) => self.act(act, lease).await,
                None => return,
            },
            Step::Inspect(at, by) => {
                let (key, token) = (self.key(at), token(&by.to_string()));
                let said = store.look(&key, Some(&token), 3).await.unwrap();
                let expected = self.table.look(&key, (Some(&token), 3), self.now);
                (status(&said), status(&expected))
            }
            Step::List => {
                let page =
                    Page { prefixes: [format!("{}/", self.history)].into(), after: None, limit: 9 };
                let said = store.list(&page).await.unwrap().locks;
                (listed(&said), listed(&self.table.list(&page, self.now)))
            }
        };
        self.compare(step, said, expected);
    }

    async fn acquire(&mut self, claim: &Claim) -> (Said, Said) {
        let said = self.stage.store.ask(claim, Ask::Once(None)).await.unwrap();
        self.acquired(claim, said)
    }

    fn acquired(&mut self, claim: &Claim, said: Answer) -> (Said, Said) {
        let expected = self.table.ask(claim, Ask::Once(None), self.now, 0).unwrap();
        self.give(claim, [&said, &expected]);
        (answer(said), answer(expected))
    }

    async fn act(&mut self, act: Act, (claim, grants): (Claim, [Target; 2])) -> (Said, Said) {
        let (store, now, key, token) = (&self.stage.store, self.now, &claim.key, &claim.token);
        let [one, other] = grants.clone().map(|grant| grant.only(Condition::Any));
        let [kept, other_kept] = grants.clone().map(|grant| grant.only(Condition::Kept));
        match act {
            Act::Refresh => {
                let said = store.renew(&one, None).await.unwrap();
                (renewed(said), renewed(self.table.renew(&other, None, now)))
            }
            Act::Release => {
                let said = store.end(&one).await.unwrap();
                (released(said), released(self.table.end(&other, now)))
            }
            Act::Keep => {
                let ttl = Some(Ttl::from_millis(LONG));
                let said = store.renew(&kept, ttl).await.unwrap();
                (renewed(said), renewed(self.table.renew(&other_kept, ttl, now)))
            }
            Act::LetGo(linger) => {
                let [last, other_last] =
                    [kept, other_kept].map(|kept| kept.only(Condition::LetGo { grants: false }));
                let linger = linger.map(Ttl::from_millis);
                let said = store.renew(&last, linger).await.unwrap();
                (renewed(said), renewed(self.table.renew(&other_last, linger, now)))
            }
            Act::Acquire((ttl, (slots, units), kept)) => {
                let (ttl, slots) = (Ttl::from_millis(ttl), slots.and_then(Slots::from_number));
                let claims = [one, other].map(|of| {
                    let named = of.number;
                    Claim { ttl, slots, units, kept, named, ..claim.clone() }
                });
                let said = store.ask(&claims[0], Ask::Once(None)).await.unwrap();
                let expected = self.table.ask(&claims[1], Ask::Once(None), now, 0).unwrap();
                self.give(&claim, [&said, &expected]);
                (answer(said), answer(expected))
            }
            Act::TakeBack => {
                store.end(&grants[0]).await.unwrap();
                self.table.end(&grants[1], now);
                let said = store.look(key, Some(token), 3).await.unwrap();
                (status(&said), status(&self.table.look(key, (Some(token), 3), now)))
            }
        }
    }

    async fn wait(&mut self, at: u8, by: u8, claim: Claim) -> (Said, Said) {
        let said = self.stage.store.ask(&claim, Ask::InLine(None)).await.unwrap();
        let expected = self.table.ask(&claim, Ask::InLine(None), self.now, 0).unwrap();
        self.give(&claim, [&said, &expected]);
        match (&said, &expected) {
            (Answer::Waiting(one), Answer::Waiting(other)) => {
                self.places.insert((at, by), (one.place, other.place));
                self.compare_places(at);
            }
            _ => _ = self.places.remove(&(at, by)),
        }
        (answer(said), answer(expected))
    }

    /// A claim that is out of the line has no place any more.
    fn forget_place(&mut self, at: u8, by: u8) {
        self.places.remove(&(at, by));
    }

    /// The places of a key that are known are in the same order on both sides.
    fn compare_places(&self, at: u8) {
        let mut places: Vec<_> =
            self.places.range((at, 0)..=(at, u8::MAX)).map(|(_, both)| *both).collect();
        places.sort_unstable();
        assert!(
            places.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 < two[1].1),
            "{places:?}"
        );
    }

    /// Notes a new lease, whose fencing token has to be above all before it.
    fn give(&mut self, claim: &Claim, both: [&Answer; 2]) {
        let [Answer::Won(win), Answer::Won(other)] = both else { return };
        let both = [win, other];
        if !both.iter().all(|win| win.fresh) {
            return;
        }
        let number = both[0].lease.fencing_token.number();
        assert!(self.given.iter().all(|given| *given < number), "{number} is not new");
        self.given.push(number);
        let grants = both.map(|Win { lease, place, replaces, by, .. }| {
            let (origin, place, replaced, by) = (claim.origin, *place, *replaces, *by);
            let receipt = Receipt { origin, place, replaced, by };
            let named = Some(lease.fencing_token);
            Target::of(&lease.key, &claim.token, named).only(Condition::Unheard(receipt))
        });
        self.leases.push((claim.clone(), grants));
    }

    /// Takes a new lease and lets it end, if the key is to be had.
    async fn pass(&mut self, claim: &Claim) -> (Said, Said) {
        let Ok(said) = self.stage.store.ask(claim, Ask::Once(None)).await else {
            self.over = true; // A busy machine: the lease was over before it was told.
            return (lease(None), lease(None));
        };
        let (said, expected) = self.acquired(claim, said);
        if said.what.starts_with("fresh: true, changed: false") {
            eventually(PATIENCE, async || {
                let status =
                    self.stage.store.look(&claim.key, Some(&claim.token), 0).await.unwrap();
                (status.mine == Some(false)).then_some(())
            })
            .await;
            self.now = self.now.after(Ttl::from_millis(SHORT));
            // The table hands the key on as it ends, Redis as soon as somebody asks for it.
            let stranger = Claim { token: token("stranger"), ..claim.clone() };
            if self.table.look(&claim.key, (None, 0), self.now).holder.is_some() {
                let (said, expected) = self.acquire(&stranger).await;
                self.compare(Step::Pass(0, 0), said, expected);
            }
        }
        (said, expected)
    }

    fn compare(&self, step: Step, said: Said, expected: Said) {
        assert_eq!(said.what, expected.what, "{step:?}");
        // The model has given 1, 2, 3 ...; the store anything that rises.
        let place = said.fencing.map(|number| {
            1 + self.given.iter().position(|given| *given == number).expect("never given") as u64
        });
        assert_eq!(place, expected.fencing, "{step:?}");
    }

    fn key(&self, at: u8) -> lockkeeper::lock::key::LockKey {
        key(&format!("{}/{at}", self.history))
    }

    fn claim(&self, at: u8, by: u8, (ttl, (slots, units), kept): Wish) -> Claim {
        let shares = !self.stage.store.about().guarantees.most_slots.is_alone();
        let slots = slots.filter(|_| shares).and_then(Slots::from_number);
        let units = units.filter(|_| shares);
        let claim = claim(&format!("{}/{at}", self.history), &by.to_string(), ttl);
        Claim { slots, units, kept, ..claim }
    }
}

fn run(stage: impl Future<Output = Stage>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let stage = runtime.block_on(async { stage.await.keeping(KEPT).await });
    let mut runner = TestRunner::new(Config { cases: HISTORIES, ..Config::default() });
    let histories = std::cell::Cell::new(0);
    let ran = runner.run(&steps(), |steps| {
        histories.set(histories.get() + 1);
        let mut both = Both {
            stage: &stage,
            table: Table::restore([], 0).keeping_positions(KEPT),
            now: Timestamp::from_micros(0),
            history: histories.get(),
            given: Vec::new(),
            leases: Vec::new(),
            places: BTreeMap::new(),
            over: false,
        };
        runtime.block_on(async {
            let began = Instant::now();
            for step in steps {
                if both.over || began.elapsed() > IN_TIME {
                    return;
                }
                both.step(step).await;
            }
        });
        Ok(())
    });
    ran.unwrap();
}

#[test]
fn the_embedded_store_does_what_the_table_says() {
    run(Stage::embedded());
}

#[test]
fn redis_does_what_the_table_says() {
    run(Stage::redis());
}
