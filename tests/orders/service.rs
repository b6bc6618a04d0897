//! The instance between the clients and the table: what `src/lock` does in tasks of its own, in
//! steps that any other may come between. Each step names the function that it stands for.

use std::sync::{Arc, OnceLock};

use crate::lock::key::LockKey;
use crate::lock::lease::{Origin, Receipt};
use crate::lock::store::{Answer, Ask, Condition, Ended, Keep, Renewed, Win};
use crate::lock::table::Table;
use crate::lock::table::orders::Rule;
use crate::lock::table::orders::calls::{steps, target};
use crate::lock::table::orders::state::{
    At, Client, Fault, LONG, Party, Reply, Request, Stage, Turn, Wish, World, bit,
};
use crate::lock::token::LeaseToken;

/// The key of all requests.
pub(super) fn key() -> &'static LockKey {
    static KEY: OnceLock<LockKey> = OnceLock::new();
    KEY.get_or_init(|| LockKey::parse("key").expect("a valid key"))
}

/// The token of a client's claim.
pub(super) fn token(party: usize, claim: u8) -> &'static LeaseToken {
    static TOKENS: OnceLock<Vec<Vec<LeaseToken>>> = OnceLock::new();
    let made = |party: usize, claim: u8| {
        let text = format!("client-{party}-claim-{claim}");
        LeaseToken::parse(&text).expect("a valid token")
    };
    let of = |party| (0..8).map(|claim| made(party, claim)).collect();
    &TOKENS.get_or_init(|| (0..4).map(of).collect())[party][usize::from(claim)]
}

impl Party {
    /// The question of a claim that is under way.
    pub(super) fn turn(&self, claim: u8) -> Option<usize> {
        self.turns.iter().position(|turn| turn.claim == claim)
    }

    /// The waiting request of a claim.
    pub(super) fn waiting(&self, claim: u8) -> Option<usize> {
        let waits = |one: &Request| one.claim == claim && matches!(one.stage, Stage::InLine { .. });
        self.requests.iter().position(waits)
    }

    pub(super) fn request(&self, id: u8) -> Option<usize> {
        self.requests.iter().position(|request| request.id == id)
    }
}

impl World {
    /// A request arrives: `Locks::ask`, `refresh`, `release`. The first question of a claim is
    /// asked once its turn is free, which is as if the request had come later.
    pub(super) fn arrive(&mut self, party: usize, at: usize) {
        let request = &mut self.parties[party].requests[at];
        request.way = self.now - request.sent;
        let (wish, named, whose) = (request.wish, request.named, (party, request.claim));
        match wish {
            Wish::Refresh(asked) | Wish::RefreshNamed(asked) => {
                let reply = match self.refresh(whose, asked, named) {
                    Renewed::Lease(lease) => {
                        let number = lease.fencing_token.number();
                        self.lease_reply((party, at), number, self.now, steps(lease.ttl))
                    }
                    Renewed::Kept(number) => Reply::Mine(number.number()),
                    Renewed::Lost(number) => Reply::Lost(number.map(|number| number.number())),
                };
                self.tell(party, at, reply);
            }
            Wish::Release | Wish::ReleaseNamed => self.arrived_release(party, at, named),
            _ => {
                let answer = self.ask(whose, (wish, named), Ask::Once(None));
                self.answered_first(party, at, answer);
            }
        }
    }

    /// `Locks::acquire` and `Locks::hold`, with the answer to their first question.
    fn answered_first(&mut self, party: usize, at: usize, answer: Answer) {
        let Request { id, wish, claim, .. } = self.parties[party].requests[at];
        let waits =
            wish.waits() && !matches!(&answer, Answer::Held(status) if status.mine == Some(true));
        match answer {
            Answer::Won(win) if win.fresh => {
                self.parties[party].requests[at].stage = Stage::Granted;
                self.granted(party, (claim, id, wish), At::Request, &win);
            }
            Answer::Held(_) if waits => self.enter(party, at),
            answer => self.tell_answer(party, at, &answer),
        }
    }

