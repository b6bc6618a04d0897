//! Clean-up after attempts and releases: nodes are asked until they confirm it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::lock::time::millis_up;
use crate::store::redlock::background::Background;
use crate::store::redlock::nodes::{Nodes, Question};

/// The most pending clean-ups of all nodes; further leases expire by their TTL.
const MAX_OWED: usize = 10_000;

/// The pause between two attempts, doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// Something that one node may still have.
pub(super) struct Leftover {
    pub(super) node: usize,
    /// Calls on their way to the node act until then at the latest, on its clock.
    pub(super) acts_until: u64,
}

/// Cleans up nodes that did not answer.
pub(super) struct Cleanup {
    nodes: Arc<Nodes>,
    background: Background,
    room: Arc<Semaphore>,
    /// True once the log has said that the queue is full; reset when half of it is free.
    told: AtomicBool,
}

impl Cleanup {
    pub(super) fn new(nodes: Arc<Nodes>, background: Background) -> Self {
        Self {
            nodes,
            background,
            room: Arc::new(Semaphore::new(MAX_OWED)),
            told: AtomicBool::new(false),
        }
    }

    /// The possible effect on `node` of a call that is sent now without an answer.
    pub(super) fn leftover(&self, node: usize, patience: Duration) -> Leftover {
        let acts_until = self.nodes.peer(node).now().saturating_add(millis_up(patience));
        Leftover { node, acts_until }
    }

    /// The state of `node` without a call on its way to it.
    pub(super) fn leftover_now(&self, node: usize) -> Leftover {
        Leftover { node, acts_until: 0 }
    }

    /// Puts a question to these nodes once. Returns those where something may be left to do.
    pub(super) async fn once(&self, left: Vec<Leftover>, question: &Question) -> Vec<Leftover> {
        let asked = left.into_iter().map(|left| async move {
            let answered = self.nodes.ask(left.node, question).await;
            let done = answered.is_ok_and(|reply| reply.now > left.acts_until);
            (!done).then_some(left)
        });
        futures_util::future::join_all(asked).await.into_iter().flatten().collect()
    }

    /// Keeps asking these nodes in the background, for as long as what is left there `lasts`.
    pub(super) fn owe(&self, left: Vec<Leftover>, question: &Question, lasts: Duration) {
        for left in left {
            let Ok(room) = self.room.clone().try_acquire_owned() else {
                if !self.told.swap(true, Ordering::Relaxed) {
                    let node = self.nodes.peer(left.node).name();
                    tracing::warn!(
                        node,
                        "undo queue full; leases expire on this node by their TTL"
                    );
                }
                return;
            };
            if self.room.available_permits() > MAX_OWED / 2 {
                self.told.store(false, Ordering::Relaxed);
            }
            let (nodes, question) = (self.nodes.clone(), question.clone());
            let over_at = Instant::now() + lasts;
            self.background.spawn(async move {
                let _room = room;
                let mut pause = FIRST_PAUSE;
                while Instant::now() < over_at {
                    sleep(pause).await;
                    let answered = nodes.ask(left.node, &question).await;
                    if answered.is_ok_and(|reply| reply.now > left.acts_until) {
                        return;
                    }
                    pause = LAST_PAUSE.min(pause * 2);
                }
            });
        }
    }
}
