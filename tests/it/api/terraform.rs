//! The lock of Terraform's `http` backend, with requests as Terraform 1.11.4 has sent them.

use serde_json::{Value, json};

use crate::api::{Lockkeeper, api_keys};
use crate::readme::{Newcomer, SERVICE, blocks};
use crate::support::{Answer, Checked};

const PAGE: &str = include_str!("../../../docs/terraform.md");

const PATH: &str = "/terraform/tf/prod";

const APPLY_ID: &str = "b856d8c2-8341-2f97-939a-44fdce65a761";
const APPLY: &str = r#"{"ID":"b856d8c2-8341-2f97-939a-44fdce65a761","Operation":"OperationTypeApply","Info":"","Who":"root@vm","Version":"1.11.4","Created":"2026-11-22T14:52:54.157716365Z","Path":""}"#;
const PLAN: &str = r#"{"ID":"735ce591-a87d-80c7-0cc0-13bb9ba50ee1","Operation":"OperationTypePlan","Info":"","Who":"root@vm","Version":"1.11.4","Created":"2026-11-22T14:52:57.687125174Z","Path":""}"#;

/// The headers of Terraform, whose `force-unlock` sends no length of its body, which is empty.
const FORCED: &str = "UNLOCK /terraform/tf/prod HTTP/1.1\r\nHost: 127.0.0.1\r\n\
                      User-Agent: Go-http-client/1.1\r\nTransfer-Encoding: chunked\r\n\
                      Content-Md5: 1B2M2Y8AsgTpgAmY7PhCfg==\r\nContent-Type: application/json\r\n\
                      Accept-Encoding: gzip\r\nConnection: close\r\n";

/// `ci:sesame:with:colon`
const LOGIN: &str = "Basic Y2k6c2VzYW1lOndpdGg6Y29sb24=";
const SECRET: &str = "sesame:with:colon";

fn as_terraform(http: &Checked) -> Checked {
    http.with("User-Agent", "Go-http-client/1.1").with("Content-Type", "application/json")
}

/// What it sends to force an unlock.
async fn force(http: &Checked, login: Option<&str>) -> Answer {
    let login = login.map(|login| format!("Authorization: {login}\r\n")).unwrap_or_default();
    http.raw(format!("{FORCED}{login}\r\n0\r\n\r\n").as_bytes()).await
}

async fn look(http: &Checked) -> Value {
    http.get("/locks/tf/prod").await.json()
}

#[tokio::test]
async fn a_state_is_locked_once_whichever_methods_the_backend_is_told_to_use() {
    for (lock, unlock) in [("LOCK", "UNLOCK"), ("POST", "DELETE")] {
        let service = Lockkeeper::start().await;
        let http = as_terraform(&service);
        for _ in 0..2 {
            let locked = http.send(lock, PATH, APPLY).await;
            assert_eq!((locked.status, locked.body.len()), (200, 0), "{locked:?}");
        }
        assert_eq!(http.send(lock, PATH, PLAN).await.told(), (409, "lock_held".into()));
        assert_eq!(http.post("/locks/tf/prod", "").await.status, 409);
        assert_eq!(http.send(unlock, PATH, PLAN).await.told(), (409, "lock_lost".into()));
        assert_eq!(look(&http).await["held"], true, "another's lock is left alone");
        let unlocked = http.send(unlock, PATH, APPLY).await;
        assert_eq!((unlocked.status, unlocked.body.len()), (200, 0), "{unlocked:?}");
        assert_eq!(http.send(lock, PATH, PLAN).await.status, 200);
        for (method, body) in [("UNLOCK", "{}"), ("UNLOCK", "null"), ("DELETE", "")] {
            let lost = http.send(method, PATH, body).await;
            assert_eq!(lost.told(), (400, "invalid_request".into()), "{method} {body}");
        }
        assert_eq!(look(&http).await["held"], true, "a lost body forces nothing");
    }
}

