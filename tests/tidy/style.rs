//! The shape of files, functions and tests.

use crate::source::{File, assert_found, assert_none, files, is_word};

/// The most lines of a file before its tests: more is two things.
const MAX_LINES: usize = 400;

/// The most lines of `//!` at its head: what it owns, and what it leaves to whom.
const MAX_HEAD: usize = 12;

/// Where tasks and threads are made, and who ends them.
const SPAWNS: &[(&str, &str)] = &[
    ("src/cli/stderr.rs", "the thread that writes to standard error; it may be left behind"),
    ("src/cli/exec/command.rs", "the process COMMAND: Supervisor::run waits for it"),
    ("src/cli/exec/warden.rs", "the process of the warden, which ends when its input does"),
    ("src/cli/reload.rs", "Reloads::run: it waits for each look at the files"),
    ("src/cli/serve.rs", "serve: it waits for the opening of the store, and for the last words"),
    ("src/lock/detach_on_drop.rs", "the TaskTracker of Locks: Locks::finish waits for them"),
    ("src/lock/locks.rs", "its own TaskTracker: Locks::finish waits for them"),
    ("src/lock/undo_queue.rs", "the TaskTracker of Locks: Locks::finish waits for them"),
    ("src/lock/waiting.rs", "the TaskTracker of Locks; each ends with the last waiter of its key"),
    ("src/server/connection.rs", "the TaskTracker of Acceptor: Acceptor::finish waits for them"),
    ("src/store/embedded/mod.rs", "EmbeddedStore: its drop joins the committer"),
    ("src/store/redis/cluster.rs", "the JoinSet of Cluster: its drop ends the surveyor"),
    ("src/store/redlock/background.rs", "Background: its guard, dropped with the store, ends them"),
    ("src/store/redlock/cleanup.rs", "Background, as above"),
    ("src/store/redlock/mod.rs", "Background, as above"),
    ("src/store/redlock/nodes.rs", "Background, as above"),
    ("src/store/redis/node.rs", "the JoinSet of Node: its drop ends the keepers"),
    ("src/store/redis/sentinel.rs", "the JoinSet of Sentinel: its drop ends the watchers"),
];

/// Where tests may sleep, and why that is no signal.
const SLEEPS: &[(&str, &str)] = &[
    ("tests/it/conformance/rules.rs", "a client leaves at any moment after a release"),
    ("tests/it/hold/gone.rs", "the same"),
    ("tests/it/support/mod.rs", "`eventually`: between two questions"),
    ("tests/simulation/counterexamples.rs", "virtual time"),
    ("tests/simulation/crossings.rs", "virtual time"),
    ("tests/simulation/direct.rs", "virtual time"),
    ("tests/simulation/faults.rs", "virtual time"),
    ("tests/simulation/losses.rs", "virtual time"),
    ("tests/simulation/mod.rs", "virtual time"),
    ("tests/simulation/endings.rs", "virtual time"),
    ("tests/simulation/order.rs", "virtual time"),
    ("tests/simulation/repeats.rs", "virtual time"),
    ("tests/simulation/replacing.rs", "virtual time"),
    ("tests/simulation/worker.rs", "virtual time"),
];

/// Where tests may name a port, and why they take none.
const PORTS: &[(&str, &str)] = &[
    ("tests/it/examples/php_fpm.rs", "the page's, replaced by free ones"),
    ("tests/it/readme.rs", "the pages', replaced by free ones"),
];

#[test]
fn a_file_has_at_most_400_lines_before_its_tests() {
    assert_none(&everything().iter().flat_map(length).collect::<Vec<_>>());
}

#[test]
fn a_file_begins_with_what_it_is_in_at_most_12_lines() {
    assert_none(&everything().iter().flat_map(head).collect::<Vec<_>>());
}

#[test]
fn a_task_is_made_only_where_its_owner_is_listed() {
    assert_none(&spawns(&files("src", "rs"), SPAWNS));
}

#[test]
fn a_public_future_says_what_dropping_it_does_and_how_it_fails() {
    assert_none(&files("src", "rs").iter().flat_map(silent_futures).collect::<Vec<_>>());
}

#[test]
fn a_test_is_never_ignored_and_its_name_is_a_sentence() {
    assert_none(&everything().iter().flat_map(unfit_tests).collect::<Vec<_>>());
}

