//! A caller gets a new secret, and nobody notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::task::JoinSet;

use crate::reload::{ALL, Stage, entry, status};
use crate::support::{PATIENCE, eventually};

/// Clients that work all the time.
const CLIENTS: usize = 4;

/// Cycles of each step at least: far more than are under way at a time.
const CYCLES: usize = 100;

#[tokio::test(flavor = "multi_thread")]
async fn an_api_key_is_rotated_under_load_without_a_refused_request() {
    let [old, new] = ["the-old-secret", "the-new-secret"].map(|secret| entry("shop", secret, ALL));
    let stage = Stage::start(&old, &[("LOCKKEEPER_LOG_LEVEL", "error")]);
    let (switched, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let done = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let under_way = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (switched, over, done) = (switched.clone(), over.clone(), done.clone());
        let under_way = under_way.clone();
        let secrets = ["the-old-secret", "the-new-secret"].map(|secret| stage.caller(secret));
        clients.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                under_way.fetch_add(1, Ordering::SeqCst);
                let which = usize::from(switched.load(Ordering::SeqCst));
                if which == 1 {
                    under_way.fetch_sub(1, Ordering::SeqCst);
                }
                let http = &secrets[which];
                let granted = http.post(&format!("/locks/key-{client}"), "").await;
                assert_eq!(granted.status, 201, "{granted:?}");
                let holder = http.token(&granted.text("token"));
                let refreshed = holder.put(&format!("/locks/key-{client}/refresh"), "").await;
                assert_eq!(refreshed.status, 200, "{refreshed:?}");
                let released = holder.delete(&format!("/locks/key-{client}")).await;
                assert_eq!(released.status, 204, "{released:?}");
                done[which].fetch_add(1, Ordering::Relaxed);
                if which == 0 {
                    under_way.fetch_sub(1, Ordering::SeqCst);
                }
            }
        });
    }
    let worked = async |which: usize| {
        let target = done[which].load(Ordering::Relaxed) + CYCLES;
        eventually(PATIENCE, async || {
            (done[which].load(Ordering::Relaxed) >= target).then_some(())
        })
        .await;
    };
    worked(0).await;
    // First: both secrets are valid.
    stage.write(&format!("{old}{new}"));
    stage.reloaded(1).await;
    worked(0).await;
    // Second: the clients take the new one.
    switched.store(true, Ordering::SeqCst);
    worked(1).await;
    eventually(PATIENCE, async || (under_way.load(Ordering::SeqCst) == 0).then_some(())).await;
    // Third: the old one is removed.
    stage.write(&new);
    stage.reloaded(2).await;
    worked(1).await;
    over.store(true, Ordering::Relaxed);
    clients.join_all().await;
    assert_eq!(status(&stage, "the-old-secret").await, 401);
}

/// The counts of a caller are of its name, not of its secret.
#[tokio::test(flavor = "multi_thread")]
async fn the_quota_of_a_caller_outlives_its_secret() {
    let [old, new] = ["old", "new"].map(|secret| entry("shop", secret, ALL));
    let stage = Stage::start(&old, &[("LOCKKEEPER_QUOTAS_LEASES", "3")]);
    for key in ["a", "b"] {
        let path = format!("/locks/{key}?ttl=1h");
        assert_eq!(stage.caller("old").post(&path, "").await.status, 201);
    }
    stage.write(&format!("{old}{new}"));
    stage.reloaded(1).await;
    assert_eq!(stage.caller("new").post("/locks/c?ttl=1h", "").await.status, 201);
    stage.write(&new);
    stage.reloaded(2).await;
    let refused = stage.caller("new").post("/locks/d", "").await;
    assert_eq!(refused.told(), (429, "quota_exceeded".into()), "{refused:?}");
    // Another caller has a quota of its own.
    stage.write(&format!("{new}{}", entry("cron", "cron", ALL)));
    stage.reloaded(3).await;
    assert_eq!(stage.caller("cron").post("/locks/d", "").await.status, 201);
}
