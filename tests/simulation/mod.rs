//! The store in virtual time: several instances over nodes that run its scripts, while messages get
//! lost or come late, nodes are paused and forget, and instances end.
//!
//! The simulation runs a copy of the production code (`build.rs`). The full rules hold in all runs;
//! without any one of them the same runs fail, which shows that the checks work.

mod counterexamples;
mod counts;
mod crossings;
mod direct;
mod endings;
mod faults;
mod history;
mod losses;
mod network;
mod order;
mod plan;
mod redis;
mod repeats;
mod replacing;
mod rule;
mod wish;
mod worker;
mod world;

pub(in crate::store::redlock) use crate::store::redlock::simulation::rule::Rule;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::store::redlock::simulation::counts::Counts;
use crate::store::redlock::simulation::history::{Fault, Wrong};
use crate::store::redlock::simulation::plan::{LONGEST_TTL_MS, Others, Plan};
use crate::store::redlock::simulation::rule::leave_out;
use crate::store::redlock::simulation::worker::Worker;
use crate::store::redlock::simulation::world::World;

/// The time within which a free key is then granted, in milliseconds.
const GIVEN_WITHIN_MS: u64 = 2_000;

/// The grants of each test with the full rules; `GRANTS` in the environment overrides it.
const GRANTS: u64 = 2_000;

/// The seeds of the test with short runs; `SEEDS` in the environment overrides it, and `FIRST_SEED`
/// says where they begin.
const SEEDS: u64 = 1_000;

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a number"))
}

fn grants() -> u64 {
    number("GRANTS", GRANTS)
}

struct Run {
    plan: Plan,
    counts: Counts,
    faults: Vec<Fault>,
}

impl Run {
    /// Fails the test if the run found a fault.
    fn has_nothing_wrong(&self) {
        let stories = self.faults.iter().map(|fault| format!("{:?}: {}", fault.wrong, fault.story));
        let stories: Vec<_> = stories.take(5).collect();
        assert!(stories.is_empty(), "{:?}: {stories:#?}", self.plan);
    }
}

fn run(plan: Plan) -> Run {
    leave_out(plan.without);
    fastrand::seed(plan.seed);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let world = World::new(plan);
        tokio::select! {
            biased;
            () = world.carry() => (),
            () = story(&world) => (),
        }
        let instances = std::mem::take(&mut world.state().instances);
        drop(instances);
        let mut state = world.state();
        let history = std::mem::take(&mut state.history);
        Run { plan, counts: state.counts, faults: history.judge() }
    })
}

async fn story(world: &Arc<World>) {
    let mut rng = Rng::with_seed(!world.plan.seed);
    faults::begin(world);
    let mut all: FuturesUnordered<LocalBoxFuture<'_, ()>> = FuturesUnordered::new();
    for number in 0..world.plan.workers {
        all.push(Box::pin(Worker::new(world.clone(), number as u64, rng.fork()).work()));
    }
    for number in 0..world.plan.directs {
        let number = (1_000 + number) as u64;
        all.push(Box::pin(Worker::new(world.clone(), number, rng.fork()).works_directly()));
    }
    all.push(Box::pin(faults::forgetting(world.clone(), rng.fork())));
    all.push(Box::pin(faults::snapshots(world.clone(), rng.fork())));
    all.push(Box::pin(faults::stepping(world.clone(), rng.fork())));
    all.push(Box::pin(faults::pausing(world.clone(), rng.fork())));
    all.push(Box::pin(faults::cutting(world.clone(), rng.fork())));
    all.push(Box::pin(faults::restarting(world.clone(), rng.fork())));
    all.push(Box::pin(faults::stalling(world.clone(), rng.fork())));
    all.push(Box::pin(faults::changing(world.clone(), rng.fork())));
    all.push(Box::pin(faults::rolling(world.clone(), rng.fork())));
    while all.next().await.is_some() {}
    faults::end(world);
    let go_on_at = world.state().instances.iter().map(|instance| instance.stands_until).max();
    sleep(Duration::from_millis(go_on_at.unwrap_or_default().saturating_sub(world.now()))).await;
    if world.plan.others.is_some() {
        return; // The nodes now serve either of the two settings, by chance.
    }
    sleep(world.plan.back_after()).await;
    let (silent, locks) = world.at_the_end();
    for key in 0..world.plan.keys {
        let number = (world.plan.workers + key) as u64;
        let worker = Worker::new(world.clone(), number, rng.fork());
        worker.takes_the_free(key, GIVEN_WITHIN_MS).await;
    }
    let mut state = world.state();
    if silent > 0 {
        state.history.wrong(Wrong::NotBack, format!("{silent} nodes"));
    }
    if locks > 0 {
        state.history.wrong(Wrong::LeftOver, format!("{locks} locks"));
    }
}

/// Runs plans up to this number of grants, and finds no fault.
fn the_full_rules_hold(nodes: usize) {
    let mut counts = Counts::default();
    for seed in number("FIRST_SEED", 0).. {
        if counts.grants >= grants() {
            break;
        }
        let run = run(Plan::rough(nodes, seed));
        run.has_nothing_wrong();
        counts += run.counts;
    }
    eprintln!("{nodes} nodes: {counts:?}");
    let enough = counts.enough(nodes);
    assert!(enough.is_empty(), "too few {enough:?} in {counts:?}");
}

#[test]
fn the_full_rules_hold_on_one_node() {
    the_full_rules_hold(1);
}

