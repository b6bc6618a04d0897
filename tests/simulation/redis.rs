//! Redis nodes in memory that run the store's scripts in the Lua of Redis.
//!
//! Lua and a run of the simulation stay on one thread: each thread has its own nodes.

use std::cell::RefCell;
use std::collections::HashMap;

use mlua::{Function, Lua, MultiValue, Table, Variadic};
use redis::Value;

use crate::store::redis::script::{Reply, Script};
use crate::store::redlock::nodes::guard;
use crate::store::redlock::simulation::rule::{Rule, left_out};

/// The prefix of every lock.
pub(super) const LOCKS: &str = "lock:";

thread_local! {
    static REDIS: Redis = Redis::new();
}

/// A script's answer, and the locks that it published as free.
pub(super) struct Ran {
    pub(super) reply: Option<Reply>,
    pub(super) freed: Vec<String>,
}

/// A script with its keys and arguments.
pub(super) struct Command {
    pub(super) script: &'static Script,
    pub(super) keys: usize,
    /// The keys, followed by the arguments.
    pub(super) words: Vec<String>,
}

/// The remains of a node that forgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgets {
    /// The process continues: `FLUSHALL`.
    Flushed,
    /// A new process, without data.
    Empty,
    /// A new process, with the data of an older snapshot.
    Snapshot,
}

/// The state of a node.
pub(super) struct Look {
    pub(super) guard: String,
    pub(super) run: String,
    pub(super) locks: usize,
}

struct Redis {
    lua: Lua,
    nodes: Table,
    run: Function,
    scripts: RefCell<HashMap<(usize, Option<Rule>), Function>>,
}

/// Replaces the nodes of this thread by new ones without data, or by nodes that have served these
/// settings for long and have no leases.
pub(super) fn begin(nodes: usize, served: Option<String>) {
    REDIS.with(|redis| redis.does::<()>("begin", (nodes, guard(LOCKS), served)));
}

/// Runs a script on a node whose clock shows `us`.
pub(super) fn run(node: usize, us: u64, command: &Command) -> Ran {
    REDIS.with(|redis| redis.execute(node, us, command))
}

/// Locks as a client without the service does, on a node whose clock shows `us`. Returns true if
/// the lock was free.
pub(super) fn lock(node: usize, us: u64, name: &str, token: &str, ttl: u64) -> bool {
    let arguments = (node + 1, micros(us), format!("{LOCKS}{name}"), token, ttl);
    REDIS.with(|redis| redis.does("lock", arguments))
}

/// Ends such a lock.
pub(super) fn unlock(node: usize, us: u64, name: &str, token: &str) {
    let arguments = (node + 1, micros(us), format!("{LOCKS}{name}"), token);
    REDIS.with(|redis| redis.does::<()>("unlock", arguments));
}

pub(super) fn save(node: usize) {
    REDIS.with(|redis| redis.does::<()>("save", node + 1));
}

/// Makes a node forget; `run` names its new process, if there is one.
pub(super) fn forget(node: usize, run: u64, forgets: Forgets) {
    let run = (forgets != Forgets::Flushed).then(|| format!("{run:x}"));
    let snapshot = forgets == Forgets::Snapshot;
    REDIS.with(|redis| redis.does::<()>("forget", (node + 1, run, snapshot)));
}

/// The state of a node whose clock shows `us`.
pub(super) fn look(node: usize, us: u64) -> Look {
    let (guard, run, locks) =
        REDIS.with(|redis| redis.does("look", (node + 1, micros(us), guard(LOCKS), LOCKS)));
    Look { guard, run, locks }
}

impl Redis {
    fn new() -> Self {
        let lua = Lua::new();
        let nodes: Table = lua.load(include_str!("redis.lua")).eval().expect("a table");
        let run = nodes.get("run").expect("a function");
        Self { lua, nodes, run, scripts: RefCell::default() }
    }

    fn does<R: mlua::FromLuaMulti>(&self, name: &str, args: impl mlua::IntoLuaMulti) -> R {
        let function: Function = self.nodes.get(name).expect("a function");
        function.call(args).expect("no error")
    }

    fn execute(&self, node: usize, us: u64, command: &Command) -> Ran {
        let Command { script, keys, words } = command;
        let script = self.script(script);
        let words: Variadic<&str> = words.iter().map(String::as_str).collect();
        let (published, values): (usize, MultiValue) =
            self.run.call((node + 1, micros(us), script, *keys, words)).expect("a reply");
        let reply = Reply::read(Value::Array(values.into_iter().map(value).collect()));
        let freed = if published > 0 {
            self.does::<Variadic<String>>("published", ())
        } else {
            Variadic::new()
        };
        Ran { reply, freed: freed.into() }
    }

    fn script(&self, script: &'static Script) -> Function {
        let name = (std::ptr::from_ref(script).addr(), left_out());
        let compile = || {
            let source = script.source();
            let source =
                left_out().map_or_else(|| source.to_owned(), |rule| rule.removed_from(source));
            self.lua.load(source).into_function().expect("a script")
        };
        self.scripts.borrow_mut().entry(name).or_insert_with(compile).clone()
    }
}

/// Converts to Lua's only kind of number.
fn micros(us: u64) -> f64 {
    us as f64
}

/// Converts to the value that a Redis client reads.
fn value(value: mlua::Value) -> Value {
    match value {
        mlua::Value::String(text) => Value::BulkString(text.as_bytes().to_vec()),
        mlua::Value::Integer(number) => Value::Int(number),
        mlua::Value::Number(number) => Value::Int(number as i64),
        mlua::Value::Boolean(true) => Value::Int(1),
        _ => Value::Nil,
    }
}
