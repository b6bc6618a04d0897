//! What one API key may have, and that another has the rest.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::api::{Lockkeeper, OTHER, TOKEN, api_keys};
use crate::support::raw::read_until;
use crate::support::{PATIENCE, Redis, Service, eventually};

/// Settings with these quotas and two API keys.
fn two(quotas: &str) -> String {
    let rights = r#"["acquire", "read", "admin"]"#;
    let keys = [("noisy", r#"["noisy/"]"#, rights), ("victim", r#"["victim/"]"#, rights)];
    format!("{quotas}\n{}", api_keys(&keys))
}

/// A request that goes on, read as far as `until`.
async fn open(http: &Lockkeeper, secret: &str, path: &str, until: &str) -> TcpStream {
    let mut stream = TcpStream::connect(http.0.address).await.unwrap();
    let token = path.replace(['/', '?', '='], "-");
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n\
         Lock-Token: a-token-of{token}\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    if !until.is_empty() {
        read_until(&mut stream, until).await;
    }
    stream
}

#[tokio::test]
async fn an_api_key_has_as_many_leases_as_it_may_and_gets_another_for_each_that_ends() {
    let http = Lockkeeper::with_settings(&two("[quotas]\nleases = 2")).await;
    let noisy = http.bearer("noisy");
    let refused = async || {
        let refused = noisy.post("/locks/noisy/more", "").await;
        assert_eq!(refused.told(), (429, "quota_exceeded".into()));
        assert_eq!(refused.header("retry-after"), Some("1"));
    };
    assert_eq!(noisy.token(TOKEN).post("/locks/noisy/1", "").await.status, 201);
    let second = noisy.post("/locks/noisy/2", "").await;
    assert_eq!(second.status, 201);
    refused().await;
    assert_eq!(http.bearer("victim").post("/locks/victim/1", "").await.status, 201);
    // What it has it may ask for again.
    assert_eq!(noisy.token(TOKEN).post("/locks/noisy/1", "").await.status, 200);
    // The second ends by its TTL; then one is released, and one is forced.
    let (second, number) = (noisy.token(&second.text("token")), second.number("fencing_token"));
    let shorter = format!("/locks/noisy/2?ttl=1s&fencing_token={number}");
    assert_eq!(second.post(&shorter, "").await.status, 201, "in the place of the other");
    let free = async || (noisy.get("/locks/noisy/2").await.field("held") == false).then_some(());
    eventually(PATIENCE, free).await;
    assert_eq!(
        noisy.token(OTHER).post("/locks/noisy/3", "").await.status,
        201,
        "the first request"
    );
    refused().await;
    assert_eq!(noisy.token(TOKEN).delete("/locks/noisy/1").await.status, 204);
    assert_eq!(noisy.post("/locks/noisy/4", "").await.status, 201);
    refused().await;
    assert_eq!(noisy.delete("/admin/locks/noisy/3").await.status, 200);
    assert_eq!(noisy.post("/locks/noisy/5", "").await.status, 201);
    refused().await;
}

#[tokio::test]
async fn a_request_that_supersedes_another_takes_over_its_part_of_the_quotas() {
    let rights = r#"["acquire", "read", "admin"]"#;
    let keys = ["noisy", "victim"].map(|name| (name, r#"["noisy/"]"#, rights));
    let quotas = format!("[quotas]\nleases = 1\nwaiters = 1\n{}", api_keys(&keys));
    let http = Lockkeeper::with_settings(&quotas).await;
    let noisy = http.bearer("noisy").token(TOKEN);
    assert_eq!(http.bearer("victim").token(OTHER).post("/locks/noisy/1", "").await.status, 201);
    let mut older = JoinSet::new();
    let waits = async || (noisy.get("/locks/noisy/1").await.number("waiters") == 1).then_some(());
    for _ in 0..5 {
        let mine = noisy.clone();
        older.spawn(async move { mine.post("/locks/noisy/1?wait=20s", "").await });
        if older.len() > 1 {
            let superseded = older.join_next().await.unwrap().unwrap();
            assert_eq!(superseded.told(), (409, "superseded".into()));
        }
        eventually(PATIENCE, waits).await;
    }
    assert_eq!(noisy.post("/locks/noisy/2", "").await.told(), (429, "quota_exceeded".into()));
    assert_eq!(noisy.delete("/locks/noisy/1").await.status, 204);
    let cancelled = older.join_next().await.unwrap().unwrap();
    assert_eq!(cancelled.told(), (409, "wait_cancelled".into()));
    let free = async || (noisy.post("/locks/noisy/2", "").await.status == 201).then_some(());
    eventually(PATIENCE, free).await;
}

#[tokio::test]
async fn a_refresh_keeps_a_lease_counted_and_a_refusal_counts_nothing() {
    let http = Lockkeeper::with_settings(&two("[quotas]\nleases = 1")).await;
    let noisy = http.bearer("noisy").token(TOKEN);
    let all = http.bearer("victim");
    assert_eq!(noisy.post("/locks/noisy/1?ttl=5s", "").await.status, 201);
    assert_eq!(noisy.put("/locks/noisy/1/refresh?ttl=1h", "").await.status, 200);
    // Another one of that length has come and gone meanwhile.
    assert_eq!(all.token(OTHER).post("/locks/victim/1?ttl=5s", "").await.status, 201);
    eventually(PATIENCE, async || {
        (all.get("/locks/victim/1").await.field("held") == false).then_some(())
    })
    .await;
    assert_eq!(noisy.post("/locks/noisy/2", "").await.status, 429);
    assert_eq!(all.token(OTHER).post("/locks/victim/1", "").await.status, 201);
    assert_eq!(noisy.delete("/locks/noisy/1").await.status, 204);
    for _ in 0..3 {
        assert_eq!(noisy.post("/locks/noisy/%zz", "").await.status, 400);
        assert_eq!(all.post("/locks/victim/1", "").await.status, 409);
    }
    assert_eq!(noisy.post("/locks/noisy/3", "").await.status, 201);
}

#[tokio::test]
async fn the_leases_of_an_api_key_are_counted_over_a_restart() {
    let settings = two("[quotas]\nleases = 4");
    let http = Lockkeeper::with_settings(&settings).await;
    for path in ["0?ttl=1h", "1?ttl=1h", "pool?ttl=1h&slots=9", "pool?ttl=1h&slots=9"] {
        let path = format!("/locks/noisy/{path}");
        assert_eq!(http.bearer("noisy").post(&path, "").await.status, 201);
    }
    let Lockkeeper { service, directory, .. } = http;
    service.shut_down().await;
    let store = format!("embedded:{}", directory.path().display());
    let again = Service::start(&[("LOCKKEEPER_STORE", &store)], &settings).await;
    let bearer = |secret| again.http().with("Authorization", &format!("Bearer {secret}"));
    assert_eq!(bearer("noisy").post("/locks/noisy/2", "").await.status, 429);
    assert_eq!(bearer("victim").post("/locks/victim/1", "").await.status, 201);
    assert_eq!(bearer("noisy").delete("/admin/locks/noisy/0").await.status, 200);
    assert_eq!(bearer("noisy").post("/locks/noisy/2", "").await.status, 201);
}

#[tokio::test]
async fn a_token_with_a_lease_is_told_of_it_by_an_instance_that_has_no_room_for_its_api_key() {
    let (redis, settings) = (Redis::start(), two("[quotas]\nleases = 1"));
    let one = Lockkeeper::on(&redis.url(), &settings).await;
    let other = Lockkeeper::on(&redis.url(), &settings).await;
    let granted = one.bearer("noisy").token(TOKEN).post("/locks/noisy/1", "").await;
    assert_eq!(granted.status, 201);
    let beside = other.bearer("noisy").token(OTHER);
    assert_eq!(beside.post("/locks/noisy/2", "").await.status, 201);
    let mine = other.bearer("noisy").token(TOKEN);
    let again = mine.post("/locks/noisy/1", "").await;
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!(again.field("fencing_token"), granted.field("fencing_token"));
    drop(open(&other, "noisy", "/hold/noisy/3", "quota_exceeded").await);
    let stream = mine.post("/locks/noisy/3", "").await;
    assert_eq!(stream.told(), (429, "quota_exceeded".into()), "another key is one lease more");
    for (lease, path) in [(mine, "/locks/noisy/1"), (beside, "/locks/noisy/2")] {
        assert_eq!(lease.delete(path).await.status, 204);
    }
    let next = other.bearer("noisy").post("/locks/noisy/3", "").await;
    assert_eq!(next.status, 201, "what was told again is counted once: {next:?}");
}

#[tokio::test]
async fn a_lease_of_a_client_that_hung_up_is_counted_as_long_as_it_is_there() {
    let http = Lockkeeper::with_settings(&two("[quotas]\nleases = 1")).await;
    let noisy = http.bearer("noisy");
    // It hangs up in line, and so has nothing.
    assert_eq!(http.bearer("victim").token(OTHER).post("/locks/victim/1", "").await.status, 201);
    let held = http.bearer("noisy").token(TOKEN);
    assert_eq!(held.post("/locks/noisy/1", "").await.status, 201);
    let waits = open(&http, "noisy", "/locks/noisy/1?wait=20s", "").await;
    eventually(PATIENCE, async || {
        (held.get("/locks/noisy/1").await.number("waiters") == 1).then_some(())
    })
    .await;
    drop(waits);
    eventually(PATIENCE, async || {
        (held.get("/locks/noisy/1").await.number("waiters") == 0).then_some(())
    })
    .await;
    assert_eq!(held.delete("/locks/noisy/1").await.status, 204);
    // It is known only once no question for its claim can be under way.
    eventually(PATIENCE, async || {
        (noisy.post("/locks/noisy/2", "").await.status == 201).then_some(())
    })
    .await;
    assert_eq!(noisy.post("/locks/noisy/3", "").await.status, 429);
}

#[tokio::test]
async fn a_client_that_hangs_up_gets_as_many_leases_as_others() {
    const LEASES: usize = 3;
    let http = Lockkeeper::with_settings(&two("[quotas]\nleases = 3")).await;
    // Each with a token of its own.
    for number in 0..60 {
        let path = format!("/locks/noisy/{number}?ttl=10m");
        let shared = format!("/locks/noisy/pool?ttl=10m&shared=true&owner={number}");
        let path = if number % 2 == 0 { path } else { shared };
        drop(open(&http, "noisy", &path, "").await);
    }
    let held = async || {
        let pool = http.bearer("noisy").get("/locks/noisy/pool").await;
        let mut held = pool.field("holders").as_u64().unwrap_or_default() as usize;
        for number in 0..60 + LEASES {
            let look = http.bearer("noisy").get(&format!("/locks/noisy/{number}")).await;
            held += usize::from(look.field("held") == true);
        }
        held
    };
    for _ in 0..20 {
        let held = held().await;
        assert!(held <= LEASES, "{held} leases");
    }
    // What was taken back has made room for others.
    eventually(PATIENCE, async || {
        for number in 60..60 + LEASES {
            http.bearer("noisy").post(&format!("/locks/noisy/{number}?ttl=10m"), "").await;
        }
        let held = held().await;
        assert!(held <= LEASES, "{held} leases");
        (held == LEASES).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lease_that_a_client_keeps_after_it_hung_up_is_counted() {
    let http = Lockkeeper::with_settings(&two("[quotas]\nleases = 1")).await;
    let (noisy, mut kept) = (http.bearer("noisy"), 0);
    for number in 0..100 {
        let path = format!("/locks/noisy/{number}");
        drop(open(&http, "noisy", &path, "").await);
        let mine = noisy.token(&format!("a-token-of{}", path.replace('/', "-")));
        if mine.put(&format!("{path}/refresh"), "").await.status == 200 {
            kept += 1;
            assert_eq!(noisy.post("/locks/noisy/more", "").await.status, 429);
            assert_eq!(mine.delete(&path).await.status, 204);
        }
        eventually(PATIENCE, async || {
            let free = noisy.token(TOKEN).post("/locks/noisy/more", "").await.status == 201;
            (free && noisy.token(TOKEN).delete("/locks/noisy/more").await.status == 204)
                .then_some(())
        })
        .await;
    }
    assert!(kept > 0);
}

#[tokio::test]
async fn the_lease_of_a_stream_is_counted_until_it_ends() {
    let http = Lockkeeper::with_settings(&two("[quotas]\nleases = 1")).await;
    let noisy = http.bearer("noisy");
    let stream = open(&http, "noisy", "/hold/noisy/1", "}\n").await;
    assert_eq!(noisy.post("/locks/noisy/2", "").await.told().1, "quota_exceeded");
    drop(stream);
    eventually(PATIENCE, async || {
        (noisy.token(TOKEN).post("/locks/noisy/2", "").await.status < 300).then_some(())
    })
    .await;
}

#[tokio::test]
async fn one_api_key_cannot_take_all_streams_and_all_places_in_line() {
    let limits = "[limits]\nhold_streams = 4\nwaiters_per_instance = 4";
    let http = Lockkeeper::with_settings(&two(limits)).await;
    let (noisy, victim) = (http.bearer("noisy"), http.bearer("victim"));
    let mut taken = Vec::new();
    for number in 0..2 {
        taken.push(open(&http, "noisy", &format!("/hold/noisy/{number}"), "}\n").await);
    }
    assert_eq!(noisy.post("/hold/noisy/more", "").await.told(), (429, "quota_exceeded".into()));
    assert_eq!(victim.post("/hold/victim/1", "").await.status, 200);
    assert_eq!(victim.token(OTHER).post("/locks/victim/2", "").await.status, 201);
    for number in 0..2 {
        taken.push(open(&http, "noisy", &format!("/locks/noisy/{number}?wait=20s"), "").await);
    }
    let full = async || noisy.token(OTHER).post("/locks/noisy/1?wait=100ms", "").await.told();
    eventually(PATIENCE, async || (full().await == (429, "quota_exceeded".into())).then_some(()))
        .await;
    let waited = victim.post("/locks/victim/2?wait=100ms", "").await;
    assert_eq!(waited.told(), (409, "lock_held".into()));
    // What does not wait needs no place in line.
    assert_eq!(noisy.token(OTHER).post("/locks/noisy/1", "").await.told().0, 409);
    drop(taken);
}

#[tokio::test]
async fn a_page_that_nobody_reads_is_bounded_and_the_rest_is_on_the_next() {
    let http = Lockkeeper::start().await;
    let owner = "\u{1F512}".repeat(64);
    for number in 0..1_000 {
        let path = format!("/locks/{}{number:04}?ttl=1h", "%22".repeat(508));
        let body = format!(r#"{{"owner":"{owner}"}}"#);
        assert_eq!(http.post(&path, &body).await.status, 201);
    }
    let (mut seen, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = http.get(&format!("/locks?limit=1000{cursor}")).await;
        assert!(page.body.len() <= 260 * 1024, "{} bytes", page.body.len());
        let page = page.json();
        seen.extend(page["locks"].as_array().unwrap().iter().map(|lock| lock["key"].to_string()));
        pages += 1;
        let Some(next) = page["cursor"].as_str() else { break };
        cursor = format!("&cursor={}", next.replace('"', "%22"));
    }
    assert!(pages > 1);
    assert!(seen.is_sorted());
    seen.dedup();
    assert_eq!(seen.len(), 1_000);
}
