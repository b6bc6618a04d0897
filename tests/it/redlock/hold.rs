//! `POST /hold/{key}` on several nodes.

use std::time::{Duration, Instant};

use crate::hold::Listener;
use crate::redlock::{LONG, PATIENCE, Site, Way, acquire, held, look};
use crate::support::eventually;

const MINE: &str = "token-of-this-client";
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
async fn a_stream_that_names_a_lease_takes_its_place_on_another_instance() {
    let site = Site::of(3).await;
    let services = site.services(2).await;
    let [one, other] = [0, 1].map(|instance| services[instance].http());
    let mut older = Listener::open_as(&one, "over?ttl=4s", MINE).await;
    let number = older.hears("acquired").await["fencing_token"].as_u64().unwrap();
    let mine = other.token(MINE);
    for refused in [
        mine.post("/hold/over?ttl=4s", "").await,
        mine.post("/locks/over?ttl=4s", "").await,
        mine.put("/locks/over/refresh", "").await,
    ] {
        assert_eq!(refused.told(), held(), "{refused:?}");
        assert_eq!(refused.field("mine"), true, "{refused:?}");
        assert_eq!(refused.number("fencing_token"), number, "{refused:?}");
    }
    let target = format!("over?ttl=4s&fencing_token={number}");
    let mut newer = Listener::open_as(&other, &target, MINE).await;
    assert!(newer.hears("acquired").await["fencing_token"].as_u64() > Some(number));
    older.loses("replaced").await;
    drop(older);
    for _ in 0..4 {
        newer.hears("alive").await;
    }
    drop(newer);
    eventually(PATIENCE, async || (look(&one, "over").await.field("held") == false).then_some(()))
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
