//! The faults of a run, random by its seed.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::sleep;

use crate::store::redlock::simulation::network::Message;
use crate::store::redlock::simulation::plan::LONGEST_TTL_MS;
use crate::store::redlock::simulation::redis;
use crate::store::redlock::simulation::redis::Forgets;
use crate::store::redlock::simulation::world::World;

/// Makes messages fail as planned.
pub(super) fn begin(world: &World) {
    let mut state = world.state();
    state.network.loss = world.plan.loss;
    state.network.slow = world.plan.slow;
    state.network.slow_most = world.plan.slow_most;
}

/// Ends all faults.
pub(super) fn end(world: &World) {
    let mut state = world.state();
    state.network.loss = 0;
    state.network.slow = 0;
    for node in &mut state.nodes {
        node.cut.clear();
    }
    drop(state);
    for node in 0..world.plan.all_nodes() {
        go_on(world, node);
    }
}

/// Nodes forget: one, all at once, or all one after another.
pub(super) async fn forgetting(world: Arc<World>, mut rng: Rng) {
    let plan = world.plan;
    while pause(&world, plan.forgets_every, &mut rng).await {
        if rng.u32(..100) < plan.all_forget {
            let apart = if rng.bool() { 0 } else { rng.u64(1..LONGEST_TTL_MS) };
            for node in 0..plan.all_nodes() {
                world.forget(node, kind(&world, &mut rng), &mut rng);
                sleep(Duration::from_millis(apart)).await;
            }
            continue;
        }
        let node = rng.usize(..plan.all_nodes());
        world.forget(node, kind(&world, &mut rng), &mut rng);
        if rng.u32(..100) < plan.twice {
            sleep(Duration::from_millis(rng.u64(1..LONGEST_TTL_MS))).await;
            let again = if rng.bool() { node } else { rng.usize(..plan.all_nodes()) };
            world.forget(again, kind(&world, &mut rng), &mut rng);
        }
    }
}

/// An operator makes nodes serve the other one of two settings, mostly when the instances with the
/// former are stopped, which go on after up to three longest leases.
pub(super) async fn changing(world: Arc<World>, mut rng: Rng) {
    while pause(&world, world.plan.changes_every, &mut rng).await {
        let which = rng.usize(..2);
        let gone = (0..world.plan.instances).filter(|instance| instance % 2 == which);
        let gone: Vec<_> = gone.filter(|_| rng.u32(..4) > 0).collect();
        gone.iter().for_each(|&instance| world.stop(instance));
        for node in 0..world.plan.all_nodes() {
            sleep(Duration::from_millis(rng.u64(..200))).await;
            if rng.u32(..8) > 0 {
                world.admit(node, 1 - which);
            }
        }
        sleep(Duration::from_millis(rng.u64(1..3 * LONGEST_TTL_MS))).await;
        gone.iter().for_each(|&instance| world.restart(instance, &mut rng));
    }
}

/// The nodes restart one after another, each once all vote and every lease was refreshed since.
pub(super) async fn rolling(world: Arc<World>, mut rng: Rng) {
    let mut node = 0;
    // Attempts from before any node voted are cleaned up by then.
    sleep(Duration::from_millis(if world.plan.rolling { 3 * LONGEST_TTL_MS } else { 0 })).await;
    while pause(&world, if world.plan.rolling { 200 } else { 0 }, &mut rng).await {
        if world.at_the_end().0 == 0 {
            sleep(Duration::from_millis(LONGEST_TTL_MS)).await;
            world.forget(node, Forgets::Empty, &mut rng);
            node = (node + 1) % world.plan.nodes;
        }
    }
}

fn kind(world: &World, rng: &mut Rng) -> Forgets {
    match rng.u32(..100) {
        draw if draw < world.plan.flushed => Forgets::Flushed,
        draw if draw < world.plan.flushed + world.plan.snapshot => Forgets::Snapshot,
        _ => Forgets::Empty,
    }
}

/// Nodes take snapshots.
pub(super) async fn snapshots(world: Arc<World>, mut rng: Rng) {
    while pause(&world, 1_500, &mut rng).await {
        redis::save(rng.usize(..world.plan.all_nodes()));
    }
}

/// Wall clocks step.
pub(super) async fn stepping(world: Arc<World>, mut rng: Rng) {
    let plan = world.plan;
    let (back, ahead) = (plan.steps_back as i64, plan.steps_ahead as i64);
    while pause(&world, plan.steps_every, &mut rng).await {
        let step_us = rng.i64(-back..=ahead) * 1_000;
        let (node, instance) = (rng.usize(..plan.all_nodes()), rng.usize(..plan.instances));
        world.step(node, step_us, instance, &mut rng);
    }
}

/// Nodes are paused, and execute later what has arrived meanwhile.
pub(super) async fn pausing(world: Arc<World>, mut rng: Rng) {
    while pause(&world, world.plan.pauses_every, &mut rng).await {
        let node = rng.usize(..world.plan.all_nodes());
        world.state().nodes[node].pauses = true;
        sleep(Duration::from_millis(rng.u64(20..3_000))).await;
        // The order of the connections decides which command is served first.
        rng.shuffle(&mut world.state().nodes[node].queue);
        go_on(&world, node);
    }
}

fn go_on(world: &World, node: usize) {
    let unread = resume(world, node);
    deliver(world, unread);
}

/// Resumes a paused node. Returns what it has not read yet.
pub(super) fn resume(world: &World, node: usize) -> Vec<Message> {
    let node = &mut world.state().nodes[node];
    node.pauses = false;
    std::mem::take(&mut node.queue)
}

/// Delivers messages to their nodes now.
pub(super) fn deliver(world: &World, messages: Vec<Message>) {
    for message in messages {
        world.state().arrive(world.now(), message);
    }
}

/// A node is cut off from one instance, or from all.
pub(super) async fn cutting(world: Arc<World>, mut rng: Rng) {
    while pause(&world, world.plan.cuts_every, &mut rng).await {
        let node = rng.usize(..world.plan.all_nodes());
        let instances = world.plan.instances;
        let one = rng.usize(..instances);
        let cut = if rng.bool() { vec![one] } else { (0..instances).collect() };
        world.state().nodes[node].cut = cut;
        sleep(Duration::from_millis(rng.u64(200..8_000))).await;
        world.state().nodes[node].cut.clear();
    }
}

/// Instances restart.
pub(super) async fn restarting(world: Arc<World>, mut rng: Rng) {
    while pause(&world, world.plan.restarts_every, &mut rng).await {
        let instance = rng.usize(..world.plan.instances);
        world.restart(instance, &mut rng);
    }
}

/// Instances are paused, for longer than leases last.
pub(super) async fn stalling(world: Arc<World>, mut rng: Rng) {
    while pause(&world, world.plan.stalls_every, &mut rng).await {
        let instance = rng.usize(..world.plan.instances);
        let until = world.now() + rng.u64(50..LONGEST_TTL_MS * 5 / 4);
        let stands_until = &mut world.state().instances[instance].stands_until;
        *stands_until = until.max(*stands_until);
    }
}

/// Sleeps until the next fault of a kind. Returns false if there is none.
async fn pause(world: &World, every: u64, rng: &mut Rng) -> bool {
    if every == 0 {
        return false;
    }
    let pause = -(1.0 - rng.f64()).ln() * every as f64;
    sleep(Duration::from_millis(pause as u64 + 1)).await;
    world.now() < world.plan.length
}
