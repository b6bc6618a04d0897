//! The judges of inputs, for libFuzzer and for the tests: each panics at what the contract does not allow.

#![cfg_attr(test, expect(unreachable_pub, reason = "the fuzzer's crate exports the judges"))]

pub mod connection;
pub mod file;
pub mod request;
pub mod settings;

use lockkeeper::config::{Config, Flags, Sources};
use tempfile::TempDir;

/// A directory in memory, where there is one: a sync costs nothing there.
fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The configuration of a service whose settings file and store are in this directory.
fn config(directory: &TempDir, settings: &str) -> Config {
    let file = directory.path().join("settings.toml");
    std::fs::write(&file, settings).unwrap();
    let store = format!("embedded:{}", directory.path().join("store").display());
    let flags = Flags { config: Some(file), store: vec![store], ..Flags::default() };
    Config::of(&Sources::find(&flags, []).unwrap()).unwrap()
}
