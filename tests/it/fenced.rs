//! The fenced file of the examples, and the row of their page: late writers are refused, whoever
//! writes in PHP and whoever in Rust.

use std::process::Child;

use crate::readme::{Newcomer, blocks};
use crate::support::fenced::{FencedFile, Language, Verdict, Writer, built, examples};
use crate::support::process::command;
use crate::support::{Http, Service};

const PAGE: &str = include_str!("../../examples/README.md");

const ONE: &str = "the-lease-token-of-one";
const OTHER: &str = "the-lease-token-of-another";

/// So many programs of each language write at once.
const PARALLEL: u64 = 8;
const ROUNDS: u64 = 4;

/// So many writers of each language are killed, each a bit later in its work.
const KILLS: u64 = 16;
/// What they write takes some milliseconds to write, and more to sync.
const LINES: usize = 4096;
const LINE: usize = 1024;

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_slept_past_its_ttl_is_refused_after_its_successor_wrote() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::embedded(&directory).await;
    let http = service.http();
    for late in Language::BOTH {
        for successor in Language::BOTH {
            let (file, key) = (FencedFile::new(), format!("{late:?}/{successor:?}"));
            let mut late = Writer::with_lease_of(&url(&http, &key, "ttl=1s"), late, &file);
            late.reads("what was true ").await;
            late.pause();
            let mut successor =
                Writer::with_lease_of(&url(&http, &key, "wait=9s"), successor, &file);
            successor.reads("what is true\n").await;
            assert_eq!(successor.ends(), written());
            late.resume();
            late.reads("a while ago\n").await;
            assert_eq!(late.ends(), too_late(), "{key}");
            assert_eq!(file.accepted(), ["what is true"]);
        }
    }
}

