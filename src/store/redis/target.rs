//! The condition on which a call acts on a lease, as arguments of the scripts of both stores.

use crate::lock::lease::Receipt;
use crate::lock::store::If;

impl If {
    /// The renewals that a keeper knows, or that a grant had; empty if they do not matter.
    pub(in crate::store) fn renewals(self) -> String {
        match self {
            Self::Any | Self::Ever => String::new(),
            Self::SameCare(known)
            | Self::Unrenewed(known)
            | Self::Unheard(Receipt { renewals: known, .. }) => known.number().to_string(),
        }
    }

    /// "1" for the last call of a keeper.
    pub(in crate::store) const fn last_word(self) -> &'static str {
        if matches!(self, Self::Unrenewed(_)) { "1" } else { "" }
    }
}
