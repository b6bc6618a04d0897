//! The tools as a model sees them, and their calls.

use std::rc::Rc;

use futures_util::future::join_all;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cli::mcp::acquire::{MOST_KEYS, MOST_WAIT, acquire};
use crate::cli::mcp::session::{AgentSession, Released};
use crate::cli::mcp::told::Told;
use crate::cli::mcp::words;
use crate::cli::remote::key;
use crate::client::ClientError;
use crate::wire::{ListBody, StatusBody};

/// The most keys that `list` shows: a model reads each of them.
const MOST_LISTED: usize = 50;

const INSTRUCTIONS: &str = "\
Locks that are shared by all agents, scripts and people who use this service. Acquire a key before \
you change what another session may change at the same time: a deploy environment, a database \
schema, a shared branch or merge queue, a file outside of your own worktree, a device, a port. \
Release it as soon as that work is done. The locks are advisory: they protect only what all ask \
for, so never do the work without the lock.";

const ACQUIRE: &str = "\
Lock a key, or several keys at once (all of them or none), before you change what another session \
may change at the same time. A key is a name on which all who need the thing agree: take it from \
the project's instructions if they have one, look at the names in use with `list`, or make it of \
what it protects, as in `deploy/staging`, `db/shop/migrate` or `merge/main`. The lock is yours \
until you release it or this session ends; it needs no renewal. Release it as soon as the work is \
done, and do not keep it while you wait for a person. If another has it, that is no error: the \
answer says who, what for, since when and how many wait. Then do other work, or wait in line with \
`wait_seconds`, and never do the work without the lock. If you need several locks, name all in one \
call: one after the other, two sessions can wait for each other.";

const RELEASE: &str = "\
Release locks of this session: as soon as the work that they protect is done or given up, not at \
the end of the session. Name `key` or `keys`, or set `all`. Then the next in line has them.";

const STATUS: &str = "\
Show who holds a key, what for, since when, and who waits for it. Without a key: the locks that \
this session has. It changes nothing.";

const LIST: &str = "\
List the keys that anybody holds now, with their holders, so that you see the names in use and who \
works on what. It changes nothing.";

const KEY: &str = "The name: 1 to 512 bytes, its parts separated by `/`, as in `deploy/staging`.";

