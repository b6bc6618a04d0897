//! The dashboard in a real browser, driven by `tests/ui/dashboard.cjs`. No case may leave an error
//! in the console or send a request to another host.

use std::path::Path;

use tempfile::TempDir;

use crate::api::api_keys;
use crate::support::packages::{TESTS, node_modules};
use crate::support::process::{command, succeeds};
use crate::support::{Process, Redis};

/// A service on an embedded store, with these settings.
fn start(settings: &str) -> (Process, TempDir) {
    // In memory: ten thousand locks are not for a slow disk to wait for.
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = directory.path().join("lockkeeper.toml");
    std::fs::write(&file, settings).unwrap();
    let store = format!("embedded:{}", directory.path().join("data").display());
    let arguments = ["--store", &store, "--config", file.to_str().unwrap()];
    (Process::start_with(&arguments, &[]), directory)
}

/// Runs a case against this service.
fn browse(case: &str, service: &Process, more: &[&str]) {
    let mut node = command("node");
    node.arg(Path::new(TESTS).join("ui/dashboard.cjs"));
    node.args([case, &service.http().url()]).args(more).env("NODE_PATH", node_modules("ui"));
    succeeds(&mut node);
}

#[test]
fn the_table_and_the_ends_change_without_a_reload() {
    let (service, _directory) = start("");
    browse("live", &service, &[]);
}

#[test]
fn a_text_in_two_parts_is_copied_as_it_is_and_shows_its_end() {
    let (service, _directory) = start("");
    browse("copied", &service, &[]);
}

#[test]
fn since_when_a_key_is_held_is_told_by_the_clock_of_the_reader() {
    let (service, _directory) = start("");
    browse("since", &service, &[]);
}

#[test]
fn an_end_under_way_a_lonely_point_and_a_redis_that_lost_its_data_are_shown() {
    let (service, _directory) = start("");
    browse("rare", &service, &[]);
}

#[test]
fn the_filter_is_in_the_url_and_the_keyboard_is_enough() {
    let (service, _directory) = start("");
    browse("filter", &service, &[]);
}

#[test]
fn a_key_is_freed_only_after_it_was_typed_and_a_reason_given() {
    let (service, _directory) = start("");
    browse("free", &service, &[]);
    assert!(service.log().contains("web-1 is powered off"), "{}", service.log());
}

#[test]
fn a_shared_key_shows_its_leases_and_a_person_ends_one_of_them_or_all() {
    let (service, _directory) = start("");
    browse("shared", &service, &[]);
    assert_eq!(service.log().matches("it hangs").count(), 3, "{}", service.log());
}

#[test]
fn an_api_key_is_asked_for_and_kept_in_the_tab_only() {
    let secrets = ["secret-of-root", "secret-of-the-reader", "secret-of-the-locker"];
    let (service, _directory) = start(&api_keys(&[
        (secrets[0], r#"[""]"#, r#"["acquire", "read", "admin"]"#),
        (secrets[1], r#"["shop/"]"#, r#"["read"]"#),
        (secrets[2], r#"["shop/"]"#, r#"["acquire"]"#),
    ]));
    browse("keys", &service, &secrets);
}

#[test]
fn markup_and_bidirectional_text_of_clients_do_nothing() {
    let (service, _directory) = start("");
    browse("inert", &service, &[]);
}

#[test]
fn axe_finds_nothing_in_any_state_light_and_dark_wide_and_narrow() {
    let (service, _directory) = start("");
    browse("axe", &service, &[]);
}

#[test]
fn ten_thousand_locks_stay_usable_on_the_page() {
    let (service, _directory) = start("");
    browse("many", &service, &[]);
}

#[test]
fn a_page_without_its_service_says_so_and_goes_on_with_it() {
    let (service, _directory) = start("");
    browse("cut", &service, &[]);
}

#[test]
fn a_store_that_is_gone_is_told_in_a_sentence_over_the_last_known_rows() {
    let redis = Redis::start();
    let service = Process::start(&redis.url(), &[]);
    browse("store", &service, &[&redis.pid().to_string()]);
}

#[test]
fn a_person_reserves_a_key_for_as_long_as_the_tab_is_open_or_for_a_time() {
    let (service, _directory) = start("");
    browse("reserve", &service, &[]);
}

/// Those of the pages are made anew by `SCREENSHOTS=docs cargo test --test it dashboard::the_pictures`.
#[test]
fn the_pictures_of_the_pages_are_taken_of_the_page_itself() {
    let (service, directory) = start("");
    let docs = std::env::var_os("SCREENSHOTS").map(std::path::PathBuf::from);
    let there = docs.unwrap_or_else(|| directory.path().to_owned());
    browse("pictures", &service, &[there.to_str().unwrap()]);
    for name in ["dashboard.png", "dashboard-free.png"] {
        let picture = std::fs::read(there.join(name)).unwrap();
        assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000, "{name}");
    }
}
