//! `POST /hold/{key}` on several nodes.

use std::time::{Duration, Instant};

use crate::hold::Listener;
use crate::redlock::proxy::{Flow, Proxy};
use crate::redlock::{LONG, PATIENCE, PATIENT, Site, Way, acquire, held, look};
use crate::support::eventually;

const OTHER: &str = "token-of-another-client";

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_goes_on_with_a_minority_away_and_ends_with_its_connection() {
    for way in Way::ALL {
        let mut site = Site::of(3).await;
        let service = site.service().await;
        site.all_vote().await;
        let http = service.http();
        let mut listener = Listener::open(&http, "stream?ttl=4s").await;
        let grant = listener.hears("acquired").await;
        let left = grant["ttl_ms"].as_u64().unwrap();
        assert!((2_000..=3_958).contains(&left), "{grant}");
        listener.hears("alive").await;
        site.away(0, way);
        for _ in 0..2 {
            listener.hears("alive").await;
        }
        assert_eq!(acquire(&http, "stream", OTHER, LONG).await.told(), held());
        let began = Instant::now();
        drop(listener);
        eventually(PATIENCE, async || {
            (acquire(&http, "stream", OTHER, LONG).await.status == 201).then_some(())
        })
        .await;
        eprintln!("one of three {way:?}: free {:?} after its stream ended", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        site.back(0, way);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_stream_of_a_token_takes_the_lease_over_from_another_instance() {
    let site = Site::of(3).await;
    let services = site.services(2).await;
    let target = "over?ttl=4s";
    let mut older = Listener::open(&services[0].http(), target).await;
    let first = older.hears("acquired").await;
    let mut newer = Listener::open(&services[1].http(), target).await;
    let second = newer.hears("acquired").await;
    assert_eq!(first["fencing_token"], second["fencing_token"]);
    older.loses("taken_over").await;
    drop(older);
    for _ in 0..4 {
        newer.hears("alive").await;
    }
    drop(newer);
    let http = services[0].http();
    eventually(PATIENCE, async || (look(&http, "over").await.field("held") == false).then_some(()))
        .await;
    site.bare().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_without_a_majority_is_told_lost_before_another_can_have_the_key() {
    let mut site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    let mut listener = Listener::open(&http, "loses?ttl=4s").await;
    listener.hears("acquired").await;
    for node in 0..2 {
        site.away(node, Way::Dropped);
    }
    let began = Instant::now();
    let lost = listener.hears_after_all("lost").await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?} {lost}", began.elapsed());
    for node in 0..2 {
        site.back(node, Way::Dropped);
    }
    eventually(PATIENCE, async || {
        let token = format!("{OTHER}-{}", fastrand::u64(..));
        (acquire(&http, "loses", &token, LONG).await.status == 201).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_a_minority_forgot_goes_on() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    let mut listener = Listener::open(&http, "forgot?ttl=4s").await;
    listener.hears("acquired").await;
    site.nodes[1].run::<()>("FLUSHALL");
    for _ in 0..4 {
        listener.hears("alive").await;
    }
    assert_eq!(acquire(&http, "forgot", OTHER, LONG).await.told(), held());
}

/// The instance of the stream does not reach node 2, and the other one not node 0. So a renewal by
/// the other one may come between the look and the release at the end of the stream: then node 0
/// ends the lease, and the others have it.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_word_of_a_stream_leaves_a_lease_that_another_instance_renews_meanwhile() {
    let mut site = Site::of(3).await;
    let here = site.service().await;
    let mut routes = Vec::new();
    for node in &site.nodes {
        routes.push(Proxy::to(node.port()).await);
    }
    let urls = routes.iter().map(Proxy::url).collect::<Vec<_>>().join(" ");
    let there = site.service_with(&[PATIENT[0], ("LOCKKEEPER_STORE", &urls)]).await;
    site.all_vote().await;
    let (here, there) = (here.http(), there.http());
    let mut crossed = 0;
    for round in 0..30 {
        let key = format!("last-word-{round}");
        let mut listener = Listener::open(&here, &format!("{key}?ttl=20s")).await;
        let grant = listener.hears("acquired").await;
        let number = grant["fencing_token"].as_u64().unwrap();
        let token = grant["token"].as_str().unwrap().to_owned();
        site.away(2, Way::Dropped);
        routes[0].set(Flow::Swallowing);
        drop(listener);
        // The look at the end of the stream waits 400 ms for node 2.
        tokio::time::sleep(Duration::from_millis(fastrand::u64(50..300))).await;
        let target = format!("/locks/{key}/refresh?fencing_token={number}");
        let renewed = there.token(&token).put(&target, "").await;
        site.back(2, Way::Dropped);
        routes[0].set(Flow::Passing);
        if renewed.status != 200 {
            continue;
        }
        let has_ended =
            || site.nodes[0].run::<Option<String>>(&format!("GET lock:{key}")).is_none();
        let end = Instant::now() + Duration::from_millis(900);
        while Instant::now() < end {
            let other = acquire(&there, &key, OTHER, LONG).await;
            assert_ne!(other.status, 201, "round {round}: {renewed:?} {other:?}");
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        crossed += u32::from(has_ended());
        assert_eq!(there.token(&token).put(&target, "").await.status, 200, "round {round}");
        if crossed == 3 {
            return;
        }
    }
    panic!("the release crossed a renewal {crossed} times of 30");
}
