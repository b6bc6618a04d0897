//! A claim on Redis whose client comes back on another instance.

use lockkeeper::lock::store::Keep;

use crate::conformance::line::{confirmed, refused, waits};
use crate::conformance::{Stage, key, token};
use crate::redis_faults::line::{long, release};

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_moves_to_another_instance_keeps_its_place() {
    let stage = Stage::redis().await;
    let (one, two) = (&stage.store, stage.another().await);
    stage.granted(&long("holder")).await;
    let before = waits(one, &long("moving")).await;
    waits(one, &long("second")).await;
    let after = waits(&two, &long("moving")).await;
    assert_eq!((after.place, after.ahead, after.new), (before.place, 0, false));
    // The first instance hears of the hung-up connection only now.
    for keep in [Keep::Place, Keep::Nothing] {
        one.leave(&key("a"), &[(token("moving"), keep)]).await.unwrap();
    }
    assert_eq!(one.look(&key("a"), None, 0).await.unwrap().waiters, 2);
    release(one, "holder").await;
    refused(one, &long("second")).await;
    confirmed(&two, &long("moving")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_9_a_claim_stays_with_the_newest_of_three_instances() {
    let stage = Stage::redis().await;
    let (one, two, three) = (&stage.store, stage.another().await, stage.another().await);
    stage.granted(&long("holder")).await;
    for store in [one, &two, &three] {
        waits(store, &long("moving")).await;
    }
    waits(one, &long("second")).await;
    for store in [one, &two] {
        store.leave(&key("a"), &[(token("moving"), Keep::Place)]).await.unwrap();
    }
    release(one, "holder").await;
    refused(one, &long("second")).await;
    confirmed(&three, &long("moving")).await;
}
