//! Waiting, release, hand-over and departure: a free key goes to the head of the line at once, until its
//! instance confirms it for a client that is still there. Messages are late, hints are lost, instances die.

use stateright::{Model, Property};

use super::search;

/// A rule of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// An instance asks again for those who wait, so a lost hint does not matter.
    AsksAgain,
    /// A hand-over that is not confirmed goes on to the next after a while.
    HandOverLapses,
    /// What was confirmed for a client that has gone is given back.
    GrantOfTheGoneIsGivenBack,
    /// A confirmation counts only while the hand-over stands.
    ConfirmationCompares,
    /// A release ends only its own lease.
    ReleaseCompares,
    /// Whoever departs is taken out of the line, and what was handed to it goes on.
    DepartureLeaves,
}

const CLIENTS: usize = 3;

/// The model, perhaps without one of its rules.
struct Line {
    without: Option<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holder {
    Nobody,
    HandedTo(usize),
    Confirmed(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Client {
    Idle,
    /// Whether the store has answered that it is in line.
    Waits {
        joined: bool,
    },
    Relies,
    Gone,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Join(usize),
    Leave(usize),
    Hint(usize),
    Confirm(usize),
    Granted(usize),
    Release(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    holder: Holder,
    line: Vec<usize>,
    clients: [Client; CLIENTS],
    messages: Vec<Message>,
    /// Of the first client's instance; the others have one that lives.
    dead: bool,
    /// Hand-overs that lapsed although their instance lives.
    lapsed: u8,
    /// Releases that were sent twice.
    repeated: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Ask(usize),
    HangUp(usize),
    Deliver(Message),
    Lose(usize),
    AskAgain(usize),
    Lapse(usize),
    Release(usize),
    ReleaseTwice(usize),
    Die,
    Expire,
}

impl State {
    fn send(&mut self, message: Message) {
        if !self.messages.contains(&message) {
            self.messages.push(message);
            self.messages.sort_unstable();
        }
    }

    fn pass_on(&mut self) {
        if self.line.is_empty() {
            self.holder = Holder::Nobody;
        } else {
            let next = self.line.remove(0);
            self.holder = Holder::HandedTo(next);
            self.send(Message::Hint(next));
        }
    }

    fn is_dead(&self, client: usize) -> bool {
        self.dead && client == 0
    }

    fn waits(&self, client: usize) -> bool {
        matches!(self.clients[client], Client::Waits { .. })
    }
}

impl Line {
    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn deliver(&self, state: &mut State, message: Message) {
        match message {
            Message::Join(client) => self.join(state, client),
            Message::Leave(client) => {
                state.line.retain(|other| *other != client);
                if state.holder == Holder::HandedTo(client) {
                    state.pass_on();
                }
            }
            Message::Hint(client) => {
                if state.waits(client) {
                    state.send(Message::Confirm(client));
                }
            }
            Message::Confirm(client) => {
                let stands = state.holder == Holder::HandedTo(client);
                if stands || !self.has(Rule::ConfirmationCompares) {
                    state.line.retain(|other| *other != client);
                    state.holder = Holder::Confirmed(client);
                    if !state.is_dead(client) {
                        state.send(Message::Granted(client));
                    }
                } else if state.holder != Holder::Confirmed(client) && !state.is_dead(client) {
                    // The question puts it in line again.
                    self.join(state, client);
                }
            }
            Message::Granted(client) => {
                if state.waits(client) {
                    state.clients[client] = Client::Relies;
                } else if state.clients[client] == Client::Gone
                    && self.has(Rule::GrantOfTheGoneIsGivenBack)
                {
                    state.send(Message::Release(client));
                }
            }
            Message::Release(client) => {
                if state.holder == Holder::Confirmed(client) || !self.has(Rule::ReleaseCompares) {
                    state.pass_on();
                }
            }
        }
    }

    fn join(&self, state: &mut State, client: usize) {
        if !state.line.contains(&client) && state.holder != Holder::HandedTo(client) {
            state.line.push(client);
        }
        if state.holder == Holder::Nobody {
            state.pass_on();
        }
        if state.waits(client) {
            state.clients[client] = Client::Waits { joined: true };
        } else if !state.is_dead(client) && self.has(Rule::DepartureLeaves) {
            state.send(Message::Leave(client));
        }
    }

    fn timers(&self, state: &State, actions: &mut Vec<Action>) {
        let Holder::HandedTo(client) = state.holder else { return };
        let on_its_way = [Message::Hint(client), Message::Confirm(client)];
        let waits = state.clients[client] == Client::Waits { joined: true };
        let asks = waits && !on_its_way.iter().any(|message| state.messages.contains(message));
        if asks && self.has(Rule::AsksAgain) {
            actions.push(Action::AskAgain(client));
        }
        let lapses = state.is_dead(client) || state.lapsed < 1;
        if lapses && self.has(Rule::HandOverLapses) {
            actions.push(Action::Lapse(client));
        }
    }
}

impl Model for Line {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            holder: Holder::Nobody,
            line: Vec::new(),
            clients: [Client::Idle; CLIENTS],
            messages: Vec::new(),
            dead: false,
            lapsed: 0,
            repeated: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (client, is) in state.clients.iter().enumerate() {
            match is {
                Client::Idle => actions.push(Action::Ask(client)),
                Client::Waits { .. } => actions.push(Action::HangUp(client)),
                Client::Relies => {
                    actions.push(Action::Release(client));
                    if state.repeated < 1 {
                        actions.push(Action::ReleaseTwice(client));
                    }
                }
                Client::Gone | Client::Done => (),
            }
        }
        for message in &state.messages {
            actions.push(Action::Deliver(*message));
            if let Message::Hint(client) = message {
                actions.push(Action::Lose(*client));
            }
        }
        self.timers(state, actions);
        if !state.dead {
            actions.push(Action::Die);
        }
        // Whatever a dead instance was told of ends by its TTL.
        if state.dead && state.holder == Holder::Confirmed(0) && state.clients[0] == Client::Gone {
            actions.push(Action::Expire);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Ask(client) if next.is_dead(client) => next.clients[client] = Client::Done,
            Action::Ask(client) => {
                next.clients[client] = Client::Waits { joined: false };
                next.send(Message::Join(client));
            }
            Action::HangUp(client) => {
                let joined = next.clients[client] == Client::Waits { joined: true };
                next.clients[client] = Client::Gone;
                if joined && self.has(Rule::DepartureLeaves) {
                    next.send(Message::Leave(client));
                }
            }
            Action::Deliver(message) => {
                next.messages.retain(|other| *other != message);
                self.deliver(&mut next, message);
            }
            Action::Lose(client) => {
                next.messages.retain(|other| *other != Message::Hint(client));
            }
            Action::AskAgain(client) => next.send(Message::Confirm(client)),
            Action::Lapse(client) => {
                next.lapsed += u8::from(!next.is_dead(client));
                next.pass_on();
                // A living instance learns of it by its next question.
                if next.waits(client) {
                    next.send(Message::Confirm(client));
                }
            }
            Action::Release(client) => {
                next.clients[client] = Client::Done;
                next.send(Message::Release(client));
            }
            Action::ReleaseTwice(client) => {
                // The first one has acted, its answer was lost, and it is sent again.
                next.repeated += 1;
                next.clients[client] = Client::Done;
                self.deliver(&mut next, Message::Release(client));
                next.send(Message::Release(client));
            }
            Action::Die => {
                next.dead = true;
                if next.waits(0) {
                    next.clients[0] = Client::Gone;
                }
                next.messages
                    .retain(|message| !matches!(message, Message::Hint(0) | Message::Granted(0)));
            }
            Action::Expire => next.pass_on(),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder", |_, state: &State| {
                let relies = |client: &usize| state.clients[*client] == Client::Relies;
                let mut those = (0..CLIENTS).filter(relies);
                those.all(|client| state.holder == Holder::Confirmed(client))
            }),
            Property::always("nobody waits for ever and nothing is left", |model, state| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                // Clients that hang up do not have to wait, so their choice is no way out.
                actions.retain(|action| !matches!(action, Action::HangUp(_) | Action::Die));
                let waits = (0..CLIENTS).any(|client| state.waits(client));
                !actions.is_empty() || !waits && state.holder == Holder::Nobody
            }),
        ]
    }
}

