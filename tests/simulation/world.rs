//! The nodes and instances of a run, and the faults that can be applied to them.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::lock::prefixes::{Prefix, Prefixes};
use crate::lock::time::Ttl;
use crate::lock::wakeup::Wakeups;
use crate::metrics::Metrics;
use crate::store::redis::{NodeTls, RedisSettings};
use crate::store::redlock::nodes::guard;
use crate::store::redlock::operator::ADMIT;
use crate::store::redlock::peer::Peer;
use crate::store::redlock::simulation::counts::Counts;
use crate::store::redlock::simulation::history::History;
use crate::store::redlock::simulation::network::{Line, Message, Network};
use crate::store::redlock::simulation::plan::{LONGEST_TTL_MS, Plan, RULES};
use crate::store::redlock::simulation::redis;
use crate::store::redlock::simulation::redis::{Command, Forgets, LOCKS};
use crate::store::redlock::simulation::rule::{Rule, left_out};
use crate::store::redlock::{RedlockSettings, RedlockStore, Rules, Time};

/// The time of all clocks at the beginning, in microseconds since 1970.
const BEGINNING_US: u64 = 1_700_000_000_000_000;

/// A run's nodes, instances and messages.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) began: Instant,
    /// Notified when a message is due before the next one.
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
    /// When each key was freed by force last, at the latest.
    pub(super) forced: Vec<u64>,
}

/// A node without its data.
pub(super) struct NodeState {
    pub(super) offset_us: i64,
    /// True while it is paused; commands queue.
    pub(super) pauses: bool,
    pub(super) queue: Vec<Message>,
    /// The instances that cannot reach it.
    pub(super) cut: Vec<usize>,
    /// Instances that are far away from it.
    pub(super) far: Vec<usize>,
    runs: u64,
    /// True if it has forgotten and has not voted since.
    pub(super) forgot: bool,
}

#[derive(Clone)]
pub(super) struct Instance {
    /// `None` while the process does not run.
    pub(super) store: Option<Arc<RedlockStore>>,
    pub(super) wakeups: Arc<Wakeups>,
    /// Cancelled when the process has ended.
    pub(super) ended: CancellationToken,
    /// The process is paused until then, as under SIGSTOP.
    pub(super) stands_until: u64,
    /// The error of its wall clock.
    offset_us: Arc<AtomicI64>,
}

struct Clocks {
    world_began: Instant,
    offset_us: Arc<AtomicI64>,
}

impl Time for Clocks {
    fn monotonic(&self) -> Duration {
        self.world_began.elapsed()
    }

    fn wall_micros(&self) -> u64 {
        let elapsed = u64::try_from(self.world_began.elapsed().as_micros()).unwrap_or(u64::MAX);
        (BEGINNING_US + elapsed).saturating_add_signed(self.offset_us.load(Ordering::Relaxed))
    }
}

impl NodeState {
    /// The node's clock at `now`, in microseconds.
    pub(super) fn clock(&self, now: u64) -> u64 {
        (BEGINNING_US + now * 1_000).saturating_add_signed(self.offset_us)
    }

    pub(super) fn is_cut_from(&self, instance: usize) -> bool {
        self.cut.contains(&instance)
    }
}

