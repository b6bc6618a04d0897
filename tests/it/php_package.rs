//! The PHP package of `clients/php` with the frameworks that Debian has, and the examples that use it.

use std::path::PathBuf;

use crate::api::api_keys;
use crate::readme::{Newcomer, blocks};
use crate::support::process::{command, succeeds};
use crate::support::{Process, Redis};

/// May do everything, and may only acquire.
const API_KEYS: [(&str, &str, &str); 2] = [
    ("may-do-all", r#"[""]"#, r#"["acquire", "read", "admin"]"#),
    ("may-acquire", r#"[""]"#, r#"["acquire"]"#),
];

/// What the package's tests count on.
const LIMITS: &[(&str, &str)] =
    &[("LOCKKEEPER_TTL_MAX", "1h"), ("LOCKKEEPER_LIMITS_MAX_WAIT", "400ms")];

#[test]
fn the_php_package_does_what_its_tests_say_on_the_embedded_store() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [store, patient] = directories.each_ref().map(|directory| directory.path().display());
    passes_phpunit(&format!("embedded:{store}"), &format!("embedded:{patient}"));
}

#[test]
fn the_php_package_does_what_its_tests_say_on_redis() {
    let redis = Redis::start();
    passes_phpunit(&redis.url(), &redis.url());
}

#[test]
fn the_php_package_is_written_as_psr_12_says() {
    runs("phpcs", &["-q"]);
}

#[test]
fn every_file_of_the_php_package_is_php() {
    runs("sh", &["-c", "find . -name '*.php' | xargs -n 1 php -l"]);
}

#[test]
fn composer_takes_the_php_package() {
    runs("composer", &["validate", "--strict", "--no-interaction"]);
}

#[test]
fn a_lock_begins_in_a_request_and_ends_in_a_worker_of_symfony() {
    follows("symfony-style", include_str!("../../examples/symfony-style/README.md"));
}

#[test]
fn a_lock_begins_in_a_request_and_ends_in_a_job_of_laravel() {
    follows("laravel-style", include_str!("../../examples/laravel-style/README.md"));
}

fn passes_phpunit(store: &str, of_the_patient: &str) {
    let settings = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(settings.path(), api_keys(&API_KEYS)).unwrap();
    let arguments = |store| ["--store", store, "--config", settings.path().to_str().unwrap()];
    let service = Process::start_with(&arguments(store), LIMITS);
    let patient = Process::start_with(&arguments(of_the_patient), &[]);
    let mut phpunit = command("phpunit");
    phpunit
        .args(["--fail-on-skipped", "--fail-on-incomplete"])
        .current_dir(package())
        .env("LOCKKEEPER_URL", service.http().url())
        .env("LOCKKEEPER_PATIENT_URL", patient.http().url())
        .env("LOCKKEEPER_PID", service.pid().to_string())
        .env("LOCKKEEPER_API_KEY", API_KEYS[0].0)
        .env("LOCKKEEPER_PLAIN_API_KEY", API_KEYS[1].0);
    let done = phpunit.output().unwrap();
    let printed = String::from_utf8_lossy(&done.stdout);
    let numbered =
        |line: &&str| line.starts_with(|first: char| first.is_ascii_digit()) && line.contains(") ");
    let failed: Vec<&str> = printed.lines().filter(numbered).collect();
    assert!(done.status.success(), "{failed:?}\n{printed}");
}

fn runs(program: &str, arguments: &[&str]) {
    succeeds(command(program).args(arguments).current_dir(package()));
}

/// Types what the page of an example says, in a copy of it; for Composer, which would ask
/// Packagist, with the package as it is here.
fn follows(example: &str, page: &str) {
    let mut newcomer = Newcomer::new();
    let root = env!("CARGO_MANIFEST_DIR");
    let copy = format!("cp -r {root}/examples/{example}/. .");
    let bootstrap = package().join("tests/bootstrap.php").display().to_string();
    let vendor =
        format!("mkdir vendor; echo \"<?php require '{bootstrap}';\" > vendor/autoload.php");
    newcomer.takes("cd examples/symfony-style", &copy);
    newcomer.takes("cd examples/laravel-style", &copy);
    newcomer.takes("composer install -q", &vendor);
    newcomer.types("make run");
    for (kind, text) in blocks(page) {
        assert_eq!(kind, "sh");
        newcomer.types(text);
    }
    assert_eq!(newcomer.answers, 4);
}

fn package() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "clients/php"].iter().collect()
}
