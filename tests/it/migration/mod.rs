//! docs/migration.md: its blocks run beside each other on one key, and what it says of libraries,
//! of settings and of the day after holds.

mod edges;
mod libraries;
mod moving;
mod pairs;

use std::time::Duration;

use crate::conformance::KEPT;
use crate::conformance::nodes::{admit, settings};
use crate::readme::{SERVICE, blocks, section};
use crate::redlock::{PATIENT, serves};
use crate::support::script::AT_WORK;
use crate::support::{Http, Process, Redis, Script, eventually};

const PAGE: &str = include_str!("../../../docs/migration.md");

/// The recipes, by their headings. Each has the old code and the new, but the last, whose new code is
/// that of the first.
const RECIPES: [&str; 7] = [SETNX, EXPIRE, GETSET, SCRIPT, GO, WATCH, REDLOCK];
const SETNX: &str = "### SETNX";
const EXPIRE: &str = "### SETNX and EXPIRE";
const GETSET: &str = "### SETNX and GETSET";
const SCRIPT: &str = "### SET NX EX and a script";
const GO: &str = "### A refresh in Go";
const WATCH: &str = "### WATCH and MULTI";
const REDLOCK: &str = "### Redlock";

/// What is said by who has not got the lock.
const NOT_NOW: &str = "not now\n";

/// What the Go blocks import.
const IMPORTS: &str = "package main\nimport (\"context\"; \"encoding/json\"; \"errors\"; \"math/rand\"; \
                       \"net/http\"; \"strconv\"; \"time\"; \"github.com/gomodule/redigo/redis\")\n";
const GIVEN_GO: &str = include_str!("../../go/given.go");

const PATIENCE: Duration = Duration::from_secs(30);

/// The key of all blocks.
const KEY: &str = "/locks/import";

/// A block of the page.
#[derive(Clone, Copy, Debug)]
struct Block {
    kind: &'static str,
    text: &'static str,
}

/// The blocks under a heading.
fn shown(heading: &str) -> Vec<Block> {
    let found = blocks(section(PAGE, heading)).into_iter();
    found.map(|(kind, text)| Block { kind, text }).collect()
}

fn old(recipe: &str) -> Block {
    shown(recipe)[0]
}

fn new(recipe: &str) -> Block {
    shown(if recipe == REDLOCK { SETNX } else { recipe })[1]
}

/// A service, and the Redis that it shares with old code.
struct Site {
    nodes: Vec<Redis>,
    process: Process,
}

impl Site {
    fn start(variables: &[(&str, &str)]) -> Self {
        let nodes = vec![Redis::start()];
        let process = Process::start(&nodes[0].url(), variables);
        Self { nodes, process }
    }

    /// One with Redlock on three nodes, once it serves.
    async fn redlock() -> Self {
        let nodes: Vec<_> = (0..3).map(|_| Redis::start()).collect();
        admitted(&nodes).await;
        let process = redlock(&nodes);
        serves(&process.http()).await;
        Self { nodes, process }
    }

    fn redis(&self) -> &Redis {
        &self.nodes[0]
    }

    fn http(&self) -> Http {
        self.process.http()
    }

    /// A block as a program on this site.
    fn script(&self, block: Block) -> Script {
        self.changed(block, &[])
    }

    /// The same with these changes.
    fn changed(&self, block: Block, changes: &[(&str, &str)]) -> Script {
        let mut text = block.text.to_owned();
        for (from, to) in changes {
            assert!(text.contains(from), "{from}: {text}");
            text = text.replace(from, to);
        }
        let own = |text: &str| text.replace(SERVICE, &self.http().address.to_string());
        match block.kind {
            "php" => Script::of("php", &own(&self.php(&text))),
            "bash" => {
                Script::of("bash", &own(&format!("work() {{ echo at work; read -r; }}\n{text}")))
            }
            "go" => self.go(&own(&text)),
            kind => panic!("nothing runs {kind}"),
        }
    }

    /// PHP with all that the page has before it, or takes for granted.
    fn php(&self, text: &str) -> String {
        let given = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/php/given.php");
        let function = shown("## Recipes")[0].text;
        let delete = PAGE.lines().find(|line| line.starts_with("$delete = ")).unwrap();
        let ports: Vec<_> = self.nodes.iter().map(|node| node.port().to_string()).collect();
        let ports = ports.join(",");
        format!("<?php $ports = '{ports}'; require '{given}';\n{function}\n{delete}\n{text}")
    }

    /// Both blocks of the page make one program; that of which this is the text is called.
    fn go(&self, text: &str) -> Script {
        let name = if text.contains("func locked(") { "locked" } else { "held" };
        let port = self.redis().port().to_string();
        let own = format!("func {name}(");
        let other = shown(GO).into_iter().find(|block| !block.text.contains(&own)).unwrap();
        let page = format!("{IMPORTS}{text}\n{}", other.text);
        Script::go(&[("page.go", &page), ("given.go", GIVEN_GO)], &[name, &port])
    }

    /// Waits until the key is free.
    async fn freed(&self) {
        let free = async || (self.http().get(KEY).await.field("held") == false).then_some(());
        eventually(PATIENCE, free).await;
    }

    /// Runs each while two leases share the key, on a store that can: both are held as before.
    async fn are_refused_a_shared_key(&self, scripts: [&Script; 2]) {
        let first = self.http().post(&format!("{KEY}?ttl=1h&slots=2"), "").await;
        if first.status == 400 {
            return; // Redlock.
        }
        let second = self.http().post(&format!("{KEY}?ttl=1h&slots=2"), "").await;
        let holders = [first, second].map(|grant| self.http().token(&grant.text("token")));
        for script in scripts {
            assert_eq!(script.run().0, NOT_NOW);
        }
        for holder in holders {
            assert_eq!(holder.put(&format!("{KEY}/refresh"), "").await.status, 200);
            assert_eq!(holder.delete(KEY).await.status, 204);
        }
        assert_eq!(self.http().get(KEY).await.field("held"), false);
    }

    /// Runs each while the other works, and after it; and while leases share the key.
    async fn exclude_each_other(&self, scripts: [&Script; 2]) {
        self.are_refused_a_shared_key(scripts).await;
        for [holder, other] in [scripts, [scripts[1], scripts[0]]] {
            let working = holder.works();
            assert_eq!(self.http().get(KEY).await.field("held"), true);
            assert_eq!(other.run().0, NOT_NOW);
            // One that refreshes works several times.
            assert!(working.ends().iter().all(|line| line == AT_WORK));
            self.freed().await;
        }
    }
}

/// Lets these nodes vote.
async fn admitted(nodes: &[Redis]) {
    let urls: Vec<_> = nodes.iter().map(Redis::url).collect();
    admit(&settings(&urls, "lock:", KEPT)).await;
}

/// A service on these nodes.
fn redlock(nodes: &[Redis]) -> Process {
    let urls: Vec<_> = nodes.iter().map(Redis::url).collect();
    let stores: Vec<_> = urls.iter().flat_map(|url| ["--store", url.as_str()]).collect();
    // As long as the nodes were admitted for.
    let lasting = ("LOCKKEEPER_REDLOCK_LONGEST_LEASE", "24h");
    Process::start_with(&stores, &[PATIENT, &[lasting]].concat())
}