    /// `UndoQueue::deliver`: a grant has a guard, and its claim's turn, until it is handed over.
    fn granted(&mut self, party: usize, (claim, id, wish): (u8, u8, Wish), at: At, win: &Win) {
        let replaced = win.replaces.map(|replaced| replaced.number.number());
        self.saw_end(replaced.into_iter().collect());
        let receipt = Receipt {
            origin: Origin::Client,
            place: win.place,
            replaced: win.replaces,
            by: win.by,
        };
        let (asked, left) = (self.now, steps(win.lease.ttl));
        let (number, receipt) = (win.lease.fencing_token.number(), Some(receipt));
        let turn = Turn { claim, id, wish, at, asked, left, number, receipt };
        self.parties[party].turns.push(turn);
    }

    /// `Leases::ended`, `Leases::granted`: streams of the leases that ended are told. The leases of
    /// the key are exclusive, so earlier ones are over as well.
    fn saw_end(&mut self, numbers: Vec<u64>) {
        let Some(last) = numbers.into_iter().max() else { return };
        for request in self.parties.iter_mut().flat_map(|party| &mut party.requests) {
            if request.wish.is_stream() && request.stage != Stage::Sent {
                request.seen_end = request.seen_end.max(last);
            }
        }
    }

    /// `Waiters::enter`, with `KeyLine::supersede`.
    fn enter(&mut self, party: usize, at: usize) {
        let claim = self.parties[party].requests[at].claim;
        if let Some(older) = self.parties[party].waiting(claim) {
            self.take_request(party, older);
            self.tell(party, older, Reply::Superseded);
        }
        let own = &mut self.parties[party];
        let asked = own.leaving.iter().any(|(leaving, _)| *leaving == claim);
        own.leaving.retain(|(leaving, _)| *leaving != claim);
        own.requests[at].stage = Stage::InLine { asked, joined: false };
    }

    /// `KeyLine::take_request`: the claim leaves the line in the next round.
    fn take_request(&mut self, party: usize, at: usize) {
        let own = &mut self.parties[party];
        let Request { stage, claim, .. } = own.requests[at];
        if stage != (Stage::InLine { asked: false, joined: false }) && !Rule::Leaves.is_left_out() {
            own.leaving.retain(|(leaving, _)| *leaving != claim);
            own.leaving.push((claim, Keep::Place));
        }
        own.requests[at].stage = Stage::Granted; // Until it is told.
    }

    /// `Waiters::serve`: a question for a waiting claim goes to the store.
    pub(super) fn question(&mut self, party: usize, at: usize, kind: At) {
        let own = &mut self.parties[party];
        let Request { claim, id, wish, .. } = own.requests[at];
        let (asked, left, number, receipt) = (self.now, 0, 0, None);
        own.turns.push(Turn { claim, id, wish, at: kind, asked, left, number, receipt });
        if let Stage::InLine { asked, .. } = &mut own.requests[at].stage
            && kind == At::InLine
        {
            *asked = true;
        }
    }

    /// The store acts on a question, and `KeyLine::answered` notes what is no grant.
    pub(super) fn act(&mut self, party: usize, turn: usize) {
        let Turn { claim, id, wish, at: kind, .. } = self.parties[party].turns.remove(turn);
        let ask = if kind == At::Once { Ask::Once(None) } else { Ask::InLine(None) };
        let answer = self.ask((party, claim), (wish, None), ask);
        let waiting = self.parties[party].waiting(claim);
        let its = waiting.filter(|at| self.parties[party].requests[*at].id == id);
        match answer {
            Answer::Won(win) if win.fresh => {
                if self.parties[party].refused & 1 << id != 0 {
                    self.wrong(Fault::FalseNo);
                }
                self.granted(party, (claim, id, wish), At::Line, &win);
            }
            Answer::Waiting(_) => {
                let Some(at) = waiting else { return };
                self.parties[party].requests[at].stage =
                    Stage::InLine { asked: true, joined: true };
            }
            Answer::Won(_) => {
                let Some(at) = waiting else { return };
                if its.is_some() || self.gets(party, at, wish) {
                    self.take_granted(party, at);
                    self.tell_answer(party, at, &answer);
                }
            }
            answer => {
                let Some(at) = its else { return };
                self.take_request(party, at);
                self.tell_answer(party, at, &answer);
            }
        }
    }

