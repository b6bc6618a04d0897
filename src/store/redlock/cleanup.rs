//! Clean-up after attempts and releases: nodes are asked until they confirm it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::lock::time::millis_up;
use crate::store::redlock::background::Background;
use crate::store::redlock::nodes::{Nodes, Question};
use crate::store::redlock::poll::Says;

/// The most pending clean-ups of all nodes; further leases expire by their TTL.
const MAX_OWED: usize = 10_000;

/// The pause between two questions, doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// Something that one node may still have, and the question that ends it.
pub(super) struct Leftover {
    pub(super) node: usize,
    question: Question,
    /// Calls on their way to the node act until then at the latest, on its clock.
    acts_until: u64,
}

/// Cleans up nodes that did not answer.
pub(super) struct Cleanup {
    nodes: Arc<Nodes>,
    background: Background,
    room: Arc<Semaphore>,
    /// True once the log has said that the queue is full; reset when half of it is free.
    told: AtomicBool,
}

impl Leftover {
    /// Asks the node once. Returns true if nothing is left there.
    async fn is_ended(&self, nodes: &Nodes) -> bool {
        let (now, heard) = nodes.ask(self.node, &self.question).await;
        !matches!(heard.said, Says::Silent(_)) && now > self.acts_until
    }

    /// Asks the node until nothing is left there. Returns false if that is not so by `until`.
    async fn ends(&self, nodes: &Nodes, until: Instant) -> bool {
        let mut pause = FIRST_PAUSE;
        while !self.is_ended(nodes).await {
            if Instant::now() + pause >= until {
                return false;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
        true
    }
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

    /// What a call of the last `patience` may have left on a node that has not answered it.
    pub(super) fn unheard(&self, node: usize, question: &Question, patience: Duration) -> Leftover {
        let acts_until = self.nodes.peer(node).now().saturating_add(millis_up(patience));
        Leftover { node, question: question.clone(), acts_until }
    }

    /// What a node has, with no call on its way to it.
    pub(super) fn heard(&self, node: usize, question: &Question) -> Leftover {
        Leftover { node, question: question.clone(), acts_until: 0 }
    }

    /// Asks each node once. Returns what may be left.
    pub(super) async fn once(&self, left: Vec<Leftover>) -> Vec<Leftover> {
        self.within(left, Duration::ZERO).await
    }

    /// Asks each node until it confirms, for so long. Returns what may be left.
    pub(super) async fn within(&self, left: Vec<Leftover>, time: Duration) -> Vec<Leftover> {
        let until = Instant::now() + time;
        let asked = left.into_iter().map(|left| async move {
            let is_ended = left.ends(&self.nodes, until).await;
            (!is_ended).then_some(left)
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Asks the nodes in the background until they answer, for as long as what is left there
    /// `lasts`.
    pub(super) fn owe(&self, left: Vec<Leftover>, lasts: Duration) {
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
            let (nodes, over_at) = (self.nodes.clone(), Instant::now() + lasts);
            self.background.spawn(async move {
                let _room = room;
                // While a call is on its way there, an answer at once ends nothing.
                if left.acts_until > 0 {
                    sleep(FIRST_PAUSE).await;
                }
                left.ends(&nodes, over_at).await;
            });
        }
    }
}
