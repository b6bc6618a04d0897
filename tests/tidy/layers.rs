//! Who may name whom: a module names only what stands below it, and a crate for the outside world
//! has one place.

use crate::source::{File, assert_found, assert_none, files, is_word, words};

/// A module and what it may name beside itself; of several rows the longest name counts.
const LAYERS: &[(&str, &[&str])] = &[
    ("platform", &[]),
    ("lock", &["platform"]),
    ("metrics", &[]),
    ("pem", &[]),
    ("store", &["lock", "metrics"]), // And its children: mod.rs alone knows every store.
    ("store::embedded", &["lock", "metrics", "platform"]),
    ("store::redis", &["lock", "metrics", "platform"]),
    ("store::redlock", &["lock", "metrics", "platform", "store::redis"]), // Several of those nodes.
    ("auth", &["lock"]),
    ("config", &["lock", "auth"]), // It reads [[api_keys]] into what `auth` keeps.
    ("wire", &["lock"]),
    ("api", &["lock", "wire", "auth", "metrics"]),
    ("client", &["lock", "wire", "pem"]),
    ("server", &["config", "auth", "store", "lock", "api", "metrics", "pem", "platform"]),
    ("cli", &["config", "server", "lock", "client", "wire", "platform"]),
    ("main", &["cli"]),
];

/// A crate and the only modules that may name it.
const WORLDS: &[(&str, &[&str])] = &[
    ("axum", &["api", "server"]),
    ("hyper", &["client", "server", "cli"]),
    ("redis", &["store::redis", "store::redlock", "platform"]), // An option of its sockets.
    ("deadpool_redis", &["store::redis"]),
    ("rustls", &["store::redis", "client", "server", "pem"]),
    ("tokio_rustls", &["client", "server"]),
    ("rusqlite", &["store::embedded"]),
    ("clap", &["cli"]),
    ("rmcp", &["cli"]),
    ("tracing_subscriber", &["cli"]),
    ("prometheus_client", &["metrics"]),
];

/// What only Linux has: named in `platform` alone.
const LINUX: &[&str] = &[
    "\"/proc",
    "target_os",
    "signalfd",
    "timerfd",
    "Boottime",
    "subreaper",
    "death_signal",
    "user_timeout",
    "epoll",
    "pidfd",
    "os::linux",
    "linux_ext",
];

/// Files that state rules without I/O, and what would be I/O, a clock or chance.
const PURE: &[&str] = &["src/lock/table.rs", "src/lock/table/look.rs", "src/store/redlock/poll.rs"];
const IMPURE: &[&str] =
    &["async", "await", "tokio", "Instant", "SystemTime", "Clock", "Uuid", "rand", "fs", "net"];

#[test]
fn a_module_names_only_what_stands_below_it() {
    assert_none(&files("src", "rs").iter().flat_map(upward_names).collect::<Vec<_>>());
}

#[test]
fn nothing_hides_whom_a_module_names() {
    assert_none(&files("src", "rs").iter().flat_map(evasions).collect::<Vec<_>>());
}

#[test]
fn a_use_names_items_of_one_module() {
    let mut all = files("src", "rs");
    all.extend(files("tests", "rs"));
    all.extend(files("examples", "rs"));
    assert_none(&all.iter().flat_map(bundled_uses).collect::<Vec<_>>());
}

#[test]
fn a_crate_for_the_outside_world_has_one_place() {
    assert_none(&files("src", "rs").iter().flat_map(strayed_crates).collect::<Vec<_>>());
}

#[test]
fn calls_that_only_linux_has_are_named_in_one_module() {
    assert_none(&files("src", "rs").iter().flat_map(linuxisms).collect::<Vec<_>>());
}

#[test]
fn the_rules_of_a_lock_know_no_clock_no_chance_and_no_waiting() {
    let pure: Vec<_> = PURE.iter().map(|path| File::read(path)).collect();
    assert_none(&pure.iter().flat_map(impurities).collect::<Vec<_>>());
}

#[test]
fn the_map_of_the_crate_has_every_layer_behind_those_that_it_names() {
    assert_none(&disorder(&File::read("src/lib.rs"), LAYERS));
}