    /// Takes out the request of a claim that was granted: it is in no line any more.
    fn take_granted(&mut self, party: usize, at: usize) {
        let own = &mut self.parties[party];
        let claim = own.requests[at].claim;
        own.leaving.retain(|(leaving, _)| *leaving != claim);
        own.requests[at].stage = Stage::Granted;
    }

    /// `Claim::asks_the_same`: whether a request gets the grant of an older one.
    fn gets(&self, party: usize, at: usize, wish: Wish) -> bool {
        let own = self.parties[party].requests[at].wish;
        let same = (own.ttl(), own.is_stream()) == (wish.ttl(), wish.is_stream());
        same || Rule::SameOptions.is_left_out()
    }

    /// `KeyLine::answered`, for a grant: it is for the request that asked, or a newer one that asks
    /// for the same.
    pub(super) fn note(&mut self, party: usize, turn: usize) {
        let Turn { claim, id, wish, .. } = self.parties[party].turns[turn];
        let waiting = self.parties[party].waiting(claim);
        let its = |at: &usize| self.parties[party].requests[*at].id == id;
        if let Some(at) = waiting.filter(|at| its(at) || self.gets(party, *at, wish)) {
            self.take_granted(party, at);
            let own = &mut self.parties[party];
            own.turns[turn].id = own.requests[at].id;
            own.turns[turn].at = At::Request;
            return;
        }
        self.parties[party].turns[turn].at = At::Undo;
        if Rule::Superseded.is_left_out() {
            self.parties[party].turns.remove(turn);
        }
    }

    /// `Delivery::hand_over`, for a stream in `Hold::delivered`: from here on the client counts as
    /// told.
    pub(super) fn hand_over(&mut self, party: usize, turn: usize) {
        let Turn { claim, id, asked, left, number, .. } = self.parties[party].turns[turn];
        let at = self.parties[party].request(id).expect("it waits for its grant");
        let Request { wish, seen_end, .. } = self.parties[party].requests[at];
        if wish.is_stream() && seen_end >= number {
            if !Rule::Registered.is_left_out() {
                self.parties[party].turns[turn].at = At::Undo;
                return self.tell(party, at, Reply::Lost(None));
            }
            self.wrong(Fault::ToldEnded);
        }
        let kept = self.lease((party, claim)).map(|own| own.state.number() == 1);
        if kept.is_some_and(|kept| kept != wish.is_stream()) {
            self.wrong(Fault::NotAsAsked);
        }
        self.parties[party].turns.remove(turn);
        let reply = self.lease_reply((party, at), number, asked, left);
        self.tell(party, at, reply);
    }

    /// `Guard::drop`: a grant that reached nobody is taken back.
    pub(super) fn undo(&mut self, party: usize, turn: usize) {
        let Turn { claim, number, receipt, .. } = self.parties[party].turns.remove(turn);
        let Some(receipt) = receipt.filter(|_| !Rule::TakenBack.is_left_out()) else { return };
        if let Some(replaced) = receipt.replaced {
            let until = replaced.ends_at.div_ceil(super::state::STEP);
            self.put_back.push((number, until));
        }
        self.end(&target((party, claim), Some(number)).only(Condition::Unheard(receipt)));
    }

    /// `Waiters::leave`.
    pub(super) fn leaves(&mut self, party: usize, at: usize) {
        let (claim, keep) = self.parties[party].leaving.remove(at);
        self.leave((party, claim), keep);
    }

    /// `Locks::release`: the waiting request leaves the line before the store is told.
    fn arrived_release(&mut self, party: usize, at: usize, named: Option<u64>) {
        let claim = self.parties[party].requests[at].claim;
        let waiting = self.parties[party].waiting(claim).filter(|_| named.is_none());
        if let Some(waiting) = waiting {
            self.take_request(party, waiting);
        }
        let ended = self.release((party, claim), named);
        if let Ended::Lease(holder) = &ended {
            self.saw_end(holder.fencing_token.iter().map(|number| number.number()).collect());
        }
        let reply = match ended {
            Ended::Nothing(number) if waiting.is_none() => {
                Reply::Lost(number.map(|number| number.number()))
            }
            _ => Reply::Released,
        };
        self.tell(party, at, reply);
        if let Some(waiting) = waiting {
            self.tell(party, waiting, Reply::Cancelled);
        }
    }

