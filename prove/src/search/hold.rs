//! A stream on one instance, its take-over with the same token on another one, and commands that come late:
//! asks whose client has gone, refreshes, last words and releases. A rival has another token.

use stateright::{Model, Property};

use super::search;

/// A rule of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The last word of a stream acts only if nobody has taken the lease over since.
    LastWordYieldsToTakeOver,
    /// The last word of a stream names the lease by its number.
    LastWordNamesTheLease,
    /// A stream that was never told has no last word about a lease that was there before it.
    UntoldTakeOverIsSilent,
    /// A refresh acts only on the lease that it means.
    RefreshCompares,
    /// A release names the lease by its number.
    ReleaseNamesTheLease,
}

/// The model, perhaps without one of its rules.
struct Hold {
    without: Option<Rule>,
}

/// The two who want the key: a client that uses one token everywhere, and a rival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Who {
    Client,
    Rival,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    who: Who,
    number: u8,
    /// How often it was taken over.
    taken: u8,
}

/// A command on its way to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Command {
    Ask { instance: usize },
    Refresh { instance: usize, number: u8, taken: u8 },
    LastWord { number: u8, taken: u8 },
    Release { number: u8 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    lease: Option<Lease>,
    last: u8,
    commands: Vec<Command>,
    /// What each instance knows of the lease that it keeps: its number, and how often it was taken over.
    streams: [Option<(u8, u8)>; 2],
    /// Where the client waits for an answer.
    waits: Option<usize>,
    /// Where the client has a stream on whose lease it relies.
    relies: Option<usize>,
    /// The lease that the client gave up last: it does not rely on it if it is told of it again.
    gave_up: u8,
    rival_relies: bool,
    asked: u8,
    refreshed: u8,
    rival_asked: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Ask(usize),
    HangUp,
    Refresh(usize),
    Disconnect,
    Release,
    Do(Command),
    Expire,
    RivalAsks,
    RivalReleases,
}

impl Hold {
    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn execute(&self, state: &mut State, command: Command) {
        let mine = state.lease.filter(|lease| lease.who == Who::Client);
        match command {
            Command::Ask { instance } => self.ask(state, instance),
            Command::Refresh { instance, number, taken } => {
                let same = mine.is_some_and(|lease| (lease.number, lease.taken) == (number, taken));
                if !same && !self.has(Rule::RefreshCompares) {
                    // It makes the lease anew, and believes that it was there all the time.
                    state.lease = Some(Lease { who: Who::Client, number, taken });
                    if state.streams[instance] == Some((number, taken)) {
                        state.relies = Some(instance);
                    }
                } else if !same && state.streams[instance] == Some((number, taken)) {
                    state.streams[instance] = None;
                    state.relies = state.relies.filter(|relies| *relies != instance);
                }
            }
            Command::LastWord { number, taken } => {
                let meant = mine.is_some_and(|lease| {
                    (lease.number == number || !self.has(Rule::LastWordNamesTheLease))
                        && (lease.taken == taken || !self.has(Rule::LastWordYieldsToTakeOver))
                });
                state.lease = state.lease.filter(|_| !meant);
            }
            Command::Release { number } => {
                let meant = mine.is_some_and(|lease| {
                    lease.number == number || !self.has(Rule::ReleaseNamesTheLease)
                });
                state.lease = state.lease.filter(|_| !meant);
            }
        }
    }

    fn ask(&self, state: &mut State, instance: usize) {
        let before = state.lease;
        let lease = match before {
            Some(lease) if lease.who == Who::Rival => {
                // A no.
                state.waits = state.waits.filter(|waits| *waits != instance);
                return;
            }
            Some(lease) => Lease { taken: lease.taken + 1, ..lease },
            None => {
                state.last += 1;
                Lease { who: Who::Client, number: state.last, taken: 0 }
            }
        };
        state.lease = Some(lease);
        let Lease { number, taken, .. } = lease;
        if state.waits == Some(instance) {
            state.waits = None;
            if state.gave_up == number {
                return;
            }
            state.relies = Some(instance);
            state.streams[instance] = Some((number, taken));
        } else if before.is_none() || !self.has(Rule::UntoldTakeOverIsSilent) {
            state.send(Command::LastWord { number, taken });
        }
    }
}

