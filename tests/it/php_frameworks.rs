//! The PHP package with Symfony and Laravel as Debian has them, and the examples that use it.

use crate::php_package::{package, passes_phpunit, runs};
use crate::readme::{Newcomer, blocks};
use crate::support::{Redis, in_memory};

#[test]
fn the_drivers_do_what_their_tests_say_on_the_embedded_store() {
    let directories = [in_memory(), in_memory()];
    let [store, patient] = directories.each_ref().map(|directory| directory.path().display());
    passes_phpunit("frameworks", &format!("embedded:{store}"), &format!("embedded:{patient}"));
}

#[test]
fn the_drivers_do_what_their_tests_say_on_redis() {
    let redis = Redis::start();
    passes_phpunit("frameworks", &redis.url(), &redis.url());
}

#[test]
fn the_php_package_is_written_as_psr_12_says() {
    runs("phpcs", &["-q"]);
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
