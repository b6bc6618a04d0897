//! An operation on the page: its parameters, body, answers and examples; and the objects and codes
//! that they name.

use axum::http::StatusCode;
use maud::{Markup, html};
use serde_norway::Value;

use crate::api::docs::contract::{Contract, Operation, entries, quoted, text};
use crate::api::docs::examples::examples;
use crate::api::docs::markdown;

/// The section of an operation.
pub(super) fn operation(contract: &Contract, operation: &Operation<'_>) -> Markup {
    let id = operation.id();
    let parameters = operation.parameters();
    html! {
        section {
            h3 id=(id) { (operation.summary()) }
            p.route {
                span class={ "method " (operation.method.to_lowercase()) } { (operation.method) }
                " " code { (operation.path) }
            }
            (markdown(text(&operation.spec["description"])))
            @if !operation.is_guarded() { p.open { "Needs no API key." } }
            (examples(contract, operation))
            @if !parameters.is_empty() {
                h4 { "Parameters" }
                dl {
                    @for parameter in parameters {
                        @let required = parameter["required"] == true;
                        dt {
                            code { (text(&parameter["name"])) } " "
                            span.kind { "in the " (text(&parameter["in"])) ", " (kind(&parameter["schema"])) }
                            @if required { " " strong.required { "required" } }
                        }
                        dd { (markdown(text(&parameter["description"]))) }
                    }
                }
            }
            @if let Some(body) = operation.body() {
                h4 { "Body" }
                @let members = contract.members(&body["schema"]);
                p { "JSON" @if members.iter().all(|(.., required)| !required) { "; every member is optional" } "." }
                (self::members(&members, "required"))
            }
            h4 { "Answers" }
            @for (status, answer) in operation.answers() { (self::answer(contract, status, answer)) }
        }
    }
}

fn answer(contract: &Contract, status: &str, answer: &Value) -> Markup {
    let description = text(&answer["description"]);
    let codes: Vec<_> = codes(contract, description).collect();
    let is_success = status.starts_with('2');
    let class = if is_success { "status success" } else { "status" };
    html! {
        details open[is_success] {
            summary {
                span class=(class) { (status) }
                @for (name, _) in &codes { " " code { (name) } }
                @if codes.is_empty() { " " (reason(status)) }
            }
            (markdown(description))
            @let headers: Vec<_> = entries(&answer["headers"]).collect();
            @if !headers.is_empty() {
                dl {
                    @for (name, header) in headers {
                        dt { code { (name) } " " span.kind { "header" } }
                        dd { (markdown(text(&contract.resolve(header)["description"]))) }
                    }
                }
            }
            @for (media_type, content) in entries(&answer["content"]) {
                p { code { (media_type) } (object(&content["schema"], ": ")) }
                @if codes.is_empty() { (body(contract.example(content))) }
            }
            @for (_, example) in codes { (body(&example["value"])) }
        }
    }
}

/// The name of a status.
fn reason(status: &str) -> &'static str {
    let status = StatusCode::from_bytes(status.as_bytes()).unwrap_or_default();
    status.canonical_reason().unwrap_or_default()
}

/// An error code.
pub(super) fn code(name: &str, example: &Value) -> Markup {
    let value = &example["value"];
    html! {
        details id={ "code-" (name) } {
            summary {
                span.status { (value["status"].as_u64().unwrap_or_default()) } " " code { (name) }
                " " (text(&value["title"]))
            }
            (body(value))
        }
    }
}

/// An object of the contract.
pub(super) fn schema(contract: &Contract, name: &str, schema: &Value) -> Markup {
    let label = format!("object-{name}");
    html! {
        section {
            h3 id=(label) { (name) }
            (markdown(text(&schema["description"])))
            (members(&contract.members(schema), "always there"))
            (body(&schema["example"]))
        }
    }
}

/// The members of an object, and the word for those that have to be there.
fn members(members: &[(&str, &Value, bool)], word: &str) -> Markup {
    html! {
        dl {
            @for (name, member, required) in members {
                dt {
                    code { (name) } " " span.kind { (kind(member)) }
                    @if *required { " " span.required { (word) } }
                }
                dd { (markdown(text(&member["description"]))) }
            }
        }
    }
}

/// The codes of a text that have an example.
fn codes<'a>(
    contract: &'a Contract,
    description: &'a str,
) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let examples = contract.at("components/examples");
    quoted(description).map(|name| (name, &examples[name])).filter(|(_, one)| one.is_mapping())
}

/// An example of a body.
fn body(example: &Value) -> Markup {
    let shown = match example {
        Value::Null => return html! {},
        Value::String(text) => text.clone(),
        value => serde_json::to_string_pretty(value).unwrap_or_default(),
    };
    html! { pre { code { (shown) } } }
}

/// The type of a value, and its bounds.
fn kind(schema: &Value) -> Markup {
    let number = |name: &str| schema[name].as_i64();
    let bounds = match (number("minimum"), number("maximum")) {
        (Some(least), Some(most)) => format!(", {least} to {most}"),
        (Some(least), None) => format!(", at least {least}"),
        _ => String::new(),
    };
    let length = match (number("minLength"), number("maxLength")) {
        (Some(least), Some(most)) => format!(", {least} to {most} characters"),
        (None, Some(most)) => format!(", at most {most} characters"),
        _ => String::new(),
    };
    let name = text(&schema["type"]);
    let items = &schema["items"];
    html! {
        (name) (object(schema, "")) (bounds) (length)
        @if !items.is_null() { " of " (kind(items)) }
    }
}

/// A link to the object that a schema refers to.
fn object(schema: &Value, before: &str) -> Markup {
    let name = text(&schema["$ref"]).rsplit('/').next().unwrap_or_default();
    html! {
        @if !name.is_empty() { (before) a href={ "#object-" (name) } { (name) } }
    }
}
