//! Other processes and one directory: another service, and programs that read a SQLite database.

use std::fs;
use std::path::Path;

use rusqlite::Connection;

use crate::embedded_faults::file::assert_refused;
use crate::support::process::{BINARY, command};
use crate::support::{PATIENCE, Process, eventually};

const TOKEN: &str = "token-of-the-holder";

fn connected(directory: &Path) -> Connection {
    Connection::open(directory.join("locks.sqlite")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_the_same_data_is_refused_and_the_first_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let first = Process::start(&store, &[]);
    let http = first.http();
    let body = r#"{"token":"token-of-the-first-one","ttl_ms":60000}"#;
    assert_eq!(http.post("/locks/mine", body).await.status, 201);
    for _ in 0..3 {
        let second = command(BINARY)
            .args(["serve", "--listen", "127.0.0.1:0", "--store", &store])
            .output()
            .unwrap();
        let told = String::from_utf8(second.stderr).unwrap();
        assert_eq!(second.status.code(), Some(1), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        assert!(told.contains("another process serves the locks in"), "{told}");
        assert!(told.contains(&directory.path().display().to_string()), "{told}");
        assert!(second.stdout.is_empty());
    }
    assert_eq!(http.token("token-of-the-first-one").delete("/locks/mine").await.status, 204);
    assert_eq!(http.post("/locks/mine", "").await.status, 201);

    first.kill();
    let third = Process::start(&store, &[]);
    assert_eq!(third.http().post("/locks/mine", "").await.status, 409);
}

/// As `sqlite3 locks.sqlite "VACUUM INTO 'copy'"` does it.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_served_may_be_read_and_its_copy_can_be_served() {
    let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let service = Process::start(&format!("embedded:{}", directory.path().display()), &[]);
    let holder = service.http().token(TOKEN);
    assert_eq!(holder.post("/locks/a?ttl=1h&owner=web-1", "").await.status, 201);
    let reader = connected(directory.path());
    let owner = || {
        let found = "SELECT owner FROM leases WHERE key = 'a'";
        reader.query_row(found, [], |row| row.get::<_, String>(0)).unwrap()
    };
    assert_eq!(owner(), "web-1");
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(owner(), "web-1");
    assert_eq!(holder.post("/locks/b?ttl=1h", "").await.status, 201, "a reader is in no way");
    reader.execute_batch("COMMIT").unwrap();
    let copy = other.path().join("locks.sqlite");
    reader.execute("VACUUM INTO ?", [copy.to_str().unwrap()]).unwrap();
    assert_eq!(holder.delete("/locks/b").await.status, 204);
    let copied = Process::start(&format!("embedded:{}", other.path().display()), &[]);
    for key in ["a", "b"] {
        let found = copied.http().token(TOKEN).get(&format!("/locks/{key}")).await;
        assert_eq!(found.field("mine"), true, "{found:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_keeps_the_database_to_itself_delays_grants_and_loses_none() {
    let directory = tempfile::tempdir().unwrap();
    let service = Process::start(&format!("embedded:{}", directory.path().display()), &[]);
    let http = service.http();
    assert_eq!(http.token(TOKEN).post("/locks/a?ttl=1h", "").await.status, 201);
    let other = connected(directory.path());
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = http.post("/locks/b", "").await;
    assert_eq!(refused.told(), (503, "store_unavailable".into()));
    assert_eq!(refused.text("outcome"), "not_acquired");
    other.execute_batch("ROLLBACK").unwrap();
    eventually(PATIENCE, async || (http.post("/locks/b", "").await.status == 201).then_some(()))
        .await;
    assert_eq!(http.token(TOKEN).get("/locks/a").await.field("mine"), true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_writes_to_the_database_ends_the_service_and_what_it_wrote_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let service = Process::start(&store, &[]);
    let http = service.http();
    assert_eq!(http.post("/locks/a?ttl=1h", "").await.status, 201);
    let other = connected(directory.path());
    assert_eq!(other.execute("DELETE FROM leases", []).unwrap(), 1);
    let answer = http.post("/locks/b", "").await;
    assert_eq!(answer.told(), (503, "store_unavailable".into()));
    assert_eq!(service.wait(), Some(4));
    assert_refused(&store, "its leases are not those that were written");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_program_does_beside_the_leases_ends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let service = Process::start(&store, &[]);
    let http = service.http();
    let take = async |key: &str| {
        let target = format!("/locks/{key}?ttl=1h");
        eventually(PATIENCE, async || (http.post(&target, "").await.status == 201).then_some(()))
            .await;
    };
    take("first").await;
    let other = connected(directory.path());
    for (key, statement) in [
        ("a", "PRAGMA wal_checkpoint(TRUNCATE)"),
        ("b", "ANALYZE"),
        ("c", "VACUUM"),
        ("d", "CREATE TRIGGER t AFTER INSERT ON leases BEGIN DELETE FROM leases; END"),
    ] {
        other.execute_batch(statement).unwrap();
        take(key).await;
    }
    // The index is made anew, as long as nobody else has the old one.
    drop(other);
    fs::remove_file(directory.path().join("locks.sqlite-shm")).unwrap();
    eventually(PATIENCE, async || {
        (service.log().matches("nothing is granted until").count() > 1).then_some(())
    })
    .await;
    take("e").await;
    service.kill();
    let service = Process::start(&store, &[]);
    let listed = service.http().get("/locks").await.field("locks");
    assert_eq!(listed.as_array().unwrap().len(), 6, "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_do_not_belong_together_are_refused_with_the_one_that_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let service = Process::start(&store, &[]);
    assert_eq!(service.http().token(TOKEN).post("/locks/a?ttl=1h", "").await.status, 201);
    service.kill();
    let (path, aside) = (|name: &str| directory.path().join(name), directory.path().join("aside"));
    for (missing, left) in [
        ("locks.sqlite", "locks.sqlite-wal"),
        ("locks.sqlite-note", "locks.sqlite-wal"),
        ("locks.sqlite-wal", "locks.sqlite"),
    ] {
        fs::rename(path(missing), &aside).unwrap();
        assert_refused(&store, &format!("{left} is damaged"));
        fs::rename(&aside, path(missing)).unwrap();
    }
    let service = Process::start(&store, &[]);
    assert_eq!(service.http().token(TOKEN).get("/locks/a").await.field("mine"), true);
}

#[test]
fn the_file_of_an_earlier_version_is_refused_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("locks.redb"), "of an earlier version").unwrap();
    let store = format!("embedded:{}", directory.path().display());
    assert_refused(&store, "locks.redb has format 1, and this lockkeeper reads format 3 only");
    assert!(!directory.path().join("locks.sqlite").exists());
}
