//! The examples of an operation: the same request with curl, PHP and Python, each to be copied as
//! it is. Tests run them all.

use maud::{Markup, html};
use serde_norway::Value;

use crate::api::docs::contract::{Contract, Operation, entries, text};

/// The name of a language, and how it makes a request.
type Language = (&'static str, fn(&Call<'_>) -> Text);

const LANGUAGES: [Language; 3] = [("curl", curl), ("PHP", php), ("Python", python)];

/// The media type of an answer that is a stream.
const STREAM: &str = "application/x-ndjson";

/// The lines that make a lease token.
const MAKES: &str = "proves that the lease is yours: a new one for each lease";
const TAKES: &str = "of your lease, from the answer of acquire";

/// A request, as an example sends it.
struct Call<'a> {
    method: &'a str,
    url: String,
    token: Token,
    options: Option<&'a Value>,
    is_guarded: bool,
    is_stream: bool,
}

/// The lease token of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    /// None.
    Absent,
    /// A new one.
    Made,
    /// That of a lease.
    Taken,
}

/// The text of an example. Some parts are there only with an API key.
#[derive(Default)]
struct Text(Vec<(String, bool)>);

impl Text {
    fn add(&mut self, text: impl Into<String>) {
        self.0.push((text.into(), false));
    }

    fn with_api_key(&mut self, text: impl Into<String>) {
        self.0.push((text.into(), true));
    }
}

/// All examples of `operation`.
pub(super) fn examples(contract: &Contract, operation: &Operation<'_>) -> Markup {
    let call = Call::of(contract, operation);
    html! {
        @for (language, example) in LANGUAGES {
            figure class={ "example " (language.to_lowercase()) } {
                figcaption { (language) }
                button.copy type="button" hidden
                    aria-label={ "Copy the example in " (language) ": " (operation.summary()) } {
                    "Copy"
                }
                pre { code {
                    @for (part, with_api_key) in example(&call).0 {
                        @if with_api_key { span.keyed { (part) } } @else { (part) }
                    }
                } }
            }
        }
    }
}

impl<'a> Call<'a> {
    fn of(contract: &'a Contract, operation: &'a Operation<'a>) -> Self {
        let mut url = text(&contract.at("servers")[0]["url"]).to_owned() + operation.path;
        let (mut token, mut separator) = (Token::Absent, '?');
        for parameter in operation.parameters() {
            let (name, example) = (text(&parameter["name"]), plain(&parameter["example"]));
            match text(&parameter["in"]) {
                "path" => url = url.replace(&format!("{{{name}}}"), &example),
                "query" if !example.is_empty() => {
                    url.push_str(&format!("{separator}{name}={example}"));
                    separator = '&';
                }
                "header" if name == "Lock-Token" => token = Token::Taken,
                _ => (),
            }
        }
        let body = operation.body();
        let members = body.map(|body| contract.members(&body["schema"])).unwrap_or_default();
        if members.iter().any(|(name, ..)| *name == "token") {
            token = Token::Made;
        }
        let options = body.map(|body| contract.example(body));
        let is_stream = operation.spec["responses"]["200"]["content"][STREAM].is_mapping();
        let (method, is_guarded) = (&operation.method, operation.is_guarded());
        Self { method, url, token, options, is_guarded, is_stream }
    }

    /// The options as `"name": value` in a language.
    fn options(&self, entry: fn(&str, &Value) -> String) -> Option<String> {
        let options: Vec<_> =
            entries(self.options?).map(|(name, value)| entry(name, value)).collect();
        Some(options.join(", "))
    }
}

fn curl(call: &Call<'_>) -> Text {
    let mut text = Text::default();
    match call.token {
        Token::Made => {
            text.add(format!("# TOKEN {MAKES}.\nexport TOKEN=$(openssl rand -hex 16)\n"))
        }
        Token::Taken => text.add(format!("# TOKEN is that {TAKES}.\n")),
        Token::Absent => (),
    }
    let flags = if call.is_stream { "-sSN" } else { "-sS -w ' %{http_code}\\n'" };
    let method = if call.method == "GET" { "" } else { &format!(" -X {}", call.method) };
    text.add(format!("curl {flags}{method} '{}'", call.url));
    if call.token != Token::Absent {
        text.add(" \\\n  -H \"Lock-Token: $TOKEN\"");
    }
    if call.is_guarded {
        text.with_api_key(" \\\n  -H \"Authorization: Bearer $API_KEY\"");
    }
    if let Some(options) = call.options(|name, value| format!("\"{name}\": {}", literal(value))) {
        text.add(format!(" \\\n  -d '{{{options}}}'"));
    }
    text
}

