//! The nodes, asked together: questions as arguments of the scripts, answers as ballots.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::store::Target;
use crate::store::redis::deadline::{Deadline, When};
use crate::store::redis::keys::{Keys, SIDE_PREFIX};
use crate::store::redis::node::ScriptCall;
use crate::store::redis::script::{Reply, Script, or_empty, script};
use crate::store::redlock::background::Background;
use crate::store::redlock::peer::Peer;
use crate::store::redlock::settings::{RedlockSettings, Restarted};
use crate::store::redlock::vote::{Ballot, Other, Poll, Quorum, Since, Yes};

script!(TRY_ACQUIRE, Verb::TryAcquire, 3: "prelude.lua" "guard.lua" "vote.lua" "try_acquire.lua");
script!(CONFIRM, Verb::Confirm, 3: "prelude.lua" "guard.lua" "vote.lua" "confirm.lua");
script!(UNCONFIRM, Verb::Unconfirm, 3: "prelude.lua" "guard.lua" "vote.lua" "unconfirm.lua");
script!(LEVEL, Verb::Level, 3: "prelude.lua" "guard.lua" "vote.lua" "level.lua");
script!(REFRESH, Verb::Refresh, 3: "prelude.lua" "guard.lua" "vote.lua" "refresh.lua");
script!(RELEASE, Verb::Release, 3: "prelude.lua" "guard.lua" "vote.lua" "release.lua");
script!(FORCE_RELEASE, Verb::ForceRelease, 3: "prelude.lua" "guard.lua" "vote.lua" "force_release.lua");
script!(INSPECT, Verb::Inspect, 3: "prelude.lua" "guard.lua" "vote.lua" "inspect.lua");

/// The nodes of the list, reachable or not.
pub(super) struct Nodes {
    peers: Vec<Arc<dyn Peer>>,
    key_prefix: String,
    /// The key on each node that says when and for which instances the node votes.
    guard: Arc<str>,
    settings: String,
    background: Option<Background>,
}

/// The answers to a poll that come after its result, all at once.
pub(super) type Late = oneshot::Receiver<Vec<(usize, Ballot)>>;

/// A question about one lock, to all nodes.
#[derive(Clone)]
pub(super) struct Question {
    script: &'static Script,
    keys: Arc<Keys>,
    guard: Arc<str>,
    args: Arc<[String]>,
    when: When,
    /// The scripts tell it from requests that were made before others acted: their second argument
    /// is when it was made.
    in_order: Option<Deadline>,
    patience: Duration,
}

/// The part of what a token has that is given up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part<'a> {
    All,
    /// Only what has the number that the target names.
    Exact,
    /// Only a vote of this attempt that no other uses.
    Of(&'a str),
}

impl<'a> Part<'a> {
    fn attempt(self) -> Option<&'a str> {
        match self {
            Self::Of(attempt) => Some(attempt),
            Self::All | Self::Exact => None,
        }
    }
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
        let (when, in_order) = (When::AnyTime, None);
        Question { script, keys, guard, args: args.into(), when, in_order, patience }
    }

    /// A question that gives up a part of what the target's token has, up to its fencing token.
    pub(super) fn release(
        &self,
        target: &Target,
        part: Part<'_>,
        when: When,
        patience: Duration,
    ) -> Question {
        let times = if when == When::AnyTime { 2 } else { 1 };
        let args = self.release_args(target, part);
        let args = std::iter::repeat_n(String::new(), times).chain(args).collect();
        Question { when, ..self.question(&RELEASE, &target.key, args, patience) }
    }

    /// A question that gives up what the target's token has had since before this request.
    pub(super) fn release_older(
        &self,
        target: &Target,
        request: Deadline,
        patience: Duration,
    ) -> Question {
        let args = self.release_args(target, Part::All).to_vec();
        self.question(&RELEASE, &target.key, args, patience).in_order(request)
    }

    fn release_args(&self, target: &Target, part: Part<'_>) -> [String; 5] {
        [
            target.token.expose().to_owned(),
            target.only.renewals(),
            or_empty(part.attempt()),
            or_empty(target.number),
            or_empty((part == Part::Exact).then_some(1)),
        ]
    }

    pub(super) fn inspection(&self, key: &LockKey, patience: Duration) -> Question {
        self.question(&INSPECT, key, Vec::new(), patience)
    }

    pub(super) async fn ask(&self, node: usize, question: &Question) -> Result<Reply, StoreError> {
        question.clone().put(self.peers[node].clone()).await
    }

    /// Asks all nodes at once and returns all answers, in the order of the nodes.
    pub(super) async fn ask_each(&self, question: &Question) -> Vec<Result<Reply, StoreError>> {
        let asked = (0..self.peers.len()).map(|node| self.ask(node, question));
        futures_util::future::join_all(asked).await
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
        self.poll_open(question, enough).await.0
    }

    /// The same, with the answers that come late, if some do.
    pub(super) async fn poll_open(
        &self,
        question: &Question,
        enough: impl Fn(&Poll) -> bool,
    ) -> (Poll, Option<Late>) {
        let mut poll = Poll::new(self.quorum());
        let calls = self.peers.iter().cloned().enumerate().map(|(node, peer)| {
            let question = question.clone();
            async move { (node, question.put(peer).await) }
        });
        let mut open: FuturesUnordered<_> = calls.collect();
        while let Some((node, reply)) = open.next().await {
            poll.count(node, ballot(reply));
            if enough(&poll) {
                break;
            }
        }
        let background = self.background.as_ref().filter(|_| !open.is_empty());
        let late = background.map(|background| {
            let (sender, late) = oneshot::channel();
            background.spawn(async move {
                let heard = open.map(|(node, reply)| (node, ballot(reply))).collect().await;
                let _ = sender.send(heard); // Most polls need no more.
            });
            late
        });
        (poll, late)
    }
}

