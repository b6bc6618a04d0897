//! What tests need from PyPI, npm and Debian, and what they make of it: once below `target/`.

use std::fs;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::support::process::{command, succeeds};

/// Where a directory says what it was made from.
const MADE_FROM: &str = ".made-from";

/// Where the programs of the tests are.
pub(crate) const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");

/// The libraries with which Python applications lock on Redis directly.
pub(crate) const INTEROP: &str = "interop/requirements.txt";

/// A directory of this name that `make` has filled, unless one is there that was made from the same.
///
/// Other tests and other processes wait meanwhile. It is renamed into place when it is whole, so
/// nobody finds what an interrupted `make` has left.
pub(crate) fn once(name: &str, from: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    fs::create_dir_all(&all).unwrap();
    let (whole, part) = (all.join(name), all.join(format!("{name}.part")));
    let lock = File::create(all.join(format!("{name}.lock"))).unwrap();
    lock.lock().unwrap();
    if fs::read_to_string(whole.join(MADE_FROM)).is_ok_and(|text| text == from) {
        return whole;
    }
    for old in [&whole, &part] {
        if old.exists() {
            fs::remove_dir_all(old).unwrap();
        }
    }
    fs::create_dir(&part).unwrap();
    make(&part);
    fs::write(part.join(MADE_FROM), from).unwrap();
    fs::rename(&part, &whole).unwrap();
    whole
}

/// An environment of Python with what this file below `tests/` lists.
pub(crate) fn venv(requirements: &str) -> PathBuf {
    let listed = Path::new(TESTS).join(requirements);
    let name = requirements.replace('/', "-");
    once(&name, &fs::read_to_string(&listed).unwrap(), |there| {
        succeeds(command("python3").args(["-m", "venv"]).arg(there));
        let mut pip = command(python(there));
        succeeds(pip.args(["-m", "pip", "install", "-q", "-r"]).arg(&listed));
    })
}

/// What is in these packages of a release of Debian, which are not installed.
pub(crate) fn unpacked(packages: &[&str], suite: &str) -> PathBuf {
    once(packages[0], suite, |there| {
        let path = |name: &str| there.join(name).display().to_string();
        fs::create_dir_all(there.join("lists/partial")).unwrap();
        fs::create_dir_all(there.join("cache/archives/partial")).unwrap();
        let source = format!("deb http://deb.debian.org/debian {suite} main\n");
        fs::write(there.join("sources.list"), source).unwrap();
        let apt = |verb: &[&str]| {
            let options = [
                ("Dir::Etc::sourcelist", path("sources.list")),
                ("Dir::Etc::sourceparts", "-".to_owned()),
                ("Dir::State::lists", path("lists")),
                ("Dir::Cache", path("cache")),
            ];
            let mut apt = command("apt-get");
            apt.current_dir(there).arg("-qq");
            for (name, value) in options {
                apt.arg("-o").arg(format!("{name}={value}"));
            }
            succeeds(apt.args(verb))
        };
        apt(&["update"]);
        apt(&[&["download"], packages].concat());
        for file in fs::read_dir(there).unwrap() {
            let path = file.unwrap().path();
            if path.extension() == Some("deb".as_ref()) {
                succeeds(command("dpkg").arg("-x").arg(path).arg(there));
            }
        }
    })
}

/// The Python of an environment. The scripts beside it name the place where they were made.
pub(crate) fn python(venv: &Path) -> PathBuf {
    venv.join("bin/python")
}

/// The packages that the lock file in this directory below `tests/` lists.
pub(crate) fn node_modules(directory: &str) -> PathBuf {
    let asked = Path::new(TESTS).join(directory);
    let locked = fs::read_to_string(asked.join("package-lock.json")).unwrap();
    let there = once(&format!("{directory}-npm"), &locked, |there| {
        for name in ["package.json", "package-lock.json"] {
            fs::copy(asked.join(name), there.join(name)).unwrap();
        }
        let quietly = ["ci", "--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund"];
        succeeds(command("npm").args(quietly).arg("--loglevel=error").current_dir(there));
    });
    there.join("node_modules")
}

/// The version that stands behind these words in a file below `tests/`.
pub(crate) fn pinned(file: &str, before: &str) -> String {
    let text = fs::read_to_string(Path::new(TESTS).join(file)).unwrap();
    let (_, rest) = text.split_once(before).unwrap();
    rest.split(['"', '\n']).next().unwrap().to_owned()
}

#[test]
fn an_interrupted_package_is_made_anew_and_a_whole_one_only_if_it_has_changed() {
    let name = format!("probe-{}", std::process::id());
    let makes = |from: &str, text: &str| {
        let made = once(&name, from, |there| fs::write(there.join("file"), text).unwrap());
        fs::read_to_string(made.join("file")).unwrap()
    };
    let interrupted = std::panic::catch_unwind(|| {
        once(&name, "pins", |there| {
            fs::write(there.join("file"), "half").unwrap();
            panic!("as by the user");
        })
    });
    assert!(interrupted.is_err());
    assert_eq!(makes("pins", "whole"), "whole");
    assert_eq!(makes("pins", "again"), "whole");
    assert_eq!(makes("other pins", "other"), "other");
    let all = once(&name, "other pins", |_| ()).parent().unwrap().to_owned();
    fs::remove_dir_all(all.join(&name)).unwrap();
    fs::remove_file(all.join(format!("{name}.lock"))).unwrap();
}
