//! What generators make good clients of: rules for openapi.yaml, each for something that a generator
//! did with a file that broke it. Each test breaks its rule once, and has to find that.

use serde_json::{Value, json};

use crate::support::openapi::Spec;

const SETTINGS: &str = include_str!("../../../config/lockkeeper.toml");

/// The limits that are no settings.
const FIXED: [&str; 15] = [
    "/components/parameters/FencingToken/schema",
    "/components/schemas/AcquireRequest/properties/fencing_token",
    "/components/schemas/AcquireRequest/properties/slots",
    "/components/schemas/AcquireRequest/properties/units",
    "/components/schemas/ClaimedKey/properties/slots",
    "/components/schemas/ClaimedKey/properties/units",
    "/components/schemas/HoldRequest/properties/fencing_token",
    "/components/schemas/HoldRequest/properties/linger_ms",
    "/components/schemas/HoldRequest/properties/slots",
    "/components/schemas/HoldRequest/properties/units",
    "/components/schemas/NamedLease/properties/fencing_token",
    "/components/schemas/RefreshRequest/properties/fencing_token",
    "/paths/~1admin~1locks~1{key}/delete/parameters/2/schema",
    "/paths/~1locks/get/parameters/1/schema",
    "/paths/~1locks~1{key}/get/parameters/2/schema",
];

/// The one answer that comes before there is a request.
const HEAD_TOO_LARGE: &str = "431";

/// The oldest generator that is run fails on 3.1.
#[test]
fn the_contract_is_in_the_version_that_old_generators_read() {
    let rule = |spec: &Spec| match spec.0["openapi"] == "3.0.3" {
        true => vec![],
        false => vec!["openapi".to_owned()],
    };
    holds(rule, |spec| spec["openapi"] = json!("3.1.0"));
}

/// Two texts in the other order are swapped in silence: `releaseLock($lock_token, $key)`.
#[test]
fn the_key_is_the_first_parameter_of_each_operation_and_none_of_a_path() {
    let rule = |spec: &Spec| {
        let paths = spec.0["paths"].as_object().unwrap();
        let shared = paths.iter().filter(|(_, path)| path.get("parameters").is_some());
        let shared: Vec<_> = shared.map(|(path, _)| path.clone()).collect();
        let late = faults(spec, |operation| {
            let parameters = parameters(spec, operation);
            let at = parameters.iter().position(|one| one["in"] == "path");
            at.is_some_and(|at| at > 0)
        });
        [shared, late].concat()
    };
    let key = json!({"$ref": "#/components/parameters/Key"});
    let (path, refresh) = ("/locks/{key}", "/locks/{key}/refresh");
    holds(rule, |spec| spec["paths"][path]["parameters"] = json!([key]));
    holds(rule, |spec| {
        spec["paths"][refresh]["put"]["parameters"].as_array_mut().unwrap().reverse();
    });
}

/// An optional header becomes an argument before the body, and moves the body when it is added.
#[test]
fn an_operation_with_a_body_has_its_options_there_only() {
    let rule = |spec: &Spec| {
        faults(spec, |operation| {
            let optional = |one: &&Value| one["required"] != true;
            operation["requestBody"].is_object() && parameters(spec, operation).iter().any(optional)
        })
    };
    holds(rule, |spec| {
        let header = json!({"name": "Idempotency-Key", "in": "header"});
        acquire(spec)["parameters"].as_array_mut().unwrap().push(header);
    });
}

/// Each tag becomes a class; what has none gets into `DefaultApi`.
#[test]
fn an_operation_has_one_tag_and_it_is_explained() {
    let rule = |spec: &Spec| {
        let explained = spec.0["tags"].as_array().unwrap();
        let is_explained = |tag: &Value| explained.iter().any(|one| one["name"] == *tag);
        faults(spec, |operation| {
            let tags = operation["tags"].as_array();
            !tags.is_some_and(|tags| tags.len() == 1 && is_explained(&tags[0]))
        })
    };
    holds(rule, |spec| acquire(spec)["tags"] = json!(["locks", "service"]));
    holds(rule, |spec| acquire(spec)["tags"] = json!(["other"]));
}

/// What has no name gets one like `AcquireLock200Response`.
#[test]
fn every_object_is_a_schema_with_a_name() {
    let is_named = |place: &str| {
        place.strip_prefix("/components/schemas/").is_some_and(|name| !name.contains('/'))
    };
    let rule = |spec: &Spec| {
        places(spec, |place, value| {
            (value["type"] == "object" || value["properties"].is_object()) && !is_named(place)
        })
    };
    holds(rule, |spec| ttl(spec)["type"] = json!("object"));
}

/// PHP throws past `catch (ApiException)` at a code that is new, and Python forgets the problem.
#[test]
fn no_text_is_limited_to_those_that_are_known_today() {
    holds(has("enum"), |spec| {
        spec["components"]["schemas"]["Problem"]["properties"]["code"]["enum"] =
            json!(["lock_held"]);
    });
}

/// Clients would send today's default to the services of tomorrow.
#[test]
fn no_default_gets_into_a_client() {
    holds(has("default"), |spec| ttl(spec)["default"] = json!(30_000));
}

