//! Requests of one token that cross.

use std::time::Duration;

use tokio::time::sleep;

use crate::lock::lease::Claim;
use crate::lock::store::{Answer, Ask, Condition, Ended, Renewed, Store, Target};
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::store::redlock::RedlockStore;
use crate::store::redlock::simulation::counterexamples::{claims, in_a_world, in_a_world_of, won};
use crate::store::redlock::simulation::faults::{deliver, resume};
use crate::store::redlock::simulation::plan::Plan;
use crate::store::redlock::simulation::repeats::{store, told};
use crate::store::redlock::simulation::rule::Rule;
use crate::store::redlock::simulation::world::World;

/// A release reaches one node after another. The client's refreshes cross it, and a rival's claim
/// takes what is free and gives it up.
#[test]
fn a_refresh_that_crosses_a_release_brings_the_lease_back_to_no_node() {
    let (released, renewed) = in_a_world(None, async |world| {
        let (one, _, lease) = told(world, 4_000).await;
        let other = store(world, 1);
        (1..3).for_each(|node| world.state().nodes[node].pauses = true);
        let crossing = async {
            sleep(Duration::from_millis(30)).await; // The first node has ended it.
            let releases = [1, 2].map(|node| resume(world, node));
            let refused = other.ask(&claims(4_000)[1], Ask::Once(None)).await;
            assert!(matches!(refused, Ok(Answer::Held(_))), "{refused:?}");
            sleep(Duration::from_millis(20)).await; // Its vote is given up.
            for release in releases {
                let crossed = one.renew(&lease, None).await;
                assert!(crossed.is_ok(), "{crossed:?}");
                deliver(world, release);
            }
        };
        let (released, ()) = tokio::join!(other.end(&lease), crossing);
        (released, one.renew(&lease, None).await)
    });
    assert!(matches!(released, Ok(Ended::Lease(_))), "{released:?}");
    assert!(matches!(renewed, Ok(Renewed::Lost(_))), "{renewed:?}");
}

/// Of two nodes both have to agree, and each instance is far from one of them.
#[test]
fn two_refreshes_that_cross_on_far_nodes_do_not_hinder_each_other() {
    let plan = Plan { served: true, ..Plan::calm(2, 1) };
    let answered = in_a_world_of(plan, async |world| {
        let (one, _, lease) = told(world, 4_000).await;
        let other = store(world, 1);
        (0..2).for_each(|node| world.state().nodes[node].far = vec![1 - node]);
        let mut answered = 0;
        for _ in 0..60 {
            let renewed = tokio::join!(one.renew(&lease, None), other.renew(&lease, None));
            answered += u32::from(renewed.0.is_ok()) + u32::from(renewed.1.is_ok());
        }
        answered
    });
    assert!(answered >= 100, "{answered} of 120");
}

/// A lease expires while the votes that replace it are on their way. A rival, whose instance's clock
/// is behind, has the key meanwhile. Returns true if the lease is replaced all the same.
async fn is_replaced_after_a_rival(world: &World) -> bool {
    let [one, other] = [0, 1].map(|instance| store(world, instance));
    let [claim, rival] = claims(4_000);
    sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
    let short = Claim { ttl: Ttl::from_millis(1_000), ..claim.clone() };
    let named = FencingToken::from_number(won(&one, &short).await);
    sleep(Duration::from_millis(900)).await;
    (0..3).for_each(|node| world.state().nodes[node].pauses = true);
    let meanwhile = async {
        sleep(Duration::from_millis(40)).await;
        let votes: Vec<_> = (0..3).map(|node| resume(world, node)).collect();
        sleep(Duration::from_millis(70)).await; // The lease is over.
        won(&other, &rival).await;
        let ended = other.end(&Target::of(&rival.key, &rival.token, None)).await;
        assert!(matches!(ended, Ok(Ended::Lease(_))), "{ended:?}");
        votes.into_iter().for_each(|votes| deliver(world, votes));
    };
    let replaces = Claim { named, ..claim };
    let (replaced, ()) = tokio::join!(one.ask(&replaces, Ask::Once(None)), meanwhile);
    matches!(replaced, Ok(Answer::Won(_)))
}

#[test]
fn where_a_replacement_takes_free_nodes_a_rival_had_the_key_between() {
    let apart = |without| {
        let apart = Plan { instance_skew_us: 500_000, ..Plan::calm(3, 9) };
        in_a_world_of(Plan { without, served: true, ..apart }, is_replaced_after_a_rival)
    };
    assert!(apart(Some(Rule::InPlace)));
    assert!(!apart(None));
}

