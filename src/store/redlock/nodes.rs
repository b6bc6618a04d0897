//! The nodes, asked together: questions as arguments of the scripts, and their answers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::State;
use crate::lock::token::LeaseToken;
use crate::store::redis::deadline::{Deadline, When};
use crate::store::redis::keys::{Keys, SIDE_PREFIX};
use crate::store::redis::node::ScriptCall;
use crate::store::redis::script::{Reply, Script, script};
use crate::store::redlock::background::Background;
use crate::store::redlock::peer::Peer;
use crate::store::redlock::poll::{Heard, Holding, Poll, Says, Vote};
use crate::store::redlock::settings::{RedlockSettings, Restarted};
use crate::store::redlock::tally::Quorum;

script!(TRY_ACQUIRE, Verb::TryAcquire, 3: "prelude.lua" "guard.lua" "record.lua" "try_acquire.lua");
script!(UNDO, Verb::Upkeep, 3: "prelude.lua" "guard.lua" "record.lua" "undo.lua");
script!(REFRESH, Verb::Refresh, 3: "prelude.lua" "guard.lua" "record.lua" "refresh.lua");
script!(SETTLE, Verb::Upkeep, 3: "prelude.lua" "guard.lua" "record.lua" "settle.lua");
script!(RELEASE, Verb::Release, 3: "prelude.lua" "guard.lua" "record.lua" "release.lua");
script!(INSPECT, Verb::Inspect, 3: "prelude.lua" "guard.lua" "record.lua" "inspect.lua");

/// The nodes of the list, reachable or not.
pub(super) struct Nodes {
    peers: Vec<Arc<dyn Peer>>,
    key_prefix: String,
    /// The key on each node that says when and for which instances the node votes.
    guard: Arc<str>,
    settings: String,
    background: Option<Background>,
}

/// A question about one lock, to one node or to all.
#[derive(Clone)]
pub(super) struct Question {
    script: &'static Script,
    keys: Arc<Keys>,
    guard: Arc<str>,
    args: Arc<[String]>,
    when: When,
    patience: Duration,
}

impl Nodes {
    pub(super) fn new(
        peers: Vec<Arc<dyn Peer>>,
        settings: &RedlockSettings,
        background: Option<Background>,
    ) -> Self {
        let key_prefix = settings.nodes[0].key_prefix.clone();
        let trusted = match settings.restarted {
            Restarted::Doubted => "",
            Restarted::Trusted => "1",
        };
        let longest = settings.rules.longest_lease.as_millis();
        Self {
            guard: guard(&key_prefix).into(),
            settings: format!("{longest}|{}|{trusted}", peers.len()),
            peers,
            key_prefix,
            background,
        }
    }

    /// The number of nodes, and of a majority.
    pub(super) fn quorum(&self) -> Quorum {
        Quorum::of(self.peers.len())
    }

    pub(super) fn peer(&self, node: usize) -> &Arc<dyn Peer> {
        &self.peers[node]
    }

    pub(super) fn key_prefix(&self) -> &str {
        &self.key_prefix
    }

    /// The time of the clock that is ahead of all others, in milliseconds.
    pub(super) fn latest_clock(&self) -> u64 {
        self.peers.iter().map(|peer| peer.now()).max().unwrap_or_default()
    }

    /// A question that may act at any time.
    pub(super) fn question(
        &self,
        script: &'static Script,
        key: &LockKey,
        mut args: Vec<String>,
        patience: Duration,
    ) -> Question {
        let (keys, guard) = (Arc::new(Keys::of(&self.key_prefix, key)), self.guard.clone());
        args.push(self.settings.clone());
        Question { script, keys, guard, args: args.into(), when: When::AnyTime, patience }
    }

    /// A question about the votes of one attempt.
    pub(super) fn of_attempt(
        &self,
        script: &'static Script,
        (key, token): (&LockKey, &LeaseToken),
        attempt: u64,
        patience: Duration,
    ) -> Question {
        let args = vec![token.expose().to_owned(), attempt.to_string()];
        self.question(script, key, args, patience)
    }

    pub(super) fn look(&self, key: &LockKey, patience: Duration) -> Question {
        self.question(&INSPECT, key, Vec::new(), patience)
    }

    /// Asks one node. Returns the time of its clock as well, in milliseconds.
    pub(super) async fn ask(&self, node: usize, question: &Question) -> (u64, Heard) {
        question.clone().put(self.peers[node].clone()).await
    }

