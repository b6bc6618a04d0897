//! The master that sentinels name. A task for each sentinel subscribes to it and asks it, so one
//! that is unreachable or behind does not matter: the answer of the highest epoch wins, and stays
//! when its sentinels fall silent. Sentinels that were set up anew count from the beginning: most of
//! all are believed once the master is down. The old master's connections close at once, so that it
//! is not written to if it comes back and still believes it is the master.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisError};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};

use crate::lock::backoff::Backoff;
use crate::lock::watched::endless;
use crate::store::redis::RedisSettings;
use crate::store::redis::connect::{Connector, RETRIES, connection_info};
use crate::store::redis::link::Hints;
use crate::store::redis::node::{Node, NodeFactory};
use crate::store::redis::place::Sentinels;

/// The channel on which a sentinel announces a new master.
const SWITCHED: &str = "+switch-master";

/// The interval of questions to a silent sentinel: a message may be lost.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The time that an unreachable sentinel's word counts.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The reason why there is no master.
const UNNAMED: &str =
    "no sentinel has named the master: check its name in the URL, and the sentinels' addresses";

/// The store on the master that sentinels name.
pub(super) struct Sentinel {
    master: watch::Receiver<Option<Arc<Node>>>,
    _watchers: JoinSet<()>,
}

/// The state shared by the watchers.
struct Follower {
    sentinels: Sentinels,
    factory: NodeFactory,
    trouble: Arc<Notify>,
    master: watch::Sender<Option<Arc<Node>>>,
    said: Mutex<Said>,
}

/// The last words of the sentinels by their addresses, and the one that is followed, which is never
/// forgotten.
#[derive(Default)]
struct Said {
    words: HashMap<String, Word>,
    followed: Option<Word>,
}

#[derive(Clone)]
struct Word {
    epoch: u64,
    address: String,
    at: Instant,
}

impl Sentinel {
    /// Starts to follow the master in the background.
    pub(super) fn new(sentinels: Sentinels, factory: NodeFactory) -> Result<Self, RedisError> {
        connection_info(&sentinels.nodes.url(&sentinels.addresses[0]))?;
        let (master, followed) = watch::channel(None);
        let addresses = sentinels.addresses.clone();
        let follower = Arc::new(Follower {
            sentinels,
            factory,
            trouble: Arc::default(),
            master,
            said: Mutex::default(),
        });
        let mut watchers = JoinSet::new();
        for address in addresses {
            let info = connection_info(&follower.sentinels.sentinels.url(&address))?;
            let (pushes, heard) = mpsc::unbounded_channel();
            let config = AsyncConnectionConfig::new().set_push_sender(pushes);
            let RedisSettings { tls, connect_timeout, .. } = &follower.factory.settings;
            let connector = Connector::new(&info, tls, *connect_timeout, config)?;
            let watching = follower.clone().watch(address, connector, heard);
            watchers.spawn(endless("the watcher of a sentinel", watching));
        }
        Ok(Self { master: followed, _watchers: watchers })
    }

    /// The master; waits for one until `deadline`.
    pub(super) async fn master(&self, deadline: Instant) -> Result<Arc<Node>, String> {
        if let Some(node) = &*self.master.borrow() {
            return Ok(node.clone());
        }
        let mut master = self.master.clone();
        match timeout_at(deadline.into(), master.wait_for(Option::is_some)).await {
            Ok(Ok(known)) => Ok(known.clone().expect("it is waited for")),
            _ => Err(UNNAMED.to_owned()),
        }
    }

    /// The master, if there is one.
    pub(super) fn known_master(&self) -> Option<Arc<Node>> {
        self.master.borrow().clone()
    }

    /// `Ok` if the master has been connected; the error says why it has not.
    pub(super) fn contacted(&self) -> Result<(), String> {
        let master = self.master.borrow();
        master.as_ref().ok_or_else(|| UNNAMED.to_owned())?.contacted()
    }
}

impl Follower {
    /// Watches a sentinel for as long as the store lives.
    async fn watch(
        self: Arc<Self>,
        address: String,
        connector: Connector,
        mut pushes: mpsc::UnboundedReceiver<PushInfo>,
    ) {
        let mut known = String::new();
        let mut retries = RETRIES;
        loop {
            let Err(reason) = self.listen(&address, &connector, &mut pushes, &mut retries).await;
            if reason != known {
                tracing::warn!(sentinel = address, %reason, "cannot query a sentinel; retrying");
                known = reason;
            }
            retries.pause().await;
        }
    }

    /// Watches until the connection is lost; the error is the reason.
    async fn listen(
        self: &Arc<Self>,
        address: &str,
        connector: &Connector,
        pushes: &mut mpsc::UnboundedReceiver<PushInfo>,
        retries: &mut Backoff,
    ) -> Result<std::convert::Infallible, String> {
        let patience = self.factory.settings.connect_timeout;
        let mut connection = connector.connect().await?;
        let subscribed = timeout(patience, connection.subscribe(SWITCHED)).await;
        subscribed.map_err(|_| "no answer in time")?.map_err(|error| error.to_string())?;
        loop {
            // Before the question, so that trouble during it leads to another question.
            let trouble = self.trouble.notified();
            let word = timeout(patience, ask(&mut connection, &self.sentinels.master)).await;
            let word = word.map_err(|_| "no answer in time".to_owned())??;
            self.hear(address, word);
            tokio::select! {
                push = pushes.recv() => {
                    if push.is_none_or(|push| push.kind == PushKind::Disconnection) {
                        return Err("the connection is lost".to_owned());
                    }
                }
                () = trouble => retries.pause().await,
                () = sleep(ASK_EVERY) => *retries = RETRIES,
            }
        }
    }