impl Question {
    /// The same question, to be refused by a node after this deadline, its first argument.
    pub(super) fn until(self, deadline: Deadline) -> Self {
        Self { when: When::Until(deadline), ..self }
    }

    /// The same, and it tells when it was made: the second argument.
    pub(super) fn in_order(self, deadline: Deadline) -> Self {
        Self { when: When::Until(deadline), in_order: Some(deadline), ..self }
    }

    async fn put(self, peer: Arc<dyn Peer>) -> Result<Reply, StoreError> {
        let Self { script, keys, guard, args, when, in_order, patience } = self;
        let [lock, record, ..] = keys.all();
        let keys = [lock, record, &*guard];
        let asked = in_order.map(|request| peer.when_asked(request).to_string());
        let args: Vec<_> = asked.iter().chain(args.iter()).map(String::as_str).collect();
        peer.call(&ScriptCall { script, keys: &keys, args: &args, when }, patience).await
    }
}

/// The guard's key for locks of this prefix; no lock has this name.
pub(super) fn guard(key_prefix: &str) -> String {
    format!("{SIDE_PREFIX}guard:{key_prefix}")
}

fn ballot(reply: Result<Reply, StoreError>) -> Ballot {
    match reply {
        Err(error) => Ballot::Silent(error.effect),
        // A malformed reply proves nothing.
        Ok(reply) => read(reply).unwrap_or(Ballot::Silent(Effect::Unknown)),
    }
}

fn read(mut reply: Reply) -> Option<Ballot> {
    Some(match reply.word() {
        "yes" => Ballot::Yes(yes(&mut reply, Since::Now)?),
        "again" => Ballot::Yes(yes(&mut reply, Since::Before)?),
        "taken" | "held" => Ballot::No(Some(other(&mut reply)?)),
        "lost" | "no" | "free" | "ended" => Ballot::No(None),
        "missing" => Ballot::Missing(natural(&mut reply)?),
        "taken_over" => Ballot::TakenOver,
        "blank" => Ballot::Blank,
        "foreign" => Ballot::Foreign,
        _ => return None,
    })
}

fn yes(reply: &mut Reply, since: Since) -> Option<Yes> {
    let number = natural(reply).unwrap_or_default();
    let renewals = natural(reply).unwrap_or_default();
    let asked = natural(reply).zip(reply.text());
    let held = natural(reply);
    let (drawer, before) = (reply.text().unwrap_or_default(), natural(reply));
    Some(Yes { number, drawer, since, renewals, asked, held, before })
}

/// Reads milliseconds left, holder, fencing token, owner and milliseconds held.
pub(super) fn other(reply: &mut Reply) -> Option<Other> {
    // -1 left: a lock without a TTL.
    let left = u64::try_from(reply.number()?).ok().map(Duration::from_millis);
    let holder = reply.bytes()?;
    let number = natural(reply)?;
    let owner = reply.text().unwrap_or_default();
    let held = natural(reply);
    Some(Other { holder, left, number, owner, held, renewals: natural(reply).unwrap_or_default() })
}

/// The next item, if it is a non-negative number.
pub(super) fn natural(reply: &mut Reply) -> Option<u64> {
    reply.number()?.try_into().ok()
}
