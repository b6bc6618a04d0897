//! However a process ends, its leases end with it; and what it shows has no token.

use crate::exec::proxy::Proxy;
use crate::legacy::embedded;
use crate::legacy::php::Php;
use crate::support::{PATIENCE, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn however_a_php_process_ends_by_itself_its_key_is_free_and_no_token_was_shown() {
    let (service, _directory) = embedded(&[]);
    let http = service.http();
    let proxy = Proxy::before(http.address).await;
    for php in Php::ALL {
        for (scenario, told) in [
            ("dropped", "free"),
            ("ending", "mine at the end"),
            ("failing_to_catch", "Uncaught RuntimeException: under "),
            ("circle", ""),
            ("out_of_memory", "Allowed memory size of 33554432 bytes exhausted"),
            ("much_out_of_memory", "Allowed memory size of 33554432 bytes exhausted"),
        ] {
            let key = format!("{php:?}/{scenario}");
            let said = php.says(&[scenario, &proxy.url(), &key]);
            assert!(said.contains(told), "{php:?} {scenario}: {said}");
            assert_eq!(http.get(&format!("/locks/{key}")).await.field("held"), false, "{key}");
            for request in proxy.requests() {
                let token = request.lines().find_map(|line| line.strip_prefix("Lock-Token: "));
                assert!(!said.contains(token.unwrap()), "{php:?} {scenario}: {said}");
            }
        }
    }
}

#[test]
fn a_forked_child_has_nothing_of_its_parents_lease() {
    let (service, _directory) = embedded(&[]);
    for php in Php::NATIVE {
        let said = php.says(&["forked", &service.http().url()]);
        assert_eq!(said, "lost, not released, 0 s; mine, released", "{php:?}");
    }
}

#[tokio::test]
async fn a_held_lease_is_refreshed_while_its_process_lives_and_given_back_when_it_was_killed() {
    let (service, _directory) = embedded(&[]);
    let http = service.http();
    for php in Php::NATIVE {
        for scenario in ["held", "held_files"] {
            let key = format!("{php:?}/{scenario}");
            assert_eq!(php.says(&[scenario, &http.url(), &key]), "as it has to be", "{php:?}");
        }
    }
    // The other one has no ext-posix, and cannot kill itself.
    assert_eq!(Php::Debian.says(&["killed", &http.url(), "killed"]), "held");
    let free = eventually(PATIENCE, async || {
        (http.post("/locks/killed?wait=5s", "").await.status == 201).then_some(())
    });
    free.await;
}
