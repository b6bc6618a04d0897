//! openapi.yaml, and a client that holds every answer against it.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::support::http::STREAM;
use crate::support::{Answer, Http};

/// The contract as a text.
pub(crate) const CONTRACT: &str = include_str!("../../../openapi.yaml");

/// The contract as generators read it.
pub(crate) static SPEC: LazyLock<Spec> = LazyLock::new(Spec::load);

/// The type of a page, which browsers keep and ask for each time.
const PAGE: &str = "text/html; charset=utf-8";

/// How much of a body some clients show: code and detail have to be among it.
const SHOWN: usize = 120;

/// The codes whose detail holds text of the client, and may be longer than what is shown.
const QUOTING: [&str; 3] = ["invalid_request", "lock_held", "unknown_field"];

/// What names an answer: operation, status and code, which is empty where there is none.
pub(crate) type Row = (String, u16, String);

/// openapi.yaml, its schemas closed: a member that is not in it is a finding.
#[derive(Debug)]
pub(crate) struct Spec(pub(crate) Value);

impl Spec {
    pub(crate) fn load() -> Self {
        let mut document: Value = serde_norway::from_str(CONTRACT).unwrap();
        for schema in document["components"]["schemas"].as_object_mut().unwrap().values_mut() {
            schema["additionalProperties"] = json!(false);
        }
        Self(document)
    }

    /// All answers that are documented.
    pub(crate) fn rows(&self) -> BTreeSet<Row> {
        let mut rows = BTreeSet::new();
        for operation in self.operations() {
            let id = operation["operationId"].as_str().unwrap();
            for (status, response) in operation["responses"].as_object().unwrap() {
                let mut codes = self.codes(self.resolve(response));
                if codes.is_empty() {
                    codes.insert(String::new());
                }
                let status = status.parse().unwrap();
                rows.extend(codes.into_iter().map(|code| (id.to_owned(), status, code)));
            }
        }
        rows
    }

    /// All operations.
    pub(crate) fn operations(&self) -> impl Iterator<Item = &Value> {
        let paths = self.0["paths"].as_object().unwrap().values();
        paths.flat_map(|path| path.as_object().unwrap().values())
    }

    /// All schemas that have a name, by name.
    pub(crate) fn schemas(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0["components"]["schemas"].as_object().unwrap().iter()
    }

    /// All paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &String> {
        self.0["paths"].as_object().unwrap().keys()
    }

    /// Fails unless this answer is as documented.
    pub(crate) fn check(&self, method: &str, path: &str, answer: &Answer) {
        let what = format!("{method} {path}: {answer:?}");
        let operation = self.operation(method, path);
        let Some(request_id) = answer.header("x-request-id") else {
            assert!(matches!(answer.status, 400 | 414 | 431) && answer.body.is_empty(), "{what}");
            return;
        };
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{what}");
        let kept = match answer.header("content-type") {
            Some(STREAM) => "no-store, no-transform",
            Some(PAGE) => "no-cache",
            _ => "no-store",
        };
        assert_eq!(answer.header("cache-control"), Some(kept), "{what}");
        let head = method == "HEAD";
        assert!(!head || answer.body.is_empty(), "{what}");
        if answer.status >= 400 && !head {
            check_problem(answer, request_id, &what);
            self.check_schema(problem_schema(answer), &answer.json(), &what);
        }
        let Some(operation) = operation else {
            return assert!(matches!(answer.status, 404 | 405), "{what}");
        };
        let response = &operation["responses"][answer.status.to_string()];
        assert!(response.is_object(), "the status is not documented: {what}");
        let response = self.resolve(response);
        self.check_headers(response, answer, &what);
        if !head {
            self.check_body(response, answer, &what);
        }
    }

    fn check_headers(&self, response: &Value, answer: &Answer, what: &str) {
        for (name, header) in response["headers"].as_object().into_iter().flatten() {
            let header = self.resolve(header);
            let Some(text) = answer.header(name) else {
                let is_lost = header["required"] == false && answer.told().1 == "lock_lost";
                assert!(is_lost, "no {name}: {what}");
                continue;
            };
            if header["schema"]["type"] == "integer" {
                assert!(text.parse::<u64>().is_ok(), "{name} is no number: {what}");
            }
        }
    }

    fn check_body(&self, response: &Value, answer: &Answer, what: &str) {
        let media_type = answer.header("content-type").map(|text| text.split(';').next().unwrap());
        let Some(documented) = response["content"].as_object() else {
            assert!(answer.body.is_empty() && media_type.is_none(), "a body: {what}");
            return;
        };
        let media_type = media_type.unwrap_or_else(|| panic!("no type: {what}"));
        let is_grant = matches!(answer.status, 200 | 201) && !documented.contains_key(media_type);
        if media_type == "text/plain" && is_grant {
            let beyond = self.0["info"]["description"].as_str().unwrap();
            return assert!(beyond.contains("Acquire with `Accept: text/plain`"), "{what}");
        }
        let content = documented.get(media_type).unwrap_or_else(|| panic!("not its type: {what}"));
        let Some(reference) = content["schema"]["$ref"].as_str() else {
            return assert_eq!(content["schema"]["type"], "string");
        };
        let body = answer.json();
        self.check_schema(reference.rsplit('/').next().unwrap(), &body, what);
        if let Some(code) = body["code"].as_str() {
            assert!(self.codes(response).contains(code), "the code is not documented: {what}");
        }
    }

    /// Fails unless this body has the schema of this name.
    pub(crate) fn check_schema(&self, name: &str, body: &Value, what: &str) {
        let schema = json!({
            "$ref": format!("#/components/schemas/{name}"),
            "components": self.0["components"],
        });
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<_> = validator.iter_errors(body).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "not a {name}: {errors:?}: {what}");
    }

    /// What a request is about; `None` if there is no such route or method.
    fn operation(&self, method: &str, path: &str) -> Option<&Value> {
        let path = path.split('?').next().unwrap();
        let method = match method {
            "HEAD" => "GET",
            "LOCK" if path.starts_with("/terraform/") => "POST",
            "UNLOCK" if path.starts_with("/terraform/") => "DELETE",
            method => method,
        };
        let refresh = percent_decode_str(path).decode_utf8_lossy().ends_with("/refresh");
        let template = match path {
            "/locks/refresh" => path,
            _ if path.starts_with("/locks/") && refresh && method == "PUT" => {
                "/locks/{key}/refresh"
            }
            _ if path.starts_with("/locks/") => "/locks/{key}",
            _ if path.starts_with("/hold/") => "/hold/{key}",
            _ if path.starts_with("/admin/locks/") => "/admin/locks/{key}",
            _ if path.starts_with("/terraform/") => "/terraform/{key}",
            other => other,
        };
        self.0["paths"].get(template)?.get(method.to_ascii_lowercase())
    }

    /// The codes that a response names.
    pub(crate) fn codes(&self, response: &Value) -> BTreeSet<String> {
        let known = &self.0["components"]["schemas"]["Problem"]["properties"]["code"];
        let known = quoted(known["description"].as_str().unwrap());
        let named = quoted(response["description"].as_str().unwrap());
        named.intersection(&known).map(|&code| code.to_owned()).collect()
    }

    /// The value itself, or the one that it refers to.
    pub(crate) fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        let Some(reference) = value["$ref"].as_str() else { return value };
        self.0.pointer(&reference[1..]).unwrap_or_else(|| panic!("no {reference}"))
    }
}

