//! The nodes and instances of a run, and what may be done to them.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::lock::time::Ttl;
use crate::lock::wakeup::Wakeups;
use crate::metrics::Metrics;
use crate::store::redis::RedisSettings;
use crate::store::redlock::RedlockSettings;
use crate::store::redlock::RedlockStore;
use crate::store::redlock::Rules;
use crate::store::redlock::Time;
use crate::store::redlock::peer::Peer;
use crate::store::redlock::simulation::counts::Counts;
use crate::store::redlock::simulation::history::History;
use crate::store::redlock::simulation::network::Line;
use crate::store::redlock::simulation::network::Message;
use crate::store::redlock::simulation::network::Network;
use crate::store::redlock::simulation::plan::LONGEST_TTL_MS;
use crate::store::redlock::simulation::plan::Plan;
use crate::store::redlock::simulation::plan::RULES;
use crate::store::redlock::simulation::redis;
use crate::store::redlock::simulation::redis::Forgets;
use crate::store::redlock::simulation::redis::LOCKS;
use crate::store::redlock::simulation::rule::Rule;
use crate::store::redlock::simulation::rule::left_out;

/// What all clocks show at the beginning, in microseconds since 1970.
const BEGINNING_US: u64 = 1_700_000_000_000_000;

/// A run's nodes, instances and messages.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) began: Instant,
    /// A message was sent that is due before the next one.
    pub(super) sent: Notify,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) network: Network,
    pub(super) nodes: Vec<NodeState>,
    pub(super) instances: Vec<Instance>,
    pub(super) counts: Counts,
    pub(super) history: History,
}

/// A node beside its data.
pub(super) struct NodeState {
    offset_us: i64,
    /// It does not run; commands queue.
    pub(super) pauses: bool,
    pub(super) queue: Vec<Message>,
    /// The instances that cannot reach it.
    pub(super) cut: Vec<usize>,
    runs: u64,
    forgot_at: Option<u64>,
}

/// One instance of the service.
#[derive(Clone)]
pub(super) struct Instance {
    pub(super) store: Arc<RedlockStore>,
    pub(super) wakeups: Arc<Wakeups>,
    /// The process has ended, and another has taken its place.
    pub(super) ended: CancellationToken,
    /// The process stands still until then, as under SIGSTOP.
    pub(super) stands_until: u64,
}

/// An instance's clocks.
struct Clocks {
    world_began: Instant,
    offset_us: i64,
}

impl Time for Clocks {
    fn monotonic(&self) -> Duration {
        self.world_began.elapsed()
    }

    fn wall_micros(&self) -> u64 {
        let elapsed = u64::try_from(self.world_began.elapsed().as_micros()).unwrap_or(u64::MAX);
        (BEGINNING_US + elapsed).saturating_add_signed(self.offset_us)
    }
}

impl NodeState {
    /// What the node's clock shows so many milliseconds after the beginning, in microseconds.
    pub(super) fn clock(&self, now: u64) -> u64 {
        (BEGINNING_US + now * 1_000).saturating_add_signed(self.offset_us)
    }

    pub(super) fn is_cut_from(&self, instance: usize) -> bool {
        self.cut.contains(&instance)
    }
}

impl World {
    pub(super) fn new(plan: Plan) -> Arc<Self> {
        redis::begin(plan.nodes);
        let mut rng = Rng::with_seed(plan.seed);
        let skew = plan.node_skew_us;
        let nodes = std::iter::repeat_with(|| NodeState {
            offset_us: rng.i64(-skew..=skew),
            pauses: false,
            queue: Vec::new(),
            cut: Vec::new(),
            runs: 0,
            forgot_at: None,
        });
        let nodes = nodes.take(plan.nodes).collect();
        let state = State {
            network: Network::new(rng.fork()),
            nodes,
            instances: Vec::new(),
            counts: Counts::default(),
            history: History::default(),
        };
        let world = Arc::new(Self {
            plan,
            began: Instant::now(),
            sent: Notify::new(),
            metrics: Arc::new(Metrics::new("redlock")),
            state: Mutex::new(state),
        });
        for instance in 0..world.plan.instances {
            let instance = world.instance(instance, &mut rng);
            world.state().instances.push(instance);
        }
        world
    }