#[test]
fn the_full_rules_hold_on_two_nodes() {
    the_full_rules_hold(2);
}

#[test]
fn the_full_rules_hold_on_three_nodes() {
    the_full_rules_hold(3);
}

#[test]
fn the_full_rules_hold_on_four_nodes() {
    the_full_rules_hold(4);
}

#[test]
fn the_full_rules_hold_on_five_nodes() {
    the_full_rules_hold(5);
}

/// Many beginnings find what a long run does not: each seed has another order of its first faults.
#[test]
fn the_full_rules_hold_from_each_of_many_seeds() {
    let mut counts = Counts::default();
    let (first, seeds) = (number("FIRST_SEED", 0), number("SEEDS", SEEDS));
    for seed in first..first + seeds {
        let run = run(Plan::short(seed));
        run.has_nothing_wrong();
        counts += run.counts;
    }
    eprintln!("{seeds} seeds: {counts:?}");
    let enough = counts.enough(3);
    assert!(enough.is_empty(), "too few {enough:?} in {counts:?}");
    assert!(counts.grants > 2 * seeds, "{counts:?}");
}

/// Runs plans of three nodes up to this number of grants. Returns the counts.
fn hold(plan: impl Fn(u64) -> Plan, wrong: impl Fn(&Fault) -> bool) -> Counts {
    let mut counts = Counts::default();
    for seed in number("FIRST_SEED", 0).. {
        if counts.grants >= grants() {
            break;
        }
        let mut run = run(plan(seed));
        run.faults.retain(&wrong);
        run.has_nothing_wrong();
        counts += run.counts;
    }
    eprintln!("{counts:?}");
    counts
}

/// A node that has forgotten gives its lock to a client without the service, which knows no wait.
#[test]
fn clients_without_the_service_and_its_own_never_both_hold_a_key() {
    let counts = hold(|seed| Plan::with_direct_clients(3, seed), |_| true);
    assert!(counts.direct > counts.grants / 20, "{counts:?}");
}

/// Two may hold a key then: that is what the number is for.
#[test]
fn numbers_never_fall_where_clocks_of_nodes_step_ahead() {
    let of_numbers = [Wrong::SameNumber, Wrong::NumberFell, Wrong::OldOutranksNew];
    let counts = hold(|seed| Plan::ahead(3, seed), |fault| of_numbers.contains(&fault.wrong));
    assert!(counts.stepped > counts.grants / 100, "{counts:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let counts = || format!("{:?}", run(Plan::rough(3, 7)).counts);
    assert_eq!(counts(), counts());
}

#[test]
fn brand_new_nodes_serve_once_the_longest_lease_is_over() {
    for nodes in 1..=5 {
        let run = run(Plan { length: LONGEST_TTL_MS + 1_000, ..Plan::calm(nodes, 1) });
        run.has_nothing_wrong();
        assert!(run.counts.grants > 0, "{nodes} nodes: {:?}", run.counts);
    }
}

/// Runs plans with two settings up to this number of grants, and finds no fault.
fn two_settings_hold(plan: impl Fn(u64) -> Plan) {
    let mut counts = Counts::default();
    for seed in 0.. {
        if counts.grants >= grants() / 2 {
            break;
        }
        let run = run(plan(seed));
        run.has_nothing_wrong();
        counts += run.counts;
    }
    eprintln!("two settings: {counts:?}");
}

#[test]
fn instances_whose_lists_differ_by_one_node_never_both_grant_a_key() {
    two_settings_hold(|seed| Plan::with_two_lists(3, 4, seed));
    two_settings_hold(|seed| Plan::with_two_lists(4, 5, seed));
}

/// As long as instances with the new list see the nodes that serve the old one.
#[test]
fn instances_whose_lists_differ_by_two_nodes_never_both_grant_a_key() {
    two_settings_hold(|seed| Plan::that_is_seen_whole(Plan::with_two_lists(3, 5, seed)));
    two_settings_hold(|seed| Plan::that_is_seen_whole(Plan::with_two_lists(5, 3, seed)));
}

/// As long as no node forgets: a node that has forgotten cannot know the longer of the two.
#[test]
fn instances_with_two_longest_leases_never_both_grant_a_key() {
    let others = Some(Others { nodes: 3, longest_ms: LONGEST_TTL_MS / 2 });
    let plan = |seed| Plan { forgets_every: 0, others, ..Plan::with_two_lists(3, 3, seed) };
    two_settings_hold(plan);
}

#[test]
fn a_lease_that_is_refreshed_survives_restarts_of_all_nodes_one_after_another() {
    let mut counts = Counts::default();
    let first = number("FIRST_SEED", 0);
    for seed in first..first + number("SEEDS", 10) {
        let run = run(Plan::rolling(3, seed));
        run.has_nothing_wrong();
        counts += run.counts;
    }
    eprintln!("rolling restarts: {counts:?}");
    assert!(counts.forgot > 100 && counts.refreshed > 1_000, "{counts:?}");
}

#[test]
fn the_full_rules_hold_where_much_is_lost() {
    let mut counts = Counts::default();
    for seed in 0..60 {
        let run = run(Plan { loss: 150, slow: 100, forgets_every: 0, ..Plan::rough(3, seed) });
        run.has_nothing_wrong();
        counts += run.counts;
    }
    eprintln!("much is lost: {counts:?}");
}