/// A lease is replaced, after a while and where one node missed it. A refresh that its client has given
/// up comes between two of the votes. Returns true if a rival gets the key then.
async fn loses_a_vote_to_a_late_refresh(world: &World) -> bool {
    world.state().nodes[1].cut = vec![0];
    let (one, claim, lease) = told(world, 4_000).await;
    let (other, [_, rival]) = (store(world, 1), claims(4_000));
    world.state().nodes[1].cut.clear();
    sleep(Duration::from_millis(1_000)).await;
    world.state().nodes[2].pauses = true;
    world.state().nodes[1].far = vec![0];
    let crossing = async {
        sleep(Duration::from_millis(30)).await; // The first node has voted.
        let vote = resume(world, 2);
        let votes = async {
            sleep(Duration::from_millis(20)).await; // The refresh has met it, and not ended yet.
            deliver(world, vote);
        };
        tokio::join!(one.renew(&lease, None), votes)
    };
    let replaces = Claim { named: lease.number, ..claim };
    let (replaced, _) = tokio::join!(other.ask(&replaces, Ask::Once(None)), crossing);
    assert!(matches!(replaced, Ok(Answer::Won(_))), "{replaced:?}");
    sleep(Duration::from_millis(100)).await; // What it took for a leftover is given up.
    matches!(one.ask(&rival, Ask::Once(None)).await, Ok(Answer::Won(_)))
}

#[test]
fn where_a_replacement_has_the_age_of_its_lease_a_late_refresh_takes_its_votes() {
    assert!(in_a_world(Some(Rule::ItsAge), loses_a_vote_to_a_late_refresh));
    assert!(!in_a_world(None, loses_a_vote_to_a_late_refresh));
}

/// A stream lets its lease go where one node does not hear of it, and its client refreshes it where
/// another one does not.
#[test]
fn a_lease_that_was_let_go_is_its_clients_although_nodes_missed_that() {
    let (refreshed, kept) = in_a_world(None, async |world| {
        let [one, other] = [0, 1].map(|instance| store(world, instance));
        let [claim, _] = claims(4_000);
        let claim = Claim { kept: true, ..claim };
        sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
        let number = FencingToken::from_number(won(&one, &claim).await);
        let lease = Target::of(&claim.key, &claim.token, number);
        let refused = other.renew(&lease, None).await;
        assert_eq!(refused.ok(), number.map(Renewed::Kept));
        world.state().nodes[0].cut = vec![0];
        let let_go = one
            .renew(&lease.only(Condition::LetGo { grants: false }), Some(Ttl::from_millis(300)))
            .await;
        assert!(matches!(let_go, Ok(Renewed::Lease(_))), "{let_go:?}");
        world.state().nodes[0].cut.clear();
        world.state().nodes[1].cut = vec![1];
        let refreshed = other.renew(&lease, Some(claim.ttl)).await;
        world.state().nodes[1].cut.clear();
        sleep(Duration::from_millis(1_000)).await;
        assert!(matches!(other.renew(&lease, None).await, Ok(Renewed::Lease(_))));
        (refreshed, one.renew(&lease.only(Condition::Kept), None).await)
    });
    let ttl = refreshed.ok().and_then(Renewed::lease).map(|lease| lease.ttl.as_millis());
    assert!(ttl > Some(3_500), "{ttl:?}");
    assert_eq!(kept.ok(), Some(Renewed::Lost(None)));
}

/// Two requests of one token name its lease at once, as a client's that has given one of them up.
#[test]
fn of_two_replacements_that_cross_at_most_one_has_the_lease() {
    let granted = in_a_world(None, async |world| {
        let (one, claim, lease) = told(world, 4_000).await;
        let (other, mut granted, mut lease) = (store(world, 1), 0, lease);
        for round in 0..60 {
            let ask = async |store: &RedlockStore, kept| {
                let claim = Claim { kept, named: lease.number, ..claim.clone() };
                store.ask(&claim, Ask::Once(None)).await
            };
            let answers = tokio::join!(ask(&one, round % 2 == 0), ask(&other, true));
            let numbers = [answers.0, answers.1].map(|answer| match answer {
                Ok(Answer::Won(win)) => Some(win.lease.fencing_token),
                _ => None,
            });
            let winners = numbers.iter().flatten().count();
            assert!(winners < 2, "round {round}: {numbers:?}");
            granted += winners;
            lease.number = numbers.into_iter().flatten().max();
            if lease.number.is_none() {
                sleep(Duration::from_secs(1)).await;
                let ended = one.end(&Target { number: None, ..lease.clone() }).await;
                assert!(ended.is_ok(), "{ended:?}");
                lease.number = FencingToken::from_number(won(&one, &claim).await);
            }
        }
        granted
    });
    assert!(granted > 10, "{granted} of 60");
}
