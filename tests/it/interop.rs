//! Libraries that lock on Redis directly, in PHP, Python and Node, on the same Redis and the same keys
//! as the service: each excludes the service's clients and is excluded by them.

use std::time::{Duration, Instant};

use crate::support::packages::pinned;
use crate::support::peers::{Site, counted, step};
use crate::support::{PATIENCE, eventually};

const PAGE: &str = include_str!("../../docs/migration.md");

/// How soon a waiter has to have what was released: each asks again within half a second, and the
/// machine is busy. Who never asks again would wait four times as long.
const SOON: Duration = Duration::from_secs(5);

/// How often each worker adds one: two of a library 1 000 times, and two over HTTP as often.
const ROUNDS: u32 = 500;

/// A service whose locks are not those of the libraries.
const ELSEWHERE: &[(&str, &str)] = &[("LOCKKEEPER_REDIS_KEY_PREFIX", "elsewhere:")];

macro_rules! of_each_library {
    ($($library:ident = $recipe:literal,)*) => {
        /// The recipes of all of them.
        const LIBRARIES: &[&str] = &[$($recipe,)*];

        $(mod $library {
            #[tokio::test]
            async fn holds_what_the_service_then_refuses_and_is_refused_what_the_service_holds() {
                super::excludes_and_is_excluded($recipe).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn lets_in_who_waits_at_the_service_when_it_releases() {
                super::lets_a_waiter_in($recipe).await;
            }

            #[test]
            fn counts_with_clients_of_the_service_a_thousand_rounds_each() {
                super::counts_right($recipe);
            }
        })*
    };
}

of_each_library! {
    phpredis = "set-nx",
    predis = "predis",
    redis_py = "redis-py",
    redlock_py = "redlock-py",
    node_redlock_4 = "node-redlock-4",
    node_redlock_5 = "node-redlock-5",
}

/// What the other tests would see if nobody were excluded.
#[test]
fn a_library_and_clients_of_the_service_that_lock_other_keys_count_over_one_another() {
    let site = Site::start(ELSEWHERE);
    for recipe in LIBRARIES {
        let said = count(&site, recipe, 200);
        eprintln!("{recipe}: {said} of 800");
        assert!(said < 800, "{recipe}");
    }
}

#[test]
fn all_libraries_and_clients_of_the_service_count_right_together() {
    let site = Site::start(&[]);
    let (port, url) = (site.port(), site.url());
    let mut workers = vec![("http", url.as_str()), ("http-wait", &url)];
    workers.extend(LIBRARIES.iter().map(|&recipe| (recipe, port.as_str())));
    assert_eq!(counted(&workers, 100), 100 * workers.len() as u64);
}

#[test]
fn the_page_on_moving_names_the_versions_that_are_run() {
    for (file, before) in [
        ("interop/requirements.txt", "redis=="),
        ("interop/requirements.txt", "redlock-py=="),
        ("interop/package.json", "\"redlock4\": \"npm:redlock@"),
        ("interop/package.json", "\"redlock5\": \"npm:redlock@"),
    ] {
        let version = pinned(file, before);
        assert!(PAGE.contains(&format!(" {version}")), "{before}{version}");
    }
}

/// Those that wait by themselves, asking again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_library_that_waits_has_its_turn_when_the_service_releases() {
    let site = Site::start(&[]);
    for recipe in ["redis-py", "redlock-py", "node-redlock-4", "node-redlock-5"] {
        let path = format!("/locks/{recipe}");
        let token = site.http().post(&format!("{path}?ttl=1h"), "").await.text("token");
        assert_eq!(site.acquire(recipe, recipe, 60_000), None);
        let (before, port) = (site.asked(), site.port());
        let waits = move || step(recipe, &port, &["wait", recipe, "60000"]);
        let waiter = tokio::task::spawn_blocking(waits);
        eventually(PATIENCE, async || (site.asked() > before + 2).then_some(())).await;
        assert!(!waiter.is_finished(), "{recipe} did not wait");
        assert_eq!(site.http().token(&token).delete(&path).await.status, 204);
        let released = Instant::now();
        let proof = waiter.await.unwrap();
        assert!(released.elapsed() < SOON, "{recipe}: {:?}", released.elapsed());
        assert_eq!(site.release(recipe, recipe, &proof), "released");
    }
}

async fn excludes_and_is_excluded(recipe: &str) {
    let site = Site::start(&[]);
    site.excludes_until_release(recipe).await;
    site.is_excluded_until_release(recipe).await;
    site.is_excluded_while_leases_share_the_key(recipe).await;
    site.is_excluded_until_expiry(recipe).await;
    site.excludes_until_expiry(recipe).await;
}

async fn lets_a_waiter_in(recipe: &str) {
    let site = Site::start(&[]);
    let proof = site.acquire(recipe, "line", 60_000).unwrap();
    let http = site.http();
    let release = async {
        let waiters = async || Some(http.get("/locks/line").await.number("waiters"));
        eventually(PATIENCE, async || waiters().await.filter(|&waiters| waiters == 1)).await;
        assert_eq!(site.release(recipe, "line", &proof), "released");
        Instant::now()
    };
    let (answer, released) = tokio::join!(http.post("/locks/line?wait=20s", ""), release);
    assert_eq!(answer.status, 201);
    assert!(released.elapsed() < SOON, "{:?}", released.elapsed());
}

fn counts_right(recipe: &str) {
    let site = Site::start(&[]);
    let began = Instant::now();
    assert_eq!(count(&site, recipe, ROUNDS), u64::from(4 * ROUNDS));
    eprintln!("2 x {ROUNDS} rounds over HTTP and as many by {recipe} in {:?}", began.elapsed());
}

/// Two clients of the service, one that asks and one that waits in line, and two of a library.
fn count(site: &Site, recipe: &str, rounds: u32) -> u64 {
    let (port, url) = (site.port(), site.url());
    // The slowest to start comes first.
    let workers = [(recipe, port.as_str()), (recipe, &port), ("http", &url), ("http-wait", &url)];
    counted(&workers, rounds)
}