    /// Runs a script about the guard of one node.
    pub(super) async fn ask_guard(
        &self,
        node: usize,
        script: &'static Script,
        patience: Duration,
    ) -> Result<Reply, StoreError> {
        let (keys, args) = ([&*self.guard], [self.settings.as_str()]);
        let call = ScriptCall { script, keys: &keys, args: &args, when: When::AnyTime };
        self.peers[node].call(&call, patience).await
    }

    /// Asks all nodes at once until `enough` have answered. The other calls still run: a late vote
    /// makes the lease more robust.
    pub(super) async fn poll(&self, question: &Question, enough: impl Fn(&Poll) -> bool) -> Poll {
        let all = (0..self.peers.len()).map(|node| (node, question.clone()));
        self.poll_each(all.collect(), enough).await
    }

    /// The same for a question to each of these nodes.
    pub(super) async fn poll_each(
        &self,
        questions: Vec<(usize, Question)>,
        enough: impl Fn(&Poll) -> bool,
    ) -> Poll {
        let mut poll = Poll::new(self.quorum());
        let calls = questions.into_iter().map(|(node, question)| {
            let peer = self.peers[node].clone();
            async move { (node, question.put(peer).await.1) }
        });
        let mut open: FuturesUnordered<_> = calls.collect();
        while let Some((node, heard)) = open.next().await {
            poll.count(node, heard);
            if enough(&poll) {
                break;
            }
        }
        if let Some(background) = self.background.as_ref().filter(|_| !open.is_empty()) {
            background.spawn(open.for_each(async |_| ()));
        }
        poll
    }
}

impl Question {
    /// The same question, to be refused by a node after this deadline, its first argument.
    pub(super) fn until(self, deadline: Deadline) -> Self {
        Self { when: When::Until(deadline), ..self }
    }

    async fn put(self, peer: Arc<dyn Peer>) -> (u64, Heard) {
        let Self { script, keys, guard, args, when, patience } = self;
        let [lock, record, ..] = keys.all();
        let keys = [lock, record, &*guard];
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let silent = |effect| Heard { votes: false, highest: 0, said: Says::Silent(effect) };
        match peer.call(&ScriptCall { script, keys: &keys, args: &args, when }, patience).await {
            Err(error) => (0, silent(error.effect)),
            // A malformed reply proves nothing.
            Ok(reply) => (reply.now, read(reply).unwrap_or_else(|| silent(Effect::Unknown))),
        }
    }
}

/// The guard's key for locks of this prefix; no lock has this name.
pub(super) fn guard(key_prefix: &str) -> String {
    format!("{SIDE_PREFIX}guard:{key_prefix}")
}

fn read(mut reply: Reply) -> Option<Heard> {
    if reply.word() == "foreign" {
        return Some(Heard { votes: false, highest: 0, said: Says::Foreign });
    }
    let (votes, highest) = (reply.number()? == 1, natural(&mut reply)?);
    let said = match reply.word() {
        "yes" => Says::Yes(millis(&mut reply)?),
        "again" => Says::Again,
        "behind" => Says::Behind,
        "has" => Says::Has(vote(&mut reply)?),
        "held" => Says::Held(Holding {
            left: millis(&mut reply), // -1: a lock without a TTL.
            holder: reply.bytes()?,
            number: natural(&mut reply)?,
            owner: reply.text()?,
            held: millis(&mut reply),
        }),
        "ended" => Says::Ended(natural(&mut reply)?, reply.text()?),
        "free" => Says::Free,
        "taken" => Says::Taken,
        "undone" | "waits" | "nothing" | "joined" | "changed" => Says::Done,
        _ => return None,
    };
    Some(Heard { votes, highest, said })
}

fn vote(reply: &mut Reply) -> Option<Vote> {
    Some(Vote {
        number: natural(reply)?,
        by: reply.text()?,
        left: millis(reply).unwrap_or_default(), // -1: a lock without a TTL.
        ttl: millis(reply)?,
        state: State::from_number(natural(reply)?)?,
        owner: reply.text()?,
        held: millis(reply),
    })
}

/// The next item, if it is a non-negative number.
pub(super) fn natural(reply: &mut Reply) -> Option<u64> {
    reply.number()?.try_into().ok()
}

/// The next item in milliseconds, unless it is negative.
fn millis(reply: &mut Reply) -> Option<Duration> {
    natural(reply).map(Duration::from_millis)
}