fn php(call: &Call<'_>) -> Text {
    let mut text = Text::default();
    text.add("<?php\n");
    match call.token {
        Token::Made => text.add(format!("$token = bin2hex(random_bytes(16)); // {MAKES}\n")),
        Token::Taken => text.add(format!("$token = getenv('TOKEN'); // {TAKES}\n")),
        Token::Absent => (),
    }
    text.add(format!("$curl = curl_init('{}');\ncurl_setopt_array($curl, [\n", call.url));
    if call.method != "GET" {
        text.add(format!("    CURLOPT_CUSTOMREQUEST => '{}',\n", call.method));
    }
    if call.token != Token::Absent {
        text.add("    CURLOPT_HTTPHEADER => [\n        \"Lock-Token: $token\",\n");
        text.with_api_key("        'Authorization: Bearer ' . getenv('API_KEY'),\n");
        text.add("    ],\n");
    } else if call.is_guarded {
        text.with_api_key(
            "    CURLOPT_HTTPHEADER => ['Authorization: Bearer ' . getenv('API_KEY')],\n",
        );
    }
    let entry = |name: &str, value: &Value| match value {
        Value::String(text) => {
            format!("'{name}' => '{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
        }
        value => format!("'{name}' => {}", literal(value)),
    };
    if let Some(options) = call.options(entry) {
        text.add(format!("    CURLOPT_POSTFIELDS => json_encode([{options}]),\n"));
    }
    text.add(if call.is_stream { PHP_STREAM } else { PHP_ANSWER });
    text
}

const PHP_ANSWER: &str = r#"    CURLOPT_RETURNTRANSFER => true,
    CURLOPT_TIMEOUT => 30,
]);
$answer = curl_exec($curl);
if ($answer === false) {
    exit('unknown outcome: ' . curl_error($curl) . "\n");
}
echo curl_getinfo($curl, CURLINFO_RESPONSE_CODE), " $answer\n";"#;

const PHP_STREAM: &str = r"    CURLOPT_WRITEFUNCTION => function ($curl, string $lines): int {
        echo $lines;
        return strlen($lines);
    },
]);
curl_exec($curl); // until the stream ends";

fn python(call: &Call<'_>) -> Text {
    let mut text = Text::default();
    let options = call.options(|name, value| format!("\"{name}\": {}", literal(value)));
    if options.is_some() {
        text.add("import json\n");
    }
    match call.token {
        Token::Taken => text.add("import os\n"),
        _ if call.is_guarded => text.with_api_key("import os\n"),
        _ => (),
    }
    if call.token == Token::Made {
        text.add("import secrets\n");
    }
    text.add("import urllib.error\nimport urllib.request\n\n");
    match call.token {
        Token::Made => text.add(format!("token = secrets.token_hex(16)  # {MAKES}\n")),
        Token::Taken => text.add(format!("token = os.environ[\"TOKEN\"]  # {TAKES}\n")),
        Token::Absent => (),
    }
    text.add(format!("request = urllib.request.Request(\n    \"{}\",\n", call.url));
    text.add(format!("    method=\"{}\",\n", call.method));
    if call.token != Token::Absent {
        text.add("    headers={\n        \"Lock-Token\": token,\n");
        text.with_api_key("        \"Authorization\": \"Bearer \" + os.environ[\"API_KEY\"],\n");
        text.add("    },\n");
    } else if call.is_guarded {
        text.with_api_key(
            "    headers={\"Authorization\": \"Bearer \" + os.environ[\"API_KEY\"]},\n",
        );
    }
    if let Some(options) = options {
        text.add(format!("    data=json.dumps({{{options}}}).encode(),\n"));
    }
    text.add(if call.is_stream { PYTHON_STREAM } else { PYTHON_ANSWER });
    text
}

const PYTHON_ANSWER: &str = r#")
try:
    answer = urllib.request.urlopen(request, timeout=30)
except urllib.error.HTTPError as problem:
    answer = problem
print(answer.status, answer.read().decode())"#;

const PYTHON_STREAM: &str = r#")
try:
    for line in urllib.request.urlopen(request, timeout=30):
        print(line.decode(), end="", flush=True)
except urllib.error.HTTPError as problem:
    print(problem.status, problem.read().decode())"#;

/// A value as JSON, which curl and Python read.
fn literal(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// A value in a URL; empty if there is none.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        value => literal(value),
    }
}