/// Which of the schemas of problems this one has.
fn problem_schema(answer: &Answer) -> &'static str {
    match answer.json()["ID"].is_string() {
        true => "TerraformLockHeld",
        false if answer.json()["waited_ms"].is_number() => "LockHeld",
        false => "Problem",
    }
}

/// What stands between backticks.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn check_problem(answer: &Answer, request_id: &str, what: &str) {
    let body = answer.json();
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{what}");
    assert_eq!(body["status"], answer.status, "{what}");
    assert_eq!(body["request_id"], request_id, "{what}");
    let code = body["code"].as_str().unwrap();
    assert_eq!(body["type"], format!("urn:lockkeeper:{code}"), "{what}");
    let detail = serde_json::to_string(&body["detail"]).unwrap();
    let begin = format!(r#"{{"code":"{code}","detail":{detail}"#);
    let text = std::str::from_utf8(&answer.body).unwrap();
    assert!(text.starts_with(&begin), "not the code and the detail first: {what}");
    let short = begin.chars().count() <= SHOWN || QUOTING.contains(&code);
    assert!(short, "the detail is not within {SHOWN} characters: {what}");
    let end = format!(r#""status":{},"type":"urn:lockkeeper:{code}","#, answer.status);
    let end = format!(r#"{end}"request_id":{}}}"#, body["request_id"]);
    assert!(text.ends_with(&end), "not title, status, type and request_id last: {what}");
}

/// A client that holds every answer against openapi.yaml.
#[derive(Clone, Debug)]
pub(crate) struct Checked(pub(crate) Http);

impl Checked {
    /// The same client, sending this header as well.
    pub(crate) fn with(&self, name: &str, value: &str) -> Self {
        Self(self.0.with(name, value))
    }

    /// The same client, holding this token.
    pub(crate) fn token(&self, token: &str) -> Self {
        Self(self.0.token(token))
    }

    /// The same client, with the secret of an API key.
    pub(crate) fn bearer(&self, secret: &str) -> Self {
        self.with("Authorization", &format!("Bearer {secret}"))
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        self.send("POST", path, body).await
    }

    pub(crate) async fn put(&self, path: &str, body: &str) -> Answer {
        self.send("PUT", path, body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, "").await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        let answer = self.0.send(method, path, body).await;
        SPEC.check(method, path, &answer);
        answer
    }

    /// Sends these very bytes, and reads the answer until the connection ends.
    pub(crate) async fn raw(&self, request: &[u8]) -> Answer {
        let answer = crate::support::raw::exchange(self.0.address, request).await;
        let line = String::from_utf8_lossy(request);
        let mut words = line.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        SPEC.check(method, path, &answer);
        answer
    }
}
