//! The lease that a refresh or a release is about, for the scripts of both stores.

use crate::lock::key::LockKey;
use crate::lock::lease::{Holding, Renewals};
use crate::lock::token::{FencingToken, LeaseToken};

/// The lease that a refresh or a release is about.
#[derive(Clone, Copy)]
pub(in crate::store) struct Target<'a> {
    pub(in crate::store) key: &'a LockKey,
    pub(in crate::store) token: &'a LeaseToken,
    /// Only this lease of the token, if given.
    pub(in crate::store) fencing_token: Option<FencingToken>,
    pub(in crate::store) by: By,
}

/// The caller of a refresh or a release.
#[derive(Clone, Copy)]
pub(in crate::store) enum By {
    Client,
    /// The keeper of a hold, with the renewals that it knows.
    Keeper(Renewals),
    /// The last call of a keeper, with the same.
    LastWord(Renewals),
}

impl<'a> Target<'a> {
    pub(in crate::store) fn of_client(
        key: &'a LockKey,
        token: &'a LeaseToken,
        fencing_token: Option<FencingToken>,
    ) -> Self {
        Self { key, token, fencing_token, by: By::Client }
    }

    pub(in crate::store) fn of_keeper(holding: &'a Holding, by: fn(Renewals) -> By) -> Self {
        let Holding { key, token, fencing_token, renewals } = holding;
        Self { key, token, fencing_token: Some(*fencing_token), by: by(*renewals) }
    }
}

impl By {
    /// The renewals that a keeper knows, as an argument; empty for a client.
    pub(in crate::store) fn renewals(self) -> String {
        match self {
            Self::Client => String::new(),
            Self::Keeper(known) | Self::LastWord(known) => known.number().to_string(),
        }
    }

    /// "1" for the last call of a keeper.
    pub(in crate::store) fn last_word(self) -> &'static str {
        if matches!(self, Self::LastWord(_)) { "1" } else { "" }
    }
}
