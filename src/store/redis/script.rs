//! The scripts, one file per verb, and the reading of their replies.

use std::sync::LazyLock;

use redis::{Cmd, Value};

use crate::lock::error::Verb;

/// A verb's script: run by its hash, or sent whole if the server does not know it.
pub(in crate::store) struct Script {
    verb: Verb,
    /// The number of a lock's keys that it needs.
    keys: usize,
    source: &'static str,
    hash: LazyLock<String>,
}

/// A script made of files in `scripts/` beside the file that calls this.
macro_rules! script {
    ($name:ident, $verb:expr, $keys:literal: $($file:literal)+) => {
        pub(super) static $name: $crate::store::redis::script::Script = $crate::store::redis::script::Script::new(
            $verb, $keys,
            concat!($(include_str!(concat!("scripts/", $file)), "\n"),+),
            || $name.sha1(),
        );
    };
}
pub(in crate::store) use script;

// The common path of a release comes before the parts, which it does not need.
script!(TRY_ACQUIRE, Verb::TryAcquire, 2: "prelude.lua" "lease.lua" "try_acquire.lua");
script!(WAIT_TURN, Verb::WaitTurn, 7: "prelude.lua" "lease.lua" "line.lua" "hand_on.lua" "share.lua"
    "tell.lua" "join.lua" "grant.lua" "wait_turn.lua");
script!(LEAVE, Verb::Leave, 7:
    "prelude.lua" "lease.lua" "line.lua" "hand_on.lua" "share.lua" "leave.lua");
script!(REFRESH, Verb::Refresh, 2: "prelude.lua" "lease.lua" "refresh.lua");
script!(REFRESH_SHARE, Verb::Refresh, 7:
    "prelude.lua" "lease.lua" "line.lua" "share.lua" "refresh_share.lua");
script!(RELEASE, Verb::Release, 7:
    "prelude.lua" "release.lua" "lease.lua" "line.lua" "hand_on.lua" "share.lua" "release_line.lua");
script!(FORCE_RELEASE, Verb::ForceRelease, 7:
    "prelude.lua" "lease.lua" "line.lua" "hand_on.lua" "share.lua" "tell.lua" "force_release.lua");
script!(INSPECT, Verb::Inspect, 7:
    "prelude.lua" "lease.lua" "line.lua" "share.lua" "tell.lua" "inspect.lua");

impl Script {
    /// The script of a verb with its number of keys; `hash` is its [`Script::sha1`].
    pub(in crate::store) const fn new(
        verb: Verb,
        keys: usize,
        source: &'static str,
        hash: fn() -> String,
    ) -> Self {
        Self { verb, keys, source, hash: LazyLock::new(hash) }
    }

    /// The hash by which the server knows it.
    pub(in crate::store) fn sha1(&self) -> String {
        redis::Script::new(self.source()).get_hash().to_owned()
    }

    pub(in crate::store) fn verb(&self) -> Verb {
        self.verb
    }

    pub(in crate::store) fn source(&self) -> &'static str {
        self.source
    }

    /// `EVALSHA`, which sends only the hash.
    pub(super) fn by_hash(&self, keys: &[&str], args: &[&str]) -> Cmd {
        command("EVALSHA", self.hash.as_str(), &keys[..self.keys.min(keys.len())], args)
    }

    /// `EVAL`, needed once after the server has started or was flushed.
    pub(super) fn by_source(&self, keys: &[&str], args: &[&str]) -> Cmd {
        command("EVAL", self.source(), &keys[..self.keys.min(keys.len())], args)
    }
}

fn command(name: &str, script: &str, keys: &[&str], args: &[&str]) -> Cmd {
    let texts = [name, script].into_iter().chain(keys.iter().copied()).chain(args.iter().copied());
    let bytes = texts.map(str::len).sum::<usize>() + size_of::<u64>(); // The number of keys is short.
    let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), bytes);
    command.arg(name).arg(script).arg(keys.len()).arg(keys).arg(args);
    command
}

/// An optional argument; empty for `None`.
pub(in crate::store) fn or_empty(argument: Option<impl ToString>) -> String {
    argument.map_or_else(String::new, |argument| argument.to_string())
}

/// A script's reply: the store's time, a word, and the word's items.
#[derive(Debug)]
pub(in crate::store) struct Reply {
    /// Milliseconds on the store's clock.
    pub(in crate::store) now: u64,
    word: String,
    rest: std::vec::IntoIter<Value>,
}

impl Reply {
    /// Parses a reply; `None` for any other form.
    pub(in crate::store) fn read(value: Value) -> Option<Self> {
        let Value::Array(items) = value else { return None };
        let mut rest = items.into_iter();
        let now = number(rest.next()?)?.try_into().ok()?;
        let word = text(rest.next()?)?;
        Some(Self { now, word, rest })
    }

    pub(in crate::store) fn word(&self) -> &str {
        &self.word
    }

    /// An item by its place, a number that is not negative, without consuming it.
    pub(in crate::store) fn item(&self, place: usize) -> Option<u64> {
        number(self.rest.as_slice().get(place)?.clone())?.try_into().ok()
    }

    /// The next item, a number.
    pub(in crate::store) fn number(&mut self) -> Option<i64> {
        number(self.rest.next()?)
    }

    /// The next item, as bytes.
    pub(in crate::store) fn bytes(&mut self) -> Option<Vec<u8>> {
        match self.rest.next()? {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The next item, a text.
    pub(in crate::store) fn text(&mut self) -> Option<String> {
        text(self.rest.next()?)
    }
}

fn number(value: Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(number),
        _ => None,
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::Reply;

    #[test]
    fn a_reply_of_another_form_is_no_reply() {
        let held = Value::BulkString(b"held".to_vec());
        for value in [
            Value::Nil,
            Value::Int(1),
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Int(-1), held.clone()]),
            Value::Array(vec![held.clone(), held.clone()]),
        ] {
            assert!(Reply::read(value.clone()).is_none(), "{value:?}");
        }
        let mut reply =
            Reply::read(Value::Array(vec![Value::Int(5), held, Value::Int(-1)])).unwrap();
        assert_eq!((reply.now, reply.word()), (5, "held"));
        assert_eq!((reply.number(), reply.number()), (Some(-1), None));
    }
}
