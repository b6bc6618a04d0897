//! What the HTTP contract says where several nodes answer.

use crate::api::api_keys;
use crate::redlock::{
    LONG, PATIENCE, PATIENT, Site, Way, acquire, granted, held, look, lost, release, serves,
    unavailable,
};
use crate::support::process::{BINARY, command};
use crate::support::{Checked, Http, Service, eventually};

const MINE: &str = "token-of-this-client";
const OTHER: &str = "token-of-another-client";

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_client_learns_who_holds_the_key_and_for_how_long() {
    let mut site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = Checked(service.http());
    let taken = http.token(MINE).post("/locks/k", r#"{"ttl_ms":60000,"owner":"web-1"}"#).await;
    assert_eq!(taken.status, 201, "{taken:?}");
    for away in [None, Some(Way::Stopped), Some(Way::Dropped)] {
        if let Some(way) = away {
            site.away(1, way);
        }
        let refused = http.post("/locks/k", "").await;
        assert_eq!(refused.told(), held());
        assert_eq!(refused.text("owner"), "web-1");
        let left = refused.number("retry_after_ms");
        assert!((50_000..=60_000).contains(&left), "{refused:?}");
        let after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((50..=60).contains(&after));
        assert_eq!((refused.number("waiters"), refused.number("waited_ms")), (0, 0));
        let waited = http.post("/locks/k?wait=200ms", "").await;
        assert_eq!(waited.told(), held());
        assert!((200..2_000).contains(&waited.number("waited_ms")), "{waited:?}");
        if let Some(way) = away {
            site.back(1, way);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_shown_and_listed_with_a_minority_away() {
    let mut site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = Checked(service.http());
    let mut numbers = Vec::new();
    for name in ["a", "b", "c/d"] {
        let body = format!(r#"{{"ttl_ms":600000,"owner":"of-{name}"}}"#);
        let taken = http.token(MINE).post(&format!("/locks/{name}"), &body).await;
        numbers.push(taken.number("fencing_token"));
    }
    for way in Way::ALL.into_iter().rev() {
        site.away(2, way);
        for (name, number) in ["a", "b", "c/d"].into_iter().zip(&numbers) {
            let shown = http.token(MINE).get(&format!("/locks/{name}")).await;
            assert_eq!(shown.field("held"), true, "{shown:?}");
            assert_eq!(shown.field("mine"), true);
            assert_eq!(shown.number("fencing_token"), *number);
            assert_eq!(shown.text("owner"), format!("of-{name}"));
            assert!((500_000..=600_000).contains(&shown.number("ttl_ms")), "{shown:?}");
        }
        let listed = http.get("/locks").await;
        assert_eq!(listed.status, 200, "{listed:?}");
        let listed = listed.field("locks");
        let keys: Vec<_> = listed.as_array().unwrap().iter().map(|lock| &lock["key"]).collect();
        assert_eq!(keys, ["a", "b", "c/d"], "{way:?}");
        assert_eq!(http.get("/locks/free").await.field("held"), false);
        site.back(2, way);
    }
    // The last of them restarted without its data: the others know.
    assert_eq!(http.get("/locks").await.field("locks").as_array().unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_on_fewer_than_a_majority_of_the_nodes_is_not_shown_as_held() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = Checked(service.http());
    site.nodes[0].run::<()>("SET lock:stray of-nobody PX 600000");
    assert_eq!(http.get("/locks/stray").await.field("held"), false);
    assert_eq!(http.get("/locks").await.field("locks"), serde_json::json!([]));
    site.nodes[1].run::<()>("SET lock:stray of-nobody PX 600000");
    assert_eq!(http.get("/locks/stray").await.field("held"), true);
    assert_eq!(http.get("/locks").await.field("locks").as_array().unwrap().len(), 1);
    // It has no number, so it is nothing that the service could name.
    let forced = http.delete("/admin/locks/stray").await;
    assert_eq!((forced.status, forced.text("field").as_str()), (400, "fencing_token"));
    assert!(forced.text("detail").contains("redis-cli"), "{forced:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_says_whether_a_token_has_the_key_only_if_a_majority_knows() {
    let mut site = Site::of(3).await;
    let service = site.service().await;
    let http = Checked(service.http().token(MINE));
    granted(&service.http(), "k", MINE, LONG).await;
    let mine = async || {
        let looked = http.get("/locks/k").await;
        assert_eq!(looked.status, 200, "{looked:?}");
        looked.json()["mine"].as_bool()
    };
    eventually(PATIENCE, async || (site.locks_on(0).len() == 1).then_some(())).await;
    site.nodes[0].run::<()>("DEL lock:k");
    assert_eq!(mine().await, Some(true));
    site.away(1, Way::Dropped);
    assert_eq!(mine().await, None);
    site.back(1, Way::Dropped);
    eventually(PATIENCE, async || (mine().await == Some(true)).then_some(())).await;
    site.nodes[1].run::<()>("DEL lock:k");
    assert_eq!(mine().await, Some(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_is_unknown_where_no_look_says_whether_its_token_has_the_key() {
    let mut site = Site::of(3).await;
    let keys = [("one", r#"[""]"#, r#"["acquire", "read"]"#)];
    let settings = format!("[quotas]\nleases = 1\n{}", api_keys(&keys));
    let [here, elsewhere] =
        [site.started_by(PATIENT, &settings).await, site.started_by(PATIENT, &settings).await];
    let by_key = |of: &Service| of.http().with("Authorization", "Bearer one");
    serves(&by_key(&here)).await;
    serves(&by_key(&elsewhere)).await;
    site.all_vote().await;
    granted(&by_key(&elsewhere), "k", MINE, LONG).await;
    granted(&by_key(&here), "other", OTHER, LONG).await;
    site.nodes[0].run::<()>("DEL lock:k");
    let repeat = async || acquire(&by_key(&here), "k", MINE, LONG).await;
    site.away(1, Way::Dropped);
    let answer = repeat().await;
    assert_eq!((answer.told(), &*answer.text("outcome")), (unavailable(), "unknown"));
    site.back(1, Way::Dropped);
    eventually(PATIENCE, async || (repeat().await.status == 200).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_release_names_its_lease_and_the_command_looks_it_up() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let plain = service.http();
    let http = Checked(service.http());
    let forced = async |query: &str| http.delete(&format!("/admin/locks/k{query}")).await;
    let number = granted(&plain, "k", MINE, LONG).await.number("fencing_token");
    let refused = forced("").await;
    assert_eq!(refused.told(), (400, "invalid_request".to_owned()), "{refused:?}");
    assert_eq!(refused.text("field"), "fencing_token");
    assert_eq!(forced("?fencing_token=1").await.told(), lost());
    let ended = forced(&format!("?fencing_token={number}")).await;
    assert_eq!((ended.status, ended.number("fencing_token")), (200, number), "{ended:?}");
    site.bare().await;
    let run = || {
        let mut run = command(BINARY);
        run.args(["force-release", "k"]).env("LOCKKEEPER_URL", plain.url());
        let ran = run.output().unwrap();
        (ran.status.code(), String::from_utf8(ran.stderr).unwrap())
    };
    granted(&plain, "k", MINE, LONG).await;
    assert_eq!(run(), (Some(0), String::new()));
    site.bare().await;
    let (code, told) = run();
    assert!(code == Some(79) && told.contains("is not held"), "{code:?} {told}");
    site.nodes.iter().for_each(|node| node.run("SET lock:k of-nobody PX 600000"));
    let (code, told) = run();
    assert!(code != Some(0) && told.contains("redis-cli"), "{code:?} {told}");
    // Terraform's `force-unlock` names no lease.
    site.nodes.iter().for_each(|node| node.run("DEL lock:k"));
    granted(&plain, "k", MINE, LONG).await;
    assert_eq!(plain.send("UNLOCK", "/terraform/k", "").await.status, 200);
    assert_eq!(plain.send("UNLOCK", "/terraform/k", "").await.status, 409);
    site.bare().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_says_that_it_stands_on_redlock() {
    let site = Site::of(3).await;
    let service = site.service().await;
    let about = Checked(service.http()).get("/").await;
    assert_eq!(about.field("store")["name"], "redlock", "{about:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_of_a_token_is_the_same_lease_at_every_instance() {
    let site = Site::of(3).await;
    let services = site.services(3).await;
    let first = granted(&services[0].http(), "again", MINE, LONG).await;
    for service in &services {
        let again = acquire(&service.http(), "again", MINE, LONG).await;
        assert_eq!(again.status, 200, "{again:?}");
        assert_eq!(again.number("fencing_token"), first.number("fencing_token"));
        assert_eq!(acquire(&service.http(), "again", OTHER, LONG).await.told(), held());
    }
    assert_eq!(release(&services[2].http(), "again", MINE).await.status, 204);
}

/// Whoever gives up waiting, or goes away, leaves nothing on any node.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_over_or_broken_off_leaves_nothing() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http: Http = service.http();
    granted(&http, "waited", MINE, LONG).await;
    assert_eq!(http.post("/locks/waited?wait=300ms", "").await.told(), held());
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let http = http.clone();
        waiting.spawn(async move { http.post("/locks/waited?wait=20s", "").await });
    }
    let waiters = async || look(&http, "waited").await.field("waiters");
    eventually(PATIENCE, async || (waiters().await == 10).then_some(())).await;
    drop(waiting);
    eventually(PATIENCE, async || (waiters().await == 0).then_some(())).await;
    assert_eq!(release(&http, "waited", MINE).await.status, 204);
    site.bare().await;
    granted(&http, "waited", OTHER, LONG).await;
}
