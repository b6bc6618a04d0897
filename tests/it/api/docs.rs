//! `/docs` has all of openapi.yaml, and the examples there are what the service answers. The page in
//! a browser and its programs are in `tests/it/docs.rs`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::api::Lockkeeper;
use crate::support::openapi::SPEC;

#[tokio::test]
async fn the_page_has_every_operation_parameter_option_and_answer_of_the_contract() {
    let page = Lockkeeper::start().await.get("/docs").await;
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    for operation in SPEC.operations() {
        let id = operation["operationId"].as_str().unwrap();
        let (_, section) = page.split_once(&format!("<h3 id=\"{id}\">")).unwrap();
        let section = section.split("</section>").next().unwrap();
        assert!(page.contains(&format!("<a href=\"#{id}\">")), "no link to {id}");
        let has = |what: &str| assert!(section.contains(what), "{id} has no {what}: {section}");
        has(operation["summary"].as_str().unwrap());
        for language in ["curl", "php", "python"] {
            has(&format!("example {language}\""));
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            has(&format!("<code>{}</code>", SPEC.resolve(parameter)["name"].as_str().unwrap()));
        }
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        for (name, _) in SPEC.resolve(body)["properties"].as_object().into_iter().flatten() {
            has(&format!("<code>{name}</code>"));
        }
        for status in operation["responses"].as_object().unwrap().keys() {
            has(&format!(">{status}</span>"));
        }
    }
    for code in SPEC.0["components"]["examples"].as_object().unwrap().keys() {
        assert!(page.contains(&format!("id=\"code-{code}\"")), "no {code}");
    }
    for (name, schema) in SPEC.schemas().filter(|(name, _)| !name.ends_with("Request")) {
        let (_, section) = page.split_once(&format!("id=\"object-{name}\"")).unwrap();
        let section = section.split("</section>").next().unwrap();
        for member in schema["properties"].as_object().unwrap().keys() {
            assert!(section.contains(&format!("<code>{member}</code>")), "{name}: no {member}");
        }
    }
    let chapters = SPEC.0["info"]["description"].as_str().unwrap().lines();
    for heading in chapters.filter_map(|line| line.strip_prefix("## ")) {
        assert!(page.contains(&format!(">{heading}</h2>")), "no {heading}");
    }
}

#[tokio::test]
async fn the_page_may_load_and_run_nothing_but_itself() {
    let answer = Lockkeeper::start().await.get("/docs").await;
    assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
    let policy = answer.header("content-security-policy").unwrap();
    for part in [
        "default-src 'none'",
        "frame-ancestors 'none'",
        "style-src 'sha256-",
        "script-src 'sha256-",
    ] {
        assert!(policy.contains(part), "no {part}: {policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
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
