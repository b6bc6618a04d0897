//! Streams of a caller that has lost its right end; those of others go on.

use crate::hold::Listener;
use crate::reload::{ALL, Stage, entry, status};
use crate::support::{PATIENCE, eventually};

/// A listener with this API key.
async fn listen(stage: &Stage, secret: &str, target: &str) -> Listener {
    let token = format!("token-of-{secret}-for-it\r\nauthorization: Bearer {secret}");
    Listener::open_as(&stage.service.http(), target, &token).await
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_removed_api_key_end_and_their_lease_stays_for_its_ttl() {
    let kept = entry("admin", "admin", ALL);
    let stage = Stage::start(&format!("{kept}{}", entry("shop", "shop", ALL)), &[]);
    let mut holds = listen(&stage, "shop", "a?ttl=1h").await;
    holds.hears("acquired").await;
    let mut other = listen(&stage, "admin", "b?ttl=1h").await;
    other.hears("acquired").await;
    let mut waits = listen(&stage, "shop", "b?wait=forever").await;
    waits.hears("waiting").await;

    stage.write(&kept);
    holds.loses("revoked").await;
    waits.loses("revoked").await;
    assert_eq!(status(&stage, "shop").await, 401);
    let admin = stage.caller("admin");
    // The client may still be at work.
    assert_eq!(admin.get("/locks/a").await.field("held"), true);
    assert_eq!(admin.delete("/admin/locks/a?reason=revoked").await.status, 200);
    // Nobody waits for what the other stream holds, and that goes on.
    eventually(PATIENCE, async || {
        (admin.get("/locks/b").await.number("waiters") == 0).then_some(())
    })
    .await;
    assert_eq!(admin.delete("/admin/locks/b").await.status, 200);
    other.loses("forced").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_its_api_key_may_no_longer_use_its_lock_key() {
    let admin = entry("admin", "admin", ALL);
    let shop = entry("shop", "shop", ALL);
    let stage = Stage::start(&format!("{admin}{shop}"), &[]);
    let mut inside = listen(&stage, "shop", "x/a?ttl=1h").await;
    inside.hears("acquired").await;
    let mut outside = listen(&stage, "shop", "y/a?ttl=1h").await;
    outside.hears("acquired").await;
    stage.write(&format!("{admin}{}", shop.replace("[\"\"]", "[\"x/\"]")));
    outside.loses("revoked").await;
    assert_eq!(stage.reloaded(1).await[0]["api_keys.changed"], "shop");
    assert_eq!(stage.caller("admin").delete("/admin/locks/x/a").await.status, 200);
    inside.loses("forced").await;
}
