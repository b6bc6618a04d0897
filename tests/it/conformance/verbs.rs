//! Acquire, refresh, release, force release and inspect.

use crate::conformance::{on_every_store, on_routed_stores};

on_every_store!(tests:
    a_free_key_is_granted_with_what_was_claimed,
    a_held_key_is_refused_and_says_who_has_it,
    the_same_token_gets_the_same_lease_again,
    a_lease_ends_when_its_ttl_is_over_and_not_before,
    a_refresh_moves_the_end_and_keeps_the_rest,
    rule_13_a_refresh_never_revives_a_lost_lease,
    a_release_frees_the_key_for_the_next,
    a_release_by_another_token_changes_nothing,
    rule_15_a_forced_release_ends_whoever_holds_the_key,
    rule_15_a_forced_release_that_names_a_lease_ends_no_other,
    inspect_tells_who_holds_the_key_and_whether_it_is_me,
    fencing_tokens_rise_with_every_lease_of_a_key,
    many_who_ask_at_once_get_one_lease,
    keys_that_look_alike_are_different,
    an_undo_frees_the_key_and_touches_nobody_else,
);

on_routed_stores!(tests:
    a_free_key_is_granted_with_what_was_claimed,
    the_same_token_gets_the_same_lease_again,
    a_refresh_moves_the_end_and_keeps_the_rest,
    a_release_frees_the_key_for_the_next,
    rule_15_a_forced_release_ends_whoever_holds_the_key,
    inspect_tells_who_holds_the_key_and_whether_it_is_me,
    keys_that_look_alike_are_different,
);

mod tests {
    use std::collections::BTreeSet;
    use std::time::{Duration, Instant};

    use lockkeeper::lock::lease::Holder;
    use lockkeeper::lock::store::{Answer, Ask, Condition, Ended, Target, Win};
    use lockkeeper::lock::time::Ttl;

    use crate::conformance::{Stage, claim, key, next_number, token};
    use crate::support::{PATIENCE, eventually};

    /// Longer than another lease, and no longer than a lease on several nodes.
    const LONGER: u64 = 60_000;

    pub(super) async fn a_free_key_is_granted_with_what_was_claimed(stage: Stage) {
        let lease = stage.granted(&claim("a", "one", 5_000)).await;
        assert_eq!(lease.key, key("a"));
        assert!(stage.lasts(lease.ttl, 5_000), "{lease:?}");
        assert_eq!(lease.owner.unwrap().as_str(), "one@host");
        let nobody = stage.granted(&super::without_owner("b")).await;
        assert_eq!(nobody.owner, None);
        assert_eq!(stage.store.look(&key("b"), None, 0).await.unwrap().holder.unwrap().owner, None);
    }

    pub(super) async fn a_held_key_is_refused_and_says_who_has_it(stage: Stage) {
        let lease = stage.granted(&claim("a", "one", 60_000)).await;
        let refused = stage.store.ask(&claim("a", "two", 1_000), Ask::Once(None)).await.unwrap();
        let Answer::Held(status) = refused else { panic!("{refused:?}") };
        let holder = status.holder.unwrap();
        assert_eq!(holder.owner, lease.owner);
        assert_eq!(holder.fencing_token, Some(lease.fencing_token));
        let left = holder.left.unwrap();
        assert!(left > Duration::from_secs(30) && left <= Duration::from_secs(60), "{left:?}");
        assert_eq!((status.waiters, status.mine), (0, None));
    }

    pub(super) async fn the_same_token_gets_the_same_lease_again(stage: Stage) {
        let first = stage.granted(&claim("a", "one", 5_000)).await;
        let mut again = claim("a", "one", LONGER);
        again.owner = None;
        let answer = stage.store.ask(&again, Ask::Once(None)).await.unwrap();
        let Answer::Won(Win { lease, fresh: false, .. }) = answer else { panic!("{answer:?}") };
        assert_eq!(lease.fencing_token, first.fencing_token);
        assert!(stage.lasts(lease.ttl, LONGER) && lease.owner.is_none(), "{lease:?}");
        let holder = stage.store.look(&key("a"), None, 0).await.unwrap().holder.unwrap();
        assert_eq!(holder.owner, None);
        let refreshed = stage.refresh("a", "one", None).await.unwrap();
        assert!(stage.lasts(refreshed.ttl, LONGER), "{refreshed:?}");
    }

