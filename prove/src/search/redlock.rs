//! The vote of three nodes, any of which forget: a lease is what a majority gave, from its question on, and
//! a node that forgot does not vote until all that it can have forgotten is over. Clocks tick together.

use stateright::{Model, Property};

use super::search;

/// A rule of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// A node that forgot waits.
    ForgetfulWaits,
    /// It waits for the longest lease, not for less.
    WaitsForTheLongestLease,
    /// More than half of the nodes have to vote for a lease.
    Majority,
    /// A lease counts from its question, not from its last vote.
    TimeIsLookedAt,
    /// A clean-up takes only what its own client has.
    CleanUpCompares,
    /// A clean-up takes only what its own attempt has.
    CleanUpNamesItsAttempt,
    /// A node that another client has refuses, also in a refresh.
    RefreshCompares,
}

const NODES: usize = 3;
/// The model, perhaps without one of its rules.
#[derive(Clone, Copy)]
struct Redlock<const CLIENTS: usize> {
    without: Option<Rule>,
    /// The longest lease, in ticks.
    lease: u8,
    attempts: u8,
    forgets: u8,
    refreshes: u8,
}

/// A node, and what it has to do with each client's attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node<const CLIENTS: usize> {
    lock: Option<Lock>,
    /// Ticks until it votes.
    waits: u8,
    asked: [bool; CLIENTS],
    voted: [bool; CLIENTS],
    /// The attempt of each client that is to be cleaned up here; 0 is none.
    owed: [u8; CLIENTS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Lock {
    client: usize,
    attempt: u8,
    left: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    attempt: u8,
    refreshes: u8,
    /// Ticks since it asked, while it asks.
    asks: Option<u8>,
    /// Ticks for which it may rely on its lease.
    relies: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State<const CLIENTS: usize> {
    nodes: [Node<CLIENTS>; NODES],
    clients: [Client; CLIENTS],
    forgotten: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Ask(usize),
    Refresh(usize),
    Vote(usize, usize),
    Win(usize),
    GiveUp(usize),
    Release(usize),
    CleanUp(usize, usize),
    Forget(usize),
    Tick,
}

impl<const CLIENTS: usize> Redlock<CLIENTS> {
    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn quorum(&self) -> usize {
        if self.has(Rule::Majority) { NODES / 2 + 1 } else { NODES / 2 }
    }

    fn vote(&self, state: &mut State<CLIENTS>, client: usize, node: usize) {
        let Client { attempt, relies, .. } = state.clients[client];
        let node = &mut state.nodes[node];
        node.asked[client] = false;
        let free = relies == 0 && node.lock.is_none();
        let ours = node.lock.is_some_and(|lock| lock.client == client);
        let blind = relies > 0 && !self.has(Rule::RefreshCompares);
        if free || ours || blind {
            // A node that does not vote takes the lease all the same, so it knows it when it votes.
            node.lock = Some(Lock { client, attempt, left: self.lease });
            node.voted[client] = node.waits == 0;
        }
    }

    fn clean_up(&self, state: &mut State<CLIENTS>, client: usize, node: usize) {
        let node = &mut state.nodes[node];
        let attempt = std::mem::take(&mut node.owed[client]);
        let meant = node.lock.is_some_and(|lock| {
            (lock.client == client || !self.has(Rule::CleanUpCompares))
                && (lock.attempt == attempt || !self.has(Rule::CleanUpNamesItsAttempt))
        });
        node.lock = node.lock.filter(|_| !meant);
    }

    fn forget(&self, state: &mut State<CLIENTS>, node: usize) {
        state.forgotten += 1;
        let node = &mut state.nodes[node];
        node.lock = None;
        node.waits = match self.without {
            Some(Rule::ForgetfulWaits) => 0,
            Some(Rule::WaitsForTheLongestLease) => self.lease - 1,
            _ => self.lease,
        };
    }

    fn tick(&self, state: &mut State<CLIENTS>) {
        for node in &mut state.nodes {
            node.waits = node.waits.saturating_sub(1);
            node.lock = node
                .lock
                .and_then(|lock| (lock.left > 1).then_some(Lock { left: lock.left - 1, ..lock }));
        }
        for client in &mut state.clients {
            client.relies = client.relies.saturating_sub(1);
            client.asks = client.asks.map(|asks| self.lease.min(asks + 1));
        }
    }

    fn give_up(state: &mut State<CLIENTS>, client: usize) {
        let attempt = state.clients[client].attempt;
        state.clients[client].asks = None;
        for node in &mut state.nodes {
            node.asked[client] = false;
            node.voted[client] = false;
            node.owed[client] = attempt;
        }
    }
}

impl<const CLIENTS: usize> State<CLIENTS> {
    fn ask(&mut self, client: usize) {
        self.clients[client].asks = Some(0);
        for node in &mut self.nodes {
            node.asked[client] = true;
            node.voted[client] = false;
        }
    }

    fn votes(&self, client: usize) -> usize {
        self.nodes.iter().filter(|node| node.voted[client]).count()
    }
}

impl<const CLIENTS: usize> Model for Redlock<CLIENTS> {
    type State = State<CLIENTS>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        let node = || Node {
            lock: None,
            waits: 0,
            asked: [false; CLIENTS],
            voted: [false; CLIENTS],
            owed: [0; CLIENTS],
        };
        let nodes = std::array::from_fn(|_| node());
        vec![State { nodes, clients: [Client::default(); CLIENTS], forgotten: 0 }]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Action>) {
        for (client, is) in state.clients.iter().enumerate() {
            match is.asks {
                None if is.relies > 0 => {
                    actions.push(Action::Release(client));
                    if is.refreshes < self.refreshes {
                        actions.push(Action::Refresh(client));
                    }
                }
                None if is.attempt < self.attempts => actions.push(Action::Ask(client)),
                None => (),
                Some(asks) => {
                    actions.push(Action::GiveUp(client));
                    if asks < self.lease && state.votes(client) >= self.quorum() {
                        actions.push(Action::Win(client));
                    }
                }
            }
        }
        for (node, is) in state.nodes.iter().enumerate() {
            for client in 0..CLIENTS {
                if is.asked[client] {
                    actions.push(Action::Vote(client, node));
                }
                if is.owed[client] > 0 {
                    actions.push(Action::CleanUp(client, node));
                }
            }
            if state.forgotten < self.forgets {
                actions.push(Action::Forget(node));
            }
        }
        actions.push(Action::Tick);
    }

    fn next_state(&self, state: &Self::State, action: Action) -> Option<Self::State> {
        let mut next = state.clone();
        match action {
            Action::Ask(client) => {
                next.clients[client].attempt += 1;
                next.ask(client);
            }
            Action::Refresh(client) => {
                next.clients[client].refreshes += 1;
                next.ask(client);
            }
            Action::Vote(client, node) => self.vote(&mut next, client, node),
            Action::Win(client) => {
                let asks = next.clients[client].asks.take()?;
                let spent = if self.has(Rule::TimeIsLookedAt) { asks } else { 0 };
                let relies = &mut next.clients[client].relies;
                *relies = (*relies).max(self.lease - spent);
                for node in &mut next.nodes {
                    node.asked[client] = false;
                    node.voted[client] = false;
                }
            }
            Action::GiveUp(client) if next.clients[client].relies > 0 => {
                // A refresh that came to nothing takes nothing back.
                next.clients[client].asks = None;
                next.nodes.iter_mut().for_each(|node| node.asked[client] = false);
            }
            Action::GiveUp(client) => Self::give_up(&mut next, client),
            Action::Release(client) => {
                next.clients[client].relies = 0;
                Self::give_up(&mut next, client);
            }
            Action::CleanUp(client, node) => self.clean_up(&mut next, client, node),
            Action::Forget(node) => self.forget(&mut next, node),
            Action::Tick => self.tick(&mut next),
        }
        // The nodes are alike, so their order tells nothing.
        next.nodes.sort_unstable();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("one holder", |_, state: &State<CLIENTS>| {
            state.clients.iter().filter(|client| client.relies > 0).count() <= 1
        })]
    }
}

