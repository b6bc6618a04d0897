//! The Lua scripts: one file a verb, with a head that says what goes in and comes out.

use crate::source::{File, assert_found, assert_none, files};

/// Those of one store together.
const DIRECTORIES: [&str; 2] = ["src/store/redis/scripts", "src/store/redlock/scripts"];

/// What stands before every script; it names the first keys and takes the time.
const PRELUDE: &str = "prelude.lua";

/// What stands before scripts that share more: they name further keys, and say what they do.
const PARTS: [&str; 9] = [
    "line.lua",
    "hand_on.lua",
    "join.lua",
    "share.lua",
    "tell.lua",
    "grant.lua",
    "guard.lua",
    "record.lua",
    "lease.lua",
];

/// The scripts that are no verbs, and have no parts before them.
const ALONE: [&str; 2] = ["mark.lua", RIGHTS];

/// The script that tries each command of the others.
const RIGHTS: &str = "rights.lua";

/// The commands that each new connection is asked anyway.
const ASKED: [&str; 2] = ["TIME", "INFO"];

/// The steps of the verb `guard`.
const STEPS: [&str; 3] = ["touch.lua", "status.lua", "admit.lua"];

/// The ends of the name of a verb's second file, for a lock that leases share or claims wait for.
const TWINS: [&str; 2] = ["_share", "_line"];

/// A verb is read at one glance below its head; a part has its functions one after another.
const MAX_LINES: usize = 40;
const MAX_LINES_OF_A_PART: usize = 80;
const MAX_COLUMNS: usize = 100;

/// The scripts that are within so many columns.
const NARROW: &str = "src/store/redis/";

#[test]
fn a_script_is_short_and_its_head_says_purpose_keys_arguments_and_answer() {
    assert_none(&scripts().iter().flat_map(head).collect::<Vec<_>>());
}

#[test]
fn every_key_and_argument_of_a_script_gets_a_name_first() {
    for directory in DIRECTORIES {
        let scripts = files(directory, "lua");
        let (mut before, verbs): (Vec<_>, Vec<_>) =
            scripts.iter().partition(|script| is_part(script));
        before.sort_by_key(|part| name(part) != PRELUDE);
        let parts = |verb| if ALONE.contains(&name(verb)) { &[][..] } else { &before };
        assert_none(&verbs.iter().flat_map(|verb| unnamed(verb, parts(verb))).collect::<Vec<_>>());
        assert_none(&before.iter().flat_map(|part| anonymous(part)).collect::<Vec<_>>());
    }
}

#[test]
fn the_time_of_redis_is_taken_in_one_place() {
    assert_none(&scripts().iter().flat_map(clocks).collect::<Vec<_>>());
}

#[test]
fn a_script_has_the_name_of_its_verb() {
    let verbs = File::read("src/lock/error.rs");
    assert_none(&scripts().iter().filter_map(|one| stray(one, &verbs)).collect::<Vec<_>>());
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
            files(directory, "lua").into_iter().partition(|script| name(script) == RIGHTS);
        assert_none(&untried(&rights[0], &others));
    }
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

fn scripts() -> Vec<File> {
    DIRECTORIES.iter().flat_map(|directory| files(directory, "lua")).collect()
}

fn name(script: &File) -> &str {
    script.path.rsplit('/').next().unwrap()
}

fn is_part(script: &File) -> bool {
    name(script) == PRELUDE || PARTS.contains(&name(script))
}

fn head(script: &File) -> Vec<String> {
    let begins = [&*format!("-- {}: ", name(script)), "-- KEYS: ", "-- ARGV: ", "-- Returns: "];
    let mut entries = entries(script).into_iter();
    let mut faults = Vec::new();
    for begin in begins {
        let entry = entries.next();
        if !entry.is_some_and(|entry| entry.len() > begin.len() && entry.starts_with(begin)) {
            faults.push(format!("{}: the head has no line `{begin}...`", script.path));
        }
    }
    let lines = body(script).count();
    let most = if is_part(script) { MAX_LINES_OF_A_PART } else { MAX_LINES };
    if lines > most {
        faults.push(format!("{}: {lines} lines, at most {most}", script.path));
    }
    let narrow = script.path.starts_with(NARROW);
    let wide = script.text.lines().filter(|line| narrow && line.chars().count() > MAX_COLUMNS);
    faults.extend(wide.map(|line| format!("{}: wider than {MAX_COLUMNS}: {line}", script.path)));
    faults
}

