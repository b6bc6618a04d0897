//! The instance ends: with SIGTERM its leases stay for their clients, with SIGKILL they end by their
//! TTL.

use std::time::{Duration, Instant};

use crate::hold::{Listener, OTHER, SOON, TOKEN, freed, is_held, stays_held};
use crate::support::Redis;
use crate::waiting::process;

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_goes_on_when_its_instance_ends_and_its_client_resumes_it_on_another() {
    for by_stream in [false, true] {
        let redis = Redis::start();
        let (ends, stays) = (process(&redis.url(), &[]).await, process(&redis.url(), &[]).await);
        let http = stays.http();
        let mut listener = Listener::open(&ends.http(), "drained?ttl=5s").await;
        let grant = listener.hears("acquired").await;
        let mut waits = Listener::open_as(&ends.http(), "drained?wait=forever", OTHER).await;
        waits.hears("waiting").await;
        let began = Instant::now();
        ends.signal("TERM");
        for listener in [&mut listener, &mut waits] {
            listener.hears_after_all("draining").await;
            assert_eq!(listener.next().await, None);
        }
        assert!(began.elapsed() < SOON);
        assert_eq!(ends.wait(), Some(0));
        assert!(is_held(&http, "drained").await);
        let (mine, number) = (http.token(TOKEN), grant["fencing_token"].as_u64().unwrap());
        if by_stream {
            assert_eq!(mine.post("/hold/drained", "").await.told(), (409, "lock_held".into()));
            let target = format!("drained?ttl=1800ms&fencing_token={number}");
            let mut next = Listener::open(&http, &target).await;
            let resumed = next.hears("acquired").await["fencing_token"].as_u64().unwrap();
            assert!(resumed > number, "it is a new lease in its place");
            assert!(stays_held(&http, "drained").await);
        } else {
            let refreshed = mine.put("/locks/drained/refresh?ttl=1m", "").await;
            assert_eq!((refreshed.status, refreshed.number("fencing_token")), (200, number));
            let again = mine.post("/locks/drained?ttl=1m", "").await;
            assert_eq!((again.status, again.number("fencing_token")), (200, number));
            assert!(stays_held(&http, "drained").await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_ends_by_its_ttl_when_its_instance_is_killed() {
    let redis = Redis::start();
    let (dies, lives) = (process(&redis.url(), &[]).await, process(&redis.url(), &[]).await);
    let http = lives.http();
    let mut listener = Listener::open(&dies.http(), "killed?ttl=3s").await;
    listener.hears("acquired").await;
    listener.hears("alive").await;
    dies.kill();
    assert!(is_held(&http, "killed").await);
    let took = freed(&http, "killed").await;
    assert!((Duration::from_secs(2)..Duration::from_secs(4)).contains(&took), "{took:?}");
}
