//! A settings file and variables of the environment, apart by a NUL byte. Whatever they are, the service
//! reads them or says in one line what is wrong.

use std::path::PathBuf;
use std::sync::LazyLock;

use lockkeeper::config::{Config, Flags, Sources};

use super::directory;

/// The file that the settings are written to.
static FILE: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
    let directory = directory();
    let file = directory.path().join("settings.toml");
    (directory, file)
});

/// Has the settings read, and panics if the refusal is no sentence.
pub fn judge(input: &[u8]) {
    let mut parts = input.splitn(2, |byte| *byte == 0);
    let (file, environment) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    std::fs::write(&FILE.1, file).unwrap();
    let environment = String::from_utf8_lossy(environment).into_owned();
    let variables = environment.lines().filter_map(|line| line.split_once('='));
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let flags = Flags { config: Some(FILE.1.clone()), ..Flags::default() };
    let read = Sources::find(&flags, variables.collect::<Vec<_>>());
    let read = read.and_then(|sources| Config::of(&sources).map(|_| sources.show()));
    match read {
        Ok(shown) => assert!(shown.contains("listen = ")),
        Err(error) => {
            let said = error.to_string();
            assert!(!said.is_empty() && !said.contains('\n'), "{said}");
        }
    }
}
