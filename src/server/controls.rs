//! What can be changed while the service runs. It outlives no store: it knows neither the locks nor
//! the connections.

use std::sync::Arc;

use crate::api::{Quota, Quotas};
use crate::auth::{ApiKey, KeyChanges, Keyring};
use crate::metrics::Metrics;

/// A way to the API keys of a service that runs.
#[derive(Clone, Debug)]
pub(crate) struct Controls {
    pub(super) keyring: Keyring,
    pub(super) quotas: Arc<Quotas>,
    pub(super) metrics: Arc<Metrics>,
    /// The quota of the only caller.
    pub(super) alone: Quota,
    /// The quota of one of several callers.
    pub(super) shared: Quota,
}

impl Controls {
    /// Replaces the API keys. Requests in flight keep their rights, streams that lost theirs end,
    /// and each caller keeps the counts of its quota. Fails if there would be none left: a settings
    /// file that is being written must not open the service to everybody.
    pub(crate) fn replace_api_keys(&self, keys: Vec<ApiKey>) -> Result<KeyChanges, String> {
        if keys.is_empty() && !self.keyring.is_open() {
            return Err("`api_keys` is empty, which would allow every caller everything: restart \
                        the service if that is meant"
                .to_owned());
        }
        let changes = self.keyring.replace(keys);
        let several = self.keyring.callers() > 1;
        self.quotas.replace(if several { self.shared } else { self.alone });
        Ok(changes)
    }

    /// Counts a reload, `ok` or `failed`, and sets how many of the watched parts failed last time.
    pub(crate) fn reloaded(&self, outcome: &'static str, failed_parts: usize) {
        self.metrics.reloaded(outcome, failed_parts);
    }
}
