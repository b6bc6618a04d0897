//! The faults of old code, and how far they reach into the service.

use std::time::{Duration, Instant};

use crate::migration::{
    EXPIRE, GETSET, GO, KEY, NOT_NOW, PATIENCE, REDLOCK, SCRIPT, SETNX, Site, WATCH, new, old,
};
use crate::php::FAR_FUTURE;
use crate::support::eventually;

/// What work says whose lease is lost.
const TOLD: &str = "told to stop";

const REFRESH: &str = "/locks/import/refresh";

/// A token that reads as no time to come.
const UUID: &str = "f47ac10b-58cc-4372-a567-0e02b2c3d479";

/// Where a crash leaves a lock without an end.
const BEFORE_EXPIRE: (&str, &str) = ("$redis->expire('lock:import', 60);", "work();");

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_left_by_a_crash_of_old_code_keeps_the_service_out_until_a_forced_release() {
    for (recipe, changes) in
        [(SETNX, &[][..]), (EXPIRE, &[BEFORE_EXPIRE]), (WATCH, &[BEFORE_EXPIRE])]
    {
        let site = Site::start(&[]);
        drop(site.changed(old(recipe), changes).works());
        // A busy machine's Redis may be late.
        let refused = eventually(PATIENCE, async || {
            let refused = site.http().post(KEY, "").await;
            (refused.status != 503).then_some(refused)
        })
        .await;
        assert_eq!(refused.told(), (409, "lock_held".into()));
        assert_eq!(refused.json().get("retry_after_ms"), None, "{recipe}");
        assert_eq!(site.script(old(recipe)).run().0, NOT_NOW);
        assert_eq!(site.http().delete("/admin/locks/import").await.status, 200);
        drop(site.changed(old(recipe), changes).works());
        assert_eq!(site.http().delete("/admin/locks/import").await.status, 200);
        assert_eq!(site.http().post(KEY, "").await.status, 201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_new_code_frees_the_key_when_its_lease_ends_and_that_of_a_stream_at_once() {
    for (recipe, change, least) in [
        (SETNX, ("ttl=60s", "ttl=1s"), Duration::from_millis(900)),
        (WATCH, ("ttl=60s", "ttl=1s"), Duration::from_millis(900)),
        (GO, ("ttl=10s", "ttl=600s"), Duration::ZERO),
    ] {
        let site = Site::start(&[]);
        let script = site.changed(new(recipe), &[change]);
        let began = Instant::now();
        drop(script.works());
        site.freed().await;
        assert!(began.elapsed() >= least, "{recipe}: {:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_code_that_is_late_deletes_the_lease_of_another_unless_it_compares() {
    for (recipe, deletes) in
        [(SETNX, true), (EXPIRE, true), (SCRIPT, false), (GO, false), (WATCH, false)]
    {
        let site = Site::start(&[]);
        let late = site.script(old(recipe)).works();
        site.redis().run::<()>("PEXPIRE lock:import 1");
        let lease = eventually(PATIENCE, async || {
            let answer = site.http().post(KEY, "").await;
            (answer.status == 201).then(|| answer.text("token"))
        });
        let holder = site.http().token(&lease.await);
        late.ends();
        let refreshed = holder.put(REFRESH, "").await;
        assert_eq!(refreshed.status, if deletes { 409 } else { 200 }, "{recipe}");
        if deletes {
            assert_eq!(refreshed.told(), (409, "lock_lost".into()));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_code_whose_lease_was_lost_is_told_so() {
    let site = Site::start(&[]);
    let force = async || site.http().delete("/admin/locks/import").await.status;
    let steps = site.script(new(SCRIPT)).works();
    assert_eq!(force().await, 200);
    assert_eq!(steps.ends(), ["lost, or unknown: stop"]);
    let stream = site.changed(new(GO), &[("ttl=10s", "ttl=600s")]).works();
    assert_eq!(force().await, 200);
    assert_eq!(stream.line().as_deref(), Some(TOLD));
    // So is it when the stream says nothing for as long as the lease lasts.
    let stream = site.changed(new(GO), &[("ttl=10s", "ttl=1s")]).works();
    site.process.stop();
    assert_eq!(stream.line().as_deref(), Some(TOLD));
    site.process.signal("CONT");
    site.freed().await;
    // The old code works on, and only its own kind of lock could tell it.
    let deaf = site.script(old(GO)).works();
    assert_eq!(force().await, 200);
    assert_eq!(site.http().post(KEY, "").await.status, 201);
    assert_eq!(deaf.ends(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn getset_code_steals_what_does_not_read_as_a_time_to_come() {
    let site = Site::start(FAR_FUTURE);
    let holder = site.http().token(UUID);
    assert_eq!(holder.post(KEY, "").await.status, 201);
    site.script(old(GETSET)).works().ends();
    assert_eq!(holder.put(REFRESH, "").await.told(), (409, "lock_lost".into()));
    // It does so to other old code as well.
    let random = ("bin2hex(random_bytes(16))", format!("'{UUID}'"));
    let robbed = site.changed(old(SCRIPT), &[(random.0, &random.1)]).works();
    site.script(old(GETSET)).works().ends();
    robbed.ends();
}

/// The two gaps: the other one, an overwritten lease, is in `php.rs`.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_getset_code_keeps_the_service_out_until_its_own_kind_takes_over() {
    let site = Site::start(FAR_FUTURE);
    drop(site.changed(old(GETSET), &[("time() + 60", "time() + 1")]).works());
    let over = async || {
        assert_eq!(site.http().post(KEY, "").await.told(), (409, "lock_held".into()));
        let shown = site.script(old(GETSET)).run().0;
        (shown == "at work\n").then_some(())
    };
    eventually(PATIENCE, over).await;
    assert_eq!(site.http().post(KEY, "").await.status, 201);
}

/// Neither excludes who locks on one node only.
#[tokio::test(flavor = "multi_thread")]
async fn redlock_old_or_new_does_not_exclude_who_locks_on_one_of_its_nodes() {
    let site = Site::redlock().await;
    let one = site.script(old(SCRIPT)).works();
    for both in [old(REDLOCK), new(REDLOCK)] {
        assert_eq!(site.script(both).works().ends(), [""; 0]);
    }
    assert_eq!(one.ends(), [""; 0]);
}