/// As the page says: the file cannot know of a lease under which nobody has come to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_writer_is_refused_only_from_the_first_write_of_its_successor_on() {
    for late in Language::BOTH {
        let file = FencedFile::new();
        let write = async |text| {
            let mut late = Writer::adding((7, ONE), late, &file);
            late.reads(text).await;
            late.ends()
        };
        assert_eq!(write("before\n").await, written());
        assert_eq!(file.submit(8, OTHER, "the successor"), Verdict::Accepted);
        assert_eq!(write("after\n").await, too_late());
        assert_eq!(file.accepted(), ["before", "the successor"]);
        let file = FencedFile::new();
        assert_eq!(Writer::adding((8, OTHER), late, &file).ends(), written());
        assert_eq!(file.submit(7, ONE, "after a claim"), Verdict::Refused);
        assert_eq!(file.accepted(), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_equal_fencing_token_is_refused_to_another_lease_and_not_to_the_same() {
    for first in Language::BOTH {
        for second in Language::BOTH {
            let file = FencedFile::new();
            assert_eq!(Writer::adding((7, ONE), first, &file).ends(), written());
            assert_eq!(Writer::adding((7, OTHER), second, &file).ends(), too_late());
            assert_eq!(Writer::adding((7, ONE), second, &file).ends(), written());
            assert_eq!(file.submit(7, OTHER, "tie"), Verdict::Refused);
            assert_eq!(file.submit(7, ONE, "again"), Verdict::Accepted);
            assert_eq!(Writer::adding((8, OTHER), first, &file).ends(), written());
            assert_eq!(Writer::adding((7, ONE), second, &file).ends(), too_late());
            assert_eq!(file.accepted(), ["again"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_parallel_writers_the_accepted_rise_and_the_greatest_is_among_them() {
    let file = FencedFile::new();
    let mut said_written = Vec::new();
    for round in 0..ROUNDS {
        // Each number is that of two leases, one of them for a program of each language.
        let shuffled = (0..PARALLEL).map(|place| round * PARALLEL + 1 + (place * 5) % PARALLEL);
        let mut writers = Vec::new();
        for (fence, language) in shuffled.flat_map(|fence| Language::BOTH.map(|of| (fence, of))) {
            let lease = format!("the-lease-token-of-{language:?}");
            let mut writer = Writer::adding((fence, &lease), language, &file);
            writer.reads(&format!("{fence} {language:?}\n")).await;
            writers.push((writer, fence, language));
        }
        // All of them are at the end of their input now, and begin at once.
        let writing: Vec<_> =
            writers.into_iter().map(|(writer, fence, of)| (writer.begins(), fence, of)).collect();
        for (writing, fence, language) in writing {
            match ended(writing) {
                Some(0) => said_written.push(format!("{fence} {language:?}")),
                code => assert_eq!(code, Some(1)),
            }
        }
        let accepted = fences(&file);
        assert!(accepted.is_sorted_by(|one, next| one < next), "{accepted:?}");
        assert_eq!(accepted.last(), Some(&((round + 1) * PARALLEL)));
    }
    let mut accepted = file.accepted();
    accepted.sort();
    said_written.sort();
    assert_eq!(accepted, said_written);
}

#[test]
fn a_writer_that_is_killed_leaves_a_whole_file_that_others_write() {
    for (language, next) in [(Language::Php, Language::Rust), (Language::Rust, Language::Php)] {
        let file = FencedFile::new();
        assert_eq!(file.submit(1, ONE, "1"), Verdict::Accepted);
        let (new, mut in_the_middle) = (file.path().with_added_extension("new"), 0);
        for kill in 0..KILLS {
            let fence = kill + 2;
            let text = format!("{fence:<width$}\n", width = LINE - 1).repeat(LINES);
            let mut writing =
                Writer::replacing((fence, ONE), language, &file).given(&text).begins();
            let far = text.len() as u64 * kill / KILLS;
            let is_far = || std::fs::metadata(&new).is_ok_and(|new| new.len() >= far);
            while !is_far() && writing.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            writing.kill().unwrap();
            writing.wait().unwrap();
            in_the_middle += u32::from(new.exists());
            let lines = fences(&file);
            assert!(lines.iter().all(|it| *it == lines[0]), "a mixture in round {fence}");
            assert_eq!(lines.len(), if lines[0] == 1 { 1 } else { LINES });
        }
        assert!(in_the_middle > 0, "{language:?} was never killed while it wrote");
        assert_eq!(Writer::adding((KILLS + 2, OTHER), next, &file).ends(), written());
        assert_eq!(Writer::adding((KILLS + 1, ONE), language, &file).ends(), too_late());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_gives_its_lease_back_and_respects_a_held_key() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::embedded(&directory).await;
    let http = service.http();
    for language in Language::BOTH {
        let (file, url) = (FencedFile::new(), url(&http, "report", "ttl=10m"));
        let writes = async |text| {
            let mut writer = Writer::with_lease_of(&url, language, &file);
            writer.reads(text).await;
            assert_eq!(http.get("/locks/report").await.field("held"), true);
            writer.ends()
        };
        for text in ["one\n", "two\n"] {
            assert_eq!(writes(text).await, written());
            assert_eq!(http.get("/locks/report").await.field("held"), false);
            assert_eq!(language.shows(&file), (text.to_owned(), Some(0)));
        }
        let holder = http.token(ONE);
        assert_eq!(holder.post("/locks/report", r#"{"owner":"web-1"}"#).await.status, 201);
        let (said, code) = Writer::with_lease_of(&url, language, &file).ends();
        assert!(said.starts_with("not now: 'report' is held by web-1 for another "), "{said}");
        assert_eq!((code, file.accepted()), (Some(75), vec!["two".to_owned()]));
        assert_eq!(holder.delete("/locks/report").await.status, 204);
    }
}

#[test]
fn a_file_is_not_written_that_is_none_of_its_kind_nor_under_what_is_no_lease() {
    for language in Language::BOTH {
        let file = FencedFile::new();
        for tokens in [(0, ONE), (1 << 53, ONE), (u64::MAX, ONE), (7, "")] {
            assert_eq!(Writer::adding(tokens, language, &file).ends().1, Some(70), "{tokens:?}");
        }
        assert!(!file.path().exists());
        let hash = "0".repeat(64);
        for other in
            ["", "id;total\n", "7 \n", "+7 0\n", &format!("7 {hash}"), &format!(" {hash}\n")]
        {
            std::fs::write(file.path(), other).unwrap();
            let (said, code) = Writer::adding((8, ONE), language, &file).ends();
            assert!(said.contains("is no fenced file"), "{other:?}: {said}");
            assert_eq!((code, language.shows(&file).1), (Some(70), Some(70)));
            assert_eq!(std::fs::read_to_string(file.path()).unwrap(), other);
        }
    }
}

#[test]
fn a_fenced_file_is_the_same_in_both_languages_and_has_no_lease_token() {
    let mut files = Vec::new();
    for language in Language::BOTH {
        let file = FencedFile::new();
        let text = "eins\n\u{1f512}\r\n\n7 0\n";
        let writer = Writer::replacing(((1 << 53) - 1, ONE), language, &file).given(text);
        assert_eq!(writer.ends(), written());
        for reader in Language::BOTH {
            assert_eq!(reader.shows(&file), (text.to_owned(), Some(0)));
        }
        for beside in std::fs::read_dir(file.path().parent().unwrap()).unwrap() {
            let bytes = std::fs::read_to_string(beside.unwrap().path()).unwrap();
            assert!(!bytes.contains(ONE), "{bytes}");
        }
        files.push(std::fs::read(file.path()).unwrap());
    }
    assert_eq!(files[0], files[1]);
}

#[test]
fn every_php_file_of_the_examples_passes_the_linter() {
    let mut checked = 0;
    for entry in std::fs::read_dir(examples().join("fenced-file")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "php") {
            let done = command("php").arg("-l").arg(&path).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
            checked += 1;
        }
    }
    assert_eq!(checked, 2);
}

#[test]
fn every_block_of_the_examples_page_does_what_it_says() {
    let mut newcomer = Newcomer::new();
    newcomer.has("examples");
    newcomer.takes("cargo run -q --example fenced-file --", built());
    let blocks = blocks(PAGE);
    for (_, text) in blocks.iter().filter(|(kind, _)| *kind == "sh") {
        newcomer.types(text);
    }
    assert_eq!(newcomer.answers, 5);
    let of_kind = |wanted: &str| -> Vec<&str> {
        blocks.iter().filter(|(kind, _)| *kind == wanted).map(|(_, text)| *text).collect()
    };
    let statements = of_kind("sql");
    let [columns, update, marks, alone, together] = *statements else { panic!("{statements:?}") };
    guards_a_row(columns, update);
    guards_what_readers_change(marks, alone, together);
    let snippets = of_kind("php");
    let [snippet, in_slots] = *snippets else { panic!("{snippets:?}") };
    counts(snippet);
    guards_each_slot(in_slots);
}

/// Each lease counts until a later one has.
fn counts(snippet: &str) {
    let directory = tempfile::tempdir().unwrap();
    let program = format!(
        "{}
        foreach ([[7, '{ONE}'], [7, '{ONE}'], [8, '{OTHER}'], [7, '{ONE}']] as [$fence, $lease]) {{
            try {{
                count_one_more(['fencing_token' => $fence, 'token' => $lease]);
                echo (new FencedFile('counter'))->content(), '; ';
            }} catch (RuntimeException $failure) {{
                echo $failure->getMessage();
            }}
        }}",
        snippet.replace("'examples", &format!("'{}", examples().display()))
    );
    std::fs::write(directory.path().join("snippet.php"), program).unwrap();
    let done = command("php").arg("snippet.php").current_dir(directory.path()).output().unwrap();
    assert_eq!(String::from_utf8(done.stdout).unwrap(), "1; 2; 3; too late");
}

/// A number that is late in one slot is not in another.
fn guards_each_slot(snippet: &str) {
    let directory = tempfile::tempdir().unwrap();
    let program = format!(
        "{}
        foreach ([[1, 7, 'a'], [2, 9, 'b'], [1, 7, 'a'], [1, 8, 'c'], [1, 7, 'a'], [2, 9, 'b'],
            [2, 8, 'c']] as [$slot, $fence, $lease]) {{
            try {{
                $grant = ['slot' => $slot, 'fencing_token' => $fence, 'token' => $lease];
                write_in_slot($grant, \"$slot$lease\");
                echo (new FencedFile(\"slot-$slot\"))->content(), '; ';
            }} catch (RuntimeException $failure) {{
                echo $failure->getMessage(), '; ';
            }}
        }}",
        snippet.replace("'examples", &format!("'{}", examples().display()))
    );
    std::fs::write(directory.path().join("snippet.php"), program).unwrap();
    let done = command("php").arg("snippet.php").current_dir(directory.path()).output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    assert_eq!(said, "1a; 2b; 1a; 1c; too late; 2b; too late; ");
}

/// A writer is late behind any later lease, a reader behind a later writer only.
fn guards_what_readers_change(marks: &str, alone: &str, together: &str) {
    let program = "
import sqlite3, sys
db = sqlite3.connect(':memory:')
db.execute('CREATE TABLE pages (id INTEGER, text TEXT, visits INTEGER)')
db.execute(\"INSERT INTO pages VALUES (42, '', 0), (43, '', 0)\")
db.executescript(sys.argv[1])
writes, reads = sys.argv[2:]
for fence, statement, changed in [
    (3, writes, 1), (3, writes, 1), (5, reads, 1), (4, reads, 1), (4, writes, 0), (6, reads, 1),
    (7, writes, 1), (6, reads, 0), (5, reads, 0), (9, reads, 1), (8, reads, 1), (8, writes, 0),
    (9, reads, 1), (10, writes, 1)]:
    done = db.execute(statement, {'id': 42, 'text': 'new', 'fence': fence})
    assert done.rowcount == changed, (fence, statement, done.rowcount)
row = db.execute('SELECT visits, seen, alone FROM pages WHERE id = 42').fetchone()
assert row == (6, 10, 10), row
assert db.execute('SELECT visits, seen FROM pages WHERE id = 43').fetchone() == (0, 0)
";
    let statements = [program, marks, alone, together];
    let done = command("python3").arg("-c").args(statements).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// An update lets each lease write until a later one has, and no other lease with the same number.
fn guards_a_row(columns: &str, update: &str) {
    let program = "
import hashlib, sqlite3, sys
db = sqlite3.connect(':memory:')
db.execute('CREATE TABLE invoices (id INTEGER, total INTEGER)')
db.execute('INSERT INTO invoices VALUES (42, 0), (43, 0)')
db.executescript(sys.argv[1])
for at, (fence, lease, changed) in enumerate([
    (7, 'a', 1), (7, 'a', 1), (7, 'b', 0), (9, 'b', 1), (7, 'a', 0), (8, 'c', 0), (9, 'c', 0),
    (9, 'b', 1), (10, 'a', 1)]):
    lease = hashlib.sha256(lease.encode()).hexdigest()
    row = {'id': 42, 'total': at, 'fence': fence, 'lease': lease}
    done = db.execute(sys.argv[2], row)
    assert done.rowcount == changed, (at, done.rowcount)
    total = db.execute('SELECT total, fence, lease FROM invoices WHERE id = 42').fetchone()
    assert (total == (at, fence, lease)) == bool(changed), (at, total)
assert db.execute('SELECT total, fence FROM invoices WHERE id = 43').fetchone() == (0, 0)
";
    let done = command("python3").args(["-c", program, columns, update]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn url(http: &Http, key: &str, options: &str) -> String {
    format!("http://{}/locks/{key}?{options}", http.address)
}

fn written() -> (String, Option<i32>) {
    ("written\n".to_owned(), Some(0))
}

fn too_late() -> (String, Option<i32>) {
    ("too late: another lease has written\n".to_owned(), Some(1))
}

fn ended(mut writing: Child) -> Option<i32> {
    writing.wait().unwrap().code()
}

/// The number that each accepted line begins with.
fn fences(file: &FencedFile) -> Vec<u64> {
    let number = |line: &String| line.split(' ').next().unwrap().parse().unwrap();
    file.accepted().iter().map(number).collect()
}
