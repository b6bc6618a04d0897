//! A client: which thing it does next, and the steps that all of them are made of.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use crate::drive::asker::{Asker, Held, Lease, MILLISECOND, Question, Told};
use crate::drive::{HOT, Shared};
use crate::history::{Kind, Outcome};
use crate::servers::Routes;

/// The number of a client's second voice is as much higher than its own.
const TWIN: u32 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    Few,     // Keys that few want.
    Hot,     // Keys that many want.
    Shared,  // Keys that leases share.
    Lasting, // Leases that outlast the run.
}

/// One client, with a second voice for what it asks at the same time.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) asker: Asker,
    pub(super) twin: Asker,
    pub(super) chance: fastrand::Rng,
    pub(super) shared: Arc<Shared>,
    /// The token that it uses for many leases, one after another.
    pub(super) lasting: Held,
    /// A lease that is over for certain, of a client whose leases outlast the run.
    pub(super) earlier: Option<Lease>,
    wants: Wants,
    /// What its next claims name.
    pub(super) slots: Option<u16>,
    pub(super) units: Option<u16>,
}

impl Client {
    pub(super) fn new(
        number: u32,
        chance: fastrand::Rng,
        routes: &Routes,
        shared: Arc<Shared>,
    ) -> Self {
        let asker = Asker::new(number, routes, shared.recorder.clone());
        let twin = Asker::new(number + TWIN, routes, shared.recorder.clone());
        let lasting = asker.choose();
        let wants = match number % 3 {
            _ if shared.amount.lasting => Wants::Lasting,
            _ if number >= shared.amount.clients => Wants::Shared,
            2 => Wants::Hot,
            _ => Wants::Few,
        };
        Self {
            asker,
            twin,
            chance,
            shared,
            lasting,
            earlier: None,
            wants,
            slots: None,
            units: None,
        }
    }

    pub(super) async fn run(mut self) {
        self.ask_on().await;
        self.asker.late.join_all().await;
        self.twin.late.join_all().await;
    }

    async fn ask_on(&mut self) {
        while !self.shared.stopped.load(Ordering::Relaxed) {
            if self.chance.u32(..40) == 0 {
                self.asker.turn();
            }
            if self.chance.u32(..300) == 0 {
                self.lasting = self.asker.choose();
            }
            match self.wants {
                Wants::Few => self.alone().await,
                Wants::Hot => self.wanted().await,
                Wants::Shared => self.together().await,
                Wants::Lasting => self.outlast().await,
            }
        }
    }

    /// One of the things that are done where few want the same.
    async fn alone(&mut self) {
        let key = self.any_key();
        match self.chance.u32(..100) {
            0..6 if self.shared.amount.far => self.hang_up_before_the_answer().await,
            3..7 => self.release_elsewhere().await,
            7..15 => self.come_late().await,
            40..44 => self.several().await,
            0..40 => self.cycle().await,
            44 => self.vanish_between().await,
            45 => self.cross().await,
            46..61 => self.one_token_many_leases().await,
            // It takes seconds.
            61 if self.chance.u32(..6) == 0 => self.leave_its_own_line().await,
            61 => self.hand_over_to_itself().await,
            62..68 => self.look_at(key).await,
            68..72 if self.shared.amount.sharers > 0 => self.force_across_its_stream().await,
            68..72 => self.force().await,
            72..79 => self.abandon().await,
            79..81 => self.pause_past_the_end().await,
            81..86 => self.meddle().await,
            86..91 => self.vanish_at_once().await,
            91..98 => self.wait_once(key).await,
            98 => self.trespass(key).await,
            _ => self.force().await,
        }
    }

    /// One of the things that are done where many want the same.
    async fn wanted(&mut self) {
        let any = self.any_key();
        let key = if self.chance.u32(..4) == 0 { any } else { self.chance.u32(..HOT) };
        match self.chance.u32(..100) {
            48..52 => self.several().await,
            0..48 => self.wait_once(key).await,
            52..62 => self.wait_by_asking_again(key).await,
            62..74 => self.vanish_from_the_line(key).await,
            74..83 => self.ask_twice_at_once(key).await,
            83..89 => self.cancel(key).await,
            89..94 => self.hold(key).await,
            _ => self.hold(any).await,
        }
    }

