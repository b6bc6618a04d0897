//! Since when a key is held, and the claims that wait for it.

use crate::conformance::on_every_store;

on_every_store!(tests:
    a_lease_is_held_since_it_began_however_often_it_is_renewed,
    a_new_lease_is_held_since_it_began_and_not_since_an_earlier_one,
    a_refusal_tells_since_when_the_key_is_held,
    a_free_key_is_held_since_no_moment,
    the_line_has_its_claims_in_order_and_no_more_than_were_asked_for,
    a_claim_that_is_away_is_not_in_the_line_and_has_its_place_and_time_when_it_is_back,
    a_claim_that_was_handed_the_key_is_not_in_the_line,
    the_newest_request_sets_the_owner_in_the_line,
);

mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use lockkeeper::lock::lease::{Claim, Holder, Owner, Waiter};
    use lockkeeper::lock::store::{Answer, Ask, Keep, Store, Target};
    use lockkeeper::lock::time::Ttl;

    use crate::conformance::line::{line_up, long, release, waits};
    use crate::conformance::{Stage, key, token};
    use crate::support::{PATIENCE, eventually};

    /// Long enough that a time that began anew is shorter.
    const A_WHILE: Duration = Duration::from_millis(300);

    /// How far the clocks of nodes and whole milliseconds may put two answers apart.
    const APART: Duration = Duration::from_millis(50);

    async fn holder(store: &Arc<dyn Store>) -> Holder {
        store.look(&key("a"), None, 0).await.unwrap().holder.unwrap()
    }

    /// Waits until the key is held for a while, and returns how long.
    async fn held_a_while(store: &Arc<dyn Store>) -> Duration {
        let held = async || holder(store).await.held.filter(|held| *held >= A_WHILE);
        eventually(PATIENCE, held).await
    }

    async fn line(store: &Arc<dyn Store>, most: usize) -> Vec<Waiter> {
        store.look(&key("a"), None, most).await.unwrap().line
    }

    fn owners(line: &[Waiter]) -> Vec<&str> {
        line.iter().map(|waiter| waiter.owner.as_ref().map_or("-", Owner::as_str)).collect()
    }

    pub(super) async fn a_lease_is_held_since_it_began_however_often_it_is_renewed(stage: Stage) {
        let (store, token) = (&stage.store, token("one"));
        let began = Instant::now();
        stage.granted(&long("one")).await;
        let held = held_a_while(store).await;
        store.renew(&Target::of(&key("a"), &token, None), None).await.unwrap().lease().unwrap();
        assert!(holder(store).await.held.unwrap() + APART >= held);
        let again = store.ask(&long("one"), Ask::Once(None)).await.unwrap();
        let Answer::Won(win) = again else { panic!("{again:?}") };
        let named = Some(win.lease.fencing_token);
        let stream = Claim { kept: true, named, ..long("one") };
        let again = store.ask(&stream, Ask::Once(None)).await.unwrap();
        let Answer::Won(win) = again else { panic!("{again:?}") };
        assert!(holder(store).await.held.unwrap() + APART >= held);
        let kept = Target::kept(&token, &win.lease);
        store.renew(&kept, Some(Ttl::from_millis(60_000))).await.unwrap().lease().unwrap();
        let kept = holder(store).await.held.unwrap();
        assert!(kept + APART >= held && kept <= began.elapsed() + APART, "{kept:?}");
    }

    pub(super) async fn a_new_lease_is_held_since_it_began_and_not_since_an_earlier_one(
        stage: Stage,
    ) {
        stage.granted(&long("one")).await;
        held_a_while(&stage.store).await;
        release(&stage.store, "one").await;
        for name in ["one", "two"] {
            let asked = Instant::now();
            stage.granted(&long(name)).await;
            let held = holder(&stage.store).await.held.unwrap();
            assert!(held <= asked.elapsed() + APART, "{held:?}");
            release(&stage.store, name).await;
        }
    }

    pub(super) async fn a_refusal_tells_since_when_the_key_is_held(stage: Stage) {
        stage.granted(&long("one")).await;
        let held = held_a_while(&stage.store).await;
        let refused = async || match stage.store.ask(&long("two"), Ask::Once(None)).await.unwrap() {
            Answer::Held(status) => status.holder.unwrap().held.unwrap(),
            other => panic!("{other:?}"),
        };
        assert!(refused().await + APART >= held);
        waits(&stage.store, &long("three")).await;
        assert!(refused().await + APART >= held, "with a line");
    }

    pub(super) async fn a_free_key_is_held_since_no_moment(stage: Stage) {
        stage.granted(&long("one")).await;
        release(&stage.store, "one").await;
        let free = stage.store.look(&key("a"), None, 100).await.unwrap();
        assert_eq!((free.holder, free.line), (None, Vec::new()));
    }

    pub(super) async fn the_line_has_its_claims_in_order_and_no_more_than_were_asked_for(
        stage: Stage,
    ) {
        let store = &stage.store;
        let began = Instant::now();
        line_up(store, ["one", "two"]).await;
        let nobody = Claim { owner: None, ..long("three") };
        waits(store, &nobody).await;
        held_a_while(store).await;
        waits(store, &long("one")).await; // The instance lives, however long that took.
        let all = line(store, 100).await;
        assert_eq!(owners(&all), ["one@host", "two@host", "-"]);
        let waited: Vec<_> = all.iter().map(|waiter| waiter.waited.unwrap()).collect();
        assert!(waited.is_sorted_by(|one, other| one >= other), "{waited:?}");
        assert!(waited[0] <= began.elapsed() + APART && waited[2] > Duration::ZERO, "{waited:?}");
        assert_eq!(owners(&line(store, 2).await), ["one@host", "two@host"]);
        assert!(line(store, 0).await.is_empty());
        let status = store.look(&key("a"), Some(&token("holder")), 3).await.unwrap();
        assert_eq!((status.waiters, status.line.len(), status.mine), (3, 3, Some(true)));
    }

    pub(super) async fn a_claim_that_is_away_is_not_in_the_line_and_has_its_place_and_time_when_it_is_back(
        stage: Stage,
    ) {
        let store = &stage.store;
        let [one, _] = line_up(store, ["one", "two"]).await;
        let waited = async || {
            waits(store, &one).await;
            line(store, 1).await.first()?.waited.filter(|waited| *waited >= A_WHILE)
        };
        let waited = eventually(PATIENCE, waited).await;
        store.leave(&key("a"), &[(one.token.clone(), Keep::Place)]).await.unwrap();
        assert_eq!(owners(&line(store, 9).await), ["two@host"]);
        assert!(!waits(store, &one).await.new);
        let back = line(store, 9).await;
        assert_eq!(owners(&back), ["one@host", "two@host"]);
        assert!(back[0].waited.unwrap() >= waited);
        store.leave(&key("a"), &[(one.token.clone(), Keep::Nothing)]).await.unwrap();
        let asked = Instant::now();
        assert!(waits(store, &one).await.new);
        let anew = line(store, 9).await;
        assert_eq!(owners(&anew), ["two@host", "one@host"]);
        assert!(anew[1].waited.unwrap() <= asked.elapsed() + APART);
    }

    pub(super) async fn a_claim_that_was_handed_the_key_is_not_in_the_line(stage: Stage) {
        let store = &stage.store;
        line_up(store, ["one", "two"]).await;
        release(store, "holder").await;
        let now = store.look(&key("a"), None, 9).await.unwrap();
        let expected =
            if stage.hands_over() { &["two@host"][..] } else { &["one@host", "two@host"] };
        assert_eq!(owners(&now.line), expected);
        assert_eq!(now.holder.and_then(|holder| holder.held), None);
    }

    pub(super) async fn the_newest_request_sets_the_owner_in_the_line(stage: Stage) {
        let [one] = line_up(&stage.store, ["one"]).await;
        let owner = Owner::parse("a new name").unwrap();
        waits(&stage.store, &Claim { owner, ..one }).await;
        assert_eq!(owners(&line(&stage.store, 9).await), ["a new name"]);
    }
}
