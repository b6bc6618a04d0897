//! The rules in every order: the table itself under a model checker.
//!
//! A run has two or three clients, one key and a few requests. Requests and answers are late or
//! lost, clients give up, the service sees that or does not, time passes between any two steps, an
//! operator releases by force, and the instance is killed and started again. The checker visits
//! every state that such a run can come to, and judges each by what the clients were told. Without
//! any one of the rules it finds a fault.

mod answers;
mod calls;
mod client;
mod missed;
mod model;
mod rule;
mod service;
mod state;
mod view;
mod whole;

pub(crate) use crate::lock::table::orders::rule::Rule;

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use crate::lock::table::orders::model::Runs;
use crate::lock::table::orders::state::{LONG, SHORT, Spare, Wish, World};

const NONE: Spare = Spare { give_ups: 0, cuts: 0, stops: 0, forced: 0 };

/// All that a client can ask for without a wait or a stream.
const PLAIN: &[Wish] = &[
    Wish::Acquire(LONG),
    Wish::Acquire(SHORT),
    Wish::AcquireNamed(LONG),
    Wish::Refresh(SHORT),
    Wish::Refresh(LONG),
    Wish::RefreshNamed(SHORT),
    Wish::Release,
    Wish::ReleaseNamed,
];

/// Claims that wait.
const WAITING: &[Wish] = &[Wish::Acquire(LONG), Wish::Wait(LONG), Wish::Release];

/// Streams beside other requests.
const STREAMS: &[Wish] = &[
    Wish::Acquire(LONG),
    Wish::AcquireNamed(LONG),
    Wish::Hold,
    Wish::HoldNamed,
    Wish::RefreshNamed(LONG),
    Wish::Release,
];

/// Streams and other claims that wait.
const MIXED: &[Wish] = &[Wish::Acquire(LONG), Wish::Wait(LONG), Wish::HoldWait, Wish::Release];

/// Everything.
const ALL: &[Wish] = &[
    Wish::Acquire(LONG),
    Wish::Acquire(SHORT),
    Wish::AcquireNamed(LONG),
    Wish::Wait(LONG),
    Wish::Wait(SHORT),
    Wish::Hold,
    Wish::HoldNamed,
    Wish::HoldWait,
    Wish::Refresh(SHORT),
    Wish::RefreshNamed(SHORT),
    Wish::Release,
    Wish::ReleaseNamed,
];

/// Runs of two clients with at most so many requests each, and together.
const fn runs(wishes: &'static [Wish], [each, total]: [u8; 2], spare: Spare) -> Runs {
    Runs { clients: 2, each, total, wishes, spare, without: None }
}

fn plain() -> Runs {
    runs(PLAIN, [3, 4], Spare { give_ups: 2, ..NONE })
}

fn waiting() -> Runs {
    runs(WAITING, [2, 3], Spare { give_ups: 2, ..NONE })
}

fn streams() -> Runs {
    runs(STREAMS, [2, 3], Spare { give_ups: 1, cuts: 1, ..NONE })
}

fn all() -> Runs {
    runs(ALL, [2, 2], Spare { give_ups: 2, cuts: 1, stops: 1, forced: 1 })
}

/// Visits all runs, and finds no fault.
fn hold(runs: Runs) {
    let (began, text) = (Instant::now(), format!("{runs:?}"));
    let found = runs.checker().threads(1).finish_when(HasDiscoveries::Any).spawn_dfs().join();
    let (states, steps) = (found.unique_state_count(), found.state_count());
    eprintln!("{states} states, {steps} steps, {:?}: {text}", began.elapsed());
    assert!(states > 10_000, "{states} states: {text}");
    let story = missed::story(&found);
    assert!(story.is_empty(), "{text}\n{story}");
}

#[test]
fn the_rules_hold_for_requests_that_do_not_wait() {
    hold(plain());
}

#[test]
fn the_rules_hold_for_claims_that_wait() {
    hold(waiting());
}

#[test]
fn the_rules_hold_for_streams() {
    hold(streams());
}

#[test]
fn the_rules_hold_for_two_requests_of_any_kind() {
    hold(all());
}

#[test]
fn the_rules_hold_for_three_clients_in_line() {
    hold(Runs { clients: 3, ..runs(WAITING, [1, 3], Spare { give_ups: 1, ..NONE }) });
}

/// What the view leaves out matters to nothing: else the number of states would be by chance.
#[test]
fn states_with_one_view_go_on_alike() {
    let spare = Spare { give_ups: 1, cuts: 1, stops: 1, ..NONE };
    for runs in [runs(ALL, [2, 2], spare), runs(WAITING, [2, 3], Spare { give_ups: 1, ..NONE })] {
        let mut seen: HashMap<Vec<u8>, World> = HashMap::new();
        let mut found = runs.init_states();
        while let Some(world) = found.pop() {
            for (step, next) in runs.next_steps(&world) {
                let Some(first) = seen.insert(next.view(), next.clone()) else {
                    found.push(next);
                    continue;
                };
                assert_eq!(views_after(&runs, &first), views_after(&runs, &next), "{step:?}");
            }
        }
        assert!(seen.len() > 10_000, "{}", seen.len());
    }
}

fn views_after(runs: &Runs, world: &World) -> BTreeSet<Vec<u8>> {
    runs.next_steps(world).into_iter().map(|(_, next)| next.view()).collect()
}