fn upward_names(file: &File) -> Vec<String> {
    let module = module(&file.path);
    if module == "lib" {
        return Vec::new();
    }
    let Some((layer, allowed)) = layer(&module) else {
        return vec![format!("{}: give it a row in LAYERS", file.path)];
    };
    let mut faults = Vec::new();
    // Who may see an item is no use of whoever that is.
    let code = file.code().replace("pub(in crate::", "pub(in ");
    for named in named(&code) {
        let allowed = allowed.iter().any(|root| within(root, &named));
        if !within(layer, &named) && !allowed {
            faults.push(format!("{}: {layer} may not name {named}", file.path));
        }
    }
    faults
}

fn evasions(file: &File) -> Vec<String> {
    let mut faults = Vec::new();
    let (code, own) = (file.code(), file.code_before_tests());
    for (found, what) in [
        (code.contains("super::super"), "write `super::super` out as crate::module"),
        (own.contains("super::"), "write `super::` out as crate::module"),
        (code.contains("crate::*"), "name each item of the crate"),
        (code.contains("use crate as"), "the crate has one name"),
    ] {
        faults.extend(found.then(|| format!("{}: {what}", file.path)));
    }
    faults
}

/// `use a::b::{C, D};` is the most that one `use` may bundle: a list within a list, a list of paths
/// and a glob hide what a file names.
fn bundled_uses(file: &File) -> Vec<String> {
    let (mut faults, code) = (Vec::new(), file.code());
    let mut rest = code.as_str();
    for (at, line) in code.split_inclusive('\n').enumerate() {
        let statement = rest.split(';').next().unwrap();
        rest = &rest[line.len()..];
        let used = statement.split_once("use ").filter(|(before, _)| {
            let is_word = before.is_empty() || before.ends_with(char::is_whitespace);
            let is_public = before.trim().starts_with("pub") && !before.contains('\n');
            is_word && (before.trim().is_empty() || is_public)
        });
        let Some((module, list)) = used.and_then(|(_, path)| path.split_once(['{', '*'])) else {
            continue;
        };
        if matches!(module, "crate::" | "") || list.contains("::") || !list.contains('}') {
            faults.push(format!("{}:{}: a `use` names items of one module", file.path, at + 1));
        }
    }
    faults
}

fn strayed_crates(file: &File) -> Vec<String> {
    let (module, code) = (module(&file.path), file.code());
    let strayed = WORLDS.iter().filter(|(name, places)| {
        names_crate(&code, name) && !places.iter().any(|place| within(place, &module))
    });
    strayed.map(|(name, places)| format!("{}: {name} is for {places:?}", file.path)).collect()
}

fn impurities(file: &File) -> Vec<String> {
    let code = file.code();
    let found = IMPURE.iter().filter(|name| words(&code).any(|word| word == **name));
    found.map(|name| format!("{}: `{name}` has to come in as an argument", file.path)).collect()
}

fn linuxisms(file: &File) -> Vec<String> {
    let own = file.text.split("#[cfg(test)]").next().unwrap();
    let code = own.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = code.collect::<Vec<_>>().join("\n");
    let found = LINUX.iter().filter(|name| code.contains(**name));
    let found = found.filter(|_| !within("platform", &module(&file.path)));
    found.map(|name| format!("{}: only Linux has `{name}`: use platform", file.path)).collect()
}

fn disorder(lib: &File, layers: &[(&str, &[&str])]) -> Vec<String> {
    let code = lib.code();
    let modules = code.lines().map(|line| line.trim_start_matches("pub "));
    let order: Vec<_> = modules.filter_map(|line| line.strip_prefix("mod ")).collect();
    let place = |layer: &str| order.iter().position(|name| name.trim_end_matches(';') == layer);
    let mut faults = Vec::new();
    for (layer, allowed) in layers.iter().filter(|(layer, _)| !layer.contains("::")) {
        if *layer == "main" {
            continue;
        }
        let Some(at) = place(layer) else {
            faults.push(format!("{}: there is no module {layer}", lib.path));
            continue;
        };
        for below in allowed.iter().filter(|below| place(below).is_none_or(|place| place > at)) {
            faults.push(format!("{}: {layer} stands before {below}", lib.path));
        }
    }
    faults
}

