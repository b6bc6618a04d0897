//! What can change while the service runs: the API keys, the level of the log, the certificates.

use std::sync::Arc;

use tracing::level_filters::LevelFilter;

use crate::cli::settings;
use crate::config::{Flags, Sources};
use crate::server::{Certificates, Controls};

/// The parts of a running service that can change.
pub(super) struct Live {
    pub(super) flags: Flags,
    /// The settings at the start; those that need a restart stay in force.
    pub(super) at_start: Sources,
    pub(super) set_level: Box<dyn Fn(LevelFilter) + Send>,
    pub(super) controls: Controls,
    pub(super) certificates: Arc<Certificates>,
}

impl Live {
    /// Reads the settings again, and applies those that can change. Nothing is applied unless all
    /// settings are valid.
    pub(super) fn reload_settings(&self, cause: &str) -> Result<(), String> {
        let (sources, config) = settings(&self.flags)?;
        let changes = self.controls.replace_api_keys(config.api_keys)?;
        (self.set_level)(config.log.level);
        let names = |names: &[String]| (!names.is_empty()).then(|| names.join(", "));
        tracing::info!(
            target: "audit",
            audit = "reload",
            cause,
            api_keys.added = names(&changes.added),
            api_keys.removed = names(&changes.removed),
            api_keys.changed = names(&changes.changed),
            log_level = %config.log.level,
            "settings read again"
        );
        let waiting = sources.waiting(&self.at_start);
        if !waiting.is_empty() {
            let settings = waiting.join(", ");
            tracing::warn!(settings, "changed settings that need a restart are not in force");
        }
        Ok(())
    }
}

/// Reads the files of TLS again. Unless all are valid, the old ones stay in use.
pub(super) fn reload_certificates(certificates: &Certificates, cause: &str) -> Result<(), String> {
    let read = certificates.reload()?;
    tracing::info!(
        target: "audit",
        audit = "reload",
        cause,
        certificate.changed = read.own.map(|(changed, _)| changed),
        certificate.ends = read.own.map(|(_, end)| end.to_string()),
        redis_certificates.changed = read.redis,
        "TLS files read again"
    );
    Ok(())
}
