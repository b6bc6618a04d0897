//! Places in the lines of one key on Redis, however fast the lines follow each other.

use futures_util::future::join_all;
use lockkeeper::lock::store::Keep;

use crate::conformance::line::{long, waits};
use crate::conformance::{Stage, key, token};

/// More than Redis can give places to within the milliseconds that they take.
const CLAIMS: usize = 60;

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_gets_its_place_back_is_ahead_of_every_later_line() {
    let stage = Stage::redis().await;
    let store = &stage.store;
    stage.granted(&long("holder")).await;
    let mut last = 0;
    for round in 0..5 {
        let names: Vec<_> = (0..CLAIMS).map(|number| format!("claim-{number}")).collect();
        let claims: Vec<_> = names.iter().map(|name| long(name)).collect();
        let places = join_all(claims.iter().map(|claim| waits(store, claim))).await;
        let places: Vec<_> = places.iter().map(|waiting| waiting.place).collect();
        assert!(places.iter().all(|place| *place > last), "{round}: {last} {places:?}");
        last = *places.iter().max().unwrap();
        let leaving: Vec<_> = names.iter().map(|name| (token(name), Keep::Nothing)).collect();
        store.leave(&key("a"), &leaving).await.unwrap();
    }
}