/// A model with all rules: clients, attempts of each, nodes that forget, refreshes.
fn whole<const CLIENTS: usize>(attempts: u8, forgets: u8, refreshes: u8) -> Redlock<CLIENTS> {
    Redlock { without: None, lease: 2, attempts, forgets, refreshes }
}

#[test]
fn clients_that_try_again_never_make_two_holders() {
    search(whole::<2>(2, 0, 0)).is_whole("redlock, 2 clients, 2 attempts", 10_000);
}

#[test]
fn nodes_that_forget_never_make_two_holders() {
    search(whole::<2>(1, 3, 0)).is_whole("redlock, 2 clients, 3 forget", 10_000);
}

#[test]
fn refreshes_and_nodes_that_forget_never_make_two_holders() {
    search(whole::<2>(1, 1, 1)).is_whole("redlock, 2 clients that refresh, 1 forgets", 10_000);
}

#[test]
fn three_clients_never_make_two_holders() {
    search(whole::<3>(1, 0, 0)).is_whole("redlock, 3 clients", 10_000);
}

#[test]
fn a_node_that_forgot_and_votes_at_once_makes_two_holders() {
    without(Rule::ForgetfulWaits, (1, 1, 0));
}

#[test]
fn a_node_that_waits_less_than_the_longest_lease_makes_two_holders() {
    without(Rule::WaitsForTheLongestLease, (1, 1, 0));
}

#[test]
fn half_of_the_nodes_make_two_holders() {
    without(Rule::Majority, (1, 0, 0));
}

#[test]
fn a_lease_that_counts_from_its_last_vote_makes_two_holders() {
    without(Rule::TimeIsLookedAt, (1, 0, 0));
}

#[test]
fn a_clean_up_that_does_not_compare_makes_two_holders() {
    without(Rule::CleanUpCompares, (2, 0, 0));
}

#[test]
fn a_clean_up_that_does_not_name_its_attempt_makes_two_holders() {
    without(Rule::CleanUpNamesItsAttempt, (2, 0, 0));
}

#[test]
fn a_refresh_that_does_not_compare_makes_two_holders() {
    without(Rule::RefreshCompares, (1, 0, 1));
}

fn without(rule: Rule, (attempts, forgets, refreshes): (u8, u8, u8)) {
    let model = Redlock { without: Some(rule), ..whole::<2>(attempts, forgets, refreshes) };
    search(model).breaks(&format!("{rule:?}"), "one holder");
}
