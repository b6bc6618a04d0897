//! The headers of `/docs`, and the examples of openapi.yaml, which are what the service answers. The
//! page in a browser is in `tests/it/docs.rs`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::api::{Lockkeeper, api_keys};
use crate::support::openapi::SPEC;

#[tokio::test]
async fn the_page_loads_its_library_from_here_and_runs_no_other_script() {
    let service = Lockkeeper::with_settings(&api_keys(&[("root", r#"[""]"#, r#"["read"]"#)])).await;
    let answer = service.get("/docs").await;
    assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = answer.header("content-security-policy").unwrap();
    for part in [
        "default-src 'none'",
        "script-src 'self' 'sha256-",
        "connect-src 'self'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(part), "no {part}: {policy}");
    }
    let others = policy.replace("style-src 'unsafe-inline'", "");
    assert!(!others.contains("unsafe") && !others.contains("http"), "{policy}");
    let library = service.http.0.get("/docs/scalar.js").await;
    assert_eq!(library.status, 200, "without an API key");
    assert_eq!(library.header("content-type"), Some("text/javascript; charset=utf-8"));
    assert_eq!(library.header("content-encoding"), Some("gzip"));
    assert_eq!(library.header("x-content-type-options"), Some("nosniff"));
    assert!(library.body.starts_with(&[0x1f, 0x8b]), "not compressed");
}

#[tokio::test]
async fn the_examples_of_the_contract_are_what_it_says_and_what_the_service_answers() {
    let mut left: Vec<_> =
        SPEC.schemas().filter(|(_, schema)| !schema["example"].is_null()).collect();
    assert!(left.len() >= 8, "{left:?}");
    for (name, schema) in left.drain(..) {
        SPEC.check_schema(name, &schema["example"], "its example");
    }
    for operation in SPEC.operations() {
        let answers = operation["responses"].as_object().unwrap().values();
        for answer in answers.map(|one| SPEC.resolve(one)) {
            for (media_type, body) in answer["content"].as_object().into_iter().flatten() {
                if media_type == "application/problem+json" {
                    assert_problems(answer, body);
                    continue;
                }
                let schema = SPEC.resolve(&body["schema"]);
                let has = schema["type"] == "string" || !schema["example"].is_null();
                assert!(has, "no example: {operation}");
            }
        }
        let body = &operation["requestBody"]["content"]["application/json"];
        if let (Some(name), false) = (body["schema"]["$ref"].as_str(), body["example"].is_null()) {
            SPEC.check_schema(name.rsplit('/').next().unwrap(), &body["example"], "its example");
        }
    }
    let about = &SPEC.0["components"]["schemas"]["About"]["example"];
    assert_eq!(Lockkeeper::start().await.get("/").await.json(), *about);
}

/// Fails unless this body has an example of each code that its answer names.
fn assert_problems(answer: &Value, body: &Value) {
    let examples = body["examples"].as_object().unwrap();
    assert_eq!(examples.keys().cloned().collect::<BTreeSet<_>>(), SPEC.codes(answer), "{answer}");
    let (_, schema) = body["schema"]["$ref"].as_str().unwrap().rsplit_once('/').unwrap();
    for (code, example) in examples {
        SPEC.check_schema(schema, &SPEC.resolve(example)["value"], code);
    }
}

/// Fails unless the contract has an example of each code that was met, like one of its answers.
pub(super) fn assert_examples(met: &BTreeMap<String, Vec<Value>>) {
    let examples = SPEC.0["components"]["examples"].as_object().unwrap();
    let names: Vec<_> = met.keys().collect();
    assert_eq!(examples.keys().collect::<Vec<_>>(), names);
    for (code, real) in met {
        let example = steady(&examples[code]["value"]);
        let real: Vec<_> = real.iter().map(steady).collect();
        assert!(real.contains(&example), "{example}\nis none of\n{real:?}");
    }
}

/// A problem without what differs from one to the next: numbers, keys in a detail, its id.
fn steady(problem: &Value) -> Value {
    let mut steady = problem.clone();
    let detail = problem["detail"].as_str().unwrap();
    let detail = detail.split('\'').step_by(2).collect::<Vec<_>>().join("''");
    let detail =
        detail.split(|letter: char| letter.is_ascii_digit()).filter(|part| !part.is_empty());
    steady["detail"] = detail.collect::<String>().into();
    for name in ["retry_after_ms", "held_ms", "waited_ms", "request_id"] {
        if let Some(value) = steady.get_mut(name) {
            *value = Value::Null;
        }
    }
    steady
}