const SAFE: &str = "one holder";
const LIVE: &str = "nobody waits for ever and nothing is left";

#[test]
fn a_line_has_one_holder_and_serves_everybody() {
    search(Line { without: None }).is_whole("line", 1_000);
}

#[test]
fn without_asking_again_a_lost_hint_is_a_lost_wake_up() {
    without(Rule::AsksAgain, LIVE);
}

#[test]
fn a_hand_over_that_does_not_lapse_leaves_the_key_to_a_dead_instance() {
    without(Rule::HandOverLapses, LIVE);
}

#[test]
fn a_grant_that_is_not_given_back_leaves_the_key_to_a_ghost() {
    without(Rule::GrantOfTheGoneIsGivenBack, LIVE);
}

#[test]
fn a_late_confirmation_that_does_not_compare_makes_two_holders() {
    without(Rule::ConfirmationCompares, SAFE);
}

#[test]
fn a_repeated_release_that_does_not_compare_ends_another_lease() {
    without(Rule::ReleaseCompares, SAFE);
}

#[test]
fn a_departure_that_does_not_leave_keeps_the_key_for_a_ghost() {
    without(Rule::DepartureLeaves, LIVE);
}

fn without(rule: Rule, property: &str) {
    search(Line { without: Some(rule) }).breaks(&format!("{rule:?}"), property);
}