    pub(super) async fn a_lease_ends_when_its_ttl_is_over_and_not_before(stage: Stage) {
        for round in 0..3 {
            let (sent, ttl) = (Instant::now(), Duration::from_millis(stage.soon_over()));
            let mine = claim("a", &format!("holder-{round}"), stage.soon_over());
            let lease = stage.granted(&mine).await;
            let other = claim("a", &format!("other-{round}"), 60_000);
            let next = eventually(PATIENCE, async || {
                match stage.store.ask(&other, Ask::Once(None)).await {
                    Ok(Answer::Won(next)) if next.fresh || stage.counts_votes() => Some(next.lease),
                    Ok(_) => None,
                    // Of several nodes too few may answer in time on a busy machine.
                    Err(_) if stage.counts_votes() => None,
                    Err(error) => panic!("{error:?}"),
                }
            });
            let next = next.await;
            // Redis counts whole milliseconds of its own clock.
            assert!(sent.elapsed() + Duration::from_millis(1) >= ttl, "{:?}", sent.elapsed());
            assert!(next.fencing_token > lease.fencing_token);
            // Of several nodes too few may answer in time, as above.
            let of = |token| Target::of(&key("a"), token, None);
            let renewed =
                eventually(PATIENCE, async || stage.store.renew(&of(&mine.token), None).await.ok());
            assert_eq!(renewed.await.lease(), None);
            eventually(PATIENCE, async || stage.store.end(&of(&other.token)).await.ok()).await;
        }
    }

    pub(super) async fn a_refresh_moves_the_end_and_keeps_the_rest(stage: Stage) {
        let lease = stage.granted(&claim("a", "one", 60_000)).await;
        let longer = Some(Ttl::from_millis(LONGER));
        let refreshed = stage.refresh("a", "one", longer).await.unwrap();
        assert_eq!(refreshed.fencing_token, lease.fencing_token);
        assert_eq!(refreshed.owner, lease.owner);
        assert!(stage.lasts(refreshed.ttl, LONGER), "{refreshed:?}");
        let same = stage.refresh("a", "one", None).await.unwrap();
        assert!(stage.lasts(same.ttl, LONGER), "{same:?}");
        assert_eq!(stage.refresh("a", "two", None).await, None);
        assert_eq!(stage.refresh("b", "one", None).await, None);
    }

    pub(super) async fn rule_13_a_refresh_never_revives_a_lost_lease(stage: Stage) {
        stage.granted(&claim("a", "one", 60_000)).await;
        stage.store.end(&Target::of(&key("a"), &token("one"), None)).await.unwrap();
        assert_eq!(stage.refresh("a", "one", None).await, None);
        stage.granted(&claim("a", "two", 60_000)).await;
        let long = Some(Ttl::from_millis(60_000));
        assert_eq!(stage.refresh("a", "one", long).await, None);
        stage.forced("a").await;
        assert_eq!(stage.refresh("a", "two", long).await, None);
        assert_eq!(stage.store.look(&key("a"), None, 0).await.unwrap().holder, None);
    }

    pub(super) async fn a_release_frees_the_key_for_the_next(stage: Stage) {
        let lease = stage.granted(&claim("a", "one", 60_000)).await;
        let released = stage.store.end(&Target::of(&key("a"), &token("one"), None)).await.unwrap();
        let Ended::Lease(Holder { owner, fencing_token, .. }) = released else {
            panic!("{released:?}")
        };
        assert_eq!((owner, fencing_token), (lease.owner, Some(lease.fencing_token)));
        let again = stage.store.end(&Target::of(&key("a"), &token("one"), None)).await.unwrap();
        assert_eq!(again, Ended::Nothing(None));
        stage.granted(&claim("a", "two", 60_000)).await;
    }

    pub(super) async fn a_release_by_another_token_changes_nothing(stage: Stage) {
        let lease = stage.granted(&claim("a", "one", 60_000)).await;
        for other in ["two", "one-", "on"] {
            let other = token(&format!("{other}+"));
            let answer = stage.store.end(&Target::of(&key("a"), &other, None)).await.unwrap();
            assert_eq!(answer, Ended::Nothing(None));
        }
        let kept = stage.refresh("a", "one", None).await.unwrap();
        assert_eq!(kept.fencing_token, lease.fencing_token);
    }

    pub(super) async fn rule_15_a_forced_release_ends_whoever_holds_the_key(stage: Stage) {
        assert_eq!(stage.forced("a").await, None);
        let lease = stage.granted(&claim("a", "one", 60_000)).await;
        let taken = stage.forced("a").await.unwrap();
        assert_eq!(taken.owner, lease.owner);
        assert_eq!(taken.fencing_token, Some(lease.fencing_token));
        let released = stage.store.end(&Target::of(&key("a"), &token("one"), None)).await.unwrap();
        assert_eq!(released, Ended::Nothing(None));
        assert!(stage.granted(&claim("a", "two", 1_000)).await.fencing_token > lease.fencing_token);
    }

