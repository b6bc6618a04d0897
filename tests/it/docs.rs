//! The page of the contract: its programs, each run as it is shown, and itself in a browser.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::api::api_keys;
use crate::readme::SERVICE;
use crate::support::openapi::SPEC;
use crate::support::packages::{TESTS, node_modules};
use crate::support::process::{command, succeeds};
use crate::support::{Http, PATIENCE, Process, Script, eventually};

/// The class of an example, and the program that runs it.
const PROGRAMS: [(&str, &str); 3] = [("curl", "sh"), ("php", "php"), ("python", "python3")];

/// The operations that end a lease or do not end; the others are run in between.
const APART: [&str; 4] = ["acquireLock", "releaseLock", "holdLock", "forceReleaseLock"];

/// The parts of an example that are for a service with API keys.
const KEYED: &str = "<span class=\"keyed\">";

const SECRET: &str = "the-secret-of-an-api-key";

#[tokio::test(flavor = "multi_thread")]
async fn every_example_of_the_page_works_without_and_with_an_api_key() {
    for keyed in [false, true] {
        let (service, _directory) = start(keyed);
        let page = service.http().get("/docs").await;
        let page = String::from_utf8(page.body.to_vec()).unwrap();
        for (class, program) in PROGRAMS {
            let reader = Reader { page: &page, http: service.http(), class, program, keyed };
            reader.runs_all().await;
        }
    }
}

/// A service, on a store of its own.
fn start(keyed: bool) -> (Process, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("lockkeeper.toml");
    let all = r#"["acquire", "read", "admin"]"#;
    let keys = if keyed { api_keys(&[(SECRET, r#"[""]"#, all)]) } else { String::new() };
    std::fs::write(&settings, keys).unwrap();
    let store = format!("embedded:{}", directory.path().join("data").display());
    let arguments = ["--store", &store, "--config", settings.to_str().unwrap()];
    (Process::start_with(&arguments, &[]), directory)
}

/// Somebody who copies the examples in one language.
struct Reader<'a> {
    page: &'a str,
    http: Http,
    class: &'static str,
    program: &'static str,
    keyed: bool,
}

impl Reader<'_> {
    async fn runs_all(&self) {
        let ids: BTreeSet<_> =
            SPEC.operations().map(|one| one["operationId"].as_str().unwrap()).collect();
        assert!(APART.iter().all(|id| ids.contains(id)), "{ids:?}");
        let granted = self.runs("acquireLock", "");
        let (_, token) = granted.split_once(r#""token":""#).unwrap();
        let token = token.split('"').next().unwrap();
        for id in ids.iter().filter(|id| !APART.contains(id)) {
            self.runs(id, token);
        }
        self.runs("releaseLock", token);
        self.holds();
        eventually(PATIENCE, async || {
            let http = if self.keyed { self.keyed_http() } else { self.http.clone() };
            (http.get("/locks/report").await.field("held") == false).then_some(())
        })
        .await;
        self.runs("acquireLock", "");
        self.runs("forceReleaseLock", "");
    }

    /// What an example prints, which has a status of success that the contract has.
    fn runs(&self, id: &str, token: &str) -> String {
        let operation = SPEC.operations().find(|operation| operation["operationId"] == id).unwrap();
        let script = Script::of(self.program, &self.example(id));
        let done = self.command(&script, token).output().unwrap();
        let shown = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
        let mut words = shown.split_whitespace();
        let status = if self.class == "curl" { words.next_back() } else { words.next() };
        let known = &operation["responses"][status.unwrap_or_default()];
        let is_success = status.is_some_and(|status| status.starts_with('2'));
        assert!(done.status.success() && is_success && known.is_object(), "{id}: {shown}");
        shown
    }

    /// The example of a stream, killed once it has the lease.
    fn holds(&self) {
        // So that what is killed is not the shell around it.
        let example = self.example("holdLock").replace("curl -sSN", "exec curl -sSN");
        let script = Script::of(self.program, &example);
        let mut holder = self.command(&script, "").stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
        let acquired = lines.any(|line| line.unwrap().contains(r#""event":"acquired""#));
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert!(acquired, "{}: it ended", self.class);
    }

    fn command(&self, script: &Script, token: &str) -> Command {
        let mut command = script.command();
        command.env("TOKEN", token).env("API_KEY", SECRET);
        command
    }

    /// An example as it is copied, for this service.
    fn example(&self, id: &str) -> String {
        let after = |text: &str, begin: &str| {
            let (_, rest) = text.split_once(begin).unwrap_or_else(|| panic!("{id}: no {begin}"));
            rest.to_owned()
        };
        let section = after(self.page, &format!("<h3 id=\"{id}\">"));
        let figure = after(&section, &format!("class=\"example {}\"", self.class));
        let code = after(&figure, "<pre><code>");
        let code = code.split("</code></pre>").next().unwrap();
        let mut parts = code.split(KEYED);
        let mut shown = parts.next().unwrap().to_owned();
        for part in parts {
            let (keyed, rest) = part.split_once("</span>").unwrap();
            shown.push_str(if self.keyed { keyed } else { "" });
            shown.push_str(rest);
        }
        for (escaped, letter) in [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&amp;", "&")] {
            shown = shown.replace(escaped, letter);
        }
        assert!(shown.contains(SERVICE), "{id}: {shown}");
        shown.replace(SERVICE, &self.http.address.to_string())
    }

    fn keyed_http(&self) -> Http {
        self.http.with("Authorization", &format!("Bearer {SECRET}"))
    }
}

/// What a browser shows is looked at by `docs.mjs`, in every view that it lists.
#[test]
fn a_browser_shows_the_page_without_a_fault_and_without_another_request() {
    let (service, directory) = start(true);
    let url = format!("{}/docs", service.http().url());
    let mut node = command("node");
    node.arg(Path::new(TESTS).join("ui/docs.mjs")).arg(node_modules("ui")).arg(url);
    // Whoever wants to look at it names a directory.
    let screenshots =
        std::env::var_os("SCREENSHOTS").map_or_else(|| directory.path().into(), Into::into);
    let found = succeeds(node.arg::<PathBuf>(screenshots));
    assert_eq!(found, "");
}
