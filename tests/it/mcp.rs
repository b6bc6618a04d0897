//! `lockkeeper mcp`, as a harness speaks with it: what a model is told. `ends` has that a lease lasts
//! as long as its session and no longer, `sdk` the official clients.

mod ends;
mod sdk;

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::process::{BINARY, command};
use crate::support::{Http, PATIENCE, Process, eventually};

/// One key more than a claim may have.
const MANY: [&str; 17] =
    ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q"];

/// What the protocol's time for a server to end is: then its clients send TERM.
const TIME_TO_END: Duration = Duration::from_secs(2);

struct Stage {
    directory: TempDir,
    service: Process,
}

impl Stage {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let service = serving(&directory, "127.0.0.1:0");
        Self { directory, service }
    }

    fn http(&self) -> Http {
        self.service.http()
    }

    fn agent(&self, name: &str) -> Agent {
        self.agent_with(name, &[])
    }

    fn agent_with(&self, name: &str, options: &[&str]) -> Agent {
        self.agent_at(&self.http().url(), name, options)
    }

    fn agent_at(&self, url: &str, name: &str, options: &[&str]) -> Agent {
        let mut agent = Agent::start(url, options);
        let client = json!({ "name": name, "version": "1" });
        let hello = agent.ask(
            "initialize",
            json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client }),
        );
        assert_eq!(hello["result"]["serverInfo"]["name"], "lockkeeper", "{hello}");
        agent.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        agent
    }

    async fn state(&self, key: &str) -> Value {
        self.http().get(&format!("/locks/{key}")).await.json()
    }

    /// Waits until nobody has a key, and nobody waits for one.
    async fn is_free(&self, key: &str) {
        let free = async || {
            let state = self.state(key).await;
            (state["held"] == false && state["waiters"] == 0).then_some(())
        };
        eventually(PATIENCE, free).await;
    }

    /// Waits until so many requests are in the line of a key.
    async fn has_line(&self, key: &str, waiters: u64) {
        let there = async || (self.state(key).await["waiters"] == waiters).then_some(());
        eventually(PATIENCE, there).await;
    }
}

fn serving(directory: &TempDir, listen: &str) -> Process {
    let store = format!("embedded:{}", directory.path().join("data").display());
    Process::start_on(listen, &["--store", &store], &[])
}

/// The server as a harness has started it.
struct Agent {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    last: u64,
    /// The notifications of progress that came by now.
    progress: Vec<Value>,
}

impl Agent {
    fn start(url: &str, options: &[&str]) -> Self {
        // Whatever signals the tests were started to ignore.
        let mut mcp = command("env");
        mcp.args(["--default-signal", BINARY, "mcp", "--url", url]).args(options);
        let mut child = mcp.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { input: child.stdin.take(), child, output, last: 0, progress: Vec::new() }
    }

    fn say(&mut self, message: &Value) {
        self.say_line(&message.to_string());
    }

