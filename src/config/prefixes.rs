//! The entries of `[[prefixes]]`.

use serde::Deserialize;

use crate::config::{Config, Span};
use crate::lock::prefixes::{Prefix, Prefixes};

/// An entry of `[[prefixes]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PrefixSection {
    prefix: String,
    max_hold: Option<Span>,
}

impl Config {
    /// The reason why the prefixes cannot be used together.
    pub(super) fn prefix_fault(&self) -> Option<String> {
        let least = self.ttl_bounds().min;
        let short = self.prefixes.iter().find(|section| {
            let most = section.max_hold.map(Span::ttl);
            most.is_some_and(|most| most < least)
        });
        match short {
            Some(PrefixSection { prefix, .. }) => Some(format!(
                "the max_hold of `{}` must not be less than ttl.min",
                prefix.escape_debug()
            )),
            None => self.checked_prefixes().err(),
        }
    }

    /// The prefixes by which leases are told apart and limited.
    ///
    /// # Panics
    ///
    /// Never: they were checked when the settings were read.
    pub fn prefixes(&self) -> Prefixes {
        self.checked_prefixes().expect("the prefixes were tried")
    }

    fn checked_prefixes(&self) -> Result<Prefixes, String> {
        let prefix = |PrefixSection { prefix, max_hold }: &PrefixSection| Prefix {
            text: prefix.clone(),
            max_hold: max_hold.map(Span::ttl),
        };
        Prefixes::new(self.prefixes.iter().map(prefix).collect())
    }
}