/// The four entries of a head, each a line and those that go on with it, further in.
fn entries(script: &File) -> Vec<String> {
    let mut entries: Vec<String> = Vec::new();
    for line in script.text.lines().take_while(|line| line.starts_with("--")) {
        match line.strip_prefix("--   ") {
            Some(more) => entries.last_mut().unwrap().push_str(&format!("  {more}")),
            None if entries.len() == 4 => break,
            None => entries.push(line.to_owned()),
        }
    }
    entries
}

/// The lines below the head.
fn body(script: &File) -> impl Iterator<Item = &str> {
    script.text.lines().skip_while(|line| line.starts_with("--"))
}

/// What is in the head of a verb's script and has no name, in it or in a part `before` it: a verb
/// that says that it has more keys than the prelude names has the other parts before it.
fn unnamed(script: &File, before: &[&File]) -> Vec<String> {
    let mut faults = anonymous(script);
    for kind in ["KEYS", "ARGV"] {
        let begin = format!("-- {kind}: ");
        let entries = entries(script);
        let entry = entries.iter().find_map(|entry| entry.strip_prefix(&begin));
        let said = numbered(entry.unwrap_or_default());
        let mut named = locals(script, kind);
        for part in before.iter().filter(|_| kind == "KEYS") {
            named += if named < said || name(part) == PRELUDE { locals(part, kind) } else { 0 };
        }
        if named != said {
            faults.push(format!("{}: {kind}: {said} in the head, {named} named", script.path));
        }
    }
    faults
}

/// Keys and arguments that are used without a name.
fn anonymous(script: &File) -> Vec<String> {
    let uses = |line: &str| line.contains("KEYS") || line.contains("ARGV");
    let code = code(script);
    let lines = code.iter().filter(|line| uses(line) && !line.starts_with("local "));
    lines.map(|line| format!("{}: without a name: {line}", script.path)).collect()
}

/// How many entries a line of the head has: `1 lock  2 record` is two.
fn numbered(line: &str) -> usize {
    let entries = (1..).take_while(|number| {
        line.starts_with(&format!("{number} ")) || line.contains(&format!("  {number} "))
    });
    entries.count()
}

/// How many names code gives to entries of `kind`.
fn locals(script: &File, kind: &str) -> usize {
    let mut names = 0;
    let code = code(script);
    for line in code.iter().filter_map(|line| line.strip_prefix("local ")) {
        let Some((left, right)) = line.split_once(" = ") else { continue };
        if right.contains(&format!("unpack({kind})")) {
            names += left.split(", ").count();
        } else {
            names += right.matches(&format!("{kind}[")).count();
        }
    }
    names
}

/// The lines without their comments, each with those that go on with it, after a comma or `=`.
fn code(script: &File) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in script.text.lines() {
        let line = line.split("--").next().unwrap_or_default().trim();
        match lines.last_mut().filter(|last| last.ends_with([',', '='])) {
            Some(last) => *last = format!("{last} {line}"),
            None => lines.push(line.to_owned()),
        }
    }
    lines
}

fn clocks(script: &File) -> Option<String> {
    let times =
        code(script).iter().filter(|line| line.to_ascii_uppercase().contains("'TIME'")).count();
    let right = if script.path.ends_with(PRELUDE) { 1 } else { 0 };
    (times != right).then(|| format!("{}: TIME is for the prelude, once", script.path))
}

fn stray(script: &File, verbs: &File) -> Option<String> {
    let name_of_it = name(script).strip_suffix(".lua").unwrap();
    let twin = TWINS.iter().find_map(|twin| name_of_it.strip_suffix(twin));
    let verb = twin.unwrap_or(name_of_it);
    let known = is_part(script)
        || STEPS.contains(&name(script))
        || ALONE.contains(&name(script))
        || verbs.text.contains(&format!("=> \"{verb}\""));
    (!known).then(|| format!("{}: is named after no verb", script.path))
}