#[tokio::test]
async fn a_held_state_is_told_with_its_holder_and_without_its_secret() {
    let service = Lockkeeper::start().await;
    let http = as_terraform(&service);
    http.send("LOCK", PATH, APPLY).await;
    let lease = look(&http).await;
    assert_eq!(lease["owner"], "root@vm (OperationTypeApply)");
    let held = http.send("LOCK", PATH, PLAN).await;
    let body = held.json();
    let number = lease["fencing_token"].as_u64().unwrap();
    for (name, value) in [
        ("ID", json!(format!("{number}/OperationTypeApply/root@vm"))),
        ("Operation", "OperationTypeApply".into()),
        ("Who", "root@vm".into()),
        ("Path", "tf/prod".into()),
        ("Info", body["detail"].clone()),
    ] {
        assert_eq!(body[name], value, "{body}");
    }
    let created = body["Created"].as_str().unwrap();
    assert!(created.len() == 20 && created.starts_with("20") && created.ends_with('Z'), "{body}");
    let text = String::from_utf8(held.body.to_vec()).unwrap();
    assert!(!text.contains(APPLY_ID), "{text}");
    // Nor is the ID the token.
    assert_eq!(http.token(APPLY_ID).delete("/locks/tf/prod").await.status, 409);
    assert_eq!(look(&http).await["held"], true);
}

/// OpenTofu sends the ID that its user gave it, and nothing else that counts.
fn pasted(id: &Value) -> String {
    let (text, created) = ("", "0001-01-01T00:00:00Z");
    json!({
        "ID": id, "Operation": text, "Info": text, "Who": text, "Version": text,
        "Created": created, "Path": text,
    })
    .to_string()
}