    fn say_line(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn hear(&mut self) -> Value {
        serde_json::from_str(&self.output.next().expect("an answer").unwrap()).unwrap()
    }

    /// Sends a request, and returns its number.
    fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        let id = self.last;
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    /// The answer to a request.
    fn end(&mut self, id: u64) -> Value {
        loop {
            let heard = self.hear();
            if heard["id"] == id {
                return heard;
            }
            assert_eq!(heard["method"], "notifications/progress", "{heard}");
            self.progress.push(heard["params"].clone());
        }
    }

    /// The answer to a request, after those to others.
    fn answer_among_others(&mut self, id: u64) -> Value {
        std::iter::repeat_with(|| self.hear()).find(|heard| heard["id"] == id).unwrap()
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        self.end(id)
    }

    fn begin_call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.begin("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// What the model reads, of a call that is no error.
    fn call(&mut self, tool: &str, arguments: Value) -> String {
        let id = self.begin_call(tool, arguments);
        self.told(id)
    }

    fn told(&mut self, id: u64) -> String {
        let (told, is_error) = text(&self.end(id));
        assert!(!is_error, "{told}");
        told
    }

    /// What the model reads of an error.
    fn refused(&mut self, tool: &str, arguments: Value) -> String {
        let id = self.begin_call(tool, arguments);
        let (told, is_error) = text(&self.end(id));
        assert!(is_error, "{told}");
        told
    }

    fn cancel(&mut self, id: u64) {
        let params = json!({ "requestId": id, "reason": "the user" });
        let method = "notifications/cancelled";
        self.say(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(command("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Its exit code, which it has soon.
    fn ended(&mut self) -> Option<i32> {
        let began = Instant::now();
        let code = self.child.wait().unwrap().code();
        assert!(began.elapsed() < TIME_TO_END, "{:?}", began.elapsed());
        code
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(answer: &Value) -> (String, bool) {
    let result = &answer["result"];
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    (text.to_owned(), result["isError"] == true)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_told_when_to_lock_and_what_a_key_is() {
    let stage = Stage::new();
    let mut agent = stage.agent("claude-code");
    let answer = agent.ask("tools/list", json!({}));
    let tools = answer["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["acquire", "release", "status", "list"]);
    for tool in tools {
        let schema = &tool["inputSchema"];
        jsonschema::draft202012::meta::validate(schema).unwrap();
        for (name, property) in schema["properties"].as_object().unwrap() {
            assert!(property["description"].is_string() || name == "all", "{name}");
        }
    }
    let acquire = tools[0]["description"].as_str().unwrap();
    assert!(acquire.contains("as in `deploy/staging`") && acquire.contains("as soon as"));
    assert_eq!(tools[2]["annotations"]["readOnlyHint"], true);
    let unknown = agent.ask("tools/call", json!({ "name": "lock" }));
    assert_eq!(unknown["error"]["message"], "there is no tool `lock`");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_key_is_no_error_and_the_answer_says_who_has_it_and_what_for() {
    let stage = Stage::new();
    let (mut one, mut two) = (stage.agent("claude-code"), stage.agent("codex"));
    let key = json!({ "key": "deploy/staging", "purpose": "deploy\n v42" });
    let told = one.call("acquire", key.clone());
    assert!(told.starts_with("Acquired 'deploy/staging' (fencing token "), "{told}");
    let state = stage.state("deploy/staging").await;
    let owner = state["owner"].as_str().unwrap().to_owned();
    assert!(owner.contains('@') && owner.ends_with(" claude-code: deploy v42"), "{owner}");

    let told = two.call("acquire", json!({ "key": "deploy/staging", "purpose": "roll back" }));
    assert!(told.starts_with("Not acquired: 'deploy/staging' is held for 0."), "{told}");
    assert!(told.contains(&format!("by \"{owner}\"")), "{told}");
    assert!(told.contains("wait in line with wait_seconds"), "{told}");
    // The same call again is the same lease, not a wait for oneself.
    let told = one.call("acquire", key);
    assert!(told.starts_with("This session has 'deploy/staging'"), "{told}");
    let waits = json!({ "key": "deploy/staging", "purpose": "roll back", "wait_seconds": 50 });
    let waiting = two.begin_call("acquire", waits.clone());
    stage.has_line("deploy/staging", 1).await;
    let told = one.call("status", json!({ "key": "deploy/staging" }));
    assert!(told.contains("1 other waits in line") && told.contains("codex: roll back"), "{told}");
    assert!(told.contains("This session has 'deploy/staging'"), "{told}");
    let again = two.begin_call("acquire", waits);
    assert!(two.told(again).contains("another call of this session is waiting"));
    let told = one.call("release", json!({ "key": "deploy/staging" }));
    assert!(told.starts_with("Released 'deploy/staging' after "), "{told}");
    assert!(two.told(waiting).starts_with("Acquired 'deploy/staging'"));
    let told = one.call("list", json!({ "prefix": "deploy/" }));
    assert!(told.starts_with("1 key is held:\n'deploy/staging' is held"), "{told}");
    assert!(two.call("status", json!({})).contains("\"roll back\""));
    two.call("release", json!({ "all": true }));
    assert_eq!(one.call("list", json!({})), "No key is held.");
    assert_eq!(two.call("status", json!({})), "This session has no locks.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_tells_its_progress_and_the_next_one_has_its_place_in_line() {
    let stage = Stage::new();
    let (mut one, mut two) = (stage.agent("one"), stage.agent("two"));
    one.call("acquire", json!({ "key": "k", "purpose": "a" }));
    let arguments = json!({ "key": "k", "purpose": "b", "wait_seconds": 1.5 });
    let call = json!({
        "name": "acquire", "arguments": arguments, "_meta": { "progressToken": "t-1" },
    });
    let id = two.begin("tools/call", call);
    let told = two.told(id);
    assert!(told.contains("call acquire again with the same keys at once"), "{told}");
    let progress = &two.progress[0];
    assert_eq!((&progress["progressToken"], &progress["total"]), (&json!("t-1"), &json!(1.5)));
    let message = progress["message"].as_str().unwrap();
    assert!(message.contains("'k', place 1 of 1: held for "), "{message}");
    // One who comes now is behind it.
    let mut three = stage.agent("three");
    let third =
        three.begin_call("acquire", json!({ "key": "k", "purpose": "c", "wait_seconds": 50 }));
    stage.has_line("k", 1).await;
    let waits = json!({ "key": "k", "purpose": "b", "wait_seconds": 50 });
    let second = two.begin_call("acquire", waits);
    stage.has_line("k", 2).await;
    one.call("release", json!({ "key": "k" }));
    assert!(two.told(second).starts_with("Acquired 'k'"));
    two.call("release", json!({ "key": "k" }));
    assert!(three.told(third).starts_with("Acquired 'k'"));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_acquired_together_or_not_at_all_and_may_be_shared() {
    let stage = Stage::new();
    let (mut one, mut two) = (stage.agent("one"), stage.agent("two"));
    one.call("acquire", json!({ "key": "b", "purpose": "x" }));
    let told = two.call("acquire", json!({ "keys": ["a", "b"], "purpose": "x" }));
    assert!(told.starts_with("Not acquired: 'b' is held") && !told.contains("'a'"), "{told}");
    assert_eq!(stage.state("a").await["held"], false);
    one.call("release", json!({ "key": "b" }));
    let told = two.call("acquire", json!({ "keys": ["a", "b"], "purpose": "x" }));
    assert!(told.contains("'a' (fencing token") && told.contains("'b' (fencing token"), "{told}");
    two.call("release", json!({ "keys": ["a", "b"] }));
    assert_eq!(stage.http().get("/locks").await.json()["locks"], json!([]));

    let gpus = |units: u64| json!({ "key": "gpu", "purpose": "train", "slots": 8, "units": units });
    assert!(one.call("acquire", gpus(1)).contains("slot 1 of 8"));
    assert!(two.call("acquire", gpus(7)).starts_with("Acquired"));
    let mut three = stage.agent("three");
    let told = three.call("acquire", gpus(1));
    assert!(told.contains("'gpu' is held by 2 with 8 of 8 (\""), "{told}");
    let reads = json!({ "key": "schema", "purpose": "read", "shared": true });
    assert!(one.call("acquire", reads.clone()).starts_with("Acquired"));
    assert!(two.call("acquire", reads).starts_with("Acquired"));
    let told = one.call("acquire", json!({ "key": "schema", "purpose": "write" }));
    assert!(told.contains("with another share. Release it first"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_call_is_an_error_that_says_what_to_change() {
    let stage = Stage::new();
    let mut agent = stage.agent("one");
    for (tool, arguments, told) in [
        ("acquire", json!({ "key": "a" }), "say in `purpose` what you need it for"),
        ("acquire", json!({ "purpose": "a" }), "name one `key`, or several in `keys`"),
        ("acquire", json!({ "key": "/srv/a", "purpose": "a" }), "use `srv/a`"),
        ("acquire", json!({ "key": 5, "purpose": "a" }), "wrong arguments: key: invalid type"),
        ("acquire", json!({ "name": "a", "purpose": "a" }), "unknown field `name`"),
        ("acquire", json!({ "key": "a", "purpose": "a".repeat(201) }), "at most 200 bytes long"),
        ("acquire", json!({ "keys": MANY, "purpose": "a" }), "name at most 16 `keys` in one call"),
        ("release", json!({}), "or set `all`"),
        ("status", json!({ "key": "a//b" }), "`a//b` is not a key"),
    ] {
        let said = agent.refused(tool, arguments);
        assert!(said.contains(told), "{told}: {said}");
    }
    // Lines that are no request, or too long, end nothing.
    for line in ["", "no JSON", &"x".repeat(17 * 1024 * 1024)] {
        agent.say_line(line);
    }
    agent.say_line("{}");
    assert_eq!(agent.hear()["error"]["code"], -32600);
    assert_eq!(agent.call("status", json!({})), "This session has no locks.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_begin_as_the_protocol_says_is_told_so() {
    let stage = Stage::new();
    let mut agent = Agent::start(&stage.http().url(), &[]);
    agent.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    assert_eq!(agent.ended(), Some(2));
    let mut agent = Agent::start(&stage.http().url(), &[]);
    agent.input = None;
    assert_eq!(agent.ended(), Some(0));
    let wrong = command(BINARY).args(["mcp", "--ttl", "soon"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}
