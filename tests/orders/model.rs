//! The run as the checker sees it: what may happen next, and what must never be.

use std::sync::Arc;

use stateright::{Model, Property};

use crate::lock::table::Table;
use crate::lock::table::orders::Rule;
use crate::lock::table::orders::calls::at;
use crate::lock::table::orders::rule::leave_out;
use crate::lock::table::orders::service::{key, token};
use crate::lock::table::orders::state::{
    At, Client, Fault, LONG, Party, Request, Spare, Stage, Turn, Wish, World,
};

/// All runs of a few requests.
#[derive(Clone, Debug)]
pub(super) struct Runs {
    pub(super) clients: usize,
    /// The requests of each client, and of all together.
    pub(super) each: u8,
    pub(super) total: u8,
    pub(super) wishes: &'static [Wish],
    pub(super) spare: Spare,
    pub(super) without: Option<Rule>,
}

/// A step; a request is the client and where it stands among its requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    /// Time goes on.
    Tick,
    Send(usize, Wish),
    GiveUp(usize, usize),
    Cut(usize, usize),
    Receive(usize, usize),
    Arrive(usize, usize),
    SeeGone(usize, usize),
    Question(usize, usize, At),
    /// The store acts on the question of a turn.
    Act(usize, usize),
    Note(usize, usize),
    HandOver(usize, usize),
    Undo(usize, usize),
    Leave(usize, usize),
    Keep(usize, usize),
    LastWord(usize, usize),
    Force(Option<u64>),
    Stop,
}

impl Runs {
    fn of_party(&self, world: &World, party: usize, steps: &mut Vec<Step>) {
        let own = &world.parties[party];
        let sent: u8 = world.parties.iter().map(|own| own.sent).sum();
        if own.sent < self.each && sent < self.total && own.is_idle() {
            let may = self.wishes.iter().filter(|wish| own.may_send(**wish));
            steps.extend(may.map(|wish| Step::Send(party, *wish)));
        }
        for (at, request) in own.requests.iter().enumerate() {
            self.of_request(world, (party, at), request, steps);
        }
        for (at, turn) in own.turns.iter().enumerate() {
            steps.push(match turn.at {
                At::InLine | At::Once if own.has_grant(turn.claim) => continue,
                At::InLine | At::Once => Step::Act(party, at),
                At::Line => Step::Note(party, at),
                At::Request => Step::HandOver(party, at),
                At::Undo => Step::Undo(party, at),
            });
        }
        let leaves = |at: &usize| {
            let turn = own.turn(own.leaving[*at].0).map(|at| own.turns[at].at);
            !matches!(turn, Some(At::InLine | At::Once)) || Rule::NoOvertaking.is_left_out()
        };
        steps.extend((0..own.leaving.len()).filter(leaves).map(|at| Step::Leave(party, at)));
    }

    fn of_request(
        &self,
        world: &World,
        (party, at): (usize, usize),
        request: &Request,
        steps: &mut Vec<Step>,
    ) {
        let own = &world.parties[party];
        let listens = request.client == Client::Listens;
        let is_told = matches!(request.stage, Stage::Told(_));
        if listens && !is_told && world.spare.give_ups > 0 {
            steps.push(Step::GiveUp(party, at));
        }
        if !listens && !matches!(request.stage, Stage::Sent | Stage::Leaves { .. }) {
            steps.push(Step::SeeGone(party, at));
        }
        match request.stage {
            Stage::Sent if own.is_free_for(request) => steps.push(Step::Arrive(party, at)),
            Stage::InLine { joined, .. } if own.is_free(request.claim) => {
                if !joined || world.has_reason_to_ask((party, request.claim)) {
                    steps.push(Step::Question(party, at, At::InLine));
                }
                steps.push(Step::Question(party, at, At::Once));
            }
            Stage::Holds { number, line, read } => {
                if listens && line.is_some() {
                    steps.push(Step::Receive(party, at));
                } else if world.has_reason_to_keep(number) {
                    steps.push(Step::Keep(party, at));
                }
                if listens && read.is_some() && world.spare.cuts > 0 {
                    steps.push(Step::Cut(party, at));
                }
            }
            Stage::Leaves { .. } => steps.push(Step::LastWord(party, at)),
            Stage::Told(_) if listens => steps.push(Step::Receive(party, at)),
            _ => (),
        }
    }
}