fn embedded(file: &File) -> Option<String> {
    let lua = ["redis.call", "redis.pcall"].iter().any(|call| file.text.contains(call));
    lua.then(|| format!("{}: Lua has files of its own", file.path))
}

fn script(lines: &[&str]) -> File {
    let head = ["-- a.lua: b.", "-- KEYS: 1 lock", "-- ARGV: 1 token  2 ttl (ms)", "-- Returns: c"];
    File::planted("scripts/a.lua", &[&head, lines].concat().join("\n"))
}

#[test]
fn a_head_that_is_not_whole_is_found() {
    assert_none(&head(&script(&[])));
    assert_found(&head(&script(&["a\n"; 41])), "lines, at most 40");
    assert_none(&head(&script(&["--   and more", "a"])));
    let wide = File::planted(&format!("{NARROW}a.lua"), &script(&[&"a".repeat(101)]).text);
    assert_found(&head(&wide), "wider than 100");
    let other = File::planted("scripts/b.lua", &script(&[]).text);
    assert_found(&head(&other), "no line `-- b.lua: ...`");
    let bare = File::planted("scripts/a.lua", &script(&[]).text.replace("Returns: c", "Returns: "));
    assert_found(&head(&bare), "no line `-- Returns: ...`");
}

#[test]
fn a_key_or_argument_without_a_name_is_found() {
    let prelude = File::planted("scripts/prelude.lua", "-- KEYS: 1 lock\nlocal lock = KEYS[1]");
    let part = File::planted("scripts/line.lua", "local line = KEYS[2]");
    let before = [&prelude, &part];
    assert_none(&unnamed(&script(&["local token, ttl = unpack(ARGV)"]), &before));
    assert_none(&unnamed(&script(&["local token = ARGV[1]", "local ttl = ARGV[2]"]), &before));
    assert_found(&unnamed(&script(&["local token = ARGV[1]"]), &before), "2 in the head, 1 named");
    let twice = script(&["local token, ttl = unpack(ARGV)", "redis.call('GET', KEYS[1])"]);
    assert_found(&unnamed(&twice, &before), "without a name: redis.call('GET', KEYS[1])");
    let more = twice.text.replace("1 lock", "1 lock  2 line").replace("call('GET', KEYS[1])", "");
    assert_none(&unnamed(&File::planted("scripts/a.lua", &more), &before));
    assert_found(&unnamed(&File::planted("scripts/a.lua", &more), &[&prelude]), "2 in the head");
    assert_found(&anonymous(&File::planted("scripts/line.lua", "f(ARGV[1])")), "without a name");
}

#[test]
fn a_second_clock_a_strange_name_and_lua_in_rust_are_found() {
    let clock = script(&["local now = redis.call('TIME')"]);
    assert_found(&Vec::from_iter(clocks(&clock)), "for the prelude");
    assert_none(&Vec::from_iter(clocks(&script(&["-- 'TIME' is taken before"]))));
    let verbs = File::planted("src/lock/error.rs", "Self::A => \"a\",");
    assert_none(&Vec::from_iter(stray(&script(&[]), &verbs)));
    let strange = File::planted("scripts/unlock.lua", "");
    assert_found(&Vec::from_iter(stray(&strange, &verbs)), "after no verb");
    let rust = File::planted("src/a.rs", "let a = \"return redis.call('GET', KEYS[1])\";");
    assert_found(&Vec::from_iter(embedded(&rust)), "files of its own");
}

#[test]
fn a_command_whose_right_is_not_tried_is_found() {
    let rights = File::planted("scripts/rights.lua", "{ 'GET', none }, { 'SET', none }");
    let known = script(&["redis.call('GET', lock) redis.pcall('SET', lock, 'x')"]);
    assert_none(&untried(&rights, &[known, script(&["redis.call('TIME')"])]));
    assert_found(&untried(&rights, &[script(&["redis.pcall('DEL', lock)"])]), "no right to DEL");
}