impl State {
    fn send(&mut self, command: Command) {
        self.commands.push(command);
        self.commands.sort_unstable();
    }
}

impl Model for Hold {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.waits.is_none() && state.relies.is_none() && state.asked < 3 {
            actions.extend([Action::Ask(0), Action::Ask(1)]);
        }
        if state.waits.is_some() {
            actions.push(Action::HangUp);
        }
        if state.relies.is_some() {
            actions.extend([Action::Disconnect, Action::Release]);
        }
        if state.refreshed < 2 {
            let open = |instance: &usize| state.streams[*instance].is_some();
            actions.extend((0..2).filter(open).map(Action::Refresh));
        }
        actions.extend(state.commands.iter().copied().map(Action::Do));
        match state.lease {
            None if state.rival_asked < 1 => actions.push(Action::RivalAsks),
            None => (),
            Some(_) => actions.push(Action::Expire),
        }
        if state.rival_relies {
            actions.push(Action::RivalReleases);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Ask(instance) => {
                next.asked += 1;
                next.waits = Some(instance);
                next.send(Command::Ask { instance });
            }
            Action::HangUp => next.waits = None,
            Action::Refresh(instance) => {
                next.refreshed += 1;
                let (number, taken) = next.streams[instance]?;
                next.send(Command::Refresh { instance, number, taken });
            }
            Action::Disconnect => {
                let (number, taken) = next.streams[next.relies.take()?].take()?;
                next.send(Command::LastWord { number, taken });
            }
            Action::Release => {
                let (number, _) = next.streams[next.relies.take()?]?;
                next.gave_up = number;
                next.send(Command::Release { number });
            }
            Action::Do(command) => {
                let index = next.commands.iter().position(|other| *other == command)?;
                next.commands.remove(index);
                self.execute(&mut next, command);
            }
            Action::Expire => {
                // Whoever relies counts from its question, and has stopped before.
                match next.lease.take()?.who {
                    Who::Client => next.relies = None,
                    Who::Rival => next.rival_relies = false,
                }
            }
            Action::RivalAsks => {
                next.rival_asked += 1;
                next.last += 1;
                next.lease = Some(Lease { who: Who::Rival, number: next.last, taken: 0 });
                next.rival_relies = true;
            }
            Action::RivalReleases => {
                next.rival_relies = false;
                next.lease = next.lease.filter(|lease| lease.who != Who::Rival);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("one holder", |_, state: &State| {
            !(state.relies.is_some() && state.rival_relies)
        })]
    }
}

#[test]
fn a_take_over_and_a_late_last_word_never_make_two_holders() {
    search(Hold { without: None }).is_whole("hold", 1_000);
}

#[test]
fn a_last_word_that_does_not_yield_to_a_take_over_makes_two_holders() {
    without(Rule::LastWordYieldsToTakeOver);
}

#[test]
fn a_last_word_that_does_not_name_its_lease_makes_two_holders() {
    without(Rule::LastWordNamesTheLease);
}

#[test]
fn a_last_word_about_a_lease_that_was_there_before_makes_two_holders() {
    without(Rule::UntoldTakeOverIsSilent);
}

#[test]
fn a_refresh_that_does_not_compare_makes_two_holders() {
    without(Rule::RefreshCompares);
}

#[test]
fn a_release_that_does_not_name_its_lease_makes_two_holders() {
    without(Rule::ReleaseNamesTheLease);
}

fn without(rule: Rule) {
    search(Hold { without: Some(rule) }).breaks(&format!("{rule:?}"), "one holder");
}