#[tokio::test]
async fn the_id_that_was_shown_forces_an_unlock_of_that_lease_alone_and_by_administrators_alone() {
    let settings = api_keys(&[
        (SECRET, r#"["tf/"]"#, r#"["acquire"]"#),
        ("root", r#"["tf/"]"#, r#"["admin"]"#),
    ]);
    for method in ["UNLOCK", "DELETE"] {
        let service = Lockkeeper::with_settings(&settings).await;
        let http = as_terraform(&service);
        let (ci, root) = (http.bearer(SECRET), http.bearer("root"));
        assert_eq!(ci.send("LOCK", PATH, APPLY).await.status, 200);
        let shown = pasted(&ci.send("LOCK", PATH, PLAN).await.json()["ID"]);
        let unlock = async |http: &Checked| http.send(method, PATH, &shown).await.told();
        assert_eq!(unlock(&ci).await, (403, "forbidden".into()));
        assert_eq!(ci.send("LOCK", PATH, PLAN).await.status, 409);
        assert_eq!(root.send(method, PATH, &shown).await.status, 200);
        assert_eq!(ci.send("LOCK", PATH, PLAN).await.status, 200);
        assert_eq!(unlock(&root).await, (409, "lock_lost".into()), "a later lease");
        assert_eq!(ci.send("LOCK", PATH, APPLY).await.status, 409);
        let lost = ci.send(method, PATH, &pasted(&json!("tf/prod"))).await;
        assert!(lost.text("detail").contains("send the ID that a refused lock shows"), "{lost:?}");
        let secret = ci.send("LOCK", PATH, &shown).await;
        assert_eq!(secret.told(), (400, "invalid_request".into()), "what is shown is no secret");
    }
}

#[tokio::test]
async fn a_lease_of_another_client_is_told_to_terraform_as_well() {
    let service = Lockkeeper::start().await;
    service.post("/locks/tf/prod", r#"{"owner":"ann"}"#).await;
    let body = as_terraform(&service).send("LOCK", PATH, APPLY).await.json();
    assert_eq!((&body["Who"], &body["Operation"]), (&"ann".into(), &"".into()), "{body}");
}

#[tokio::test]
async fn a_lock_lasts_for_the_longest_ttl_or_the_max_hold_of_its_prefix() {
    let cron = "[[prefixes]]\nprefix = \"cron/\"\nmax_hold = \"20m\"\n";
    let http = Lockkeeper::with_settings(&format!("[ttl]\nmax = \"2h\"\n{cron}")).await;
    for (key, most) in [("tf/prod", 7_200_000), ("cron/prod", 1_200_000)] {
        assert_eq!(http.send("LOCK", &format!("/terraform/{key}"), APPLY).await.status, 200);
        let left = http.get(&format!("/locks/{key}")).await.number("ttl_ms");
        assert!(left <= most && left > most - 60_000, "{key}: {left}");
    }
    let http = Lockkeeper::with_settings("[ttl]\nmax = \"9m\"").await;
    let refused = http.send("LOCK", PATH, APPLY).await;
    assert_eq!(refused.told(), (400, "invalid_request".into()));
    assert!(refused.text("detail").contains("lockkeeper exec"));
}

#[tokio::test]
async fn the_password_is_the_api_key_and_a_forced_unlock_needs_an_administrator() {
    let settings = api_keys(&[
        (SECRET, r#"["tf/"]"#, r#"["acquire"]"#),
        ("root", r#"["tf/"]"#, r#"["admin"]"#),
    ]);
    let service = Lockkeeper::with_settings(&settings).await;
    let http = as_terraform(&service);
    let (ci, root) = (http.with("Authorization", LOGIN), "basic OnJvb3Q="); // `:root`
    assert_eq!(ci.send("LOCK", PATH, APPLY).await.status, 200);
    assert_eq!(http.bearer(SECRET).send("LOCK", PATH, APPLY).await.status, 200);
    assert_eq!(ci.send("LOCK", "/terraform/other", APPLY).await.told(), (403, "forbidden".into()));
    for wrong in ["Basic Y2k6Z3Vlc3M=", "Basic Y2k=", "Basic !", "Basic", "", SECRET] {
        let refused = http.with("Authorization", wrong).send("LOCK", PATH, APPLY).await;
        assert_eq!(refused.told(), (401, "unauthenticated".into()), "{wrong}");
    }
    let two = ci.with("Authorization", LOGIN).send("LOCK", PATH, APPLY).await;
    assert_eq!(two.status, 401, "two headers");
    assert_eq!(ci.post("/locks/tf/prod", "").await.status, 401, "Basic is for this route alone");

    assert_eq!(force(&http, None).await.status, 401);
    assert_eq!(force(&http, Some(LOGIN)).await.told(), (403, "forbidden".into()));
    let by_id = http.with("Authorization", root).send("UNLOCK", PATH, APPLY).await;
    assert_eq!(by_id.told(), (403, "forbidden".into()), "not by an ID");
    assert_eq!(ci.send("LOCK", PATH, PLAN).await.status, 409);
    assert_eq!(force(&http, Some(root)).await.status, 200);
    assert_eq!(force(&http, Some(root)).await.told(), (409, "lock_lost".into()));
    assert_eq!(ci.send("UNLOCK", PATH, APPLY).await.told(), (409, "lock_lost".into()));
    assert_eq!(ci.send("LOCK", PATH, PLAN).await.status, 200);
}

#[tokio::test]
async fn without_api_keys_everybody_may_force_an_unlock_and_it_is_counted_as_forced() {
    let http = Lockkeeper::start().await;
    http.post("/locks/tf/prod", "").await;
    assert_eq!(force(&http, None).await.status, 200);
    let metrics = String::from_utf8(http.get("/metrics").await.body.to_vec()).unwrap();
    for line in [
        r#"lockkeeper_http_requests_total{route="/terraform/{key}",method="UNLOCK",status="200"} 1"#,
        r#"lockkeeper_force_release_total{outcome="ok"} 1"#,
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line} in {metrics}");
    }
}

#[tokio::test]
async fn a_request_that_is_not_terraforms_is_refused_and_costs_no_store_call() {
    let http = Lockkeeper::without_store("").await;
    let long = format!(r#"{{"ID":"{}"}}"#, "x".repeat(40_000));
    for (method, path, body, told) in [
        ("GET", PATH, "", (405, "method_not_allowed")),
        ("PUT", PATH, APPLY, (405, "method_not_allowed")),
        ("PATCH", "/terraform/%zz", "{", (405, "method_not_allowed")),
        ("LOCK", "/locks/tf/prod", APPLY, (405, "method_not_allowed")),
        ("LOCK", "/terraform", APPLY, (404, "no_such_route")),
        ("LOCK", "/terraform/", APPLY, (400, "invalid_key")),
        ("LOCK", "/terraform/a+b", APPLY, (400, "invalid_key")),
        ("LOCK", "/terraform/a/refresh", APPLY, (400, "invalid_key")),
        ("UNLOCK", "/terraform/..", APPLY, (400, "invalid_key")),
        // The state, sent here by mistake.
        ("POST", "/terraform/tf/prod?ID=x", r#"{"version":4}"#, (400, "unknown_field")),
        ("POST", PATH, r#"{"version":4}"#, (400, "invalid_request")),
        ("LOCK", PATH, "", (400, "invalid_request")),
        ("LOCK", PATH, "{}", (400, "invalid_request")),
        ("LOCK", PATH, "{", (400, "invalid_request")),
        ("LOCK", PATH, r#"["b856d8c2"]"#, (400, "invalid_request")),
        ("LOCK", PATH, r#"{"ID":""}"#, (400, "invalid_request")),
        ("LOCK", PATH, r#"{"ID":null}"#, (400, "invalid_request")),
        ("LOCK", PATH, r#"{"ID":7}"#, (400, "invalid_request")),
        ("LOCK", PATH, r#"{"ID":"a","ID":"b"}"#, (400, "invalid_request")),
        ("LOCK", PATH, r#"{"ID":"a","Who":7}"#, (400, "invalid_request")),
        ("LOCK", PATH, &long, (413, "body_too_large")),
        ("UNLOCK", PATH, r#"{"Who":"root@vm"}"#, (400, "invalid_request")),
        ("LOCK", PATH, APPLY, (503, "store_unavailable")),
    ] {
        let answer = http.send(method, path, body).await;
        assert_eq!(answer.told(), (told.0, told.1.to_owned()), "{method} {path} {body}");
        let allow = (path != "/locks/tf/prod").then_some("DELETE, LOCK, POST, UNLOCK");
        assert!(told.0 != 405 || allow.is_none() || answer.header("allow") == allow, "{answer:?}");
    }
}

#[tokio::test]
async fn the_backend_of_the_page_locks_with_its_password() {
    let (_, block) = *blocks(PAGE).iter().find(|(kind, _)| *kind == "hcl").unwrap();
    let setting = |name: &str| {
        let line = block.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap().split('"').nth(1).unwrap()
    };
    let service = format!("http://{SERVICE}");
    let path = |name| setting(name).strip_prefix(&*service).unwrap();
    let keys = api_keys(&[(setting("password"), r#"["tf/"]"#, r#"["acquire"]"#)]);
    let http = Lockkeeper::with_settings(&keys).await;
    let http = http.bearer(setting("password"));
    assert_eq!(http.send("LOCK", path("lock_address"), APPLY).await.status, 200);
    assert_eq!(http.get("/locks/tf/prod").await.field("held"), true);
    assert_eq!(http.send("UNLOCK", path("unlock_address"), APPLY).await.status, 200);
    assert_eq!(http.get("/locks/tf/prod").await.field("held"), false);
}

#[test]
fn the_command_of_the_page_applies_under_the_lease() {
    let mut newcomer = Newcomer::new();
    newcomer.types("make run\n");
    newcomer.takes("terraform apply", "sh -c '! lockkeeper acquire -n $LOCK_KEY 2>/dev/null' --");
    let (_, command) = *blocks(PAGE).iter().find(|(kind, _)| *kind == "sh").unwrap();
    newcomer.types(&format!("{command}\necho $?\n# 0\n"));
    assert_eq!(newcomer.answers, 1);
}
