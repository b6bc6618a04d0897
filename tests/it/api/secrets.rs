//! Secrets go to their owners and nowhere else.

use std::time::Duration;

use crate::api::{OTHER, TOKEN, api_keys};
use crate::support::{Checked, Process, eventually};

#[tokio::test]
async fn no_answer_to_others_and_no_line_of_the_log_holds_a_token_or_an_api_key() {
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("lockkeeper.toml");
    let secret = "the-secret-of-an-api-key";
    let all = r#"["acquire", "read", "admin"]"#;
    std::fs::write(
        &settings,
        api_keys(&[(secret, r#"[""]"#, all)]).replace(&format!("key of {secret}"), "shop"),
    )
    .unwrap();
    let store = format!("embedded:{}", directory.path().join("data").display());
    let arguments = ["--store", &store, "--config", settings.to_str().unwrap()];
    let process = Process::start_with(&arguments, &[("LOCKKEEPER_LOG_LEVEL", "trace")]);
    let http = Checked(process.http()).bearer(secret);

    let made = http.post("/locks/made", r#"{"owner":"web-1"}"#).await.text("token");
    let body = format!(r#"{{"token":"{TOKEN}"}}"#);
    let mut told = vec![
        http.post("/locks/made", "").await,
        http.get("/locks/made").await,
        http.token(&made).get("/locks/made").await,
        http.get("/locks").await,
        http.get("/metrics").await,
        http.get(&format!("/locks/made?token={made}")).await,
        http.token(&made).post("/locks/made", &body).await,
        http.token(OTHER).put("/locks/made/refresh", "").await,
        http.token(OTHER).delete("/locks/made").await,
    ];
    http.post("/locks/chosen", &body).await;
    http.token(TOKEN).put("/locks/chosen/refresh", "").await;
    told.push(http.delete("/admin/locks/chosen").await);
    told.push(http.token(TOKEN).delete("/locks/chosen").await);
    http.with("X-Request-Id", "the-last").token(&made).delete("/locks/made").await;

    eventually(Duration::from_secs(10), || async {
        process.log().contains("the-last").then_some(())
    })
    .await;
    let log = process.log();
    assert!(log.contains("web-1") && log.contains("shop"), "not what it should hold: {log}");
    for hidden in [made.as_str(), TOKEN, OTHER, secret] {
        assert!(!log.contains(hidden), "{hidden}: {log}");
        for answer in &told {
            assert!(
                !String::from_utf8_lossy(&answer.body).contains(hidden),
                "{hidden}: {answer:?}"
            );
        }
    }
}
