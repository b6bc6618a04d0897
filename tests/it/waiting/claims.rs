//! Of the requests with one token the newest waits, and a client that comes back has its place back.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::support::{Answer, eventually};
use crate::waiting::{
    HOLDER, PATIENCE, Stage, TOKEN, answer, granted, held, hold, release, until_waiters, wait,
    wait_as, waiters,
};

/// A line: the holder, two requests with one token, of which the first is superseded, and one that
/// came after.
struct Pair {
    ours: [JoinHandle<Answer>; 2],
    later: JoinHandle<Answer>,
}

async fn stages() -> [Stage; 3] {
    [Stage::embedded().await, Stage::redis(1).await, Stage::redis(2).await]
}

/// Two requests with one token, the second on another instance if there is one; the one that
/// comes after them stands between the two if it is told so.
async fn pair(stage: &Stage, between: bool) -> Pair {
    let http = stage.http(0);
    hold(&http, "one").await;
    let first = wait_as(&stage.http(0), "one", TOKEN, "20s");
    until_waiters(&http, "one", 1).await;
    let mut later = None;
    if between {
        later = Some(wait(&stage.http(1), "one", "20s"));
        until_waiters(&http, "one", 2).await;
    }
    let second = wait_as(&stage.http(1), "one", TOKEN, "20s");
    eventually(PATIENCE, async || first.is_finished().then_some(())).await;
    if later.is_none() {
        later = Some(wait(&stage.http(1), "one", "20s"));
    }
    until_waiters(&http, "one", 2).await;
    Pair { ours: [first, second], later: later.unwrap() }
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_9_the_newest_request_of_a_token_has_its_place() {
    for stage in stages().await {
        for between in [false, true] {
            let Pair { ours: [first, second], later } = pair(&stage, between).await;
            let told = answer(first).await;
            assert_eq!(told.told(), (409, "superseded".to_owned()), "{told:?}");
            assert_eq!(told.header("retry-after"), Some("1"));
            release(&stage.http(0), "one", HOLDER).await;
            assert_eq!(granted(second).await.text("token"), TOKEN);
            assert!(!later.is_finished());
            release(&stage.http(1), "one", TOKEN).await;
            release(&stage.http(0), "one", &granted(later).await.text("token")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_10_a_claim_leaves_the_line_with_its_request() {
    for stage in stages().await {
        for between in [false, true] {
            let Pair { ours: [_, second], later } = pair(&stage, between).await;
            second.abort();
            until_waiters(&stage.http(0), "one", 1).await;
            release(&stage.http(0), "one", HOLDER).await;
            release(&stage.http(0), "one", &granted(later).await.text("token")).await;
            until_free(&stage, "one").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_14_a_release_ends_the_claim_on_its_instance() {
    for stage in stages().await {
        for between in [false, true] {
            let Pair { ours: [_, second], later } = pair(&stage, between).await;
            release(&stage.http(0), "one", TOKEN).await;
            let told = answer(second).await;
            assert_eq!(told.told(), (409, "wait_cancelled".to_owned()), "{told:?}");
            assert!(told.number("waited_ms") < 20_000, "{told:?}");
            release(&stage.http(0), "one", HOLDER).await;
            release(&stage.http(0), "one", &granted(later).await.text("token")).await;
            until_free(&stage, "one").await;
        }
    }
}

/// Until nobody holds the key, without asking for it.
async fn until_free(stage: &Stage, key: &str) {
    let (http, path) = (stage.http(0), format!("/locks/{key}"));
    eventually(PATIENCE, async || (http.get(&path).await.field("held") == false).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_comes_back_in_time_has_its_place_back() {
    for stage in stages().await {
        for (number, ended) in ["dropped", "over"].into_iter().enumerate() {
            let (key, http) = (format!("back/{number}"), stage.http(0));
            hold(&http, &key).await;
            let first = wait_as(&http, &key, TOKEN, if number == 0 { "20s" } else { "1s" });
            until_waiters(&http, &key, 1).await;
            let later = wait(&stage.http(1), &key, "20s");
            until_waiters(&http, &key, 2).await;
            if ended == "dropped" {
                first.abort();
            } else {
                assert_eq!(answer(first).await.told(), held());
            }
            until_waiters(&http, &key, 1).await;
            let again = wait_as(&stage.http(1), &key, TOKEN, "20s");
            until_waiters(&http, &key, 2).await;
            release(&http, &key, HOLDER).await;
            assert_eq!(granted(again).await.text("token"), TOKEN, "{ended}");
            assert!(!later.is_finished());
            release(&http, &key, TOKEN).await;
            granted(later).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_line_passes_over_a_client_that_is_away() {
    for stage in stages().await {
        let http = stage.http(0);
        hold(&http, "away").await;
        let first = wait_as(&http, "away", TOKEN, "20s");
        until_waiters(&http, "away", 1).await;
        let later = wait(&stage.http(1), "away", "20s");
        until_waiters(&http, "away", 2).await;
        first.abort();
        until_waiters(&http, "away", 1).await;
        let last = wait(&http, "away", "20s");
        until_waiters(&http, "away", 2).await;
        release(&http, "away", HOLDER).await;
        let later = granted(later).await.text("token");
        // Back in time, and so in front of who came later.
        let again = wait_as(&stage.http(1), "away", TOKEN, "20s");
        until_waiters(&http, "away", 2).await;
        release(&http, "away", &later).await;
        granted(again).await;
        release(&http, "away", TOKEN).await;
        granted(last).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_away_for_too_long_stands_at_the_end() {
    let kept = [("LOCKKEEPER_LIMITS_POSITION_KEPT", "300ms")];
    for stage in Stage::each_with(&kept).await {
        let http = stage.http(0);
        hold(&http, "late").await;
        let first = wait_as(&http, "late", TOKEN, "20s");
        until_waiters(&http, "late", 1).await;
        let later = wait(&http, "late", "20s");
        until_waiters(&http, "late", 2).await;
        first.abort();
        until_waiters(&http, "late", 1).await;
        let gone = Instant::now();
        eventually(PATIENCE, async || (gone.elapsed() > Duration::from_millis(400)).then_some(()))
            .await;
        let again = wait_as(&http, "late", TOKEN, "20s");
        until_waiters(&http, "late", 2).await;
        release(&http, "late", HOLDER).await;
        let later = granted(later).await.text("token");
        assert!(!again.is_finished());
        assert_eq!(waiters(&http, "late").await, 1);
        release(&http, "late", &later).await;
        assert_eq!(granted(again).await.text("token"), TOKEN);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_ends_a_wait_where_no_place_is_kept() {
    let kept = [("LOCKKEEPER_LIMITS_POSITION_KEPT", "0s")];
    for stage in Stage::each_with(&kept).await {
        let http = stage.http(0);
        hold(&http, "unkept").await;
        for _ in 0..5 {
            let waiting = wait_as(&http, "unkept", TOKEN, "20s");
            until_waiters(&http, "unkept", 1).await;
            let released = http.token(TOKEN).delete("/locks/unkept").await;
            assert_eq!(released.status, 204, "{released:?}");
            assert_eq!(answer(waiting).await.told(), (409, "wait_cancelled".to_owned()));
        }
    }
}