/// Clients would refuse what a service is configured to accept.
#[test]
fn no_limit_that_is_a_setting_gets_into_a_client() {
    let rule = |spec: &Spec| {
        let limited = places(spec, |_, value| value.get("maximum").is_some());
        limited.into_iter().filter(|place| !FIXED.contains(&place.as_str())).collect()
    };
    holds(rule, |spec| ttl(spec)["maximum"] = json!(86_400_000));
}

/// Old generators lose the type of what may be null.
#[test]
fn an_absent_member_is_left_out_and_not_null() {
    holds(has("nullable"), |spec| ttl(spec)["nullable"] = json!(true));
}

/// An answer of another media type reaches the program without a type.
#[test]
fn every_refusal_is_a_problem() {
    let problems = ["Problem", "LockHeld", "TerraformLockHeld"]
        .map(|name| json!({"$ref": format!("#/components/schemas/{name}")}));
    let is_problem = |content: &Value| {
        content.as_object().is_some_and(|types| types.len() == 1)
            && problems.contains(&content["application/problem+json"]["schema"])
    };
    let rule = |spec: &Spec| {
        faults(spec, |operation| {
            operation["responses"].as_object().unwrap().iter().any(|(status, answer)| {
                let refuses = status.as_str() >= "400" && status != HEAD_TOO_LARGE;
                refuses && !is_problem(&spec.resolve(answer)["content"])
            })
        })
    };
    holds(rule, |spec| {
        let content = json!({"application/json": {"schema": {"type": "string"}}});
        acquire(spec)["responses"]["409"]["content"] = content;
    });
}

/// Without a format a number is one of 32 bits, and fencing tokens are longer.
#[test]
fn every_number_says_how_long_it_may_be() {
    let rule = |spec: &Spec| {
        places(spec, |place, value| {
            let format = if place.ends_with("/status") { "int32" } else { "int64" };
            value["type"] == "integer" && value["format"] != format
        })
    };
    holds(rule, |spec| ttl(spec)["format"] = json!("int32"));
}

/// What linters of such files ask for.
#[test]
fn an_operation_has_a_summary_and_a_refusal_and_says_who_may_call_it() {
    let rule = |spec: &Spec| {
        faults(spec, |operation| {
            let refused = |status: &String| status.starts_with('4');
            let guarded = operation.get("security").or_else(|| spec.0.get("security"));
            !operation["summary"].is_string()
                || !operation["responses"].as_object().unwrap().keys().any(refused)
                || guarded.is_none()
        })
    };
    holds(rule, |spec| acquire(spec)["summary"] = Value::Null);
    holds(rule, |spec| acquire(spec)["responses"] = json!({"200": {}}));
    holds(rule, |spec| {
        spec.as_object_mut().unwrap().remove("security");
    });
}

/// It is where a client asks that was told nothing.
#[test]
fn the_server_of_the_contract_is_where_the_service_listens_by_default() {
    let listens = SETTINGS.lines().find_map(|line| line.strip_prefix("listen = \"127.0.0.1:"));
    let port = listens.unwrap().split('"').next().unwrap();
    let url = json!(format!("http://localhost:{port}"));
    let rule = |spec: &Spec| {
        let servers = spec.0["servers"].as_array().unwrap().iter();
        servers.filter(|server| server["url"] != url).map(Value::to_string).collect()
    };
    holds(rule, |spec| spec["servers"][0]["url"] = json!("/"));
}

/// Fails unless the contract keeps a rule, and the rule finds what is planted.
#[track_caller]
fn holds(rule: impl Fn(&Spec) -> Vec<String>, plant: impl Fn(&mut Value)) {
    let mut spec = Spec::load();
    assert_eq!(rule(&spec), Vec::<String>::new());
    plant(&mut spec.0);
    assert!(!rule(&spec).is_empty(), "what was planted is not found");
}

fn acquire(spec: &mut Value) -> &mut Value {
    &mut spec["paths"]["/locks/{key}"]["post"]
}

fn ttl(spec: &mut Value) -> &mut Value {
    &mut spec["components"]["schemas"]["AcquireRequest"]["properties"]["ttl_ms"]
}

/// The operations that are wrong.
fn faults(spec: &Spec, is_wrong: impl Fn(&Value) -> bool) -> Vec<String> {
    let operations = spec.operations().filter(|one| one["operationId"].is_string());
    operations.filter(|one| is_wrong(one)).map(|one| one["operationId"].to_string()).collect()
}

fn parameters<'a>(spec: &'a Spec, operation: &'a Value) -> Vec<&'a Value> {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    parameters.map(|one| spec.resolve(one)).collect()
}

/// The rule that nothing has such a member.
fn has(member: &str) -> impl Fn(&Spec) -> Vec<String> {
    move |spec| places(spec, |_, value| value.get(member).is_some())
}

/// Where there are objects that are wrong.
fn places(spec: &Spec, is_wrong: impl Fn(&str, &Value) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![(String::new(), &spec.0)];
    while let Some((place, value)) = left.pop() {
        if value.is_object() && is_wrong(&place, value) {
            found.push(place.clone());
        }
        let members = value.as_object().into_iter().flatten();
        let members = members.map(|(name, member)| (name.replace('/', "~1"), member));
        let items = value.as_array().into_iter().flatten().enumerate();
        let items = items.map(|(at, item)| (at.to_string(), item));
        left.extend(members.chain(items).map(|(name, one)| (format!("{place}/{name}"), one)));
    }
    found
}
