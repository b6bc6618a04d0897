//! The steps of the page, and the day after.

use std::time::{Duration, Instant};

use crate::migration::{KEY, PAGE, PATIENCE, Site, admitted, redlock};
use crate::readme::{Newcomer, blocks};
use crate::support::{Process, Redis, eventually};
use crate::waiting::until_waiters;

/// How late a release by old code is noticed, as the page says, and what a busy machine adds.
const NOTICED: Duration = Duration::from_millis(500 + 1_000);

#[test]
fn the_steps_show_what_the_page_says() {
    let mut newcomer = Newcomer::new();
    let (before, _) = PAGE.split_once("\n## Recipes\n").unwrap();
    let blocks = blocks(before);
    for (kind, text) in &blocks {
        match *kind {
            "toml" => newcomer.configures(text),
            "sh" => newcomer.types(text),
            kind => panic!("a block of a kind that nobody tests: {kind:?}\n{text}"),
        }
    }
    assert_eq!((blocks.len(), newcomer.answers), (2, 4));
}

#[tokio::test]
async fn only_the_whole_name_counts_whatever_part_of_it_is_the_prefix() {
    let redis = Redis::start();
    let store = format!("{}/3", redis.url());
    let instance = |prefix| Process::start(&store, &[("LOCKKEEPER_REDIS_KEY_PREFIX", prefix)]);
    let instances = [(instance("lock:"), "7"), (instance(""), "lock:7"), (instance("lock"), ":7")];
    let mut last = 0;
    for (holder, key) in &instances {
        let path = format!("/locks/{key}");
        let grant = holder.http().post(&path, "").await;
        assert!(grant.number("fencing_token") > last, "{grant:?}");
        last = grant.number("fencing_token");
        for (other, key) in &instances {
            let refused = other.http().post(&format!("/locks/{key}"), "").await;
            assert_eq!(refused.told(), (409, "lock_held".into()));
        }
        let holder = holder.http().token(&grant.text("token"));
        assert_eq!(holder.delete(&path).await.status, 204);
    }
    // The other databases are other places.
    let elsewhere = Process::start(&redis.url(), &[]);
    redis.run_words::<()>(&["SET", "lock:8", "by-old-code"]);
    assert_eq!(elsewhere.http().post("/locks/8", "").await.status, 409);
    assert_eq!(instances[0].0.http().post("/locks/8", "").await.status, 201);
}

#[tokio::test]
async fn with_no_prefix_every_key_of_the_database_is_listed_and_can_be_deleted() {
    let redis = Redis::start();
    redis.run::<()>("SET cache:page html");
    let process = Process::start(&redis.url(), &[("LOCKKEEPER_REDIS_KEY_PREFIX", "")]);
    let listed = process.http().get("/locks").await.json();
    assert_eq!(listed["locks"][0]["key"], "cache:page");
    assert_eq!(process.http().delete("/admin/locks/cache:page").await.status, 200);
    assert!(!redis.run::<bool>("EXISTS cache:page"));
}

#[tokio::test]
async fn a_list_tells_the_locks_of_old_code_by_their_lack_of_a_fencing_token() {
    let site = Site::start(&[]);
    site.redis().run::<()>("SET lock:old by-old-code NX PX 60000");
    assert_eq!(site.http().post("/locks/new", "").await.status, 201);
    let listed = site.http().get("/locks").await.json();
    let locks = listed["locks"].as_array().unwrap();
    let old = locks.iter().filter(|lock| lock.get("fencing_token").is_none());
    assert_eq!(old.map(|lock| lock["key"].as_str().unwrap()).collect::<Vec<_>>(), ["old"]);
    assert_eq!(locks.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_notices_a_release_by_old_code_within_half_a_second() {
    let site = Site::start(&[]);
    site.redis().run::<()>("SET lock:import by-old-code NX PX 60000");
    let http = site.http();
    let waits = async {
        assert_eq!(http.post("/locks/import?wait=20s", "").await.status, 201);
        Instant::now()
    };
    let releases = async {
        until_waiters(&site.http(), "import", 1).await;
        let now = Instant::now();
        site.redis().run::<()>("DEL lock:import");
        now
    };
    let (granted, released) = tokio::join!(waits, releases);
    assert!(granted - released < NOTICED, "{:?}", granted - released);
}

/// Without the service there is no lease, and the next store begins above the numbers of the last.
#[tokio::test]
async fn fencing_tokens_go_on_rising_from_one_store_to_the_next() {
    let (old, nodes) = (Redis::start(), [Redis::start(), Redis::start(), Redis::start()]);
    let directory = tempfile::tempdir().unwrap();
    let embedded = format!("embedded:{}", directory.path().display());
    admitted(&nodes).await;
    let stores = [
        &|| Process::start(&old.url(), &[]),
        &|| Process::start(&embedded, &[]),
        &|| redlock(&nodes),
        &|| Process::start(&old.url(), &[]),
    ] as [&dyn Fn() -> Process; 4];
    let mut last = 0;
    for start in stores {
        let process = start();
        let grant = eventually(PATIENCE, async || {
            let answer = process.http().post(&format!("{KEY}?ttl=100ms"), "").await;
            (answer.status == 201).then_some(answer)
        });
        let next = grant.await.number("fencing_token");
        assert!(next > last, "{next} after {last}");
        last = next;
    }
}
