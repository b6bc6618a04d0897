//! Lists beside many keys of an application: what they ask of Redis.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use futures_util::future::join_all;
use serde_json::json;

use crate::redis_faults::{LONG, PATIENCE, acquire, service};
use crate::support::{Http, Redis, Service, eventually};

const TOKEN: &str = "token-of-the-client";

/// The key of a caller with several prefixes.
pub(super) const API_KEYS: &str = "
[[api_keys]]
name = 'shop'
sha256 = 'd0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272'
prefixes = ['shop/', 'cron/', 'cron/daily/', 'mail/']
permissions = ['acquire', 'read']
";

/// A Redis with so many keys of others beside the locks.
fn beside_others(keys: usize) -> Redis {
    let arguments = ["--save", "", "--appendonly", "no", "--enable-debug-command", "local"];
    let redis = Redis::start_with(&arguments);
    redis.run::<()>(&format!("DEBUG POPULATE {keys} app 8"));
    redis
}

async fn until_granted(http: &Http, key: &str) {
    eventually(PATIENCE, async || {
        [200, 201].contains(&acquire(http, key, TOKEN, LONG).await.status).then_some(())
    })
    .await;
}

fn names(page: &serde_json::Value) -> Vec<String> {
    let locks = page.as_array().unwrap().iter();
    locks.map(|lock| lock["key"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_one_walk_whatever_prefixes_the_caller_has() {
    let redis = beside_others(100);
    let url = redis.url();
    let service = Service::start(&[("LOCKKEEPER_STORE", &url)], API_KEYS).await;
    let http = service.http().with("authorization", "Bearer sesame");
    let mine = ["cron/b", "cron/daily/a", "mail/c", "shop/d"];
    for key in mine {
        until_granted(&http, key).await;
    }
    redis.run::<()>("SET lock:other/e direct");
    redis.run::<()>("CONFIG RESETSTAT");
    let listed = http.get("/locks").await;
    assert_eq!(names(&listed.field("locks")), mine, "{listed:?}");
    let told: String = redis.run("INFO commandstats");
    assert!(told.contains("cmdstat_scan:calls=1,"), "{told}");
    let page = http.get("/locks?limit=3&prefix=cron/").await;
    assert_eq!(names(&page.field("locks")), mine[..2], "{page:?}");
    let page = http.get("/locks?limit=2&cursor=cron/daily/a").await;
    assert_eq!(names(&page.field("locks")), mine[2..], "{page:?}");
    assert_eq!(page.field("cursor"), json!(null), "{page:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_walked_by_one_list_at_a_time() {
    const LISTS: usize = 5;
    let redis = beside_others(30_000);
    let service = service(&redis, &[]).await;
    let http = service.http();
    until_granted(&http, "held").await;
    let monitor = TcpStream::connect(redis.address()).unwrap();
    (&monitor).write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(monitor).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "+OK");
    let pages = join_all((0..LISTS).map(|_| http.get("/locks"))).await;
    for page in pages {
        assert_eq!(names(&page.field("locks")), ["held"], "{page:?}");
    }
    redis.run::<String>("ECHO the-end");
    let seen = lines.map(Result::unwrap).take_while(|line| !line.contains("the-end"));
    let cursors: Vec<String> = seen
        .filter_map(|line| Some(line.split_once("\"SCAN\" \"")?.1.split('"').next()?.to_owned()))
        .collect();
    let length = cursors.iter().skip(1).position(|cursor| cursor == "0").unwrap() + 1;
    assert!(length > 10, "a walk is {length} steps");
    // The keyspace stays as it is, so each walk takes the same steps.
    assert_eq!(cursors.len(), length * LISTS);
    assert!(cursors.chunks(length).all(|walk| walk == &cursors[..length]), "{cursors:?}");
}
