//! The seeded bugs: replacements of lines in a copy of the tree, from which the service is built.
//!
//! What is shipped knows nothing of them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::campaign::{directory, workspace};
use crate::servers::Store;

const LIST: &str = include_str!("bugs.txt");

/// What the service is not built from, at the top of the tree.
const LEFT_OUT: [&str; 5] = [".git", "target", "clients", "docs", "fuzz"];

#[derive(Clone, Debug)]
pub(crate) struct Bug {
    pub(crate) name: &'static str,
    /// A store on which it shows.
    pub(crate) store: Store,
    /// The kinds of faults under which it shows; all if there are none.
    pub(crate) kinds: &'static str,
    /// Files with the right and the wrong lines; none for the sound service.
    pub(crate) places: Vec<(&'static str, String, String)>,
}

pub(crate) fn bugs() -> io::Result<Vec<Bug>> {
    let mut bugs: Vec<Bug> = Vec::new();
    for block in LIST.split("\n\n").skip(1) {
        let wrong = || io::Error::other(format!("not a seeded bug:\n{block}"));
        let mut lines = block.lines().filter(|line| !line.starts_with('#'));
        let words: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
        let (name, store, file, kinds) = match words[..] {
            [name, store, file] => (name, store, file, ""),
            [name, store, file, kinds] => (name, store, file, kinds),
            _ => return Err(wrong()),
        };
        let store = Store::of(store).ok_or_else(wrong)?;
        let lines: Vec<_> = lines.collect();
        let of = |mark| {
            let lines: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix(mark)).collect();
            lines.join("\n")
        };
        let place = (file, of('-'), of('+'));
        match bugs.last_mut().filter(|bug| bug.name == name) {
            Some(bug) => bug.places.push(place),
            None => bugs.push(Bug { name, store, kinds, places: vec![place] }),
        }
    }
    Ok(bugs)
}

/// Returns a copy of the tree, for one bug after the other.
pub(crate) fn copied_tree() -> io::Result<PathBuf> {
    let root = directory().join("seeded");
    let _ = fs::remove_dir_all(&root); // There is none at first.
    fs::create_dir_all(&root)?;
    let mut copying = Command::new("cp");
    copying.arg("-r");
    for entry in fs::read_dir(workspace())? {
        let entry = entry?;
        if !LEFT_OUT.iter().any(|left_out| entry.file_name() == *left_out) {
            copying.arg(entry.path());
        }
    }
    if !copying.arg(&root).status()?.success() {
        return Err(io::Error::other("the tree was not copied"));
    }
    Ok(root)
}

/// Builds the service with a bug in a copy of the tree, and returns the binary, which stays.
pub(crate) fn build(tree: &Path, bug: &Bug) -> io::Result<PathBuf> {
    let mut right_texts = BTreeMap::new();
    for (file, right, wrong) in &bug.places {
        let path = tree.join(file);
        let text = fs::read_to_string(&path)?;
        fs::write(&path, replaced(&text, right, wrong, bug.name)?)?;
        right_texts.entry(path).or_insert(text);
    }
    let target = directory().join("seeded-target");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--release", "--bin", "lockkeeper"]);
    cargo.arg("--target-dir").arg(&target).current_dir(tree);
    // Many builds, each of them for a minute's run.
    cargo.args(["--config", "profile.release.package.lockkeeper.opt-level=1"]);
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_INCREMENTAL", "1");
    cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Awarnings").stdin(Stdio::null());
    if !cargo.status()?.success() {
        return Err(io::Error::other(format!("{} does not compile", bug.name)));
    }
    for (path, text) in right_texts {
        fs::write(path, text)?;
    }
    let kept = tree.join(format!("lockkeeper-{}-{}", bug.name, bug.store.name()));
    fs::copy(target.join("release/lockkeeper"), &kept)?;
    Ok(kept)
}

fn replaced(text: &str, right: &str, wrong: &str, name: &str) -> io::Result<String> {
    let places = text.matches(right).count();
    if places != 1 {
        return Err(io::Error::other(format!("{name} has its right lines in {places} places")));
    }
    Ok(text.replace(right, wrong))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nemesis::kinds::Kind;

    #[test]
    fn every_seeded_bug_has_its_right_lines_in_one_place() {
        let bugs = bugs().unwrap();
        assert!(bugs.len() > 20, "{bugs:?}");
        for bug in bugs {
            for (file, right, wrong) in &bug.places {
                let text = fs::read_to_string(workspace().join(file)).unwrap();
                replaced(&text, right, wrong, bug.name).unwrap();
            }
        }
    }

    #[test]
    fn a_seeded_bug_names_kinds_of_faults_of_its_store() {
        for bug in bugs().unwrap() {
            let known: Vec<_> = Kind::of(bug.store).into_iter().map(Kind::name).collect();
            let named = bug.kinds.split(',').filter(|kind| !kind.is_empty());
            let unknown: Vec<_> = named.filter(|kind| !known.iter().any(|k| k == kind)).collect();
            assert!(unknown.is_empty(), "{}: {unknown:?}", bug.name);
        }
    }

    #[test]
    fn a_seeded_bug_without_its_lines_is_refused() {
        assert_eq!(replaced("one\ntwo\n", "one\ntwo", "three", "Bug").unwrap(), "three\n");
        assert!(replaced("one\n", "one\ntwo", "three", "Bug").is_err());
        assert!(replaced("one\none\n", "one", "three", "Bug").is_err());
    }
}