/// `src/store/redis/node.rs` is `store::redis::node`.
pub(crate) fn module(path: &str) -> String {
    let path = path.strip_prefix("src/").unwrap().strip_suffix(".rs").unwrap();
    path.strip_suffix("/mod").unwrap_or(path).replace('/', "::")
}

fn layer(module: &str) -> Option<&'static (&'static str, &'static [&'static str])> {
    let rows = LAYERS.iter().filter(|(root, _)| within(root, module));
    rows.max_by_key(|(root, _)| root.len())
}

pub(crate) fn within(root: &str, module: &str) -> bool {
    module.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Every module of ours in code, by its full name: a path up to its first capital letter, and each
/// item of a list behind it.
pub(crate) fn named(code: &str) -> Vec<String> {
    let begins = |name: &'static str| code.split(name).skip(1);
    begins("crate::").chain(begins("lockkeeper::")).flat_map(module_parts).collect()
}

fn module_parts(path: &str) -> Vec<String> {
    let end = path.find(|letter| !is_word(letter) && letter != ':').unwrap_or(path.len());
    let lower = |part: &&str| part.starts_with(char::is_lowercase);
    let parts = path[..end].trim_end_matches(':').split("::");
    let module = parts.take_while(lower).collect::<Vec<_>>().join("::");
    let list = path[..end].ends_with("::").then(|| path[end..].strip_prefix('{')).flatten();
    let Some((list, _)) = list.and_then(|list| list.split_once('}')) else {
        return vec![module];
    };
    let item = |item: &str| match item.trim().split(' ').next() {
        Some(item) if lower(&item) => format!("{module}::{item}"),
        _ => module.clone(),
    };
    list.split(',').map(item).collect()
}

/// Whether code has a path that begins with this crate, and not with a module of the same name.
fn names_crate(code: &str, name: &str) -> bool {
    let child = code.lines().any(|line| line.trim_start().ends_with(&format!("mod {name};")));
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        let path = after.starts_with("::")
            || (before.ends_with("use ") && after.starts_with([';', ' ']))
            || before.ends_with("extern crate ");
        let absolute = before.strip_suffix("::").is_some_and(|root| !root.ends_with(is_word));
        let relative = !before.ends_with(is_word) && !before.ends_with("::") && !child;
        path && (absolute || relative)
    })
}

#[test]
fn a_name_that_goes_upward_or_sideways_is_found() {
    for (path, code, fault) in [
        ("src/lock/key.rs", "use crate::wire::Code;", "lock may not name wire"),
        ("src/metrics.rs", "fn a(b: &crate::lock::key::LockKey)", "may not name lock::key"),
        (
            "src/store/embedded/log.rs",
            "use crate::store::redis::node::Node;",
            "store::embedded may not name store::redis::node",
        ),
        ("src/store/redis/mod.rs", "crate::store::open(a)", "may not name store::open"),
        ("src/store/redlock/a.rs", "use crate::store::{redis, embedded};", "store::embedded"),
        ("src/api/mod.rs", "use crate::store;", "api may not name store"),
        ("src/api/new.rs", "crate::config::Config::of(a)", "api may not name config"),
        ("src/wire.rs", "use crate::auth::ApiKey;", "wire may not name auth"),
        ("src/config/mod.rs", "use crate::api::App;", "config may not name api"),
        ("src/server/mod.rs", "use crate::cli;", "server may not name cli"),
        ("src/cli/mod.rs", "let a = crate::api::Api::new();", "cli may not name api"),
        ("src/main.rs", "lockkeeper::server::run()", "main may not name server"),
        ("src/new.rs", "", "give it a row"),
    ] {
        assert_found(&upward_names(&File::planted(path, code)), fault);
    }
    for (path, code) in [
        ("src/store/mod.rs", "use crate::store::redis::RedisStore; use crate::lock::store::Store;"),
        ("src/lock/key.rs", "// use crate::wire;\nlet a = \"crate::wire\"; crate::lock::key::A"),
        ("src/server/mod.rs", "crate::store::redis::RedisSettings"),
    ] {
        assert_none(&upward_names(&File::planted(path, code)));
    }
}