    pub(super) async fn rule_15_a_forced_release_that_names_a_lease_ends_no_other(stage: Stage) {
        let earlier = stage.granted(&claim("a", "one", 60_000)).await.fencing_token;
        let force = async |named| stage.store.force_release(&key("a"), Some(named)).await.unwrap();
        assert_eq!(force(earlier).await[0].fencing_token, Some(earlier));
        assert_eq!(force(earlier).await, []);
        let later = stage.granted(&claim("a", "two", 60_000)).await.fencing_token;
        assert_eq!(force(earlier).await, []);
        let seen = stage.store.look(&key("a"), None, 0).await.unwrap().holder.unwrap();
        assert_eq!(seen.fencing_token, Some(later));
        assert_eq!(force(next_number(later)).await, []);
        assert_eq!(force(later).await[0].fencing_token, Some(later));
        assert_eq!(stage.store.look(&key("a"), None, 0).await.unwrap().holder, None);
    }

    pub(super) async fn inspect_tells_who_holds_the_key_and_whether_it_is_me(stage: Stage) {
        let free = stage.store.look(&key("a"), None, 0).await.unwrap();
        assert_eq!((free.holder, free.mine, free.waiters), (None, None, 0));
        let one = token("one");
        let free = stage.store.look(&key("a"), Some(&one), 0).await.unwrap();
        assert_eq!(free.mine, Some(false));
        let lease = stage.granted(&claim("a", "one", 60_000)).await;
        let mine = stage.store.look(&key("a"), Some(&one), 0).await.unwrap();
        assert_eq!(mine.mine, Some(true));
        let other = stage.store.look(&key("a"), Some(&token("two")), 0).await.unwrap();
        assert_eq!(other.mine, Some(false));
        assert_eq!(other.holder.unwrap().fencing_token, Some(lease.fencing_token));
    }

    pub(super) async fn fencing_tokens_rise_with_every_lease_of_a_key(stage: Stage) {
        let mut last = None;
        for round in 0..300 {
            let name = format!("round-{round}");
            let lease = stage.granted(&claim("a", &name, 60_000)).await;
            assert!(Some(lease.fencing_token) > last, "{last:?} before {lease:?}");
            last = Some(lease.fencing_token);
            stage.store.end(&Target::of(&key("a"), &token(&name), None)).await.unwrap();
        }
    }

    pub(super) async fn many_who_ask_at_once_get_one_lease(stage: Stage) {
        for round in 0..20 {
            let mut asking = tokio::task::JoinSet::new();
            for client in 0..50 {
                let store = stage.store.clone();
                let claim = claim(&format!("k{round}"), &format!("client-{client}"), 60_000);
                asking.spawn(async move { store.ask(&claim, Ask::Once(None)).await.unwrap() });
            }
            let answers = asking.join_all().await;
            let won = |one: &&Answer| matches!(one, Answer::Won(win) if win.fresh);
            let granted = answers.iter().filter(won).count();
            let held = answers.iter().filter(|one| matches!(one, Answer::Held(_))).count();
            assert_eq!((granted, held), (1, 49));
        }
    }

    pub(super) async fn keys_that_look_alike_are_different(stage: Stage) {
        let texts = ["a", "A", "a ", "a/b", "a%2Fb", "{a}", "{a}b", "a}{b", "{}", "é", "e\u{301}"];
        let mut fencing = BTreeSet::new();
        for text in texts {
            fencing.insert(stage.granted(&claim(text, "one", 60_000)).await.fencing_token);
        }
        for text in texts {
            let status = stage.store.look(&key(text), Some(&token("one")), 0).await.unwrap();
            assert_eq!(status.mine, Some(true), "{text}");
            assert!(fencing.remove(&status.holder.unwrap().fencing_token.unwrap()), "{text}");
        }
    }

    pub(super) async fn an_undo_frees_the_key_and_touches_nobody_else(stage: Stage) {
        stage.granted(&claim("a", "one", 60_000)).await;
        stage
            .store
            .end(&Target::of(&key("a"), &token("two"), None).only(Condition::Ever))
            .await
            .unwrap();
        let status = stage.store.look(&key("a"), Some(&token("one")), 0).await.unwrap();
        assert_eq!(status.mine, Some(true));
        stage
            .store
            .end(&Target::of(&key("a"), &token("one"), None).only(Condition::Ever))
            .await
            .unwrap();
        assert_eq!(stage.store.look(&key("a"), None, 0).await.unwrap().holder, None);
    }
}

fn without_owner(key: &str) -> lockkeeper::lock::lease::Claim {
    lockkeeper::lock::lease::Claim {
        owner: None,
        ..crate::conformance::claim(key, "nobody", 5_000)
    }
}
