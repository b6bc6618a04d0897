//! The files of TLS that a service does not start with.

use crate::listeners::{lockkeeper, printed};
use crate::support::certificates::Certificates;

#[test]
fn a_file_that_cannot_be_used_is_one_sentence_that_names_its_setting() {
    let (own, other) = (Certificates::make(), Certificates::make());
    own.sign("over", "-1");
    let [certificate, key] = ["server.pem", "server.key"].map(|name| own.path(name));
    let (text, broken) = (own.path("text"), own.path("broken"));
    std::fs::write(&text, "no certificate").unwrap();
    let whole = std::fs::read_to_string(&certificate).unwrap();
    std::fs::write(&broken, &whole[..whole.len() / 2]).unwrap();
    let (over, over_key, stranger) =
        (own.path("over.pem"), own.path("over.key"), other.path("server.key"));
    let [certificate, key, text, broken] = [&*certificate, &*key, &*text, &*broken];
    let [over, over_key, stranger] = [&*over, &*over_key, &*stranger];
    for (files, expected) in [
        (["/nonexistent", key, ""], "`tls.certificate`: cannot read /nonexistent"),
        ([certificate, "/nonexistent", ""], "`tls.key`: cannot read /nonexistent"),
        ([certificate, key, "/nonexistent"], "`tls.client_ca`: cannot read /nonexistent"),
        ([text, key, ""], "`tls.certificate`: "),
        ([broken, key, ""], "is not whole: copy the PEM file again"),
        ([key, key, ""], "has no certificate"),
        ([certificate, text, ""], "has no private key in PEM"),
        ([certificate, certificate, ""], "has no private key in PEM"),
        ([certificate, stranger, ""], "`tls.key`: "),
        ([certificate, stranger, ""], "is not the key of the certificate in"),
        ([certificate, key, text], "`tls.client_ca`: "),
        ([over, over_key, ""], "`tls.certificate`: the certificate of `CN=test over`"),
        ([over, over_key, ""], ": renew it"),
        ([certificate, "", ""], "`tls.certificate` (from LOCKKEEPER_TLS_CERTIFICATE): and tls.key"),
        (["", key, ""], "name both, or neither"),
        (["", "", certificate], "needs tls.certificate and tls.key"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let names = ["CERTIFICATE", "KEY", "CLIENT_CA"];
        let names = names.map(|name| format!("LOCKKEEPER_TLS_{name}"));
        let output = lockkeeper(&["serve", "--listen", "127.0.0.1:0"])
            .envs(names.iter().zip(files).filter(|(_, file)| !file.is_empty()))
            .current_dir(directory.path())
            .output()
            .unwrap();
        let told = printed(&output);
        assert!(told.starts_with("lockkeeper: `tls."), "{files:?}: {told}");
        assert!(told.contains(expected), "{expected}: {told}");
        assert_eq!((output.status.code(), told.lines().count()), (Some(1), 1), "{told}");
        assert!(!told.contains("PRIVATE"), "{told}");
        let made = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(made, 0, "nothing is made for a service that is none");
    }
}

#[test]
fn a_file_for_redis_that_cannot_be_used_is_one_sentence_too() {
    let (own, other) = (Certificates::make(), Certificates::make());
    own.sign("over", "-1");
    let [ca, cert, key] = ["ca.pem", "server.pem", "server.key"].map(|name| own.path(name));
    let (over, over_key) = (own.path("over.pem"), own.path("over.key"));
    let [ca, cert, key, over, over_key] = [&*ca, &*cert, &*key, &*over, &*over_key];
    let (secured, stranger) = ("rediss://127.0.0.1:1", &*other.path("server.key"));
    let nodes = "rediss://127.0.0.1:1 rediss://127.0.0.1:2 rediss://127.0.0.1:3";
    for (store, files, expected) in [
        (secured, ["/nonexistent", "", ""], "`redis.tls.ca`: cannot read /nonexistent"),
        (nodes, ["/nonexistent", "", ""], "`redis.tls.ca`: cannot read /nonexistent"),
        (secured, [key, "", ""], "`redis.tls.ca`: "),
        (secured, [ca, key, key], "`redis.tls.certificate`: "),
        (secured, [ca, cert, cert], "has no private key in PEM"),
        (secured, [ca, cert, stranger], "is not the key of the certificate in"),
        (secured, [ca, over, over_key], ": renew it"),
        (
            secured,
            [ca, cert, ""],
            "`redis.tls.certificate` (from LOCKKEEPER_REDIS_TLS_CERTIFICATE): and redis",
        ),
        (secured, ["", "", key], "name both, or neither"),
        ("redis://127.0.0.1:1", [ca, "", ""], "`store` has to begin with rediss"),
        ("embedded:data", ["", cert, key], "`store` has to begin with rediss"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let names = ["CA", "CERTIFICATE", "KEY"].map(|name| format!("LOCKKEEPER_REDIS_TLS_{name}"));
        let output = lockkeeper(&["serve", "--listen", "127.0.0.1:0"])
            .envs(names.iter().zip(files).filter(|(_, file)| !file.is_empty()))
            .env("LOCKKEEPER_STORE", store)
            .current_dir(directory.path())
            .output()
            .unwrap();
        let told = printed(&output);
        assert!(told.starts_with("lockkeeper: `redis.tls."), "{files:?}: {told}");
        assert!(told.contains(expected), "{expected}: {told}");
        assert_eq!((output.status.code(), told.lines().count()), (Some(1), 1), "{told}");
        assert!(!told.contains("PRIVATE"), "{told}");
    }
}
