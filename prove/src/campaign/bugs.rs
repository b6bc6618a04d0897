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
    /// Files with the right and the wrong lines.
    places: Vec<(&'static str, String, String)>,
}

impl Bug {
    /// Returns no bug: the sound service, on a store.
    pub(crate) fn none(name: &'static str, store: Store) -> Self {
        Self { name, store, kinds: "", places: Vec::new() }
    }
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

/// A copy of the tree that gets one bug after the other.
#[derive(Debug)]
pub(crate) struct SeededTree {
    root: PathBuf,
    /// The right text of each file that had a bug.
    right: BTreeMap<&'static str, String>,
}

impl SeededTree {
    pub(crate) fn new() -> io::Result<Self> {
        let root = directory().join("seeded");
        let _ = fs::remove_dir_all(&root); // There is none at first.
        copy(workspace(), &root, &LEFT_OUT)?;
        Ok(Self { root, right: BTreeMap::new() })
    }

    /// Builds the service with a bug, and returns the binary, which stays.
    pub(crate) fn build(&mut self, bug: &Bug) -> io::Result<PathBuf> {
        for (file, right) in std::mem::take(&mut self.right) {
            fs::write(self.root.join(file), right)?;
        }
        for (file, right, wrong) in &bug.places {
            let path = self.root.join(file);
            let text = fs::read_to_string(&path)?;
            fs::write(&path, replaced(&text, right, wrong, bug.name)?)?;
            self.right.entry(file).or_insert(text);
        }
        let target = directory().join("seeded-target");
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--quiet", "--release", "--bin", "lockkeeper"]);
        cargo.arg("--target-dir").arg(&target).current_dir(&self.root);
        // Many builds, each of them for a minute's run.
        cargo.args(["--config", "profile.release.package.lockkeeper.opt-level=1"]);
        cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_INCREMENTAL", "1");
        cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Awarnings").stdin(Stdio::null());
        if !cargo.status()?.success() {
            return Err(io::Error::other(format!("{} does not compile", bug.name)));
        }
        let kept = self.root.join(format!("lockkeeper-{}-{}", bug.name, bug.store.name()));
        fs::copy(target.join("release/lockkeeper"), &kept)?;
        Ok(kept)
    }
}

fn replaced(text: &str, right: &str, wrong: &str, name: &str) -> io::Result<String> {
    let places = text.matches(right).count();
    if places != 1 {
        return Err(io::Error::other(format!("{name} has its right lines in {places} places")));
    }
    Ok(text.replace(right, wrong))
}

fn copy(from: &Path, to: &Path, left_out: &[&str]) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if left_out.iter().any(|left_out| name == *left_out) {
            continue;
        }
        match kind.is_dir() {
            true => copy(&entry.path(), &to.join(name), &[])?,
            false => drop(fs::copy(entry.path(), to.join(name))?),
        }
    }
    Ok(())
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
    fn a_directory_left_out_at_the_top_is_copied_from_below() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        for below in ["docs", "src/docs"] {
            fs::create_dir_all(from.join(below)).unwrap();
            fs::write(from.join(below).join("page"), "").unwrap();
        }
        copy(&from, &to, &["docs"]).unwrap();
        assert!(to.join("src/docs/page").exists() && !to.join("docs").exists());
    }

    #[test]
    fn a_seeded_bug_without_its_lines_is_refused() {
        assert_eq!(replaced("one\ntwo\n", "one\ntwo", "three", "Bug").unwrap(), "three\n");
        assert!(replaced("one\n", "one\ntwo", "three", "Bug").is_err());
        assert!(replaced("one\none\n", "one", "three", "Bug").is_err());
    }
}