/// The server: a session, and what may be asked of it.
pub(super) struct Tools(Rc<AgentSession>);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ReleaseCall {
    key: Option<String>,
    keys: Option<Vec<String>>,
    all: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StatusCall {
    key: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ListCall {
    prefix: String,
}

impl Tools {
    pub(super) fn new(session: Rc<AgentSession>) -> Self {
        Self(session)
    }

    /// Answers a call; `None` if there is no such tool.
    async fn answer(
        &self,
        call: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Option<Result<Told, String>> {
        let session = &*self.0;
        let input = Value::Object(call.arguments.unwrap_or_default());
        let answer = async {
            Ok(Some(match &*call.name {
                "acquire" => acquire(session, arguments(input)?, context).await?,
                "release" => release(session, arguments(input)?).await?,
                "status" => status(session, arguments(input)?).await?,
                "list" => list(session, arguments(input)?).await?.into(),
                _ => return Ok(None),
            }))
        };
        answer.await.transpose()
    }
}

fn arguments<T: DeserializeOwned>(input: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(input).map_err(|error| format!("wrong arguments: {error}"))
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("lockkeeper", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools()))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = call.name.clone();
        let Some(answer) = self.answer(call, &context).await else {
            return Err(ErrorData::invalid_params(format!("there is no tool `{name}`"), None));
        };
        self.0.check().await;
        let result = match &answer {
            Ok(_) => CallToolResult::success,
            Err(_) => CallToolResult::error,
        };
        let told = answer.unwrap_or_else(Told::from);
        let mut said = self.0.news();
        if context.ct.is_cancelled() {
            // Nobody reads the answer.
            let acquired = told.acquired.iter();
            join_all(acquired.map(|(key, number)| self.0.release(key, Some(*number)))).await;
        } else {
            self.0.has_told(&told.about);
        }
        said.push(told.text);
        Ok(result(vec![ContentBlock::text(said.join("\n\n"))]).into())
    }
}

async fn release(session: &AgentSession, asked: ReleaseCall) -> Result<Told, String> {
    let keys = match (asked.key, asked.keys, asked.all) {
        (Some(text), None, false) => vec![key(&text)?],
        (None, Some(texts), false) if !texts.is_empty() => {
            texts.iter().map(|text| key(text)).collect::<Result<_, _>>()?
        }
        (None, None, true) => session.leases().into_iter().map(|(key, _)| key).collect::<Vec<_>>(),
        _ => return Err("name one `key`, several in `keys`, or set `all`".to_owned()),
    };
    let told = keys.iter().map(async |key| match session.release(key, None).await {
        Released::Done(lease) => {
            format!("Released '{key}' after {}.", words::since(lease.since))
        }
        Released::NotHeld => format!("This session does not have '{key}'."),
        Released::Lost => format!("'{key}' was not yours any more."),
        Released::Unknown(why) => format!(
            "'{key}' could not be released ({why}); it ends by itself within {} s.",
            session.ttl.as_secs_f64()
        ),
    });
    let told = join_all(told).await;
    let text = if told.is_empty() { held(session) } else { told.join("\n") };
    Ok(Told { text, about: keys, acquired: Vec::new() })
}

async fn status(session: &AgentSession, asked: StatusCall) -> Result<Told, String> {
    session.check().await;
    let Some(text) = asked.key else { return Ok(held(session).into()) };
    let key = key(&text)?;
    let body = session.client.inspect(&key, Some(words::MOST_NAMES as u64)).await;
    let status: StatusBody = parsed(body)?;
    let mut said = vec![format!("{}.", words::state(&status))];
    let waiting = status.queue.iter().flatten().enumerate();
    said.extend(waiting.map(|(index, waiter)| words::waiter(index + 1, waiter)));
    if let Some(lease) = session.lease(&key) {
        said.push(words::own(&key, &lease));
    }
    Ok(Told { text: said.join("\n"), about: vec![key], acquired: Vec::new() })
}

async fn list(session: &AgentSession, asked: ListCall) -> Result<String, String> {
    let page: ListBody = parsed(session.client.list(&asked.prefix, None).await)?;
    let count = page.locks.len();
    let mut said = vec![match (count, &page.cursor) {
        (0, _) => "No key is held.".to_owned(),
        (_, Some(_)) => format!("More than {count} keys are held; name a longer `prefix`:"),
        (1, None) => "1 key is held:".to_owned(),
        (_, None) => format!("{count} keys are held:"),
    }];
    said.extend(page.locks.iter().take(MOST_LISTED).map(words::state));
    if count > MOST_LISTED {
        said.push(format!("... and {} more", count - MOST_LISTED));
    }
    Ok(said.join("\n"))
}

/// The leases of the session, for its model.
fn held(session: &AgentSession) -> String {
    let leases = session.leases();
    if leases.is_empty() {
        return "This session has no locks.".to_owned();
    }
    leases.iter().map(|(key, lease)| words::own(key, lease)).collect::<Vec<_>>().join("\n")
}

fn parsed<T: DeserializeOwned>(body: Result<String, ClientError>) -> Result<T, String> {
    let body = body.map_err(|error| match &error {
        ClientError::Refused(_) => error.to_string(),
        ClientError::NoAnswer { .. } => format!("the lock service does not answer ({error})"),
    })?;
    serde_json::from_str(&body).map_err(|_| ClientError::strange().to_string())
}

fn tools() -> Vec<Tool> {
    let keys = json!({
        "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": MOST_KEYS,
        "description": "Several names, in place of `key`.",
    });
    let key = |what: &str| json!({ "type": "string", "description": what });
    let number = |most: u16, what: &str| json!({ "type": "integer", "minimum": 1, "maximum": most, "description": what });
    let acquire = json!({
        "key": key(KEY),
        "keys": keys.clone(),
        "purpose": key(
            "What you need it for, in a few words that others read while they wait, as in `deploy \
             v42` or `change the schema of orders`."
        ),
        "wait_seconds": {
            "type": "number", "minimum": 0, "maximum": MOST_WAIT, "default": 0,
            "description": "Wait in line for so long if another has it. Call again at once to wait \
                            longer: within 5 seconds you have your place in line back.",
        },
        "shared": {
            "type": "boolean", "default": false,
            "description": "Share it with all others who share it, as readers do; whoever does not \
                            share it is kept out meanwhile.",
        },
        "slots": number(
            1000,
            "Share it with so many holders in all, this one included, as in 8 for eight GPUs. All \
             have to give the same number. The answer has the number of your slot."
        ),
        "units": number(1000, "Take so many of the `slots` instead of 1."),
    });
    let release = json!({
        "key": key(KEY),
        "keys": keys,
        "all": { "type": "boolean", "description": "Release all locks of this session." },
    });
    let status = json!({ "key": key("The name, if not the locks of this session are meant.") });
    let list = json!({ "prefix": key("The begin of the names, as in `deploy/`; all without it.") });
    vec![
        tool("acquire", ACQUIRE, acquire, changes()).with_title("Acquire locks"),
        tool("release", RELEASE, release, changes()).with_title("Release locks"),
        tool("status", STATUS, status, looks()).with_title("Show a lock"),
        tool("list", LIST, list, looks()).with_title("List locks"),
    ]
}

/// A tool that has no effect beyond the session's own locks.
fn changes() -> ToolAnnotations {
    ToolAnnotations::new().destructive(false).idempotent(true).open_world(false)
}

fn looks() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).open_world(false)
}

fn tool(name: &'static str, what: &'static str, properties: Value, hints: ToolAnnotations) -> Tool {
    let required: &[&str] = if name == "acquire" { &["purpose"] } else { &[] };
    let schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    let Value::Object(schema) = schema else { unreachable!("it is an object") };
    Tool::new(name, what, schema).annotate(hints)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{ListCall, ReleaseCall, StatusCall, arguments, tools};
    use crate::cli::mcp::acquire::AcquireCall;

    /// A model that follows the schemas is never told of an unknown field.
    #[test]
    fn the_schemas_name_what_the_calls_take() {
        for tool in tools() {
            let properties = tool.input_schema["properties"].as_object().unwrap();
            let value = |(name, schema): (&String, &Value)| {
                let value = match schema["type"].as_str().unwrap() {
                    "string" => json!("a"),
                    "array" => json!(["a"]),
                    "boolean" => json!(true),
                    "integer" | "number" => schema["maximum"].clone(),
                    other => panic!("{other}"),
                };
                (name.clone(), value)
            };
            let input = Value::Object(properties.iter().map(value).collect());
            let (taken, fields) = match &*tool.name {
                "acquire" => (arguments::<AcquireCall>(input).map(|_| ()), 7),
                "release" => (arguments::<ReleaseCall>(input).map(|_| ()), 3),
                "status" => (arguments::<StatusCall>(input).map(|_| ()), 1),
                "list" => (arguments::<ListCall>(input).map(|_| ()), 1),
                other => panic!("{other}"),
            };
            assert_eq!((taken, properties.len()), (Ok(()), fields), "{}", tool.name);
        }
    }
}