    /// `DELETE /admin/locks`.
    pub(super) fn forced(&mut self, named: Option<u64>) {
        let ended = self.force(named);
        self.forced |= ended.iter().fold(0, |bits, number| bits | bit(*number));
        self.saw_end(ended);
    }

    /// The keeper refreshes: `Care::next`.
    pub(super) fn keeps(&mut self, party: usize, at: usize) {
        let Request { claim, stage, .. } = self.parties[party].requests[at];
        let Stage::Holds { number, read, .. } = stage else { return };
        let of = target((party, claim), Some(number)).only(Condition::Kept);
        match self.keep(&of, Some(LONG)) {
            Renewed::Lease(lease) => {
                let left = steps(lease.ttl);
                let line = Some(Reply::Lease { number, left, until: 0 });
                self.parties[party].requests[at].stage = Stage::Holds { number, line, read };
            }
            _ => self.tell(party, at, Reply::Lost(None)),
        }
    }

    /// The service sees that the client is gone: a dropped `Ticket`, `DetachOnDrop` or `Hold`.
    pub(super) fn see_gone(&mut self, party: usize, at: usize) {
        let Request { id, claim, stage, client, seen_end, .. } = self.parties[party].requests[at];
        match stage {
            Stage::InLine { .. } => self.take_request(party, at),
            Stage::Granted => {
                let turns = &mut self.parties[party].turns;
                let its = turns.iter_mut().find(|turn| turn.claim == claim && turn.id == id);
                its.into_iter().for_each(|turn| turn.at = At::Undo);
            }
            Stage::Holds { number, .. } if seen_end < number => {
                let ends = client == Client::Closed || Rule::TimedOut.is_left_out();
                self.parties[party].requests[at].stage = Stage::Leaves { number, ends };
                return;
            }
            _ => (),
        }
        self.parties[party].requests.remove(at);
    }

    /// `Locks::let_go`: the last word of a hold.
    pub(super) fn last_word(&mut self, party: usize, at: usize) {
        let Request { claim, stage, .. } = self.parties[party].requests.remove(at);
        let Stage::Leaves { number, ends } = stage else { return };
        let named = (!Rule::LastWordNames.is_left_out()).then_some(number);
        let of = target((party, claim), named).only(Condition::LetGo { grants: false });
        if !ends {
            self.keep(&of, None);
        } else if let Ended::Lease(holder) = self.end(&of) {
            self.saw_end(holder.fencing_token.iter().map(|number| number.number()).collect());
        }
    }

    /// The instance is killed and started again: it has the leases and the greatest number from its
    /// disk, and nothing else.
    pub(super) fn stop(&mut self) {
        let leases = if Rule::LeasesOnDisk.is_left_out() { &[] } else { self.table.entries(key()) };
        let leases: Vec<_> = leases.iter().map(|entry| (key().clone(), entry.clone())).collect();
        let of_leases = leases.iter().map(|(_, entry)| entry.fencing_token.number()).max();
        let last = match Rule::NumberOnDisk.is_left_out() {
            true => of_leases.unwrap_or(0),
            false => self.table.last_fencing_token(),
        };
        // Nobody takes a grant back any more that was not handed over: it ends by its TTL.
        self.told |= leases.iter().fold(0, |bits, (_, one)| bits | bit(one.fencing_token.number()));
        self.table = Arc::new(Table::restore(leases, last));
        for own in &mut self.parties {
            own.turns.clear();
            own.leaving.clear();
            for request in &mut own.requests {
                if !matches!(request.stage, Stage::Sent | Stage::Told(_)) {
                    request.stage = Stage::Told(Reply::Broken);
                }
            }
        }
    }
}
