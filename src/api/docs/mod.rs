//! `GET /docs`: the contract for people, made from `openapi.yaml` when the service starts, so the
//! two cannot disagree. This file has the frame of the page; `verb.rs` has an operation and its
//! answers, `examples.rs` the programs, `contract.rs` reads the file.

mod contract;
mod examples;
mod verb;

use std::sync::LazyLock;

use axum::routing::MethodRouter;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use pulldown_cmark::Parser;

use crate::api::docs::contract::{Contract, Operation, entries, text};
use crate::api::docs::verb::{code, operation, schema};
use crate::api::health::CONTRACT;
use crate::api::page::Page;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// A padlock.
const ICON: &str = "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'>\
                    <path d='M4 7V5a4 4 0 0 1 8 0v2h1v8H3V7zm2 0h4V5a2 2 0 0 0-4 0z' fill='%230b7285'/></svg>";

static HTML: LazyLock<String> = LazyLock::new(|| page(CONTRACT));

/// `GET /docs`: the contract, for people.
pub(super) fn route<S: Clone + Send + Sync + 'static>() -> MethodRouter<S> {
    Page::new(&HTML).route()
}

/// The page of a contract.
fn page(contract: &str) -> String {
    let contract = Contract::read(contract);
    let description = text(contract.at("info/description"));
    let (introduction, chapters) = chapters(description);
    let content = html! {
        h1 { "The HTTP contract" }
        (markdown(introduction))
        (switch())
        @for (name, tag) in tags(&contract) {
            h2 id={ "tag-" (name) } { (title(name)) }
            (markdown(text(&tag["description"])))
            @for one in of_tag(&contract, name) { (operation(&contract, &one)) }
        }
        @for (heading, chapter) in &chapters {
            h2 id=(anchor(heading)) { (heading) }
            (markdown(chapter))
        }
        h2 id="authorization" { "Authorization" }
        (markdown(text(contract.at("components/securitySchemes/apiKey/description"))))
        h2 id="codes" { "Error codes" }
        @for (name, example) in entries(contract.at("components/examples")) {
            (code(name, example))
        }
        h2 id="objects" { "Objects" }
        @for (name, object) in entries(contract.at("components/schemas")) {
            // Those of requests are with their operations.
            @if !name.ends_with("Request") { (schema(&contract, name, object)) }
        }
    };
    let headings: Vec<_> = chapters.iter().map(|(heading, _)| *heading).collect();
    frame(&contract, &headings, content).into_string()
}

fn frame(contract: &Contract, headings: &[&str], content: Markup) -> Markup {
    let version = text(contract.at("info/version"));
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "lockkeeper " (version) ": the HTTP contract" }
                link rel="icon" href=(ICON);
                style { (PreEscaped(STYLE)) }
            }
            body data-server=(text(&contract.at("servers")[0]["url"])) {
                a.skip href="#contract" { "Skip to the contract" }
                header {
                    p.name { a href="#top" { "lockkeeper" } " " span.version { (version) } }
                    p { a href="/openapi.yaml" { "openapi.yaml" } }
                }
                (navigation(contract, headings))
                main id="contract" tabindex="-1" { (content) }
                p.said role="status" {}
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

fn navigation(contract: &Contract, headings: &[&str]) -> Markup {
    html! {
        nav aria-label="Contents" {
            @for (name, _) in tags(contract) {
                p { a href={ "#tag-" (name) } { (title(name)) } }
                ul {
                    @for one in of_tag(contract, name) {
                        li { a href={ "#" (one.id()) } {
                            span class={ "method " (one.method.to_lowercase()) } { (one.method) }
                            " " (one.summary())
                        } }
                    }
                }
            }
            p { "Rules" }
            ul {
                @for heading in headings { li { a href={ "#" (anchor(heading)) } { (heading) } } }
                li { a href="#authorization" { "Authorization" } }
                li { a href="#codes" { "Error codes" } }
                li { a href="#objects" { "Objects" } }
            }
        }
    }
}

/// The choice of a language for all examples.
fn switch() -> Markup {
    html! {
        div.switch {
            fieldset {
                legend { "Examples in" }
                @for (name, language) in [("curl", "curl"), ("php", "PHP"), ("python", "Python")] {
                    label {
                        input type="radio" name="language" value=(name) id={ "in-" (name) }
                            checked[name == "curl"];
                        " " (language)
                    }
                }
            }
            label { input type="checkbox" id="keyed"; " with an API key" }
        }
    }
}

/// The tags, in the order of the file.
fn tags(contract: &Contract) -> Vec<(&str, &serde_norway::Value)> {
    let tags = contract.at("tags").as_sequence().into_iter().flatten();
    tags.map(|tag| (text(&tag["name"]), tag)).collect()
}

fn of_tag<'a>(contract: &'a Contract, name: &'a str) -> impl Iterator<Item = Operation<'a>> {
    let operations = contract.operations().into_iter();
    operations.filter(move |one| one.spec["tags"][0] == *name)
}

/// The text before the first heading, and each heading with its text.
fn chapters(description: &str) -> (&str, Vec<(&str, &str)>) {
    let mut parts = description.split("\n## ");
    let introduction = parts.next().unwrap_or_default();
    (introduction, parts.filter_map(|part| part.split_once('\n')).collect())
}

/// Markdown as HTML.
fn markdown(text: &str) -> Markup {
    let mut rendered = String::new();
    pulldown_cmark::html::push_html(&mut rendered, Parser::new(text));
    PreEscaped(rendered)
}

fn title(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}
