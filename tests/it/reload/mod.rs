//! What is read again while the service runs, the audit, and `lockkeeper api-key`.

mod audit;
mod made;
mod rotation;
mod settings;
mod streams;

use std::path::PathBuf;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::support::{Http, PATIENCE, Process, eventually};

const ALL: &str = r#"["acquire", "read", "admin"]"#;

/// A service that keeps its locks in memory and logs at a level, with a file of settings.
struct Stage {
    service: Process,
    directory: TempDir,
}

impl Stage {
    /// One with these settings; `variables` come before them.
    fn start(settings: &str, variables: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("lockkeeper.toml");
        std::fs::write(&path, settings).unwrap();
        Self::started(directory, variables)
    }

    /// One whose `lockkeeper.toml` is in this directory.
    fn started(directory: TempDir, variables: &[(&str, &str)]) -> Self {
        let path = directory.path().join("lockkeeper.toml");
        let store = format!("embedded:{}", directory.path().join("data").display());
        let arguments = ["--store", &store, "--config", path.to_str().unwrap()];
        Self { service: Process::start_with(&arguments, variables), directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Replaces the settings, as an operator should: no half of them is ever there.
    fn write(&self, settings: &str) {
        std::fs::write(self.path("new"), settings).unwrap();
        std::fs::rename(self.path("new"), self.path("lockkeeper.toml")).unwrap();
    }

    /// A client with this API key.
    fn caller(&self, secret: &str) -> Http {
        self.service.http().with("Authorization", &format!("Bearer {secret}"))
    }

    /// The lines of the log so far.
    fn lines(&self) -> Vec<Value> {
        let lines = self.service.log();
        // The last one may be on its way.
        lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The lines with this member, once there are so many.
    async fn lines_with(&self, name: &str, value: &str, most: usize) -> Vec<Value> {
        eventually(PATIENCE, async || {
            let found = self.lines().into_iter().filter(|line| line[name] == value);
            let found: Vec<_> = found.collect();
            (found.len() >= most).then_some(found)
        })
        .await
    }

    /// Waits until the settings were read again so often.
    async fn reloaded(&self, times: usize) -> Vec<Value> {
        self.lines_with("audit", "reload", times).await
    }
}

/// An entry of `[[api_keys]]` for all lock keys.
fn entry(name: &str, secret: &str, permissions: &str) -> String {
    let digest: String = Sha256::digest(secret).iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "[[api_keys]]\nname = \"{name}\"\nsha256 = \"{digest}\"\nprefixes = [\"\"]\n\
         permissions = {permissions}\n"
    )
}

/// The status of a look with this API key.
async fn status(stage: &Stage, secret: &str) -> u16 {
    stage.caller(secret).get("/locks/a").await.status
}
