//! Slots of a Cluster that move while their keys are in use.

use std::time::{Duration, Instant};

use redis::FromRedisValue;
use tokio::task::JoinSet;

use crate::redis_faults::contest::Contest;
use crate::redis_faults::{LONG, PATIENCE, acquire, look, refresh, release, unavailable};
use crate::support::fleet::Clustered;
use crate::support::{Redis, eventually};
use crate::topology_faults::{figure, service};

const TOKEN: &str = "token-of-the-client";
const REROUTED: &str = "lockkeeper_redis_rerouted_total";

/// A slot on its way from one master to another.
struct Move<'a> {
    slot: u16,
    from: &'a Redis,
    to: &'a Redis,
    /// The others have to hear of it as well.
    all: &'a [Redis],
}

impl<'a> Move<'a> {
    /// Begins to move the slot of a lock to the next master.
    fn begin(clustered: &'a Clustered, lock: &str) -> Self {
        let all = clustered.masters.as_slice();
        let slot: u16 = all[0].run_words(&["CLUSTER", "KEYSLOT", lock]);
        let at = all.iter().position(|node| owns(node, slot)).unwrap();
        let (from, to) = (&all[at], &all[(at + 1) % all.len()]);
        let ids: [String; 2] = [from, to].map(|node| node.run("CLUSTER MYID"));
        to.run::<()>(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
        from.run::<()>(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
        Self { slot, from, to, all }
    }

    /// Moves all keys of the slot that there are.
    fn keys(&self) {
        loop {
            let slot = self.slot;
            let keys: Vec<String> = self.from.run(&format!("CLUSTER GETKEYSINSLOT {slot} 1"));
            let Some(key) = keys.first() else { return };
            let port = self.to.port().to_string();
            // One that is gone by now is no fault.
            self.from.run_words::<String>(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        }
    }

    /// Gives the slot to its new master.
    fn end(self) {
        self.keys();
        let id: String = self.to.run("CLUSTER MYID");
        let others = self.all.iter().filter(|node| node.port() != self.to.port());
        for node in std::iter::once(self.to).chain(others) {
            node.run::<()>(&format!("CLUSTER SETSLOT {} NODE {id}", self.slot));
        }
    }
}

/// Whether a node is the master of a slot.
fn owns(node: &Redis, slot: u16) -> bool {
    let lines: String = node.run("CLUSTER NODES");
    let mine = lines.lines().find(|line| line.contains("myself")).unwrap();
    mine.split(' ').skip(8).filter(|range| !range.starts_with('[')).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        (first.parse::<u16>().unwrap()..=last.parse().unwrap()).contains(&slot)
    })
}

fn on<T: FromRedisValue>(node: &Redis, key: &str) -> T {
    node.run_words(&["EXISTS", key])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_sent_on_to_where_a_slot_goes_and_waits_while_it_is_torn() {
    let clustered = Clustered::masters().await;
    let service = service(&clustered.url(), &[]).await;
    let http = service.http();
    assert_eq!(acquire(&http, "{moving}", TOKEN, LONG).await.status, 201);
    let shared = http.token(TOKEN).post("/locks/{moving}shared?slots=2", "").await;
    assert_eq!(shared.status, 201, "{shared:?}");
    let moving = Move::begin(&clustered, "lock:{moving}");
    moving.keys();
    // The lock and its record are with the next master, the slot is not yet its own.
    let refreshed = refresh(&http, "{moving}", TOKEN).await;
    assert_eq!(refreshed.status, 200, "{refreshed:?}");
    assert_eq!(figure(&http, &format!("{REROUTED}{{kind=\"ask\"}}")).await, 1);
    assert_eq!(figure(&http, &format!("{REROUTED}{{kind=\"moved\"}}")).await, 0);
    // One of a shared lease names keys that there are not, so nobody can run it before that.
    let began = Instant::now();
    let torn = release(&http, "{moving}shared", TOKEN).await;
    assert_eq!(torn.told(), unavailable(), "{torn:?}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(figure(&http, &format!("{REROUTED}{{kind=\"try_again\"}}")).await > 5);
    // One that waits for it is served when it has.
    let to = moving.to;
    let (released, ()) =
        tokio::join!(release(&http, "{moving}shared", TOKEN), async { moving.end() });
    assert_eq!(released.status, 204, "{released:?}");
    assert_eq!(on::<u8>(to, "lock:{moving}shared"), 0);
    // The map may have been looked at anew meanwhile; what it has is right.
    assert_eq!(release(&http, "{moving}", TOKEN).await.status, 204);
    let next = acquire(&http, "{moving}", TOKEN, LONG).await;
    assert_eq!(next.status, 201, "{next:?}");
    assert!(next.number("fencing_token") > refreshed.number("fencing_token"), "{next:?}");
    assert_eq!(on::<u8>(to, "lock:{moving}"), 1);
}

/// A move that was interrupted stays so until somebody ends it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_moving_slot_holds_up_leaves_the_list_and_other_calls_alone() {
    let clustered = Clustered::masters().await;
    let service = service(&clustered.url(), &[]).await;
    let http = service.http();
    for key in ["{moving}", "{moving}waited", "other"] {
        assert_eq!(acquire(&http, key, TOKEN, LONG).await.status, 201);
    }
    let shared = http.token(TOKEN).post("/locks/{moving}shared?slots=2", "").await;
    assert_eq!(shared.status, 201, "{shared:?}");
    let listed = async || {
        let list = http.get("/locks").await;
        assert_eq!(list.status, 200, "{list:?}");
        let locks = list.field("locks");
        let keys = locks.as_array().unwrap().iter().map(|lock| lock["key"].clone());
        (keys.collect::<Vec<_>>(), list.field("incomplete"))
    };
    let mut waiting = JoinSet::new();
    let waiter = http.clone();
    waiting.spawn(async move { waiter.post("/locks/{moving}waited?wait=30s", "").await });
    eventually(PATIENCE, async || {
        (look(&http, "{moving}waited").await.number("waiters") == 1).then_some(())
    })
    .await;
    let all = ["other", "{moving}", "{moving}shared", "{moving}waited"];
    assert_eq!(listed().await, (all.map(Into::into).to_vec(), serde_json::Value::Null));
    let moving = Move::begin(&clustered, "lock:{moving}");
    moving.keys();
    assert_eq!(listed().await, (["other", "{moving}"].map(Into::into).to_vec(), true.into()));
    assert_eq!(look(&http, "{moving}").await.field("held"), true);
    assert_eq!(release(&http, "{moving}", TOKEN).await.status, 204);
    let to = moving.to;
    moving.end();
    waiting.abort_all();
    assert_eq!(on::<u8>(to, "lock:{moving}"), 0);
    let left = ["other", "{moving}shared", "{moving}waited"];
    assert_eq!(listed().await, (left.map(Into::into).to_vec(), serde_json::Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_has_moved_unnoticed_is_found_by_the_first_call() {
    let clustered = Clustered::masters().await;
    let service = service(&clustered.url(), &[]).await;
    let http = service.http();
    let first = acquire(&http, "moved", TOKEN, LONG).await;
    assert_eq!(first.status, 201);
    for round in 1..=3 {
        let moving = Move::begin(&clustered, "lock:moved");
        let to = moving.to;
        moving.end();
        let again = refresh(&http, "moved", TOKEN).await;
        assert_eq!(again.status, 200, "{round}: {again:?}");
        assert_eq!(again.number("fencing_token"), first.number("fencing_token"));
        assert_eq!(on::<u8>(to, "lock:moved"), 1);
    }
    // A look that happens to come first finds it, too; it does not every time.
    assert!(figure(&http, &format!("{REROUTED}{{kind=\"moved\"}}")).await > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_under_load_never_let_two_hold_a_key() {
    const MOVES: usize = 30;
    let clustered = Clustered::masters().await;
    let service = service(&clustered.url(), &[]).await;
    let http = service.http();
    let contest = Contest::begin(&http);
    contest.goes_on(50).await;
    let rerouted = async || {
        let mut counts = Vec::new();
        for kind in ["moved", "ask", "try_again"] {
            counts.push(figure(&http, &format!("{REROUTED}{{kind=\"{kind}\"}}")).await);
        }
        counts
    };
    let mut slowest = Duration::ZERO;
    for number in 0..MOVES {
        let moving = Move::begin(&clustered, &format!("lock:contest/{}", number % 4));
        let before: u64 = rerouted().await.iter().sum();
        moving.keys();
        // Whoever wants the key waits now, and soon that is everybody.
        eventually(PATIENCE, async || {
            let now: u64 = rerouted().await.iter().sum();
            (now > before + 5).then_some(())
        })
        .await;
        let began = Instant::now();
        moving.end();
        contest.goes_on(20).await;
        slowest = slowest.max(began.elapsed());
    }
    let tally = contest.finish().await;
    let rerouted = rerouted().await;
    eprintln!(
        "{MOVES} slots moved: {} grants, {} times 503, [moved, ask, try_again] = {rerouted:?}; 20 grants after a move \
         within {slowest:?}",
        tally.grants, tally.unavailable
    );
    assert!(rerouted.iter().all(|count| *count > 0), "{rerouted:?}");
    assert!(tally.unavailable < tally.grants, "{tally:?}");
}