#[test]
fn no_test_takes_a_sleep_for_a_signal() {
    assert_none(&sleeps(&everything(), SLEEPS));
}

#[test]
fn no_test_has_a_fixed_port() {
    assert_none(&ports(&files("tests/it", "rs"), PORTS));
}

fn everything() -> Vec<File> {
    let mut all = files("src", "rs");
    all.extend(files("tests", "rs"));
    all.extend(files("examples", "rs"));
    all.extend(files("prove", "rs"));
    all
}

fn length(file: &File) -> Option<String> {
    let lines = file.lines_before_tests();
    (lines > MAX_LINES).then(|| format!("{}: {lines} lines, at most {MAX_LINES}", file.path))
}

fn head(file: &File) -> Option<String> {
    let lines = file.text.lines().take_while(|line| line.starts_with("//!")).count();
    let fits = (1..=MAX_HEAD).contains(&lines);
    (!fits).then(|| format!("{}: {lines} lines of //!, has to be 1 to {MAX_HEAD}", file.path))
}

fn spawns(files: &[File], listed: &[(&str, &str)]) -> Vec<String> {
    let calls = |file: &File| {
        let code = file.code_before_tests();
        ["spawn", "spawn_blocking", "spawn_local", "spawn_brief"]
            .iter()
            .any(|name| calls(&code, name))
    };
    held_against(files, listed, calls, "a task needs an owner")
}

fn sleeps(files: &[File], listed: &[(&str, &str)]) -> Vec<String> {
    let sleeps = |file: &File| {
        let code = file.code();
        let skipped = if file.path.starts_with("tests/") { 0 } else { file.lines_before_tests() };
        code.lines().skip(skipped).any(|line| calls(line, "sleep"))
    };
    held_against(files, listed, sleeps, "wait for what is to happen (support::eventually)")
}

fn ports(files: &[File], listed: &[(&str, &str)]) -> Vec<String> {
    held_against(files, listed, |file| has_port(&file.text), "tests take free ports")
}

/// Faults of files that do what only listed ones may, and of listed ones that do not any more.
fn held_against(
    files: &[File],
    listed: &[(&str, &str)],
    does: impl Fn(&File) -> bool,
    why: &str,
) -> Vec<String> {
    let is_listed = |file: &&File| listed.iter().any(|(path, _)| *path == file.path);
    let doing: Vec<_> = files.iter().filter(|file| does(file)).collect();
    let unlisted = doing.iter().filter(|file| !is_listed(file));
    let mut faults: Vec<_> = unlisted.map(|file| format!("{}: {why}", file.path)).collect();
    for (path, _) in listed.iter().filter(|(path, _)| doing.iter().all(|file| file.path != *path)) {
        faults.push(format!("{path}: is listed for nothing"));
    }
    faults
}

/// Whether code calls a function of this name.
fn calls(code: &str, name: &str) -> bool {
    code.match_indices(&format!("{name}(")).any(|(at, _)| !code[..at].ends_with(is_word))
}

/// Whether a text has an address of this machine with a port; 0 is any, and below 10 is nobody.
fn has_port(text: &str) -> bool {
    ["127.0.0.1:", "localhost:", "0.0.0.0:", "[::1]:"].iter().any(|host| {
        let mut ports = text.split(host).skip(1);
        ports.any(|rest| rest.chars().take_while(char::is_ascii_digit).count() > 1)
    })
}

fn silent_futures(file: &File) -> Vec<String> {
    let (code, lines) = (file.code_before_tests(), file.text.lines().collect::<Vec<_>>());
    let mut faults = Vec::new();
    for (at, _) in code.match_indices("pub async fn ") {
        let line = code[..at].matches('\n').count();
        let above = lines[..line].iter().rev().map(|line| line.trim_start());
        let doc: Vec<_> = above.take_while(|line| line.starts_with(['/', '#'])).collect();
        let says = |what: &str| doc.iter().any(|line| **line == format!("/// # {what}"));
        let signature = code[at..].split('{').next().unwrap_or_default();
        let fails = signature.rsplit("->").next().is_some_and(|answer| answer.contains("Result<"));
        for (missing, what) in
            [(!says("Cancel safety"), "Cancel safety"), (fails && !says("Errors"), "Errors")]
        {
            faults.extend(missing.then(|| format!("{}:{}: # {what}", file.path, line + 1)));
        }
    }
    faults
}

