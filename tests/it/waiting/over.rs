//! A wait is over, is cut, or does not begin.

use std::time::{Duration, Instant};

use crate::support::eventually;
use crate::waiting::{HOLDER, PATIENCE, Stage, answer, held, hold, release, until_waiters, wait};

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_over_says_how_long_it_was() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        hold(&http, "over").await;
        let began = Instant::now();
        let over = answer(wait(&http, "over", "400ms")).await;
        assert_eq!(over.told(), held());
        let waited = Duration::from_millis(over.number("waited_ms"));
        assert!(waited >= Duration::from_millis(400), "{over:?}");
        assert!(waited <= began.elapsed() && waited < Duration::from_secs(5), "{over:?}");
        assert!(over.header("retry-after").is_some_and(|after| after.parse::<u64>().is_ok()));
        assert!(over.number("retry_after_ms") > 500_000, "{over:?}");
        until_waiters(&http, "over", 0).await;
        release(&http, "over", HOLDER).await;
        assert_eq!(http.post("/locks/over", "").await.status, 201, "something was left behind");
    }
}

/// With a token that the client chose, whose place is kept, and with one of the service.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_over_is_out_of_the_count_while_others_wait() {
    for stage in Stage::each().await {
        for token in [Some("a-token-that-is-away"), None] {
            let http = stage.http(0);
            hold(&http, "over").await;
            let first = wait(
                &token.map_or_else(|| http.clone(), |token| http.token(token)),
                "over",
                "500ms",
            );
            until_waiters(&http, "over", 1).await;
            let second = wait(&http, "over", "4s");
            assert_eq!(answer(first).await.told(), held());
            until_waiters(&http, "over", 1).await;
            second.abort();
            // Or the release hands the key over to it.
            until_waiters(&http, "over", 0).await;
            release(&http, "over", HOLDER).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_beyond_the_cap_is_cut_and_says_so() {
    for stage in Stage::each_with(&[("LOCKKEEPER_LIMITS_MAX_WAIT", "300ms")]).await {
        let http = stage.http(0);
        hold(&http, "cut").await;
        let over = answer(wait(&http, "cut", "10s")).await;
        assert_eq!(over.told(), held());
        let waited = over.number("waited_ms");
        assert!((300..5_000).contains(&waited), "{over:?}");
        assert!(over.text("detail").ends_with("; the wait was cut to the longest allowed"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_full_refuses_the_next() {
    let full = |code: &str| (429, code.to_owned());
    for (name, keys, room) in [
        ("LOCKKEEPER_LIMITS_WAITERS_PER_KEY", ["one", "one", "one"], "two"),
        ("LOCKKEEPER_LIMITS_WAITERS_PER_INSTANCE", ["one", "two", "two"], ""),
        ("LOCKKEEPER_LIMITS_WAITED_KEYS_PER_INSTANCE", ["one", "two", "three"], "two"),
    ] {
        for stage in Stage::each_with(&[(name, "2")]).await {
            let http = stage.http(0);
            for key in ["one", "two", "three"] {
                hold(&http, key).await;
            }
            let first = wait(&http, keys[0], "20s");
            until_waiters(&http, keys[0], 1).await;
            let second = wait(&http, keys[1], "20s");
            until_waiters(&http, keys[1], if keys[0] == keys[1] { 2 } else { 1 }).await;
            let refused = answer(wait(&http, keys[2], "20s")).await;
            assert_eq!(refused.told(), full("too_many_waiters"), "{name}");
            assert!(refused.header("retry-after").is_some(), "{refused:?}");
            if !room.is_empty() {
                let other = wait(&http, room, "1ms");
                assert_eq!(answer(other).await.told(), held(), "{name}: there is room");
            }
            first.abort();
            second.abort();
            for key in ["one", "two"] {
                until_waiters(&http, key, 0).await;
            }
            // What was full has room again, long before those who waited would have ended.
            let began = Instant::now();
            eventually(PATIENCE, async || {
                (answer(wait(&http, keys[2], "1ms")).await.told() == held()).then_some(())
            })
            .await;
            assert!(began.elapsed() < Duration::from_secs(10), "{name}: {:?}", began.elapsed());
        }
    }
}