    /// Whether its keys are those that leases share.
    pub(super) fn shares(&self) -> bool {
        self.wants == Wants::Shared
    }

    /// A key: one of those that leases share, or one of the others.
    pub(super) fn any_key(&mut self) -> u32 {
        match self.wants {
            Wants::Shared => self.chance.u32(self.shared.amount.shared_keys()),
            _ => self.chance.u32(..self.shared.amount.keys),
        }
    }

    /// A TTL: mostly short, so that leases end by themselves all the time.
    pub(super) fn ttl_ms(&mut self) -> u64 {
        if self.chance.u32(..3) > 0 {
            self.chance.u64(100..400)
        } else {
            self.chance.u64(400..2_000)
        }
    }

    /// A TTL where many wait: what is left behind keeps all of them.
    pub(super) fn short_ttl_ms(&mut self) -> u64 {
        if self.chance.u32(..20) > 0 { self.chance.u64(100..250) } else { self.ttl_ms() }
    }

    /// A new token of its own, or none, for the service to make one.
    pub(super) fn maybe_token(&mut self) -> Option<Held> {
        self.chance.bool().then(|| self.asker.choose())
    }

    /// A claim with its slots and units, which does not wait.
    pub(super) fn claim(&self, key: u32, token: Option<Held>, ttl_ms: u64) -> Question {
        Question::claim(key, token, ttl_ms).sharing(self.slots).taking(self.units)
    }

    /// A claim of any key.
    pub(super) fn any_claim(&mut self) -> Question {
        let (key, token, ttl_ms) = (self.any_key(), self.maybe_token(), self.ttl_ms());
        self.claim(key, token, ttl_ms)
    }

    /// An exclusive claim of a key that no other client wants.
    pub(super) fn own_claim(&self, token: Option<Held>, ttl_ms: u64) -> Question {
        Question::claim(self.shared.amount.own_key(self.asker.client), token, ttl_ms)
    }

    /// Asks for a lease. An unknown is often asked again, a no is held against a look, and a lease that the
    /// token has is named.
    pub(super) async fn acquire(&mut self, claim: &Question) -> Option<Lease> {
        for round in 0..3 {
            let told = self.asker.ask(claim).await;
            match told.outcome {
                Outcome::Yes => return told.lease,
                Outcome::No if told.code == "superseded" => self.rest(200_000).await,
                Outcome::No if told.own().is_some() => {
                    return self.replace(claim, &told.own_lease(claim)?).await;
                }
                Outcome::No => {
                    self.doubt(claim, &told).await;
                    return None;
                }
                Outcome::Unknown if claim.token.is_none() || round == 2 => return None,
                Outcome::Unknown => {
                    if self.chance.u32(..10) < 3 {
                        return None;
                    }
                    if self.chance.bool() {
                        self.asker.turn();
                    }
                }
            }
        }
        None
    }

    /// Asks for another lease in the place of one, which it gives up by that. Nothing is relied on until one
    /// is granted, or until each request was answered and the last one is refused by others.
    pub(super) async fn replace(&mut self, claim: &Question, lease: &Lease) -> Option<Lease> {
        let (mut lease, mut all_answered) = (lease.clone(), true);
        for _ in 0..4 {
            let question = claim.clone().naming(lease.fencing_token);
            if self.chance.u32(..16) == 0 {
                self.ask_late(&question).await;
                all_answered = false;
                continue;
            }
            let told = self.asker.ask(&question).await;
            match told.outcome {
                Outcome::Yes => return told.lease,
                Outcome::Unknown => all_answered = false,
                Outcome::No if told.code == "lock_held" && all_answered => return Some(lease),
                Outcome::No if told.code == "lock_held" => self.rest(50_000).await,
                Outcome::No => {
                    let Some(number) = told.said.fencing_token else {
                        self.doubt(&question, &told).await;
                        return None;
                    };
                    (lease.fencing_token, lease.until) = (number, 0);
                }
            }
        }
        self.release(&lease).await;
        None
    }

