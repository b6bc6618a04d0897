//! The list of held keys on Redis: whoever holds them, found by `SCAN`.
//!
//! `SCAN` reports a key more than once if it likes, and in no order. So a page is the smallest
//! keys after the one before, out of a whole scan: in order, none twice, and none left out that
//! was held throughout. A page costs a walk over the keyspace; it is for people, not for code.

use std::collections::BTreeSet;
use std::time::Duration;
use std::time::Instant;

use async_trait::async_trait;
use tokio::time::timeout;

use crate::lock::error::Effect;
use crate::lock::error::StoreError;
use crate::lock::error::Verb;
use crate::lock::key::LockKey;
use crate::lock::lease::LockStatus;
use crate::lock::store::Page;
use crate::lock::store::Store;
use crate::store::redis::RedisStore;
use crate::store::redis::node::Node;
use crate::store::redis::node::failure;

/// How many names one `SCAN` looks at: about a millisecond of Redis' time.
const SCAN_COUNT: usize = 1_000;

/// A page that takes longer is given up: millions of keys are behind it.
const PAGE_DEADLINE: Duration = Duration::from_secs(20);

/// Keys that can be listed.
#[async_trait]
pub(in crate::store) trait Listed: Sync {
    /// The first `wanted` keys of a page that may be held.
    async fn names(&self, page: &Page, wanted: usize) -> Result<BTreeSet<LockKey>, StoreError>;

    /// How a key stands.
    async fn look(&self, key: &LockKey) -> Result<LockStatus, StoreError>;

    /// A page of the held keys.
    async fn page(&self, page: &Page) -> Result<Vec<LockStatus>, StoreError> {
        let found = timeout(PAGE_DEADLINE, self.held(page.clone())).await;
        let late = || failure(Verb::List, Effect::None, "the keyspace is too large for a list");
        found.unwrap_or_else(|_| Err(late()))
    }

    /// The same, however long it takes.
    async fn held(&self, mut page: Page) -> Result<Vec<LockStatus>, StoreError> {
        let mut held = Vec::new();
        loop {
            let wanted = page.limit - held.len();
            let names = self.names(&page, wanted).await?;
            for name in &names {
                let status = self.look(name).await?;
                held.extend(status.holder.is_some().then_some(status));
            }
            // Some may have ended since the scan; then the page is filled from behind them.
            page.after = names.last().map(LockKey::to_string);
            if names.len() < wanted || held.len() == page.limit {
                return Ok(held);
            }
        }
    }
}

#[async_trait]
impl Listed for RedisStore {
    async fn names(&self, page: &Page, wanted: usize) -> Result<BTreeSet<LockKey>, StoreError> {
        let until = Instant::now() + self.patience;
        let mut first = BTreeSet::new();
        for node in &self.topology.nodes(Verb::List, until).await? {
            first.append(&mut node.scan(&self.key_prefix, page, wanted).await?);
        }
        Ok(first.into_iter().take(wanted).collect())
    }

    async fn look(&self, key: &LockKey) -> Result<LockStatus, StoreError> {
        self.inspect(key, None).await
    }
}

impl Node {
    /// The first `wanted` keys of a page among all that there are under `key_prefix`.
    pub(in crate::store) async fn scan(
        &self,
        key_prefix: &str,
        page: &Page,
        wanted: usize,
    ) -> Result<BTreeSet<LockKey>, StoreError> {
        let pattern = format!("{}*", escaped(&format!("{key_prefix}{}", page.prefix)));
        let mut first = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut command = redis::cmd("SCAN");
            command.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_COUNT);
            let answer = self.query(Verb::List, &command).await?;
            let names: Vec<Vec<u8>>;
            (cursor, names) = redis::from_redis_value(answer)
                .map_err(|error| failure(Verb::List, Effect::None, error.to_string()))?;
            for key in names.iter().filter_map(|name| key_of(key_prefix, name)) {
                if page.after.as_deref().is_none_or(|after| key.as_str() > after) {
                    first.insert(key);
                }
                if first.len() > wanted {
                    first.pop_last();
                }
            }
            if cursor == "0" {
                return Ok(first);
            }
        }
    }
}

/// The key that a name on Redis stands for; none if the service could not have made it, as for
/// its own records.
fn key_of(key_prefix: &str, name: &[u8]) -> Option<LockKey> {
    let name = std::str::from_utf8(name).ok()?.strip_prefix(key_prefix)?;
    LockKey::parse(name).ok()
}

/// A text as a pattern that matches only itself.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}
