//! What operators and their machines ask.

use crate::api::{Lockkeeper, TOKEN, assert_members};

#[tokio::test]
async fn the_root_says_what_this_is_and_what_it_promises() {
    let http = Lockkeeper::start().await;
    let about = http.get("/").await;
    assert_members(&about, &["name", "version", "store", "links"]);
    assert_eq!(about.text("name"), "lockkeeper");
    assert_eq!(about.text("version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(about.json()["store"]["name"], "embedded");
    for (name, link) in about.json()["links"].as_object().unwrap() {
        // The dashboard is no part of the contract.
        if name != "ui" {
            assert_eq!(http.get(link.as_str().unwrap()).await.status, 200, "{name}");
        }
    }
}

#[tokio::test]
async fn a_browser_is_led_from_the_root_to_the_dashboard() {
    let http = Lockkeeper::start().await;
    let html = "text/html,application/xhtml+xml,*/*;q=0.8";
    let led = http.with("Accept", html).get("/").await;
    assert_eq!((led.status, led.header("location")), (302, Some("ui")));
    for accept in ["*/*", "application/json"] {
        assert_eq!(http.with("Accept", accept).get("/").await.status, 200);
    }
}

#[tokio::test]
async fn a_service_whose_store_is_away_lives_and_is_not_ready() {
    let http = Lockkeeper::without_store("").await;
    assert_eq!(http.get("/healthz").await.status, 200);
    assert_eq!(http.get("/readyz").await.told(), (503, "not_ready".into()));
    assert_eq!(http.get("/").await.status, 200);
    assert_eq!(http.get("/metrics").await.status, 200);
    let http = Lockkeeper::start().await;
    assert_eq!(http.get("/healthz").await.text("status"), "ok");
    assert_eq!(http.get("/readyz").await.text("status"), "ready");
}

#[tokio::test]
async fn the_contract_is_served_as_it_is_in_the_repository() {
    let http = Lockkeeper::start().await;
    let contract = http.get("/openapi.yaml").await;
    assert_eq!(contract.header("content-type"), Some("application/yaml"));
    assert_eq!(contract.body, include_str!("../../../openapi.yaml"));
    let parsed: serde_json::Value = serde_norway::from_slice(&contract.body).unwrap();
    assert_eq!(parsed["info"]["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn the_figures_count_requests_and_name_nobody() {
    let nobody = Lockkeeper::start().await;
    let http = nobody.token(TOKEN);
    let named = "a-name-that-is-in-no-figure";
    let owner = format!(r#"{{"owner":"{named}"}}"#);
    http.post(&format!("/locks/{named}"), &owner).await;
    http.post(&format!("/locks/{named}"), &owner).await;
    nobody.token(&format!("{named}-2")).post(&format!("/locks/{named}"), "").await;
    http.put(&format!("/locks/{named}/refresh"), "").await;
    http.delete(&format!("/locks/{named}")).await;
    http.delete(&format!("/admin/locks/{named}")).await;
    http.get(&format!("/{named}")).await;
    http.send("BREW", &format!("/{named}"), "").await;
    let metrics = http.get("/metrics").await;
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(!text.contains(named) && !text.contains(TOKEN), "{text}");
    for line in [
        r#"lockkeeper_http_requests_total{route="/locks/{key}",method="POST",status="201"} 1"#,
        r#"lockkeeper_http_requests_total{route="/locks/{key}/refresh",method="PUT",status="200"} 1"#,
        r#"lockkeeper_http_requests_total{route="none",method="other",status="404"} 1"#,
        r#"lockkeeper_acquire_total{outcome="granted"} 1"#,
        r#"lockkeeper_acquire_total{outcome="again"} 1"#,
        r#"lockkeeper_acquire_total{outcome="held"} 1"#,
        r#"lockkeeper_refresh_total{outcome="ok"} 1"#,
        r#"lockkeeper_release_total{outcome="ok"} 1"#,
        r#"lockkeeper_force_release_total{outcome="lost"} 1"#,
        "lockkeeper_locks_held 0",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in {text}");
    }
}

#[tokio::test]
async fn the_figures_are_open_metrics_for_a_client_that_asks_for_it_and_else_the_older_text() {
    let http = Lockkeeper::start().await;
    let newer = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let older = "text/plain; version=0.0.4; charset=utf-8";
    for (accept, form) in [
        // What Prometheus sends.
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3", newer),
        ("text/plain;version=0.0.4", older),
        // curl, and a browser.
        ("*/*", older),
        ("text/html,application/xhtml+xml,*/*;q=0.8", older),
    ] {
        let metrics = http.with("Accept", accept).get("/metrics").await;
        assert_eq!(metrics.header("content-type"), Some(form), "{accept}");
        assert_eq!(metrics.body.ends_with(b"# EOF\n"), form == newer, "{accept}");
    }
    assert_eq!(http.get("/metrics").await.header("content-type"), Some(older));
}
