//! What clients really send as options, each a row of a table.

use crate::api::{Lockkeeper, TOKEN};
use crate::support::{Answer, Checked};

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";
const NONE: &str = "";

async fn post(http: &Checked, query: &str, media_type: &str, body: &str) -> Answer {
    let http =
        if media_type == NONE { http.clone() } else { http.with("Content-Type", media_type) };
    http.post(&format!("/locks/k{query}"), body).await
}

#[tokio::test]
async fn a_body_that_means_no_options_is_granted_the_defaults() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    for media_type in [NONE, JSON, FORM, "application/json; charset=utf-8", "text/plain", "a"] {
        for body in ["", "{}", "[]", "null", " \r\n", " {}\n", "{\"ttl_ms\":null}"] {
            let granted = post(&http, "", media_type, body).await;
            assert!(granted.status < 300, "{media_type:?} {body:?} {granted:?}");
            assert!(granted.lasts(30_000), "{media_type:?} {body:?} {granted:?}");
        }
    }
    let empty = http.with("Content-Type", "multipart/form-data; boundary=x");
    assert_eq!(empty.post("/locks/k", "").await.status, 200);
}

#[tokio::test]
async fn options_are_read_in_every_form_in_which_clients_send_them() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    for (query, media_type, body) in [
        ("", JSON, r#"{"ttl_ms":5000,"owner":"x"}"#),
        ("", NONE, r#"{"ttl_ms":5000,"owner":"x"}"#),
        ("", FORM, r#"{"ttl_ms":5000,"owner":"x"}"#),
        ("", FORM, "\n {\"ttl_ms\":5000,\"owner\":\"x\"}"),
        ("", "text/plain", r#"{"ttl_ms":5000,"owner":"x"}"#),
        ("", "APPLICATION/JSON", r#"{"ttl_ms":5000,"owner":"x"}"#),
        ("", JSON, r#"{"ttl_ms":"5000","owner":"x","wait_ms":null,"token":null}"#),
        ("", JSON, r#"{"ttl_ms":5000.0,"owner":"x","wait_ms":0}"#),
        ("", JSON, r#"{"ttl_ms":"5000.0","owner":"x","wait_ms":"0"}"#),
        ("", JSON, r#"{"ttl_ms":5e3,"owner":"\u0078","wait_ms":0.0}"#),
        ("", FORM, "ttl_ms=5000&owner=x"),
        ("", FORM, "owner=%78&ttl_ms=5000.0&wait_ms=0"),
        ("", "Application/X-WWW-Form-Urlencoded; charset=UTF-8", "ttl_ms=5000&owner=x"),
        ("?ttl=5s&owner=x", NONE, ""),
        ("?ttl=5000ms&owner=x&wait=0s", JSON, ""),
        ("?ttl=5&owner=%78", FORM, "[]"),
        ("?ttl=5&", NONE, r#"{"owner":"x"}"#),
        ("?ttl=1h&owner=y", NONE, r#"{"ttl_ms":5000,"owner":"x"}"#),
        ("?ttl=1m&owner=y", FORM, "ttl_ms=5000&owner=x"),
        ("?ttl=5s&owner=x", JSON, r#"{"ttl_ms":null,"owner":null}"#),
    ] {
        let granted = post(&http, query, media_type, body).await;
        assert!(granted.status < 300, "{query} {media_type} {body} {granted:?}");
        assert!(granted.lasts(5_000), "{query} {media_type} {body} {granted:?}");
        assert_eq!(granted.text("owner"), "x", "{query} {media_type} {body}");
    }
}

#[tokio::test]
async fn a_duration_in_a_query_is_a_number_and_a_unit() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    for (text, ttl_ms) in
        [("2500ms", 2_500), ("30", 30_000), ("30s", 30_000), ("2m", 120_000), ("1h1m", 3_660_000)]
    {
        let granted = post(&http, &format!("?ttl={text}"), NONE, "").await;
        assert!(granted.lasts(ttl_ms), "{text} {granted:?}");
    }
    for text in ["", "s", "5x", "1.5.s", "-5s", "+5s", "5%20s", "1e3", "5S", "1m30"] {
        let answer = post(&http, &format!("?ttl={text}"), NONE, "").await;
        assert_eq!(answer.told(), (400, "invalid_request".into()), "{text}");
        assert_eq!(answer.text("field"), "ttl", "{text}");
    }
}

#[tokio::test]
async fn an_option_of_a_wrong_kind_is_refused_by_name() {
    let http = Lockkeeper::start().await;
    for (field, values) in [
        (
            "ttl_ms",
            &["\"5s\"", "-1", "1.5", "\"1.5\"", "true", "[]", "{}", "\"\"", "\" 5000\""][..],
        ),
        ("wait_ms", &["\"10s\"", "-1", "0.5", "false", "[0]", "\"-0\""]),
        ("token", &["5", "true", "[]", "\"\"", "\"short\"", "\"a token with blanks\""]),
        ("owner", &["5", "true", "[\"x\"]", "{}"]),
    ] {
        for value in values {
            let body = format!("{{\"{field}\":{value}}}");
            let answer = post(&http, "", JSON, &body).await;
            assert_eq!(answer.told(), (400, "invalid_request".into()), "{body}");
            assert_eq!(answer.text("field"), field, "{body}");
        }
    }
}

#[tokio::test]
async fn a_body_that_is_no_object_is_refused() {
    let http = Lockkeeper::start().await;
    for (media_type, body) in [
        (JSON, "[1]"),
        (JSON, "[{}]"),
        (JSON, "5"),
        (JSON, "\"ttl_ms\""),
        (JSON, "true"),
        (JSON, "{"),
        (JSON, "{\"ttl_ms\":5000"),
        (JSON, "{} {}"),
        (JSON, "ttl_ms=5000"),
        (JSON, "{'ttl_ms':5000}"),
        (NONE, "ttl_ms=5000"),
        (FORM, "{"),
        (FORM, "[5000]"),
        (FORM, "a-token-that-stands-in-a-wrong-place"),
        (JSON, r#"{"ttl_ms":1e999}"#),
    ] {
        let answer = post(&http, "", media_type, body).await;
        assert_eq!(answer.told(), (400, "invalid_request".into()), "{media_type} {body}");
        let told = String::from_utf8(answer.body.to_vec()).unwrap();
        assert!(!told.contains("a-token"), "{told}");
    }
}

#[tokio::test]
async fn a_body_that_is_not_utf_8_is_refused() {
    let http = Lockkeeper::start().await;
    let request = b"POST /locks/k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
        Content-Length: 14\r\n\r\n{\"owner\":\"\xff\xfe\"}";
    assert_eq!(http.raw(request).await.told(), (400, "invalid_request".into()));
    for (query, body) in [("?owner=%ff", ""), ("", "owner=%c3%28"), ("?owner=a%C3", "")] {
        let answer = post(&http, query, FORM, body).await;
        assert_eq!(answer.told(), (400, "invalid_request".into()), "{query} {body}");
    }
    assert_eq!(post(&http, "?owner=%C3%BC", FORM, "").await.text("owner"), "ü");
    assert_eq!(http.get("/locks?prefix=%ff").await.told(), (400, "invalid_request".into()));
}

#[tokio::test]
async fn a_multipart_body_is_refused_with_what_to_send_instead() {
    let http = Lockkeeper::start().await;
    let body = "--x\r\nContent-Disposition: form-data; name=\"ttl_ms\"\r\n\r\n5000\r\n--x--\r\n";
    let answer = post(&http, "", "multipart/form-data; boundary=x", body).await;
    assert_eq!(answer.told(), (400, "invalid_request".into()));
    assert!(answer.text("detail").contains("JSON"), "{answer:?}");
}

#[tokio::test]
async fn an_option_that_there_is_not_is_refused_with_those_that_there_are() {
    let http = Lockkeeper::start().await;
    let in_body =
        ["ttl_ms", "wait_ms", "token", "owner", "slots", "units", "shared", "fencing_token"];
    let in_query = ["ttl", "wait", "owner", "slots", "units", "shared", "fencing_token"];
    for (query, media_type, body, field, known) in [
        ("", JSON, r#"{"ttl":5}"#, "ttl", &in_body[..]),
        ("", JSON, r#"{"ttl_ms":5000,"Owner":"x"}"#, "Owner", &in_body),
        ("", JSON, r#"{"ttl":null}"#, "ttl", &in_body),
        ("", JSON, r#"{"":1}"#, "", &in_body),
        ("", FORM, "ttl=5", "ttl", &in_body),
        ("?ttl_ms=5000", NONE, "", "ttl_ms", &in_query),
        ("?ttl=5s&wat=1s", NONE, "", "wat", &in_query),
        ("?x", NONE, r#"{"ttl":5}"#, "x", &in_query),
    ] {
        let answer = post(&http, query, media_type, body).await;
        assert_eq!(answer.told(), (400, "unknown_field".into()), "{query} {body}");
        assert_eq!(answer.text("field"), field, "{query} {body}");
        assert_eq!(answer.field("known"), serde_json::json!(known), "{query} {body}");
        let hint = match field {
            "ttl" => "; in a body it is `ttl_ms`, in milliseconds".to_owned(),
            "ttl_ms" => "; in a query it is `ttl=30s`".to_owned(),
            _ => format!("; the options are {}", known.join(", ")),
        };
        assert!(answer.text("detail").ends_with(&hint), "{query} {body} {answer:?}");
    }
    for query in ["?ttl=30s", "?wait=5s"] {
        let asked = http.get(&format!("/locks/k{query}")).await;
        assert!(asked.text("detail").ends_with("; did you mean POST?"), "{asked:?}");
    }
    // A query takes the durations of the command line.
    for (query, ms) in [("?ttl=1.5m", 90_000), ("?ttl=0.5d", 43_200_000), ("?ttl=.5", 500)] {
        let key = http.post(&format!("/locks/long/{ms}{query}"), "").await;
        assert!(key.lasts(ms), "{query} {key:?}");
    }
    let days = http.post("/locks/k?ttl=2d", "").await;
    assert_eq!(days.text("detail"), "a TTL has to be 100ms to 24h");
    let long = post(&http, "", JSON, &format!("{{\"{}\":1}}", "é".repeat(1_000))).await;
    assert_eq!(long.text("field").chars().count(), 60);
}

#[tokio::test]
async fn an_option_that_is_named_twice_is_refused() {
    let http = Lockkeeper::start().await;
    for (query, media_type, body, field) in [
        ("", JSON, r#"{"ttl_ms":5000,"ttl_ms":9000}"#, "ttl_ms"),
        ("", JSON, r#"{"owner":"x","\u006fwner":"x"}"#, "owner"),
        ("", FORM, "ttl_ms=5000&ttl_ms=5000", "ttl_ms"),
        ("?ttl=5s&ttl=9s", NONE, "", "ttl"),
    ] {
        let answer = post(&http, query, media_type, body).await;
        assert_eq!(answer.told(), (400, "invalid_request".into()), "{query} {body}");
        assert_eq!(answer.text("field"), field, "{query} {body}");
    }
}

#[tokio::test]
async fn an_empty_chunked_body_that_expects_to_be_awaited_is_no_options() {
    let http = Lockkeeper::start().await;
    let head = format!(
        "POST /locks/k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\
         Content-Type: {FORM}\r\nExpect: 100-continue\r\n\r\n"
    );
    let granted = http.raw(format!("{head}0\r\n\r\n").as_bytes()).await;
    assert!(granted.status == 201 && granted.lasts(30_000), "{granted:?}");
}

#[tokio::test]
async fn a_body_may_come_in_chunks() {
    let http = Lockkeeper::start().await;
    let granted = http
        .raw(
            b"POST /locks/k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
              Transfer-Encoding: chunked\r\n\r\n7\r\n{\"ttl_m\r\n9\r\ns\":5000 }\r\n0\r\n\r\n",
        )
        .await;
    assert!(granted.status == 201 && granted.lasts(5_000), "{granted:?}");
}

#[tokio::test]
async fn a_request_without_a_length_has_no_body() {
    let http = Lockkeeper::start().await;
    let request = b"POST /locks/k?ttl=7s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert!(http.raw(request).await.lasts(7_000));
    let old = b"POST /locks/old?ttl=7s HTTP/1.0\r\n\r\n";
    assert!(http.raw(old).await.lasts(7_000));
}

#[tokio::test]
async fn refresh_and_release_read_bodies_as_acquire_does() {
    let http = Lockkeeper::start().await;
    let token = format!(r#"{{"token":"{TOKEN}"}}"#);
    http.post("/locks/k?ttl=1s", &token).await;
    for (media_type, body) in [
        (JSON, format!(r#"{{"token":"{TOKEN}","ttl_ms":"5000"}}"#)),
        (FORM, format!(r#"{{"token":"{TOKEN}","ttl_ms":5000.0}}"#)),
        (FORM, format!("token={TOKEN}&ttl_ms=5000")),
    ] {
        let refreshed = http.with("Content-Type", media_type).put("/locks/k/refresh", &body).await;
        assert!(refreshed.lasts(5_000), "{media_type} {body} {refreshed:?}");
    }
    for (method, path, known) in [
        ("PUT", "/locks/k/refresh", serde_json::json!(["ttl_ms", "token", "fencing_token"])),
        ("DELETE", "/locks/k", serde_json::json!(["token", "fencing_token"])),
    ] {
        let unknown = http.token(TOKEN).send(method, path, r#"{"owner":"x"}"#).await;
        assert_eq!(unknown.told(), (400, "unknown_field".into()), "{method}");
        assert_eq!(unknown.field("known"), known, "{method}");
        for nothing in ["", "{}", "[]", "null"] {
            let none = http.send(method, path, nothing).await;
            assert_eq!(none.told(), (400, "token_required".into()), "{method} {nothing}");
        }
    }
    assert_eq!(http.send("DELETE", "/locks/k", &token).await.status, 204);
}

#[tokio::test]
async fn json_with_a_byte_order_mark_is_json() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let granted = post(&http, "", JSON, "\u{feff}{\"ttl_ms\":5000}").await;
    assert!(granted.status == 201 && granted.lasts(5_000), "{granted:?}");
    assert_eq!(post(&http, "", JSON, "\u{feff}").await.status, 200);
}

#[tokio::test]
async fn a_compressed_body_is_refused_with_what_to_send_instead() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let compressed = http.with("Content-Encoding", "deflate").post("/locks/k", "{}").await;
    let gzip = b"POST /locks/k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00";
    for answer in [compressed, http.raw(gzip).await] {
        assert_eq!(answer.told(), (400, "invalid_request".into()));
        assert!(answer.text("detail").contains("compressed"), "{answer:?}");
    }
    assert_eq!(http.with("Content-Encoding", "identity").post("/locks/k", "{}").await.status, 201);
}
