//! Leases of `lockkeeper mcp` from their grant to their end: renewals, losses, cancellations, and an
//! end of the session in every way.

use std::future::ready;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::mcp::{Stage, serving, text};
use crate::support::gate::Gate;
use crate::support::{PATIENCE, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_until_it_is_released() {
    let stage = Stage::new();
    let mut agent = stage.agent_with("one", &["--ttl", "600ms"]);
    agent.call("acquire", json!({ "key": "k", "purpose": "a" }));
    let number = stage.state("k").await["fencing_token"].clone();
    let lasts = async || {
        let state = stage.state("k").await;
        assert_eq!(state["fencing_token"], number, "{state}");
        (state["held_ms"].as_u64().unwrap() > 2_000).then_some(())
    };
    eventually(PATIENCE, lasts).await;
    agent.call("release", json!({ "key": "k" }));
    assert_eq!(stage.state("k").await["held"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_is_told_in_the_next_answer_whatever_was_asked() {
    let stage = Stage::new();
    let calls = [
        ("acquire", json!({ "key": "other", "purpose": "b" })),
        ("acquire", json!({ "key": "k", "purpose": "again" })),
        ("release", json!({ "key": "other" })),
        ("release", json!({ "key": "k" })),
        ("status", json!({})),
        ("status", json!({ "key": "/wrong" })),
        ("list", json!({})),
    ];
    for (tool, arguments) in calls {
        let mut agent = stage.agent("one");
        agent.call("acquire", json!({ "key": "k", "purpose": "deploy" }));
        assert_eq!(stage.http().delete("/admin/locks/k").await.status, 200);
        let id = agent.begin_call(tool, arguments.clone());
        let (told, _) = text(&agent.end(id));
        assert!(told.starts_with("LOST: the lock on 'k'"), "{tool} {arguments}: {told}");
        assert!(told.contains("(\"deploy\")"), "{told}");
        // Another agent may have read that answer: it is told until a call names the key.
        if arguments["key"] != "k" {
            assert!(agent.call("list", json!({})).contains("LOST"), "{tool} {arguments}");
            let told = agent.call("status", json!({ "key": "k" }));
            assert!(told.starts_with("LOST") && !told.contains("This session has"), "{told}");
        }
        let told = agent.call("status", json!({}));
        assert!(!told.contains("LOST"), "{told}");
        drop(agent);
        stage.http().delete("/admin/locks/k").await;
        stage.http().delete("/admin/locks/other").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_away_is_told_and_a_lease_outlives_its_restart() {
    let Stage { directory, service } = Stage::new();
    let address = service.address().to_string();
    let stage = Stage { directory, service };
    let mut agent = stage.agent_with("one", &["--ttl", "1s"]);
    agent.call("acquire", json!({ "key": "k", "purpose": "deploy" }));
    let Stage { directory, service } = stage;
    drop(service);
    let told = eventually(PATIENCE, || {
        let told = agent.call("status", json!({}));
        ready(told.contains("MAYBE LOST: the lock on 'k'").then_some(told))
    });
    assert!(told.await.contains("Pause the work"));
    let told = agent.refused("acquire", json!({ "key": "other", "purpose": "x" }));
    assert!(told.contains("MAYBE LOST") && told.contains("does not answer"), "{told}");
    // The clock of its store stood still, so the lease is there.
    let stage = Stage { service: serving(&directory, &address), directory };
    let told = eventually(PATIENCE, || {
        let told = agent.call("status", json!({}));
        ready((!told.contains("MAYBE LOST")).then_some(told))
    });
    assert!(told.await.starts_with("This session has 'k'"));
    assert_eq!(stage.state("k").await["held"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_leaves_the_line() {
    let stage = Stage::new();
    let (mut one, mut two) = (stage.agent("one"), stage.agent("two"));
    one.call("acquire", json!({ "key": "k", "purpose": "a" }));
    let waits = json!({ "key": "k", "purpose": "b", "wait_seconds": 50 });
    let id = two.begin_call("acquire", waits.clone());
    stage.has_line("k", 1).await;
    two.cancel(id);
    stage.has_line("k", 0).await;
    assert_eq!(two.call("status", json!({})), "This session has no locks.");
    one.call("release", json!({ "key": "k" }));
    stage.is_free("k").await;
    // The key is free for its next call.
    assert!(two.call("acquire", waits).starts_with("Acquired 'k'"));
}

/// The cancelled call renews what it has acquired, while two others release that and acquire anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_leaves_the_lease_that_another_has_acquired_meanwhile() {
    let stage = Stage::new();
    let gate = Gate::before(stage.service.address().port(), "PUT").await;
    let mut agent = stage.agent_at(&gate.url(), "one", &[]);
    let call = |purpose| json!({ "key": "k", "purpose": purpose, "wait_seconds": 10 });
    let cancelled = agent.begin_call("acquire", call("first"));
    gate.holds(1).await;
    let number = async || stage.state("k").await["fencing_token"].as_u64();
    let first = number().await.unwrap();
    agent.begin_call("release", json!({ "key": "k" }));
    let second = agent.begin_call("acquire", call("second"));
    let next = async || number().await.filter(|number| *number > first);
    let has = eventually(PATIENCE, next).await;
    agent.cancel(cancelled);
    agent.answer_among_others(second);
    gate.open();
    let shown = agent.begin_call("status", json!({ "key": "k" }));
    let told = text(&agent.answer_among_others(shown)).0;
    assert!(told.contains(&format!("This session has 'k' (fencing token {has})")), "{told}");
    assert_eq!(number().await, Some(has));
}

/// Every moment of a cancellation: before the request, in line, at the grant, after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_meets_its_cancellation_is_given_back_or_known() {
    let stage = Stage::new();
    let mut agent = stage.agent("one");
    for round in 0..60 {
        let key = format!("k-{round}");
        let call = json!({ "key": key, "purpose": "a", "wait_seconds": 50 });
        let id = agent.begin_call("acquire", call);
        tokio::task::yield_now().await;
        if round % 3 > 0 {
            let asked = async || (stage.state(&key).await["held"] == true).then_some(());
            eventually(PATIENCE, asked).await;
        }
        agent.cancel(id);
    }
    // A lease whose answer was on its way is the session's: it is renewed, and shown.
    let known = || {
        let id = agent.begin_call("status", json!({}));
        // The answers to some of the cancelled calls come before.
        let shown = text(&agent.answer_among_others(id)).0.matches("This session has 'k-").count();
        let http = stage.http();
        async move {
            let locks = http.get("/locks").await.json()["locks"].clone();
            (shown == locks.as_array().unwrap().len()).then_some(())
        }
    };
    eventually(PATIENCE, known).await;
    agent.input = None;
    assert_eq!(agent.ended(), Some(0));
    assert_eq!(stage.http().get("/locks").await.json()["locks"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_when_the_input_closes_or_a_signal_ends_it() {
    let stage = Stage::new();
    let mut holder = stage.agent("holder");
    holder.call("acquire", json!({ "key": "wanted", "purpose": "a" }));
    for end in ["", "TERM", "INT", "HUP"] {
        let mut agent = stage.agent("one");
        agent.call("acquire", json!({ "keys": ["a", "b"], "purpose": "a" }));
        agent.begin_call("acquire", json!({ "key": "wanted", "purpose": "b", "wait_seconds": 50 }));
        stage.has_line("wanted", 1).await;
        let code = match end {
            "" => {
                agent.input = None;
                0
            }
            name => {
                agent.signal(name);
                128 + [("TERM", 15), ("INT", 2), ("HUP", 1)]
                    .iter()
                    .find(|it| it.0 == name)
                    .unwrap()
                    .1
            }
        };
        assert_eq!(agent.ended(), Some(code), "{end}");
        let state = stage.state("wanted").await;
        assert_eq!(state["waiters"], 0, "{end}: {state}");
        let locks = stage.http().get("/locks").await.json()["locks"].clone();
        assert_eq!(locks.as_array().unwrap().len(), 1, "{end}: {locks}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_no_answer_any_more_holds_nothing_once_it_has_closed_the_input() {
    let stage = Stage::new();
    let mut agent = stage.agent("one");
    agent.call("acquire", json!({ "key": "k", "purpose": "a" }));
    // More than a pipe takes.
    for _ in 0..100 {
        agent.begin("tools/list", json!({}));
    }
    agent.input = None;
    stage.is_free("k").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_has_its_keys_for_its_ttl_and_the_next_in_line_then_has_them() {
    let stage = Stage::new();
    let mut one = stage.agent_with("one", &["--ttl", "1s"]);
    let mut two = stage.agent("two");
    one.call("acquire", json!({ "key": "k", "purpose": "a" }));
    let waits = json!({ "key": "k", "purpose": "b", "wait_seconds": 50 });
    let waiting = two.begin_call("acquire", waits.clone());
    stage.has_line("k", 1).await;
    let mut killed = stage.agent("killed");
    killed.begin_call("acquire", waits);
    stage.has_line("k", 2).await;
    killed.signal("KILL");
    stage.has_line("k", 1).await;
    one.signal("KILL");
    let began = Instant::now();
    assert!(two.told(waiting).starts_with("Acquired 'k'"));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}