impl Party {
    /// Whether the line asks no question for a claim, and none waits for its turn.
    fn is_free(&self, claim: u8) -> bool {
        self.turn(claim).is_none() || Rule::OneQuestion.is_left_out() && self.turns.len() < 2
    }

    /// `Turns::take`: a claim has no further question until its grant is handed over or taken back.
    fn has_grant(&self, claim: u8) -> bool {
        let granted = |turn: &Turn| turn.claim == claim && turn.receipt.is_some();
        self.turns.iter().any(granted) && !Rule::OneQuestion.is_left_out()
    }

    /// Whether another request of the claim may come while a question is under way.
    fn is_crossed(&self, turn: &Turn) -> bool {
        let mut its = self.requests.iter().filter(|request| request.claim == turn.claim);
        its.any(|one| one.stage == Stage::Sent || one.client != Client::Listens)
    }

    fn asks_undisturbed(&self, turn: &Turn) -> bool {
        let crossings = [Rule::OneQuestion, Rule::NoOvertaking, Rule::ReleasedFirst];
        let may_act = matches!(turn.at, At::InLine | At::Once) && !self.has_grant(turn.claim);
        may_act && !self.is_crossed(turn) && !crossings.into_iter().any(Rule::is_left_out)
    }

    fn is_listened_to(&self, turn: &Turn) -> bool {
        let its = self.request(turn.id).map(|at| self.requests[at].client);
        turn.at == At::Request && its == Some(Client::Listens)
    }

    /// Whether the call of a request may be made now.
    fn is_free_for(&self, request: &Request) -> bool {
        let turn = self.turn(request.claim).map(|at| self.turns[at].at);
        match request.wish {
            wish if wish.is_claim() => !self.has_grant(request.claim),
            // `Waiters::release` comes between two rounds.
            Wish::Release if self.waiting(request.claim).is_some() => {
                let asks = matches!(turn, Some(At::InLine | At::Once | At::Line));
                !asks || Rule::ReleasedFirst.is_left_out()
            }
            _ => true,
        }
    }
}

impl Request {
    /// Whether its client reads the answer that is on its way.
    fn is_read(&self) -> bool {
        self.client == Client::Listens && matches!(self.stage, Stage::Told(_))
    }
}

impl World {
    fn begin(runs: &Runs) -> Self {
        Self {
            now: 0,
            table: Arc::new(Table::restore([], 0)),
            parties: vec![Party::default(); runs.clients],
            each: runs.each,
            spare: runs.spare,
            highest: 0,
            told: 0,
            forced: 0,
            put_back: Vec::new(),
            fault: None,
        }
    }

    /// Another question of a claim that has joined changes nothing while another one has the key.
    fn has_reason_to_ask(&self, (party, claim): (usize, u8)) -> bool {
        let (own, now) = (token(party, claim), at(self.now));
        let mut leases = self.table.entries(key()).iter().filter(|entry| entry.ends_at > now);
        if let Some(first) = leases.next() {
            return first.token == *own || leases.any(|entry| entry.token == *own);
        }
        let handed = self.table.lines.get(key()).and_then(|line| line.handed());
        handed.is_none_or(|(handed, until)| handed == own || *until <= now)
    }

