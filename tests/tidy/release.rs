//! The version and the public repository are the same wherever they are stated, and `release-check`
//! says where they are not.

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// What `deploy/release-check` reads, and a bit of each that it has to miss.
const STATED: [(&str, &str); 17] = [
    ("Cargo.lock", "name = \"lockkeeper\"\nversion = \""),
    ("fuzz/Cargo.lock", "name = \"lockkeeper\"\nversion = \""),
    ("openapi.yaml", "version: "),
    ("deploy/kubernetes/embedded.yaml", "image: lockkeeper:"),
    ("deploy/kubernetes/redis.yaml", "image: lockkeeper:"),
    ("clients/python/src/lockkeeper/__init__.py", "__version__ = \""),
    ("clients/python/README.md", "lockkeeper_client-"),
    ("clients/ruby/lib/lockkeeper/version.rb", "VERSION = \""),
    ("clients/ruby/README.md", "lockkeeper-"),
    ("clients/typescript/package.json", "    \"version\": \""),
    ("clients/typescript/package.json", "git+https://"),
    ("clients/typescript/package-lock.json", "\"name\": \"lockkeeper\",\n    \"version\": \""),
    ("clients/typescript/README.md", "./lockkeeper-"),
    ("clients/go/README.md", "go@v"),
    ("clients/php/README.md", "lockkeeper/lockkeeper:"),
    ("README.md", "releases/download/v"),
    ("deploy/install.sh", "LOCKKEEPER_VERSION:-"),
];

/// Files that it reads or changes besides.
const BESIDE: [&str; 5] = [
    "Cargo.toml",
    "CHANGELOG.md",
    "clients/go/go.mod",
    "deploy/release-check",
    "deploy/repository",
];

#[test]
fn every_place_states_the_version_of_cargo_toml() {
    let done = check(Path::new("."), &[]);
    assert!(done.status.success(), "{}", said(&done));
}

#[test]
fn another_version_in_any_place_is_told_with_its_file() {
    let copy = copy();
    assert!(check(copy.path(), &[]).status.success());
    for (file, before) in STATED {
        let path = copy.path().join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(before), "{file} has no {before:?}");
        std::fs::write(&path, text.replacen(before, &format!("{before}9"), 1)).unwrap();
        let done = check(copy.path(), &[]);
        let told = said(&done);
        assert!(
            !done.status.success() && told.contains(&format!("{file} has ")),
            "{before}: {told}"
        );
        std::fs::write(&path, text).unwrap();
    }
}

#[test]
fn a_tag_needs_its_section_of_the_changelog_and_a_public_repository() {
    let copy = copy();
    let version = env!("CARGO_PKG_VERSION");
    let changelog = copy.path().join("CHANGELOG.md");
    std::fs::write(&changelog, "# Changelog\n\n## [Unreleased]\n\n- A change.\n").unwrap();
    let tag = format!("v{version}");
    assert!(said(&check(copy.path(), &[&tag])).contains("CHANGELOG.md needs the heading"));
    let dated = format!("## [Unreleased]\n\n- A change.\n\n## [{version}] - 2026-01-01\n");
    std::fs::write(&changelog, &dated).unwrap();
    assert!(said(&check(copy.path(), &[&tag])).contains("changes under Unreleased"));
    std::fs::write(&changelog, dated.replace("- A change.\n", "")).unwrap();
    let set = run(copy.path(), "repository", &["https://github.com/team/lockkeeper"]);
    assert!(set.status.success(), "{}", said(&set));
    let done = check(copy.path(), &[&tag]);
    assert!(done.status.success(), "{}", said(&done));
    assert!(said(&check(copy.path(), &["v9.9.9"])).contains("The tag is 'v9.9.9'"));
    let module = std::fs::read_to_string(copy.path().join("clients/go/go.mod")).unwrap();
    assert!(module.starts_with("module github.com/team/lockkeeper/clients/go\n"), "{module}");
    let readme = std::fs::read_to_string(copy.path().join("README.md")).unwrap();
    assert!(readme.contains(" https://github.com/team/lockkeeper/releases/download/"), "{readme}");
    assert_eq!(run(copy.path(), "repository", &["http://x/y/z"]).status.code(), Some(2));
}

/// The files that the scripts read, in a directory of their own.
fn copy() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in STATED.iter().map(|(file, _)| file).chain(&BESIDE) {
        let path = directory.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::copy(file, path).unwrap();
    }
    directory
}

fn check(directory: &Path, arguments: &[&str]) -> Output {
    run(directory, "release-check", arguments)
}

fn run(directory: &Path, script: &str, arguments: &[&str]) -> Output {
    let mut run = Command::new("sh");
    run.arg(directory.join("deploy").join(script)).args(arguments);
    run.env_remove("GITHUB_REPOSITORY").output().unwrap()
}

fn said(done: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}
