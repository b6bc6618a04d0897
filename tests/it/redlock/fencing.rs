//! Fencing tokens through a thousand losses of the data of single nodes, under load.
//!
//! Sets of nodes share the servers, each with a database of its own, so that one is back while
//! others still wait; the longest lease is short.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::lock::lease::Claim;
use lockkeeper::lock::store::{Answer, Ask, Renewed, Store, Target, Win};
use lockkeeper::lock::time::Ttl;
use lockkeeper::metrics::Metrics;
use lockkeeper::store::redlock::Rules;
use lockkeeper::store::{StoreSettings, open};
use redis::AsyncConnectionConfig;
use tokio::task::JoinSet;

use crate::conformance::nodes::settings;
use crate::conformance::{KEPT, claim};
use crate::redlock::PATIENCE;
use crate::redlock::ledger::Ledger;
use crate::support::{Redis, eventually};

const SETS: usize = 16;
const NODES: usize = 5;
const LOSSES: usize = 1_000;

/// Of each lease; some run out. Each node has to answer within a twentieth of it.
const TTL: Ttl = Ttl::from_millis(900);

const RULES: Rules =
    Rules { node_timeout: Duration::from_millis(100), longest_lease: Ttl::from_millis(1_000) };

/// For a grant of one of the sets, all of which share the machine.
const LONG_PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_losses_of_single_nodes_let_no_number_fall_and_no_two_hold_a_key() {
    let servers: Arc<Vec<_>> = Arc::new((0..NODES).map(|_| Redis::start()).collect());
    let losses = Arc::new(AtomicUsize::new(0));
    let (mut sets, began) = (JoinSet::new(), Instant::now());
    for set in 0..SETS {
        sets.spawn(one_set(set, servers.clone(), losses.clone()));
    }
    let (mut grants, mut failed) = (0, 0);
    while let Some(done) = sets.join_next().await {
        let (its_grants, its_failed) = done.unwrap();
        grants += its_grants;
        failed += its_failed;
    }
    let took = began.elapsed();
    let losses = losses.load(Ordering::Relaxed);
    assert!(losses >= LOSSES && grants > losses, "{losses} losses, {grants} grants");
    eprintln!("{losses} losses of nodes in {took:?}: {grants} grants, {failed} times no answer");
}

/// Two instances that contend for one key of a set, nodes of which forget all the time.
async fn one_set(set: usize, servers: Arc<Vec<Redis>>, losses: Arc<AtomicUsize>) -> (usize, usize) {
    let urls: Vec<_> = servers.iter().map(|server| format!("{}/{set}", server.url())).collect();
    let mut stores = Vec::new();
    for _ in 0..2 {
        let settings = lockkeeper::store::redlock::RedlockSettings {
            rules: RULES,
            ..settings(&urls, "lock:", KEPT)
        };
        let metrics = Arc::new(Metrics::for_redlock());
        let store = open(StoreSettings::Redlock(settings), metrics).unwrap();
        eventually(PATIENCE, async || store.contacted().ok()).await;
        stores.push(store);
    }
    let (ledger, over) = (Arc::new(Ledger::default()), Arc::new(AtomicBool::new(false)));
    let failed = Arc::new(AtomicUsize::new(0));
    let forgetting = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for (number, store) in stores.iter().enumerate() {
        let (store, ledger) = (store.clone(), ledger.clone());
        let (over, failed, forgetting) = (over.clone(), failed.clone(), forgetting.clone());
        clients.spawn(async move {
            let mut round = 0;
            while !over.load(Ordering::Relaxed) {
                round += 1;
                let claim = claim("key", &format!("client-{number}-{round}"), TTL.as_millis());
                let answered = once(&*store, &claim, (&ledger, &forgetting)).await;
                failed.fetch_add(usize::from(!answered), Ordering::Relaxed);
            }
        });
    }
    let mut connections = Vec::new();
    for url in &urls {
        let client = redis::Client::open(url.as_str()).unwrap();
        let patient = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let connection = client.get_multiplexed_async_connection_with_config(&patient);
        connections.push(connection.await.unwrap());
    }
    while losses.load(Ordering::Relaxed) < LOSSES {
        let mut voting = Vec::new();
        for (node, connection) in connections.iter_mut().enumerate() {
            let mut get = redis::cmd("GET");
            get.arg("lk//guard:lock:");
            let guard: Option<String> = get.query_async(connection).await.unwrap();
            // It has waited as soon as its guard says so.
            let waited = guard.is_some_and(|guard| guard.split('|').nth(1) == Some("0"));
            voting.extend(waited.then_some(node));
        }
        // A majority goes on voting; who has forgotten may forget again.
        let spare = voting.len() > NODES / 2 + 1;
        let again = (0..NODES).find(|node| !voting.contains(node) && fastrand::u8(..20) == 0);
        let node = if spare { voting.get(fastrand::usize(..voting.len())).copied() } else { again };
        if let Some(node) = node {
            forgetting.fetch_add(1, Ordering::SeqCst);
            redis::cmd("FLUSHDB").query_async::<()>(&mut connections[node]).await.unwrap();
            forgetting.fetch_add(1, Ordering::SeqCst);
            losses.fetch_add(1, Ordering::Relaxed);
        }
        let grants = ledger.grants();
        eventually(LONG_PATIENCE, async || (ledger.grants() > grants).then_some(())).await;
    }
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    (ledger.rises(), failed.load(Ordering::Relaxed))
}

/// Takes the key, and gives it back or lets it run out; whether there was an answer. `forgetting` is
/// odd while a node forgets, and another number afterwards.
async fn once(
    store: &dyn Store,
    claim: &Claim,
    (ledger, forgetting): (&Ledger, &AtomicUsize),
) -> bool {
    let (sent, before) = (Instant::now(), forgetting.load(Ordering::SeqCst));
    let Ok(attempt) = store.ask(claim, Ask::Once(None)).await else {
        // Whatever it may have is not for anybody to count on.
        drop(store.end(&Target::of(&claim.key, &claim.token, None)).await);
        return false;
    };
    let Answer::Won(Win { lease, fresh: true, .. }) = attempt else { return true };
    let name = format!("{:?}", claim.token.expose());
    let fencing_token = lease.fencing_token.number();
    ledger.won("key", (&name, fencing_token), sent, lease.ttl.as_duration());
    if fastrand::u8(..16) > 0 {
        let sent = Instant::now();
        if let Ok(Renewed::Lease(kept)) =
            store.renew(&Target::of(&claim.key, &claim.token, None), None).await
        {
            let calm = before.is_multiple_of(2) && forgetting.load(Ordering::SeqCst) == before;
            // If a node that agreed has forgotten since, the lease may be told a higher number.
            let steady = kept.fencing_token == lease.fencing_token;
            let rises = kept.fencing_token > lease.fencing_token && !calm;
            assert!(steady || rises, "{kept:?} after {lease:?}, calm: {calm}");
            ledger.kept("key", &name, sent, kept.ttl.as_duration());
        }
        ledger.gives_up("key", &name);
        drop(store.end(&Target::of(&claim.key, &claim.token, None)).await);
    }
    true
}