fn unfit_tests(file: &File) -> Vec<String> {
    let code = file.code();
    let lines: Vec<_> = code.lines().map(str::trim_start).collect();
    let mut faults = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if line.starts_with("#[ignore") {
            faults.push(format!("{}:{}: a test is never ignored", file.path, at + 1));
        }
        if !line.starts_with("#[test]") && !line.starts_with("#[tokio::test") {
            continue;
        }
        let name = lines[at + 1..].iter().find_map(|line| line.split_once("fn "));
        let name = name.and_then(|(_, rest)| rest.split('(').next()).unwrap_or_default();
        if !name.starts_with('$') && name.split('_').count() < 4 {
            faults.push(format!("{}:{}: `{name}` is no sentence", file.path, at + 1));
        }
    }
    faults
}

#[test]
fn a_file_without_shape_is_found() {
    let long = File::planted("src/a.rs", &"\n".repeat(401));
    assert_found(&Vec::from_iter(length(&long)), "401 lines");
    let tested = File::planted("src/a.rs", &format!("#[cfg(test)]{}", "\n".repeat(401)));
    assert_none(&Vec::from_iter(length(&tested)));
    for (text, lines) in [("use a;\n//! b", "0 lines"), (&*"//! a\n".repeat(13), "13 lines")] {
        assert_found(&Vec::from_iter(head(&File::planted("src/a.rs", text))), lines);
    }
}

#[test]
fn a_task_without_an_owner_is_found() {
    let listed = &[("src/a.rs", "its owner")];
    let known = || File::planted("src/a.rs", "tasks.spawn(b)");
    for code in ["tokio::spawn(a)", "thread::Builder::new()\n.spawn(a)", "spawn_blocking(a)"] {
        let stray = File::planted("src/b.rs", code);
        assert_found(&spawns(&[known(), stray], listed), "src/b.rs: a task needs an owner");
    }
    let in_test = File::planted("src/b.rs", "#[cfg(test)]\nmod tests { tokio::spawn(a) }");
    assert_none(&spawns(&[known(), in_test], listed));
    assert_found(&spawns(&[], listed), "listed for nothing");
}

#[test]
fn a_future_that_says_nothing_is_found() {
    let file = |doc: &str, answer: &str| {
        let text = format!("{doc}#[must_use]\npub async fn a(\n    b: B,\n){answer} {{\n");
        File::planted("src/a.rs", &text)
    };
    let safe = "/// A.\n///\n/// # Cancel safety\n///\n/// B.\n";
    assert_none(&silent_futures(&file(safe, " -> u8")));
    assert_found(&silent_futures(&file("/// A.\n", "")), "# Cancel safety");
    assert_found(&silent_futures(&file(safe, " -> Result<u8, B>")), "# Errors");
    let both = format!("/// # Errors\n///\n/// C.\n///\n{safe}");
    assert_none(&silent_futures(&file(&both, " -> io::Result<u8>")));
}

#[test]
fn a_test_that_is_none_is_found() {
    let file = |text: &str| File::planted("tests/it/a.rs", text);
    let ignored = "#[test]\n#[ignore = \"slow\"]\nfn a_key_is_free_again() {}";
    assert_found(&unfit_tests(&file(ignored)), "never ignored");
    for name in ["works", "test_key"] {
        let text = format!("#[tokio::test(start_paused = true)]\nasync fn {name}() {{}}");
        assert_found(&unfit_tests(&file(&text)), "no sentence");
    }
    assert_none(&unfit_tests(&file("#[test]\nfn a_key_is_free_again() {}")));
}

#[test]
fn a_sleep_and_a_port_are_found() {
    for (path, text) in [
        ("tests/it/a.rs", "tokio::time::sleep(b).await"),
        ("src/a.rs", "#[cfg(test)]\nmod tests { fn a() { sleep(b) } }"),
    ] {
        assert_found(&sleeps(&[File::planted(path, text)], &[]), "wait for what is to happen");
    }
    assert_none(&sleeps(&[File::planted("src/a.rs", "sleep(b)")], &[]));
    for text in ["\"127.0.0.1:8080\"", "bind(\"localhost:6379\")"] {
        assert_found(&ports(&[File::planted("tests/it/a.rs", text)], &[]), "free ports");
    }
    assert_none(&ports(
        &[File::planted("tests/it/a.rs", "\"127.0.0.1:0\" \"127.0.0.1:1\" \"localhost:{}\"")],
        &[],
    ));
}