#[test]
fn a_hidden_name_is_found() {
    for (code, fault) in [
        ("fn a() { super::redis::open() }", "write `super::` out"),
        ("#[cfg(test)]\nmod tests { use super::super::a; }", "write `super::super` out"),
        ("use crate as lib;", "one name"),
    ] {
        assert_found(&evasions(&File::planted("src/store/embedded/mod.rs", code)), fault);
    }
    for code in [
        "use crate::{lock, wire};",
        "    pub(super) use std::fmt::*;",
        "use std::{fs::File, io};",
        "use crate::lock::{key::{A, B}, C};",
        "fn a() {}\nuse {std::fs, std::io};",
    ] {
        assert_found(&bundled_uses(&File::planted("src/a.rs", code)), "one module");
    }
    let good =
        "use std::fs;\npub use std::{\n    fmt,\n    io,\n};\nfn a() { b(|c: &d::E| c * 2) }";
    assert_none(&bundled_uses(&File::planted("src/a.rs", good)));
    assert_none(&evasions(&File::planted("src/a.rs", "#[cfg(test)]\nmod tests { use super::a; }")));
}

#[test]
fn a_crate_that_strayed_is_found() {
    for (path, code, fault) in [
        ("src/lock/key.rs", "use axum::Json;", "axum is for"),
        ("src/wire.rs", "fn a() -> axum::Json<u8> {}", "axum is for"),
        ("src/cli/mod.rs", "use redis::Cmd;", "redis is for"),
        ("src/store/mod.rs", "pub mod redis;\nfn a(b: ::redis::Cmd) {}", "redis is for"),
        ("src/server/mod.rs", "use redis;", "redis is for"),
        ("src/store/redis/node.rs", "use rusqlite::Connection;", "rusqlite is for"),
        ("src/store/embedded/log.rs", "deadpool_redis::Pool", "deadpool_redis is for"),
        ("src/config/mod.rs", "#[derive(clap::Args)]", "clap is for"),
    ] {
        assert_found(&strayed_crates(&File::planted(path, code)), fault);
    }
    for (path, code) in [
        ("src/server/mod.rs", "use crate::store::redis::RedisSettings; use axum::Body;"),
        ("src/store/mod.rs", "pub mod redis;\nfn a() -> redis::SettingsError {}"),
        ("src/store/redis/node.rs", "use redis::Cmd; use deadpool_redis::Pool;"),
    ] {
        assert_none(&strayed_crates(&File::planted(path, code)));
    }
}

#[test]
fn a_call_that_only_linux_has_is_found_outside_its_module() {
    for code in
        ["File::open(\"/proc/self/stat\")", "ClockId::Boottime", "#[cfg(target_os = \"a\")]"]
    {
        assert_found(&linuxisms(&File::planted("src/cli/a.rs", code)), "only Linux has");
        assert_none(&linuxisms(&File::planted("src/platform/linux/a.rs", code)));
    }
    assert_none(&linuxisms(&File::planted("src/cli/a.rs", "// as in /proc, \"/proc\"")));
}

#[test]
fn a_clock_in_a_pure_file_is_found() {
    for code in ["let now = Instant::now();", "async {}", "use std::fs;", "Uuid::new_v4()"] {
        assert_eq!(impurities(&File::planted("src/lock/table.rs", code)).len(), 1, "{code}");
    }
    assert_none(&impurities(&File::planted(
        "src/lock/table.rs",
        "// no Instant\nfn asynchronous()",
    )));
}

#[test]
fn a_map_out_of_order_is_found() {
    let layers: &[(&str, &[&str])] = &[("lock", &[]), ("wire", &["lock"])];
    let lib = |text| File::planted("src/lib.rs", text);
    assert_none(&disorder(&lib("pub mod lock;\npub mod wire;\n"), layers));
    assert_found(&disorder(&lib("pub mod wire;\npub mod lock;\n"), layers), "wire stands before");
    assert_found(&disorder(&lib("pub mod lock;\n"), layers), "no module wire");
}