    /// A refresh by the keeper of a stream changes the lease, or finds that it ended.
    fn has_reason_to_keep(&self, number: u64) -> bool {
        let mut leases = self.table.entries(key()).iter();
        let its = leases.find(|entry| entry.fencing_token.number() == number);
        its.is_none_or(|entry| entry.ends_at < at(self.now + LONG))
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Tick => self.now += 1,
            Step::Send(party, wish) => self.send(party, wish),
            Step::GiveUp(party, at) => {
                self.spare.give_ups -= 1;
                self.give_up(party, at);
            }
            Step::Cut(party, at) => {
                self.spare.cuts -= 1;
                self.cut(party, at);
            }
            Step::Receive(party, at) => self.receive(party, at),
            Step::Arrive(party, at) => self.arrive(party, at),
            Step::SeeGone(party, at) => self.see_gone(party, at),
            Step::Question(party, at, kind) => self.question(party, at, kind),
            Step::Act(party, at) => self.act(party, at),
            Step::Note(party, at) => self.note(party, at),
            Step::HandOver(party, at) => self.hand_over(party, at),
            Step::Undo(party, at) => self.undo(party, at),
            Step::Leave(party, at) => self.leaves(party, at),
            Step::Keep(party, at) => self.keeps(party, at),
            Step::LastWord(party, at) => self.last_word(party, at),
            Step::Force(named) => {
                self.spare.forced -= 1;
                self.forced(named);
            }
            Step::Stop => {
                self.spare.stops -= 1;
                self.stop();
            }
        }
    }

    /// Takes the steps that are as good as later ones, so that there are fewer orders: a question
    /// that nothing can cross, a grant that nobody takes back, an answer that is not lost. A client
    /// that reads later only relies for a shorter time, and one that gives up instead of reading
    /// may as well have done so before.
    fn hurry(&mut self) {
        for party in 0..self.parties.len() {
            let turns = |own: &Party, is: &dyn Fn(&Party, &Turn) -> bool| {
                own.turns.iter().position(|turn| is(own, turn))
            };
            if let Some(turn) = turns(&self.parties[party], &Party::asks_undisturbed) {
                self.act(party, turn);
            }
            let noted = |own: &Party, turn: &Turn| turn.at == At::Line && !own.is_crossed(turn);
            if let Some(turn) = turns(&self.parties[party], &noted) {
                self.note(party, turn);
            }
            let Spare { give_ups, stops, forced, .. } = self.spare;
            if let Some(turn) = turns(&self.parties[party], &Party::is_listened_to)
                && give_ups + stops + forced == 0
            {
                self.hand_over(party, turn);
            }
            while !Rule::FromTheSending.is_left_out()
                && let Some(at) = self.parties[party].requests.iter().position(Request::is_read)
            {
                self.receive(party, at);
            }
        }
    }

    fn judge(&mut self) {
        self.judge_beliefs();
        let longest = at(self.now + LONG);
        if self.table.entries(key()).iter().any(|entry| entry.ends_at > longest) {
            self.wrong(Fault::TooLong);
        }
        let is_over = |request: &Request| {
            let lost = request.stage == Stage::Sent && request.client != Client::Listens;
            lost || matches!(request.stage, Stage::Told(_))
        };
        let rests = |own: &Party| {
            let under_way = !own.turns.is_empty() || !own.leaving.is_empty();
            !under_way && own.requests.iter().all(is_over)
        };
        if self.parties.iter().all(rests) {
            self.rests();
        }
    }
}

impl Model for Runs {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::begin(self)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        leave_out(self.without);
        if world.fault.is_some() {
            return;
        }
        (0..world.parties.len()).for_each(|party| self.of_party(world, party, steps));
        steps.push(Step::Tick);
        if world.spare.stops > 0 {
            steps.push(Step::Stop);
        }
        if world.spare.forced > 0 && !world.table.entries(key()).is_empty() {
            steps.push(Step::Force(None));
            steps.push(Step::Force(Some(world.highest)));
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        leave_out(self.without);
        let mut next = world.clone();
        next.step(step);
        next.hurry();
        next.drop_the_gone();
        next.judge();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("nothing is wrong", |_, world: &World| world.fault.is_none())]
    }
}
