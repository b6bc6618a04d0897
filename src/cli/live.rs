//! What can change while the service runs: the API keys, the level of the log, and the certificate.

use crate::cli::log::LogFilter;
use crate::cli::settings;
use crate::config::{Flags, Sources};
use crate::server::{Certificate, Controls, Reread};

/// The setting besides the API keys that a reload applies.
const LEVEL: &str = "log.level";

/// The settings of a service that runs.
pub(super) struct LiveSettings {
    pub(super) flags: Flags,
    /// The settings at the start: those that need a restart are still in force.
    pub(super) at_start: Sources,
    pub(super) controls: Controls,
    pub(super) filter: LogFilter,
}

impl LiveSettings {
    /// Reads the settings again, and applies those that can change. Nothing is applied unless all
    /// settings are valid.
    pub(super) fn reload(&self, cause: &str) -> Result<(), String> {
        let (sources, config) = settings(&self.flags)?;
        let changes = self.controls.replace_api_keys(config.api_keys);
        let changes = changes.map_err(|error| error.to_string())?;
        self.filter.set(config.log.level);
        let names = |names: &[String]| (!names.is_empty()).then(|| names.join(", "));
        tracing::info!(
            target: "audit",
            audit = "reload",
            cause,
            api_keys.added = names(&changes.added),
            api_keys.removed = names(&changes.removed),
            api_keys.changed = names(&changes.changed),
            log.level = format!("{:?}", config.log.level).to_lowercase(),
            "settings read again"
        );
        let mut waiting = sources.differing(&self.at_start);
        waiting.retain(|path| *path != LEVEL);
        if !waiting.is_empty() {
            let settings = waiting.join(", ");
            tracing::warn!(settings, "changed settings that need a restart are not in force");
        }
        Ok(())
    }
}

/// Reads the files of TLS again. Unless all are valid, the old ones stay in use.
pub(super) fn reload_certificate(certificate: &Certificate, cause: &str) -> Result<(), String> {
    let reread = certificate.reload().map_err(|error| error.to_string())?;
    tracing::info!(
        target: "audit",
        audit = "reload",
        cause,
        certificate.changed = reread == Reread::Replaced,
        certificate.ends = %certificate.end(),
        "TLS files read again"
    );
    Ok(())
}
