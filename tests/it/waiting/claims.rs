//! All requests with one token are one claim, and a client that comes back has its place back.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::support::{Answer, eventually};
use crate::waiting::{
    HOLDER, PATIENCE, Stage, TOKEN, answer, granted, held, hold, release, until_waiters, wait,
    wait_as, waiters,
};

/// A line: the holder, two requests with one token, and one that came after.
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
    arrived(stage, 1 + usize::from(between) + 1).await;
    if later.is_none() {
        later = Some(wait(&stage.http(1), "one", "20s"));
    }
    arrived(stage, 3).await;
    until_waiters(&http, "one", 2).await;
    Pair { ours: [first, second], later: later.unwrap() }
}

/// Until the instances have so many waiting requests together, and have told the store: a request
/// with a token that waits already does not show in the line.
async fn arrived(stage: &Stage, requests: usize) {
    eventually(PATIENCE, async || {
        let mut all = 0;
        for service in &stage.services {
            let figures = service.http().get("/metrics").await;
            let text = String::from_utf8(figures.body.to_vec()).unwrap();
            let waiting = text.lines().find_map(|line| line.strip_prefix("lockkeeper_waiters "));
            all += waiting.map_or(0, |count| count.trim().parse::<usize>().unwrap());
        }
        (all == requests).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_requests_with_a_token_are_granted_the_same_lease() {
    for stage in stages().await {
        for between in [false, true] {
            let Pair { ours: [first, second], later } = pair(&stage, between).await;
            release(&stage.http(0), "one", HOLDER).await;
            let (first, second) = (answer(first).await, answer(second).await);
            let mut statuses = [first.status, second.status];
            statuses.sort_unstable();
            assert_eq!(statuses, [200, 201], "{first:?} {second:?}");
            assert_eq!(first.number("fencing_token"), second.number("fencing_token"));
            assert!(!later.is_finished());
            release(&stage.http(1), "one", TOKEN).await;
            release(&stage.http(0), "one", &granted(later).await.text("token")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_stands_in_line_until_its_last_request_is_gone() {
    for stage in stages().await {
        for between in [false, true] {
            for gone in [0, 1] {
                let Pair { ours, later } = pair(&stage, between).await;
                ours[gone].abort();
                arrived(&stage, 2).await;
                until_waiters(&stage.http(0), "one", 2).await;
                release(&stage.http(0), "one", HOLDER).await;
                let [first, second] = ours;
                let left = granted(if gone == 0 { second } else { first }).await;
                assert_eq!(left.text("token"), TOKEN);
                assert!(!later.is_finished());
                release(&stage.http(0), "one", TOKEN).await;
                release(&stage.http(0), "one", &granted(later).await.text("token")).await;
            }
            let Pair { ours, later } = pair(&stage, between).await;
            ours.iter().for_each(JoinHandle::abort);
            until_waiters(&stage.http(0), "one", 1).await;
            release(&stage.http(0), "one", HOLDER).await;
            release(&stage.http(0), "one", &granted(later).await.text("token")).await;
            until_free(&stage, "one").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_ends_the_claim_on_every_instance() {
    let cancelled = || (409, "wait_cancelled".to_owned());
    for stage in stages().await {
        for between in [false, true] {
            let Pair { ours: [first, second], later } = pair(&stage, between).await;
            release(&stage.http(1), "one", TOKEN).await;
            for request in [first, second] {
                let told = answer(request).await;
                assert_eq!(told.told(), cancelled(), "{told:?}");
                assert!(told.number("waited_ms") < 20_000, "{told:?}");
            }
            release(&stage.http(0), "one", HOLDER).await;
            release(&stage.http(0), "one", &granted(later).await.text("token")).await;
            until_free(&stage, "one").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_granted_and_released_is_not_granted_again() {
    for stage in stages().await {
        for _ in 0..10 {
            let Pair { ours: [mut first, mut second], later } = pair(&stage, false).await;
            release(&stage.http(0), "one", HOLDER).await;
            // Whichever of the two is granted first releases at once.
            let (one, other) = tokio::select! {
                told = &mut first => (told.unwrap(), second),
                told = &mut second => (told.unwrap(), first),
            };
            release(&stage.http(0), "one", TOKEN).await;
            let other = answer(other).await;
            // It heard of the same lease, or that its claim is over.
            match other.status {
                200 | 201 => assert_eq!(
                    other.number("fencing_token"),
                    one.number("fencing_token"),
                    "{one:?} {other:?}"
                ),
                _ => assert_eq!(other.told(), (409, "wait_cancelled".to_owned())),
            }
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
