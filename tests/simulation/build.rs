//! Copies the store of Redlock and what it needs from `src`, so that `mod.rs` is a module in it. The
//! copy differs in one point: a run can leave out each of the rules below.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The part of `src` that is copied.
const COPIED: [&str; 6] =
    ["lock", "metrics", "metrics.rs", "platform/portable", "store/redis", "store/redlock"];

/// The modules of the copy.
const MODULES: &str = r#"
pub mod lock;
pub mod metrics;
/// Clocks and sockets.
pub mod platform {
    #[path = "portable/clock.rs"]
    pub mod clock;
    #[path = "portable/sockets.rs"]
    pub mod sockets;
}
/// The stores on Redis.
pub mod store {
    pub mod redis;
    pub mod redlock;
}
"#;

/// A rule of the store, in Rust; those in Lua are in `rule.rs`.
struct Rule {
    name: &'static str,
    /// Below `src/store/redlock`.
    file: &'static str,
    /// An expression; the file has it once.
    right: &'static str,
    /// The same without the rule.
    without: &'static str,
}

const RULES: [Rule; 8] = [
    Rule {
        name: "MoreThanHalf",
        file: "tally.rs",
        right: "self.nodes / 2 + 1",
        without: "(self.nodes / 2).max(1)",
    },
    Rule {
        name: "Fresh",
        file: "poll.rs",
        right: "self.how_many(|said| matches!(said, Says::Yes(_)))",
        without: "self.how_many(|said| matches!(said, Says::Yes(_) | Says::Again))",
    },
    Rule {
        name: "TimeIsLookedAt",
        file: "tally.rs",
        right: "(left >= ttl / 2).then_some(left)",
        without: "Some(left.max(ttl * 9 / 10))",
    },
    Rule {
        name: "Brings",
        file: "poll.rs",
        right: "Some(format!(\"{highest} 0 -\"))",
        without: "None",
    },
    Rule {
        name: "Older",
        file: "poll.rs",
        right: "vote.number <= number || vote.is_old()",
        without: "true",
    },
    Rule {
        name: "ItsAge",
        file: "poll.rs",
        right: "self.ttl.saturating_sub(self.left) > LONGEST_ATTEMPT * 2",
        without: "self.held.is_some_and(|held| held > LONGEST_ATTEMPT * 2)",
    },
    Rule {
        name: "KeptAlone",
        file: "refresh.rs",
        right: "state == Some(State::Kept)",
        without: "false",
    },
    Rule {
        name: "Leftovers",
        file: "refresh.rs",
        right: "Some(at.cleanup.heard(node, &release::ended(at, of, number)))",
        without: "{ let _ = (node, number); None }",
    },
];

fn main() -> io::Result<()> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let copy = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("src");
    let sources = here.join("../../src");
    println!("cargo::rerun-if-changed={}", sources.display());
    let _ = fs::remove_dir_all(&copy); // There is none at first.
    for part in COPIED {
        copy_all(&sources.join(part), &copy.join(part))?;
    }
    fs::write(copy.join("lib.rs"), MODULES)?;
    let store = copy.join("store/redlock");
    for rule in &RULES {
        rule.plant(&store.join(rule.file))?;
    }
    let root = store.join("mod.rs");
    let simulation = here.join("mod.rs");
    let text = fs::read_to_string(&root)?;
    fs::write(root, format!("{text}\n#[path = {simulation:?}]\nmod simulation;\n"))
}

impl Rule {
    /// Makes a file ask at run time whether the rule is left out.
    fn plant(&self, file: &Path) -> io::Result<()> {
        let Self { name, right, without, .. } = self;
        let text = fs::read_to_string(file)?;
        let places = text.matches(right).count();
        assert!(
            places == 1,
            "src/store/redlock/{} has `{right}` in {places} places: say in {} which line is the \
             rule {name}",
            self.file,
            file!()
        );
        let asked = format!("crate::store::redlock::simulation::Rule::{name}.is_left_out()");
        let either = format!("if {asked} {{ {without} }} else {{ {right} }}");
        fs::write(file, text.replace(right, &either))
    }
}

/// Copies a file, or a directory with all that is below it. The tests of the sources stay behind.
fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            copy_all(&from.join(&name), &to.join(&name))?;
        }
        return Ok(());
    }
    let text = fs::read_to_string(from)?;
    fs::write(to, text.replace("#[cfg(test)]", "#[cfg(false)]"))
}