    /// Notes a sentinel's word, and follows the master that results from all.
    fn hear(self: &Arc<Self>, sentinel: &str, word: Word) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let serves = self.master.borrow().as_ref().is_some_and(|node| node.is_up());
        said.words.insert(sentinel.to_owned(), word);
        said.words.retain(|_, word| word.at.elapsed() < FORGOTTEN_AFTER);
        let Some(word) = said.turn(serves, self.sentinels.addresses.len()) else { return };
        let (hints, trouble) = (self.factory.hints.clone(), self.trouble.clone());
        let hints = Arc::new(MasterHints { hints, trouble });
        match self.factory.make(&self.sentinels.nodes, &word.address, hints) {
            Ok(node) => {
                tracing::info!(redis = word.address, sentinel, "the sentinels name this master");
                if said.followed.is_some() {
                    self.factory.metrics.redis_rerouted("master");
                }
                if let Some(old) = self.master.send_replace(Some(Arc::new(node))) {
                    old.retire();
                }
            }
            Err(error) => tracing::warn!(redis = word.address, %error, "invalid master address"),
        }
        said.followed = Some(word);
    }
}

impl Said {
    /// The word that leads to another master: that of the highest epoch. Within one epoch, the
    /// followed master stays. A lower one leads away from it only if it is down, and if most of all
    /// sentinels say so.
    fn turn(&mut self, serves: bool, sentinels: usize) -> Option<Word> {
        let address = self.followed.as_ref().map(|followed| followed.address.clone());
        let is_followed = |word: &Word| address.as_ref() == Some(&word.address);
        let best = self.words.values().max_by_key(|word| (word.epoch, is_followed(word)))?.clone();
        let Some(followed) = &mut self.followed else { return Some(best) };
        if is_followed(&best) {
            followed.epoch = followed.epoch.max(best.epoch);
            return None;
        }
        let agreed = self.words.values().filter(|word| word.address == best.address).count();
        let is_agreed = !serves && agreed > sentinels / 2;
        (best.epoch > followed.epoch || is_agreed).then_some(best)
    }
}

async fn ask(connection: &mut MultiplexedConnection, master: &str) -> Result<Word, String> {
    let question = |word| redis::cmd("SENTINEL").arg(word).arg(master).to_owned();
    let failed = |error: RedisError| error.to_string();
    // The address is new as soon as it is decided; the epoch comes only with the rest.
    let address = question("GET-MASTER-ADDR-BY-NAME").query_async(connection).await;
    let address: Option<(String, u16)> = address.map_err(failed)?;
    let (host, port) = address.ok_or_else(|| format!("it knows no master `{master}`"))?;
    let rest = question("MASTER").query_async(connection).await;
    let rest: HashMap<String, String> = rest.map_err(failed)?;
    let epoch = rest.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    Ok(Word { epoch, address: format!("{host}:{port}"), at: Instant::now() })
}

/// Receives the master's hints and its loss.
struct MasterHints {
    hints: Arc<dyn Hints>,
    trouble: Arc<Notify>,
}

impl Hints for MasterHints {
    fn handed(&self, lock: &str) {
        self.hints.handed(lock);
    }

    fn lost(&self) {
        self.hints.lost();
    }

    fn away(&self) {
        self.trouble.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{Said, Word};

    const OLD: (&str, u64, &str) = ("s1", 1, "old");
    const NEW: (&str, u64, &str) = ("s2", 2, "new");

    /// The master after these words of three sentinels, of which those before the last `fresh` are
    /// forgotten by then.
    fn followed(words: &[(&str, u64, &str)], fresh: usize, serves: bool) -> String {
        let mut said = Said::default();
        for (number, (who, epoch, whom)) in words.iter().enumerate() {
            if number + fresh == words.len() {
                said.words.clear();
            }
            let word = Word { epoch: *epoch, address: (*whom).into(), at: Instant::now() };
            said.words.insert((*who).into(), word);
            if let Some(word) = said.turn(serves, 3) {
                said.followed = Some(word);
            }
        }
        said.followed.unwrap().address
    }

    #[test]
    fn a_sentinel_that_is_behind_the_others_is_not_followed() {
        for serves in [true, false] {
            assert_eq!(followed(&[OLD], 1, serves), "old");
            assert_eq!(followed(&[OLD, NEW], 2, serves), "new");
            assert_eq!(followed(&[NEW, OLD], 2, serves), "new");
            assert_eq!(followed(&[("s1", 2, "other"), NEW], 2, serves), "other");
            // Two that have not heard of a new master, which is not connected yet.
            assert_eq!(followed(&[OLD, NEW, ("s3", 1, "old")], 3, serves), "new");
        }
    }

    #[test]
    fn a_master_outlives_the_silence_of_the_sentinels_that_named_it() {
        for serves in [true, false] {
            assert_eq!(followed(&[NEW, OLD], 1, serves), "new");
            // One that comes back behind does not lower the epoch.
            assert_eq!(followed(&[NEW, ("s2", 1, "new"), ("s3", 2, "other")], 1, serves), "new");
        }
    }

    #[test]
    fn most_sentinels_are_followed_to_a_lower_epoch_once_the_master_is_down() {
        let anew = [NEW, OLD, ("s3", 0, "old")];
        assert_eq!(followed(&anew, 2, true), "new");
        assert_eq!(followed(&anew, 2, false), "old");
    }
}
