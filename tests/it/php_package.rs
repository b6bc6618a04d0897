//! The PHP package of `clients/php`, which needs no framework.

use std::path::PathBuf;

use crate::api::api_keys;
use crate::support::process::{command, succeeds};
use crate::support::{Process, Redis, in_memory};

/// May do everything, and may only acquire.
const API_KEYS: [(&str, &str, &str); 2] = [
    ("may-do-all", r#"[""]"#, r#"["acquire", "read", "admin"]"#),
    ("may-acquire", r#"[""]"#, r#"["acquire"]"#),
];

/// What the package's tests count on.
const LIMITS: &[(&str, &str)] =
    &[("LOCKKEEPER_TTL_MAX", "1h"), ("LOCKKEEPER_LIMITS_MAX_WAIT", "400ms")];

/// Keys whose leases last no longer than the package's tests say.
const BRIEF: &str = "[[prefixes]]\nprefix = \"brief/\"\nmax_hold = \"6s\"\n";

#[test]
fn the_php_package_does_what_its_tests_say_on_the_embedded_store() {
    let directories = [in_memory(), in_memory()];
    let [store, patient] = directories.each_ref().map(|directory| directory.path().display());
    passes_phpunit("client", &format!("embedded:{store}"), &format!("embedded:{patient}"));
}

#[test]
fn the_php_package_does_what_its_tests_say_on_redis() {
    let redis = Redis::start();
    passes_phpunit("client", &redis.url(), &redis.url());
}

#[test]
fn every_file_of_the_php_package_is_php() {
    runs("sh", &["-c", "find . -name '*.php' | xargs -n 1 php -l"]);
}

/// Runs a suite of `phpunit.xml.dist` against a service on the first store, and on the second one
/// without limits.
pub(crate) fn passes_phpunit(suite: &str, store: &str, of_the_patient: &str) {
    let settings = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(settings.path(), api_keys(&API_KEYS) + BRIEF).unwrap();
    let arguments = |store| ["--store", store, "--config", settings.path().to_str().unwrap()];
    let service = Process::start_with(&arguments(store), LIMITS);
    let patient = Process::start_with(&arguments(of_the_patient), &[]);
    let mut phpunit = command("phpunit");
    phpunit
        .args(["--fail-on-skipped", "--fail-on-incomplete", "--testsuite", suite])
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

pub(crate) fn runs(program: &str, arguments: &[&str]) {
    succeeds(command(program).args(arguments).current_dir(package()));
}

pub(crate) fn package() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "clients/php"].iter().collect()
}
