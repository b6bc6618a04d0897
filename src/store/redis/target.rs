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

    /// Returns true for the last call of a keeper.
    pub(in crate::store) const fn is_last_word(self) -> bool {
        matches!(self, Self::Unrenewed(_))
    }

    /// "1" for it.
    pub(in crate::store) const fn last_word(self) -> &'static str {
        if self.is_last_word() { "1" } else { "" }
    }
}
