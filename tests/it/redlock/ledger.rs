//! What clients were told, held against what may be true: one holder at a time, and fencing tokens
//! that rise.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// All that the clients of a test were told.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pages: Mutex<HashMap<String, Page>>,
}

/// What is known of a key.
#[derive(Debug, Default)]
struct Page {
    holder: Option<Holder>,
    grants: Vec<Grant>,
}

#[derive(Debug)]
struct Holder {
    token: String,
    /// Until then nobody else may hold it, unless this one has given it up.
    until: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    sent: Instant,
    answered: Instant,
    fencing_token: u64,
}

impl Ledger {
    /// A client asked at `sent`, and was just told that it holds the key for `lasts`.
    pub(super) fn won(
        &self,
        key: &str,
        (token, fencing_token): (&str, u64),
        sent: Instant,
        lasts: Duration,
    ) {
        let mut pages = self.pages.lock().unwrap();
        let page = pages.entry(key.to_owned()).or_default();
        let answered = Instant::now();
        if let Some(holder) = &page.holder {
            let over = holder.token == token || holder.until <= answered;
            assert!(over, "{key} has two holders: {token}, {holder:?} at {answered:?}");
        }
        // Whoever holds it may count on no more than this.
        page.holder = Some(Holder { token: token.to_owned(), until: sent + lasts });
        page.grants.push(Grant { sent, answered, fencing_token });
    }

    /// A client goes on holding the key for `lasts`, as it was told after it asked at `sent`.
    pub(super) fn kept(&self, key: &str, token: &str, sent: Instant, lasts: Duration) {
        let mut pages = self.pages.lock().unwrap();
        if sent + lasts <= Instant::now() {
            return;
        }
        let Some(holder) = pages.get_mut(key).and_then(|page| page.holder.as_mut()) else { return };
        if holder.token == token {
            holder.until = sent + lasts;
        } else {
            panic!("{key} was refreshed by {token}, but {holder:?} has it");
        }
    }

    /// A client is about to give the key up, or has learnt that it lost it.
    pub(super) fn gives_up(&self, key: &str, token: &str) {
        let mut pages = self.pages.lock().unwrap();
        if let Some(page) = pages.get_mut(key)
            && page.holder.as_ref().is_some_and(|holder| holder.token == token)
        {
            page.holder = None;
        }
    }

    pub(super) fn grants(&self) -> usize {
        self.pages.lock().unwrap().values().map(|page| page.grants.len()).sum()
    }

    /// Asserts that whoever asked after another's answer got a greater fencing token, and that no
    /// two got the same. Gives the number of grants.
    pub(super) fn rises(&self) -> usize {
        let pages = self.pages.lock().unwrap();
        for (key, page) in &*pages {
            let mut grants = page.grants.clone();
            grants.sort_by_key(|grant| grant.answered);
            let mut most = 0;
            let greatest: Vec<_> = grants
                .iter()
                .map(|grant| {
                    most = most.max(grant.fencing_token);
                    most
                })
                .collect();
            for grant in &grants {
                let before = grants.partition_point(|other| other.answered < grant.sent);
                let known = before.checked_sub(1).map_or(0, |last| greatest[last]);
                let fencing_token = grant.fencing_token;
                assert!(fencing_token > known, "{key}: {fencing_token} came after {known}");
            }
            let mut all: Vec<_> = grants.iter().map(|grant| grant.fencing_token).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), grants.len(), "{key}: a fencing token came twice");
        }
        pages.values().map(|page| page.grants.len()).sum()
    }
}