    /// Gives a question up that is delivered later.
    pub(super) async fn ask_late(&mut self, question: &Question) {
        let held = if self.chance.bool() { 5..60 } else { 60..3_000 };
        // One hang-up in four is not seen for seconds.
        let behind = [0..1, 0..20, 0..300, 1_000..3_000][self.chance.usize(..4)].clone();
        let held = Duration::from_millis(self.chance.u64(held));
        let behind = Duration::from_millis(self.chance.u64(behind));
        self.asker.ask_late(question, held, behind).await;
    }

    /// Refreshes; whether the lease is still there for certain.
    pub(super) async fn refresh(&mut self, lease: &mut Lease) -> bool {
        let mut question = self.maybe_named(Kind::Refresh, lease);
        question.asked.ttl_ms = self.chance.bool().then(|| self.ttl_ms());
        let told = self.asker.ask(&question).await;
        match (told.outcome, told.said.ttl_ms) {
            (Outcome::Yes, Some(ttl_ms)) => {
                lease.until = lease.until.max(told.sent + ttl_ms * MILLISECOND);
                lease.fencing_token = told.said.fencing_token.unwrap_or(lease.fencing_token);
                true
            }
            (Outcome::No, _) => {
                self.doubt(&question, &told).await;
                false
            }
            _ => false,
        }
    }

    /// Releases, and mostly asks again where nobody knows. Another lease that its token has goes as well.
    pub(super) async fn release(&mut self, lease: &Lease) {
        let mut question = self.maybe_named(Kind::Release, lease);
        for _ in 0..3 {
            let told = self.asker.ask(&question).await;
            match told.outcome {
                Outcome::Yes => return,
                Outcome::No if told.own().is_some() => question.asked.fencing_token = told.own(),
                Outcome::No => return self.doubt(&question, &told).await,
                Outcome::Unknown if self.chance.u32(..4) == 0 => return,
                Outcome::Unknown => (),
            }
        }
    }

    /// Looks with the token of a definite no, right after it.
    pub(super) async fn doubt(&mut self, question: &Question, told: &Told) {
        // Where nobody listened there is nobody to look with.
        if told.status == 0 || question.token.is_none() {
            return;
        }
        self.asker.ask(&Question::of(Kind::Look, question.key, question.token.clone())).await;
    }

    /// Looks with the token of a lease.
    pub(super) async fn look(&mut self, lease: &Lease) {
        self.asker.ask(&Question::about(Kind::Look, lease)).await;
    }

    /// Brings the second voice to the instance after that of the first one.
    pub(super) fn turn_twin(&mut self) {
        self.twin.turn_to(self.asker.instance);
        self.twin.turn();
    }

    /// Brings the second voice to the instance of the first one, or to the next one by chance.
    pub(super) fn bring_twin(&mut self) {
        self.twin.turn_to(self.asker.instance);
        if self.chance.bool() {
            self.twin.turn();
        }
    }

    pub(super) async fn look_at(&mut self, key: u32) {
        let token = self.chance.bool().then(|| self.lasting.clone());
        self.asker.ask(&Question::of(Kind::Look, key, token)).await;
    }

    /// Waits until a lease is over for certain, and then for up to so many milliseconds more.
    pub(super) async fn outlive(&mut self, lease: &Lease, more_ms: u64) {
        let left = lease.until.saturating_sub(self.shared.recorder.now());
        let more = Duration::from_millis(self.chance.u64(1..more_ms));
        sleep(Duration::from_nanos(left) + more).await;
    }

    /// Pauses for up to so many microseconds.
    pub(super) async fn rest(&mut self, most_us: u64) {
        sleep(Duration::from_micros(self.chance.u64(..most_us))).await;
    }

    fn maybe_named(&mut self, kind: Kind, lease: &Lease) -> Question {
        let question = if self.chance.bool() { Question::named } else { Question::about };
        question(kind, lease)
    }
}
