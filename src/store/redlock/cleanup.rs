//! What a failed attempt or a release leaves behind on single nodes is taken back, until the node
//! has confirmed it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::store::redlock::background::Background;
use crate::store::redlock::nodes::{Nodes, Question};

/// The most that is owed to all nodes at once; what is beyond ends by its TTL.
const MAX_OWED: usize = 10_000;

/// Between two tries, doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// What one node may still have.
pub(super) struct Leftover {
    pub(super) node: usize,
    /// A command that is on its way to the node does not act later than this, on its clock.
    pub(super) settled_after: u64,
}

/// Takes back what is left on nodes that did not answer.
pub(super) struct Cleanup {
    nodes: Arc<Nodes>,
    background: Arc<Background>,
    room: Arc<Semaphore>,
    /// The log has said that there is no room, and there was none since.
    told: AtomicBool,
}

impl Cleanup {
    pub(super) fn new(nodes: Arc<Nodes>, background: Arc<Background>) -> Self {
        Self {
            nodes,
            background,
            room: Arc::new(Semaphore::new(MAX_OWED)),
            told: AtomicBool::new(false),
        }
    }

    /// What `node` may have of a call that is sent now and answered by nobody.
    pub(super) fn leftover(&self, node: usize, patience: Duration) -> Leftover {
        let patience = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        Leftover { node, settled_after: self.nodes.peer(node).now().saturating_add(patience) }
    }

    /// What `node` has, where no call is on its way to it.
    pub(super) fn leftover_now(&self, node: usize) -> Leftover {
        Leftover { node, settled_after: 0 }
    }

    /// Asks these nodes once to give up what `question` means, and says on which it may still be.
    pub(super) async fn once(&self, left: Vec<Leftover>, question: &Question) -> Vec<Leftover> {
        let asked = left.into_iter().map(|left| async move {
            let answered = self.nodes.ask(left.node, question).await;
            let settled = answered.is_ok_and(|reply| reply.now > left.settled_after);
            (!settled).then_some(left)
        });
        futures_util::future::join_all(asked).await.into_iter().flatten().collect()
    }

    /// Goes on asking them, for as long as it may still be there.
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
                    if answered.is_ok_and(|reply| reply.now > left.settled_after) {
                        return;
                    }
                    pause = LAST_PAUSE.min(pause * 2);
                }
            });
        }
    }
}
