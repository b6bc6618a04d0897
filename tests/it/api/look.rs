//! A look at one key, and the list of those that are held.

use std::collections::BTreeSet;

use crate::api::{Lockkeeper, OTHER, TOKEN, assert_members};
use crate::support::{Answer, PATIENCE, eventually};

/// The keys on a page.
fn keys(page: &Answer) -> Vec<String> {
    let locks = page.json()["locks"].as_array().unwrap().clone();
    locks.iter().map(|lock| lock["key"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_free_key_is_there_to_look_at() {
    let http = Lockkeeper::start().await;
    let free = http.get("/locks/k").await;
    assert_eq!(free.status, 200);
    assert_members(&free, &["key", "held", "waiters"]);
    assert_eq!((free.field("held"), free.number("waiters")), (false.into(), 0));
    assert_eq!(http.token(TOKEN).get("/locks/k").await.field("mine"), false);
}

#[tokio::test]
async fn a_held_key_shows_its_holder_and_whether_it_is_mine() {
    let http = Lockkeeper::start().await;
    let granted = http.token(TOKEN).post("/locks/k", r#"{"ttl_ms":9000,"owner":"web-1"}"#).await;
    let held = http.get("/locks/k").await;
    let members = ["key", "held", "owner", "fencing_token", "ttl_ms", "held_ms", "waiters"];
    assert_members(&held, &members);
    assert_eq!((held.field("held"), held.text("owner").as_str()), (true.into(), "web-1"));
    assert_eq!(held.field("fencing_token"), granted.field("fencing_token"));
    assert!((1..=9_000).contains(&held.number("ttl_ms")));
    for (token, mine) in
        [(TOKEN.to_owned(), true), (format!("<{TOKEN}>"), true), (OTHER.into(), false)]
    {
        let held = http.token(&token).get("/locks/k").await;
        assert_members(&held, &[&members[..], &["mine"]].concat());
        assert_eq!(held.field("mine"), mine, "{token}");
    }
}

#[tokio::test]
async fn head_is_get_without_a_body() {
    let http = Lockkeeper::start().await;
    for path in ["/locks/k", "/locks", "/", "/healthz", "/readyz", "/metrics", "/openapi.yaml"] {
        let (head, get) = (http.send("HEAD", path, "").await, http.get(path).await);
        assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
        assert_eq!(head.header("content-type"), get.header("content-type"), "{path}");
    }
}

#[tokio::test]
async fn a_look_has_one_option_of_0_to_100() {
    let http = Lockkeeper::start().await;
    let refused = http.get("/locks/k?ttl=5s").await;
    assert_eq!(refused.told(), (400, "unknown_field".into()));
    assert_eq!(refused.field("known"), serde_json::json!(["waiters"]));
    for most in ["101", "-1", "", "x", "1.5", "99999999999999999999"] {
        let refused = http.get(&format!("/locks/k?waiters={most}")).await;
        assert_eq!(refused.told(), (400, "invalid_request".into()), "{most}");
        assert_eq!(refused.text("field"), "waiters", "{most}");
    }
    for most in ["0", "1", "100"] {
        let free = http.token(TOKEN).get(&format!("/locks/k?waiters={most}")).await;
        assert_members(&free, &["key", "held", "waiters", "queue", "mine"]);
        assert_eq!(free.field("queue"), serde_json::json!([]));
    }
}

#[tokio::test]
async fn the_queue_names_those_who_wait_and_for_how_long() {
    let http = Lockkeeper::start().await;
    http.token(TOKEN).post("/locks/k?owner=holder", "").await;
    let count = async |waiters| {
        let counted = async || http.get("/locks/k").await.number("waiters") == waiters;
        eventually(PATIENCE, async || counted().await.then_some(())).await;
    };
    let seen_while_it_waits = async |path: &str| {
        let look = async {
            count(1).await;
            http.get("/locks/k?waiters=5").await
        };
        tokio::select! {
            answer = http.post(path, "") => panic!("{answer:?}"),
            seen = look => seen,
        }
    };
    let seen = seen_while_it_waits("/locks/k?wait=25s&owner=web-2").await;
    let members =
        ["key", "held", "owner", "fencing_token", "ttl_ms", "held_ms", "waiters", "queue"];
    assert_members(&seen, &members);
    let queue = seen.field("queue");
    assert_eq!((queue.as_array().unwrap().len(), &queue[0]["owner"]), (1, &"web-2".into()));
    assert!(queue[0]["waited_ms"].as_u64().unwrap() <= seen.number("held_ms"), "{seen:?}");
    count(0).await;
    let nameless = seen_while_it_waits("/locks/k?wait=25s").await;
    assert_eq!(nameless.field("queue")[0]["owner"], "127.0.0.1");
}

#[tokio::test]
async fn the_list_has_every_held_key_once_on_pages_of_any_size() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let mut held = BTreeSet::new();
    for number in 0..23 {
        let key = format!("list/{number}");
        http.post(&format!("/locks/{key}"), "").await;
        held.insert(key);
    }
    http.post("/locks/list/gone", "").await;
    http.delete("/locks/list/gone").await;
    for limit in [1, 7, 22, 23, 24, 1_000] {
        let (mut seen, mut pages, mut more) = (Vec::new(), 0, String::new());
        loop {
            let page = http.get(&format!("/locks?prefix=list/&limit={limit}{more}")).await;
            pages += 1;
            seen.extend(keys(&page));
            assert!(keys(&page).len() <= limit);
            let Some(cursor) = page.field("cursor").as_str().map(str::to_owned) else { break };
            let encoded: String = form_urlencoded::byte_serialize(cursor.as_bytes()).collect();
            more = format!("&cursor={encoded}");
        }
        assert_eq!(pages, 23_usize.div_ceil(limit), "{limit}");
        assert_eq!(seen.len(), 23, "{limit}");
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), held, "{limit}");
    }
}

#[tokio::test]
async fn the_list_shows_what_a_look_shows() {
    let http = Lockkeeper::start().await;
    assert_eq!(http.get("/locks").await.body, r#"{"locks":[]}"#);
    http.token(TOKEN).post("/locks/k", r#"{"owner":"web-1"}"#).await;
    let (listed, look) = (http.get("/locks").await, http.get("/locks/k").await);
    for member in ["key", "held", "owner", "fencing_token", "waiters"] {
        assert_eq!(listed.json()["locks"][0][member], look.field(member), "{member}");
    }
    assert!(!String::from_utf8_lossy(&listed.body).contains(TOKEN));
}

#[tokio::test]
async fn a_prefix_is_compared_as_it_stands() {
    let http = Lockkeeper::start().await;
    for key in ["a", "a/b", "a/c", "a%2A", "ab", "b", "%C3%BC/1", "100%25"] {
        http.post(&format!("/locks/{key}"), "").await;
    }
    for (prefix, found) in [
        ("a/", &["a/b", "a/c"][..]),
        ("a", &["a", "a*", "a/b", "a/c", "ab"]),
        ("a*", &["a*"]),
        ("%C3%BC", &["ü/1"]),
        ("%C3%BC%2F1", &["ü/1"]),
        ("100%25", &["100%"]),
        ("c", &[]),
        ("[ab]", &[]),
    ] {
        let mut seen = keys(&http.get(&format!("/locks?prefix={prefix}")).await);
        seen.sort();
        assert_eq!(seen, found, "{prefix}");
    }
}

#[tokio::test]
async fn a_page_has_100_keys_if_nobody_says_and_1000_at_most() {
    let http = Lockkeeper::start().await;
    for limit in ["0", "1001", "-1", "x", "", "1.5", "99999999999999999999"] {
        let refused = http.get(&format!("/locks?limit={limit}")).await;
        assert_eq!(refused.told(), (400, "invalid_request".into()), "{limit}");
        assert_eq!(refused.text("field"), "limit", "{limit}");
    }
    let refused = http.get("/locks?page=2").await;
    assert_eq!(refused.told(), (400, "unknown_field".into()));
    assert_eq!(refused.field("known"), serde_json::json!(["prefix", "limit", "cursor"]));
    for number in 0..101 {
        http.post(&format!("/locks/{number}"), "").await;
    }
    let page = http.get("/locks").await;
    assert_eq!((keys(&page).len(), page.field("cursor").is_string()), (100, true));
}
