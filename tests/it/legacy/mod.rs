//! The one file for PHP applications without composer: every verb and every end, on PHP 7.2 and
//! Debian's, with ext-curl and without.

mod ends;
mod faults;
mod grants;
mod php;

use crate::api::api_keys;
use crate::legacy::php::{Php, root};
use crate::readme::{SERVICE, blocks};
use crate::support::process::command;
use crate::support::{Process, Redis, in_memory};

const FILE: &str = "clients/php/legacy/lockkeeper.php";

/// The token of somebody else.
const HOLDER: &str = "somebody-elses-token";

const PAGE: &str = include_str!("../../../clients/php/legacy/README.md");

/// A service on an embedded store in memory, and the directory of that.
fn embedded(variables: &[(&str, &str)]) -> (Process, tempfile::TempDir) {
    let directory = in_memory();
    let store = format!("embedded:{}", directory.path().display());
    (Process::start(&store, variables), directory)
}

#[test]
fn every_verb_of_the_legacy_file_does_what_it_says_on_every_php() {
    let (service, _directory) = embedded(&[]);
    let redis = Redis::start();
    let on_redis = Process::start(&redis.url(), &[]);
    for php in Php::ALL {
        for service in [&service, &on_redis] {
            let said = php.says(&["verbs", &service.http().url()]);
            assert_eq!(said, "as it has to be", "{php:?}");
        }
    }
}

#[test]
fn a_lease_of_the_legacy_file_shares_its_key_as_its_options_say() {
    let (service, _directory) = embedded(&[]);
    for php in Php::ALL {
        let said = php.says(&["sharing", &service.http().url()]);
        assert_eq!(said, "as it has to be", "{php:?}");
    }
    for php in Php::NATIVE {
        let said = php.says(&["held_sharing", &service.http().url()]);
        assert_eq!(said, "as it has to be", "{php:?}");
    }
}

#[tokio::test]
async fn a_key_of_the_legacy_file_is_that_key_whatever_is_in_it() {
    let (service, _directory) = embedded(&[]);
    let http = service.http();
    for (key, path) in [
        ("a/b", "a%2Fb"),
        ("Büro 7/100% & Co", "B%C3%BCro%207/100%25%20%26%20Co"),
        ("a+b?c#d;e=..f", "a%2Bb%3Fc%23d%3Be%3D..f"),
    ] {
        let holder = http.token(HOLDER);
        for php in Php::ALL {
            assert_eq!(holder.post(&format!("/locks/{path}?ttl=1h"), "").await.status, 201);
            assert_eq!(php.says(&["look", &http.url(), key]), "busy", "{php:?} {key}");
            assert_eq!(holder.delete(&format!("/locks/{path}")).await.status, 204);
            assert_eq!(php.says(&["look", &http.url(), key]), "free", "{php:?} {key}");
        }
    }
}

#[test]
fn a_refusal_by_the_service_is_an_exception_with_its_code() {
    let (open, _directory) = embedded(&[]);
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("lockkeeper.toml");
    let keys = api_keys(&[("the-api-key", r#"["shop/"]"#, r#"["acquire"]"#)]);
    std::fs::write(&settings, keys).unwrap();
    let store = format!("embedded:{}", directory.path().join("store").display());
    let settings = settings.display().to_string();
    let closed = Process::start(&store, &[("LOCKKEEPER_CONFIG", &settings)]);
    let url_of_closed = closed.http().url();
    for php in Php::ALL {
        assert_eq!(php.says(&["refusals", &open.http().url()]), "as it has to be", "{php:?}");
        for (key, api_key, told) in [
            ("shop/7", "", "refused, 401 unauthenticated: 'shop/7': "),
            ("shop/7", "another", "refused, 401 unauthenticated: 'shop/7': "),
            ("deploy", "the-api-key", "refused, 403 forbidden: 'deploy': "),
            ("shop/7", "the-api-key", "granted"),
        ] {
            let said = php.says(&["failing", &url_of_closed, key, "0", api_key]);
            assert!(said.starts_with(told), "{php:?}: {said}");
            assert!(api_key.is_empty() || !said.contains(api_key), "{said}");
        }
    }
}

#[test]
fn a_setup_that_cannot_work_is_told_before_anything_is_sent() {
    for php in Php::ALL {
        for (url, option, told) in [
            ("http://127.0.0.1:1/locks/", "allow_url_fopen=1", "ends before /locks"),
            ("http://127.0.0.1:1", "allow_url_fopen=0", "ext-curl, which is missing"),
        ] {
            let mut php_command = php.command();
            php_command.args(["-d", option]).arg(root().join("tests/php/legacy.php"));
            let done = php_command.args(["look", url]).output().unwrap();
            let said = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
            let works = option.ends_with('0') && matches!(php, Php::Debian | Php::Old);
            assert_eq!(said.contains(told), !works, "{php:?} {url} {option}: {said}");
        }
    }
}

#[test]
fn the_legacy_file_is_in_the_style_of_php_and_parsed_by_an_old_one() {
    for php in Php::ALL {
        let done = php.command().arg("-l").arg(root().join(FILE)).output().unwrap();
        let said = String::from_utf8(done.stdout).unwrap();
        assert!(said.starts_with("No syntax errors"), "{php:?}: {said}");
    }
    let mut phpcs = command("phpcs");
    // It is one file on purpose, and in no namespace.
    phpcs.args(["--standard=PSR12", "--exclude=PSR1.Classes.ClassDeclaration", "-q"]);
    let done = phpcs.arg(root().join(FILE)).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
}

/// The page, by a newcomer with this PHP: a free key is worked under and given back, twice.
#[tokio::test]
async fn the_snippet_of_the_legacy_page_works_on_every_php() {
    let (service, _directory) = embedded(&[]);
    let http = service.http();
    let blocks = blocks(PAGE);
    let [(_, copy), (_, snippet)] = *blocks else { panic!("{blocks:?}") };
    assert_eq!(copy.trim(), format!("cp {FILE} ."));
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(root().join(FILE), directory.path().join("lockkeeper.php")).unwrap();
    let snippet = snippet.replace(SERVICE, &http.address.to_string());
    assert!(snippet.contains(", 30, 10)"));
    let snippet = snippet.replace(", 30, 10)", ", 30, 0.5)");
    std::fs::write(directory.path().join("snippet.php"), snippet).unwrap();
    for php in Php::ALL {
        let run = || {
            let mut php = php.command();
            let done = php.arg("snippet.php").current_dir(directory.path()).output().unwrap();
            String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
        };
        for _ in 0..2 {
            let shown = run();
            assert!(shown.starts_with("at work\nat work as number "), "{php:?}: {shown}");
            assert_eq!(shown.lines().count(), 2, "{php:?}: {shown}");
        }
        let holder = http.token(HOLDER);
        assert_eq!(holder.post("/locks/invoice/42", r#"{"ttl_ms":60000}"#).await.status, 201);
        assert_eq!(run(), "not now\n", "{php:?}");
        assert_eq!(holder.delete("/locks/invoice/42").await.status, 204);
    }
}
