//! The number of a lease on three nodes, whose clocks say what they like: it may be answered once a majority
//! of those who hold the lease has confirmed it.

use stateright::{Model, Property};

use super::search;

/// A rule of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The greatest number that was drawn is written back to a majority before it is answered.
    IsWrittenBack,
    /// A node draws a higher number than any that it knows.
    DrawsHigher,
}

const NODES: usize = 3;
const CLIENTS: usize = 2;
const QUORUM: usize = 2;

/// The model, perhaps without one of its rules.
struct Numbers {
    without: Option<Rule>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    /// The highest number that it knows.
    last: u8,
    holder: Option<usize>,
    drawn: [u8; CLIENTS],
    confirmed: [bool; CLIENTS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    began: bool,
    /// The number that it asks the nodes to confirm.
    proposes: u8,
    answered: u8,
    /// The highest number that anybody was answered before it began.
    above: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Begin(usize),
    /// A node votes, and its clock proposes this.
    Vote(usize, usize, u8),
    Settle(usize),
    Confirm(usize, usize),
    Answer(usize),
    /// The lease of a node is over: released, or expired while its client stood still.
    End(usize),
}

impl Numbers {
    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }
}

impl State {
    fn drawn(&self, client: usize) -> Vec<u8> {
        let drawn = self.nodes.iter().map(|node| node.drawn[client]);
        drawn.filter(|drawn| *drawn > 0).collect()
    }
}

impl Model for Numbers {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (client, is) in state.clients.iter().enumerate() {
            // All are alike: they begin in their order.
            let next = client == 0 || state.clients[client - 1].began;
            if !is.began && next {
                actions.push(Action::Begin(client));
            }
            if !is.began || is.answered > 0 {
                continue;
            }
            if is.proposes == 0 {
                if state.drawn(client).len() >= QUORUM {
                    actions.push(Action::Settle(client));
                }
                let free = |node: &usize| state.nodes[*node].holder.is_none();
                for node in (0..NODES).filter(free) {
                    if state.nodes[node].drawn[client] == 0 {
                        actions.push(Action::Vote(client, node, 1));
                        actions.push(Action::Vote(client, node, 3));
                    }
                }
                continue;
            }
            for node in 0..NODES {
                if !state.nodes[node].confirmed[client] {
                    actions.push(Action::Confirm(client, node));
                }
            }
            let confirmed = state.nodes.iter().filter(|node| node.confirmed[client]).count();
            if confirmed >= QUORUM || !self.has(Rule::IsWrittenBack) {
                actions.push(Action::Answer(client));
            }
        }
        let held = |node: &usize| state.nodes[*node].holder.is_some();
        actions.extend((0..NODES).filter(held).map(Action::End));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Begin(client) => {
                let above = next.clients.iter().map(|other| other.answered).max()?;
                next.clients[client].began = true;
                next.clients[client].above = above;
            }
            Action::Vote(client, node, clock) => {
                let node = &mut next.nodes[node];
                let least = if self.has(Rule::DrawsHigher) { node.last + 1 } else { 1 };
                node.holder = Some(client);
                node.drawn[client] = least.max(clock);
                node.last = node.last.max(node.drawn[client]);
            }
            Action::Settle(client) => {
                next.clients[client].proposes = next.drawn(client).into_iter().max()?;
            }
            Action::Confirm(client, node) => {
                let proposes = next.clients[client].proposes;
                let node = &mut next.nodes[node];
                // Raised also where the lease is gone; only holders count.
                node.last = node.last.max(proposes);
                node.confirmed[client] |= node.holder == Some(client);
            }
            Action::Answer(client) => {
                next.clients[client].answered = next.clients[client].proposes;
            }
            Action::End(node) => next.nodes[node].holder = None,
        }
        next.nodes.sort_unstable();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("numbers rise", |_, state: &State| {
                state.clients.iter().all(|is| is.answered == 0 || is.answered > is.above)
            }),
            Property::always("numbers are unique", |_, state: &State| {
                let answered = state.clients.map(|client| client.answered);
                let twice = |(index, number): (usize, &u8)| {
                    *number > 0 && answered[..index].contains(number)
                };
                !answered.iter().enumerate().any(twice)
            }),
        ]
    }
}

#[test]
fn numbers_rise_whatever_the_clocks_of_the_nodes_say() {
    search(Numbers { without: None }).is_whole("numbers", 1_000);
}

#[test]
fn a_number_that_is_not_written_back_is_followed_by_a_lower_one() {
    without(Rule::IsWrittenBack);
}

#[test]
fn a_node_that_draws_by_its_clock_alone_is_followed_by_a_lower_one() {
    without(Rule::DrawsHigher);
}

fn without(rule: Rule) {
    search(Numbers { without: Some(rule) }).breaks(&format!("{rule:?}"), "numbers rise");
}
