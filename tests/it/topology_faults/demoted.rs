//! A master that is made a replica.

use std::time::{Duration, Instant};

use crate::redis_faults::{LONG, PATIENCE, acquire, unavailable};
use crate::support::eventually;
use crate::support::fleet::data;
use crate::topology_faults::{figure, service};

/// The service tries to connect five times a second.
const SEVERAL_TRIES: Duration = Duration::from_millis(700);

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_takes_no_writes_is_left_at_once_and_grants_nothing() {
    let (other, redis) = (data(&[]), data(&[]));
    let service = service(&redis.url(), &[]).await;
    let http = service.http();
    redis.run::<()>(&format!("REPLICAOF 127.0.0.1 {}", other.port()));
    // Refused by the node, then not even asked of it any more: for several tries to connect.
    let refusals = "lockkeeper_redis_errors_total{kind=\"refused\"}";
    eventually(PATIENCE, async || {
        let (before, began) = (figure(&http, refusals).await, Instant::now());
        while began.elapsed() < SEVERAL_TRIES {
            let answer = acquire(&http, "refused", "token-of-the-client", LONG).await;
            assert_eq!(answer.told(), unavailable(), "{answer:?}");
            assert_eq!(answer.text("outcome"), "unknown", "{answer:?}");
        }
        (figure(&http, refusals).await == before).then_some(())
    })
    .await;
    let up = format!("lockkeeper_redis_up{{node=\"{}\"}}", redis.address());
    assert_eq!(figure(&http, &up).await, 0);
    redis.run::<()>("REPLICAOF NO ONE");
    eventually(PATIENCE, async || {
        let answer = acquire(&http, "granted", "token-of-the-client", LONG).await;
        (answer.status == 201).then_some(())
    })
    .await;
}
