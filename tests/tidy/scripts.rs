//! The Lua scripts, beside their store.

use crate::source::{File, assert_found, assert_none, files};

/// Those of one store together.
const DIRECTORIES: [&str; 2] = ["src/store/redis/scripts", "src/store/redlock/scripts"];

/// The part before every script; it takes the time.
const PRELUDE: &str = "/prelude.lua";

/// The script that lists a call of each command of the others.
const RIGHTS: &str = "/rights.lua";

/// The commands that each new connection is asked anyway.
const ASKED: [&str; 2] = ["TIME", "INFO"];

#[test]
fn the_time_of_redis_is_taken_in_one_place() {
    let scripts = DIRECTORIES.iter().flat_map(|directory| files(directory, "lua"));
    assert_none(&scripts.filter_map(|script| clocks(&script)).collect::<Vec<_>>());
}

#[test]
fn no_rust_file_holds_lua() {
    let mut all = files("src", "rs");
    all.extend(files("tests/it", "rs"));
    assert_none(&all.iter().filter_map(embedded).collect::<Vec<_>>());
}

#[test]
fn the_right_to_each_command_of_a_script_is_tried() {
    for directory in DIRECTORIES {
        let (rights, others): (Vec<_>, Vec<_>) =
            files(directory, "lua").into_iter().partition(|script| script.path.ends_with(RIGHTS));
        assert_none(&untried(&rights[0], &others));
    }
}

/// A clock that is not the prelude's: a script that reads two may see the later one first.
fn clocks(script: &File) -> Option<String> {
    let code = script.text.lines().map(|line| line.split("--").next().unwrap_or_default());
    let times = code.filter(|line| line.to_ascii_uppercase().contains("'TIME'")).count();
    let right = if script.path.ends_with(PRELUDE) { 1 } else { 0 };
    (times != right).then(|| format!("{}: TIME is for the prelude, once", script.path))
}

fn embedded(file: &File) -> Option<String> {
    let lua = ["redis.call", "redis.pcall"].iter().any(|call| file.text.contains(call));
    lua.then(|| format!("{}: Lua has files of its own", file.path))
}

/// The commands of scripts whose right is not tried.
fn untried(rights: &File, scripts: &[File]) -> Vec<String> {
    let mut faults = Vec::new();
    for script in scripts {
        for part in script.text.split("'").collect::<Vec<_>>().windows(2) {
            let (before, command) = (part[0], part[1]);
            let is_called = before.ends_with("call(");
            let is_tried = rights.text.contains(&format!("{{ '{command}'"));
            if is_called && !is_tried && !ASKED.contains(&command) {
                faults.push(format!("{}: no right to {command} is tried", script.path));
            }
        }
    }
    faults
}

fn script(line: &str) -> File {
    File::planted("scripts/a.lua", line)
}

#[test]
fn a_second_clock_and_lua_in_rust_are_found() {
    assert_found(&Vec::from_iter(clocks(&script("local now = redis.call('TIME')"))), "the prelude");
    assert_none(&Vec::from_iter(clocks(&script("-- 'TIME' is taken before"))));
    let rust = File::planted("src/a.rs", "let a = \"return redis.call('GET', KEYS[1])\";");
    assert_found(&Vec::from_iter(embedded(&rust)), "files of its own");
}

#[test]
fn a_command_whose_right_is_not_tried_is_found() {
    let rights = File::planted("scripts/rights.lua", "{ 'GET', none }, { 'SET', none }");
    let known = script("redis.call('GET', lock) redis.pcall('SET', lock, 'x')");
    assert_none(&untried(&rights, &[known, script("redis.call('TIME')")]));
    assert_found(&untried(&rights, &[script("redis.pcall('DEL', lock)")]), "no right to DEL");
}