    /// Milliseconds since the beginning.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An instance as it is now.
    pub(super) fn of(&self, instance: usize) -> Instance {
        self.state().instances[instance].clone()
    }

    /// Ends an instance's process and begins another one, which knows nothing.
    pub(super) fn restart(self: &Arc<Self>, instance: usize, rng: &mut Rng) {
        if self.of(instance).stands_until > self.now() {
            // What it sends when it goes on is on its way already.
            return;
        }
        let new = self.instance(instance, rng);
        let old = std::mem::replace(&mut self.state().instances[instance], new);
        old.ended.cancel();
    }

    /// Has a node forget, if that is within what the rules promise to survive.
    pub(super) fn forget(&self, node: usize, forgets: Forgets, rng: &mut Rng) -> bool {
        let now = self.now();
        let mut state = self.state();
        if !self.may_forget(&state, node, now) {
            return false;
        }
        let one = &mut state.nodes[node];
        one.forgot_at = Some(now);
        one.runs += 1;
        redis::forget(node, (node as u64 + 1) << 32 | one.runs, forgets);
        if forgets != Forgets::Flushed && rng.bool() {
            one.queue.clear();
        }
        state.counts.forgot += 1;
        true
    }

    /// Fewer than a quorum forget within the longest lease; or any number, but never the last
    /// one that knows anything.
    fn may_forget(&self, state: &State, node: usize, now: u64) -> bool {
        let others = || (0..state.nodes.len()).filter(|other| *other != node);
        if self.plan.any_number_forgets {
            return others().any(|other| self.votes(state, other, now));
        }
        let horizon = LONGEST_TTL_MS * 102 / 100;
        let recent = |other: &usize| {
            state.nodes[*other].forgot_at.is_some_and(|forgot_at| forgot_at + horizon >= now)
        };
        others().filter(recent).count() + 1 < self.plan.nodes / 2 + 1
    }

    fn votes(&self, state: &State, node: usize, now: u64) -> bool {
        let look = redis::look(node, state.nodes[node].clock(now));
        let current = look.guard.split('|').nth(2) == Some(&look.run);
        look.guard.starts_with('v') && current
    }

    /// The nodes that do not vote all in one set, and how many locks there are on any.
    pub(super) fn at_the_end(&self) -> (usize, usize) {
        let (now, state) = (self.now(), self.state());
        let looks =
            || (0..self.plan.nodes).map(|node| redis::look(node, state.nodes[node].clock(now)));
        let set = |guard: &str| guard.split([':', '|']).nth(1).map(str::to_owned);
        let first = set(&looks().next().expect("a node").guard);
        let sets = looks().filter(|look| set(&look.guard) != first).count();
        let silent = (0..self.plan.nodes).filter(|&node| !self.votes(&state, node, now)).count();
        (sets.max(silent), looks().map(|look| look.locks).sum())
    }

    fn instance(self: &Arc<Self>, instance: usize, rng: &mut Rng) -> Instance {
        let wakeups = Arc::new(Wakeups::default());
        let skew = self.plan.instance_skew_us;
        let time = Clocks { world_began: self.began, offset_us: rng.i64(-skew..=skew) };
        let line = |node| -> Arc<dyn Peer> {
            let name = format!("node {node}");
            Arc::new(Line { world: self.clone(), instance, node, name })
        };
        let peers = (0..self.plan.nodes).map(line).collect();
        let (metrics, clocks) =
            (self.metrics.clone(), (Arc::new(time) as Arc<dyn Time>, wakeups.clone()));
        let store = Arc::new(RedlockStore::over(peers, &settings(), clocks, metrics));
        let ended = CancellationToken::new();
        Instance { store, wakeups, ended, stands_until: 0 }
    }
}

fn settings() -> RedlockSettings {
    let node = RedisSettings {
        url: String::new(),
        key_prefix: LOCKS.to_owned(),
        command_timeout: Duration::from_millis(200),
        min_replicas: 0,
        connect_timeout: Duration::from_millis(200),
        default_ttl: Ttl::from_millis(LONGEST_TTL_MS / 2),
        position_kept: Ttl::from_millis(1),
    };
    let mut rules: Rules = RULES;
    if Rule::TimeIsLookedAt.is_left_out() {
        rules.answer_within = Duration::MAX;
    }
    RedlockSettings { nodes: vec![node], restarted: Rule::restarted(left_out()), rules }
}