impl World {
    pub(super) fn new(plan: Plan) -> Arc<Self> {
        let served = plan.served.then(|| format!("{LONGEST_TTL_MS}|{}", plan.nodes));
        redis::begin(plan.all_nodes(), served);
        let mut rng = Rng::with_seed(plan.seed);
        let skew = plan.node_skew_us;
        let nodes = std::iter::repeat_with(|| NodeState {
            offset_us: rng.i64(-skew..=skew),
            pauses: false,
            queue: Vec::new(),
            cut: Vec::new(),
            far: Vec::new(),
            runs: 0,
            forgot: false,
        });
        let nodes = nodes.take(plan.all_nodes()).collect();
        let state = State {
            network: Network::new(rng.fork()),
            nodes,
            instances: Vec::new(),
            counts: Counts::default(),
            history: History::default(),
            forced: vec![0; plan.keys],
        };
        let world = Arc::new(Self {
            plan,
            began: Instant::now(),
            sent: Notify::new(),
            metrics: Arc::new(Metrics::for_redlock()),
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

    /// The current state of an instance.
    pub(super) fn of(&self, instance: usize) -> Instance {
        self.state().instances[instance].clone()
    }

    /// Ends an instance's process and starts another one without its state.
    pub(super) fn restart(self: &Arc<Self>, instance: usize, rng: &mut Rng) {
        if self.of(instance).stands_until > self.now() {
            // The messages that it sends when it continues are already on their way.
            return;
        }
        let new = self.instance(instance, rng);
        let old = std::mem::replace(&mut self.state().instances[instance], new);
        old.ended.cancel();
    }

    pub(super) fn stop(&self, instance: usize) {
        let mut state = self.state();
        let stopped = state.instances[instance].store.take();
        state.instances[instance].ended.cancel();
        drop(state);
        drop(stopped);
    }

    pub(super) fn forget(&self, node: usize, forgets: Forgets, rng: &mut Rng) {
        let mut state = self.state();
        let one = &mut state.nodes[node];
        one.forgot = true;
        one.runs += 1;
        redis::forget(node, (node as u64 + 1) << 32 | one.runs, forgets);
        if forgets != Forgets::Flushed && rng.bool() {
            one.queue.clear();
        }
        state.counts.forgot += 1;
    }

    /// Makes a node that serves other settings serve those of an instance, as an operator does.
    pub(super) fn admit(&self, node: usize, instance: usize) {
        let (nodes, longest_ms) = self.plan.settings_of(instance);
        let state = self.state();
        let us = state.nodes[node].clock(self.now());
        let serves = redis::look(node, us).guard;
        let is_theirs = !serves.is_empty() && !serves.ends_with(&format!("|{longest_ms}|{nodes}"));
        if node < nodes && is_theirs && !state.nodes[node].pauses {
            let words = vec![guard(LOCKS), format!("{longest_ms}|{nodes}|")];
            redis::run(node, us, &Command { script: &ADMIT, keys: 1, words });
        }
    }

    /// Steps the clock of a node, and that of an instance within its error.
    pub(super) fn step(&self, node: usize, step_us: i64, instance: usize, rng: &mut Rng) {
        let skew = self.plan.instance_skew_us;
        let mut state = self.state();
        state.nodes[node].offset_us += step_us;
        state.instances[instance].offset_us.store(rng.i64(-skew..=skew), Ordering::Relaxed);
        state.counts.stepped += 1;
    }

    /// The number of nodes that do not vote for the first instance, and of locks on any node.
    pub(super) fn at_the_end(&self) -> (usize, usize) {
        let (now, state, nodes) = (self.now(), self.state(), self.plan.nodes);
        let settings = format!("|{LONGEST_TTL_MS}|{nodes}");
        let (mut silent, mut locks) = (0, 0);
        for node in 0..nodes {
            let us = state.nodes[node].clock(now);
            let look = redis::look(node, us);
            locks += look.locks;
            let votes = look.guard.strip_prefix(&format!("{}|", look.run));
            let from = votes.and_then(|rest| rest.strip_suffix(&settings)?.parse::<u64>().ok());
            silent += usize::from(from.is_none_or(|from| from > us / 1_000));
        }
        (silent, locks)
    }

    fn instance(self: &Arc<Self>, instance: usize, rng: &mut Rng) -> Instance {
        let wakeups = Arc::new(Wakeups::default());
        let skew = self.plan.instance_skew_us;
        let offset_us = Arc::new(AtomicI64::new(rng.i64(-skew..=skew)));
        let time = Clocks { world_began: self.began, offset_us: offset_us.clone() };
        let line = |node| -> Arc<dyn Peer> {
            let name = format!("node {node}");
            Arc::new(Line { world: self.clone(), instance, node, name })
        };
        let (nodes, longest_ms) = self.plan.settings_of(instance);
        let peers = (0..nodes).map(line).collect();
        let (metrics, clocks) =
            (self.metrics.clone(), (Arc::new(time) as Arc<dyn Time>, wakeups.clone()));
        let settings = settings(longest_ms, self.plan.max_hold);
        let store = Some(Arc::new(RedlockStore::over(peers, &settings, clocks, metrics)));
        Instance { store, wakeups, ended: CancellationToken::new(), stands_until: 0, offset_us }
    }
}

fn settings(longest_ms: u64, max_hold: u64) -> RedlockSettings {
    let max_hold = (max_hold > 0).then(|| Ttl::from_millis(max_hold));
    let prefixes = Prefixes::new(vec![Prefix { text: "key-0".to_owned(), max_hold }]);
    let node = RedisSettings {
        url: String::new(),
        key_prefix: LOCKS.to_owned(),
        command_timeout: Duration::from_millis(200),
        min_replicas: 0,
        connect_timeout: Duration::from_millis(200),
        tls: NodeTls::default(),
        default_ttl: Ttl::from_millis(LONGEST_TTL_MS / 2),
        position_kept: Ttl::from_millis(1),
        prefixes: prefixes.expect("one"),
    };
    let rules = Rules { longest_lease: Ttl::from_millis(longest_ms), ..RULES };
    RedlockSettings { nodes: vec![node], restarted: Rule::restarted(left_out()), rules }
}
