//! The lease token: where it may stand, and what it has to look like.

use crate::api::{Lockkeeper, OTHER, TOKEN};

/// The verbs that take a token, and what they answer who holds the key.
const VERBS: [(&str, &str, u16); 3] =
    [("POST", "/locks/k", 200), ("PUT", "/locks/k/refresh", 200), ("DELETE", "/locks/k", 204)];

#[tokio::test]
async fn a_token_is_read_wherever_it_may_stand() {
    let http = Lockkeeper::start().await;
    let brackets = format!("<{TOKEN}>");
    let body = format!(r#"{{"token":"{TOKEN}"}}"#);
    for (method, path, status) in VERBS {
        for (header, body) in [
            (Some(TOKEN), ""),
            (Some(&brackets), ""),
            (None, body.as_str()),
            (Some(TOKEN), &body),
            (Some(&brackets), &body),
        ] {
            http.token(TOKEN).post("/locks/k", "").await;
            let http = header.map_or_else(|| http.http.clone(), |header| http.token(header));
            let answer = http.send(method, path, body).await;
            assert_eq!(answer.status, status, "{method} {header:?} {body}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn two_different_tokens_are_refused_and_two_equal_ones_are_one() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    http.post("/locks/k", "").await;
    let body = format!(r#"{{"token":"{OTHER}"}}"#);
    for (method, path, status) in VERBS {
        for answer in
            [http.send(method, path, &body).await, http.token(OTHER).send(method, path, "").await]
        {
            assert_eq!(answer.told(), (400, "invalid_request".into()), "{method}");
            assert_eq!(answer.text("field"), "token", "{method}");
        }
        assert_eq!(http.token(TOKEN).send(method, path, "").await.status, status, "{method}");
    }
}

#[tokio::test]
async fn a_bad_token_is_refused() {
    let http = Lockkeeper::start().await;
    let long = "a".repeat(129);
    let bad = ["", "<>", "fifteen-letters", "a token with blanks", "<half-a-token-0001", &long];
    for (method, path, _) in VERBS.into_iter().chain([("GET", "/locks/k", 200)]) {
        for token in bad {
            let answer = http.token(token).send(method, path, "").await;
            assert_eq!(answer.told(), (400, "invalid_request".into()), "{method} {token:?}");
            assert_eq!(answer.text("field"), "token", "{method} {token:?}");
            assert!(token.len() < 3 || !answer.text("detail").contains(token), "{answer:?}");
        }
        let answer = http.token("a-töken-of-mine-0001").send(method, path, "").await;
        assert_eq!(answer.told(), (400, "invalid_request".into()), "{method}");
    }
}

#[tokio::test]
async fn a_token_may_have_16_to_128_characters_of_its_alphabet() {
    let http = Lockkeeper::start().await;
    for token in ["0123456789abcdef", "AZaz09._~+/=-AZaz09", &"a".repeat(128)] {
        let granted = http.token(token).post("/locks/k", "").await;
        assert_eq!((granted.status, granted.text("token").as_str()), (201, token));
        assert_eq!(http.token(token).delete("/locks/k").await.status, 204);
    }
}

#[tokio::test]
async fn a_token_in_a_url_is_refused_even_if_it_is_the_right_one() {
    let http = Lockkeeper::start().await;
    http.token(TOKEN).post("/locks/k", "").await;
    let verbs = VERBS.into_iter().chain([
        ("GET", "/locks/k", 200),
        ("GET", "/locks", 200),
        ("DELETE", "/admin/locks/k", 200),
    ]);
    for (method, path, _) in verbs {
        let answer = http.send(method, &format!("{path}?token={TOKEN}"), "").await;
        assert_eq!(answer.told(), (400, "invalid_request".into()), "{method} {path}");
        assert_eq!(answer.text("field"), "token");
        assert!(!String::from_utf8_lossy(&answer.body).contains(TOKEN), "{answer:?}");
    }
    assert_eq!(http.get("/locks/k").await.field("held"), true);
}
