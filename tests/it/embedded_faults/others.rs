//! Two processes and one directory.

use crate::support::Process;
use crate::support::process::{BINARY, command};

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
