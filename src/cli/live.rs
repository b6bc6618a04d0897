//! What can change while the service runs: the API keys, the level of the log, and the certificate.

use crate::cli::log::LogFilter;
use crate::cli::settings;
use crate::config::{Flags, Sources};
use crate::server::{Certificate, Controls};

/// Reads the settings again, and applies those that can change. Nothing is applied unless all
/// settings are valid. Those that need a restart stay in force as they were `at_start`.
pub(super) fn reload_settings(
    flags: &Flags,
    at_start: &Sources,
    controls: &Controls,
    filter: &LogFilter,
    cause: &str,
) -> Result<(), String> {
    let (sources, config) = settings(flags)?;
    let changes = controls.replace_api_keys(config.api_keys)?;
    filter.set(config.log.level);
    let names = |names: &[String]| (!names.is_empty()).then(|| names.join(", "));
    tracing::info!(
        target: "audit",
        audit = "reload",
        cause,
        api_keys.added = names(&changes.added),
        api_keys.removed = names(&changes.removed),
        api_keys.changed = names(&changes.changed),
        log_level = format!("{:?}", config.log.level).to_lowercase(),
        "settings read again"
    );
    let waiting = sources.waiting(at_start);
    if !waiting.is_empty() {
        let settings = waiting.join(", ");
        tracing::warn!(settings, "changed settings that need a restart are not in force");
    }
    Ok(())
}

/// Reads the files of TLS again. Unless all are valid, the old ones stay in use.
pub(super) fn reload_certificate(certificate: &Certificate, cause: &str) -> Result<(), String> {
    let changed = certificate.reload()?;
    tracing::info!(
        target: "audit",
        audit = "reload",
        cause,
        certificate.changed = changed,
        certificate.ends = %certificate.end(),
        "TLS files read again"
    );
    Ok(())
}
