//! The list of held keys on Redis, found by `SCAN`.
//!
//! `SCAN` may report a key more than once, in any order. So a page is the smallest keys after the
//! previous page, out of a whole scan: in order, without duplicates, and with every key that was
//! held throughout. A page scans the whole keyspace; it is for people, not for code.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use tokio::time::timeout;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::LockStatus;
use crate::lock::store::{Listing, Page};
use crate::store::redis::node::{Node, failure};
use crate::store::redis::refusal::is_moving;

/// The names that one `SCAN` looks at: about a millisecond of Redis' time.
const SCAN_COUNT: usize = 1_000;

/// The time limit of a page: beyond it there are millions of keys.
const PAGE_DEADLINE: Duration = Duration::from_secs(20);

/// The keys looked at together: enough to hide the round trip, and few enough to be answered within
/// one call's time limit.
const LOOKS_AT_ONCE: usize = 8;

/// A store whose keys can be listed.
#[async_trait]
pub(in crate::store) trait Listed: Sync {
    /// The first `wanted` keys of a page that may be held.
    async fn names(&self, page: &Page, wanted: usize) -> Result<BTreeSet<LockKey>, StoreError>;

    async fn status_of(&self, key: &LockKey) -> Result<LockStatus, StoreError>;

    /// A page of the held keys.
    async fn page(&self, page: &Page) -> Result<Listing, StoreError> {
        let found = timeout(PAGE_DEADLINE, self.held(page.clone())).await;
        let reason = "the list took too long: Redis has too many keys, or others list as well";
        let late = || failure(Verb::List, Effect::None, reason);
        found.unwrap_or_else(|_| Err(late()))
    }

    /// A page of the held keys, without a time limit.
    async fn held(&self, mut page: Page) -> Result<Listing, StoreError> {
        let mut listing = Listing::complete(Vec::new());
        loop {
            let wanted = page.limit - listing.locks.len();
            let names = self.names(&page, wanted).await?;
            let looks = names.iter().map(|name| self.status_of(name)).collect::<Vec<_>>();
            let mut looks = stream::iter(looks).buffered(LOOKS_AT_ONCE);
            while let Some(looked) = looks.next().await {
                match looked {
                    Ok(status) => listing.locks.extend(status.holder.is_some().then_some(status)),
                    Err(error) if is_moving(&error) => listing.incomplete = true,
                    Err(error) => return Err(error),
                }
            }
            // Some may have ended since the scan; the page is filled up after them.
            page.after = names.last().map(LockKey::to_string);
            if names.len() < wanted || listing.locks.len() == page.limit {
                return Ok(listing);
            }
        }
    }
}

/// The first `wanted` keys of a page among all under `key_prefix` on a node, once earlier scans of it
/// have ended.
pub(in crate::store) async fn scan(
    node: &Node,
    key_prefix: &str,
    page: &Page,
    wanted: usize,
) -> Result<BTreeSet<LockKey>, StoreError> {
    let mut connection = node.rare().await.map_err(|error| error.of(Verb::List))?;
    let pattern = format!("{}*", escaped(&format!("{key_prefix}{}", common_prefix(page))));
    let mut first = BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let mut command = redis::cmd("SCAN");
        command.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_COUNT);
        let answer = node.query(&mut connection, &command).await;
        let answer = answer.map_err(|error| error.of(Verb::List))?;
        let names: Vec<Vec<u8>>;
        (cursor, names) = redis::from_redis_value(answer)
            .map_err(|error| failure(Verb::List, Effect::None, error.to_string()))?;
        for key in names.iter().filter_map(|name| key_of(key_prefix, name)) {
            let follows = page.after.as_deref().is_none_or(|after| key.as_str() > after);
            if follows && page.covers(&key) {
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

/// The common prefix of all keys of a page.
fn common_prefix(page: &Page) -> &str {
    // In byte order all prefixes lie between the first and the last.
    let (Some(first), Some(last)) = (page.prefixes.first(), page.prefixes.last()) else {
        return "";
    };
    let same = first.char_indices().zip(last.chars()).take_while(|((_, one), other)| one == other);
    let end = same.last().map_or(0, |((at, letter), _)| at + letter.len_utf8());
    &first[..end]
}

/// The key of a name on Redis; `None` if the service could not have made it, as for its own
/// records.
fn key_of(key_prefix: &str, name: &[u8]) -> Option<LockKey> {
    let name = std::str::from_utf8(name).ok()?.strip_prefix(key_prefix)?;
    LockKey::parse(name).ok()
}

/// A pattern that matches only this text.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;

    use super::{LOOKS_AT_ONCE, Listed, common_prefix};
    use crate::lock::error::StoreError;
    use crate::lock::key::LockKey;
    use crate::lock::lease::{Holder, LockStatus};
    use crate::lock::store::Page;

    /// Keys of which every second one is free by the time it is looked at.
    #[derive(Default)]
    struct Toy {
        looking: AtomicUsize,
        most: AtomicUsize,
    }

    #[async_trait]
    impl Listed for Toy {
        async fn names(&self, page: &Page, wanted: usize) -> Result<BTreeSet<LockKey>, StoreError> {
            let keys = (100..500).map(|number| LockKey::parse(&number.to_string()).unwrap());
            let after = |key: &LockKey| page.after.as_deref().is_none_or(|at| key.as_str() > at);
            Ok(keys.filter(after).take(wanted).collect())
        }

        async fn status_of(&self, key: &LockKey) -> Result<LockStatus, StoreError> {
            let looking = self.looking.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(looking, Ordering::Relaxed);
            tokio::task::yield_now().await;
            self.looking.fetch_sub(1, Ordering::Relaxed);
            let held = key.as_str().ends_with(['0', '2', '4', '6', '8']);
            let holder = held.then(Holder::default);
            Ok(LockStatus {
                key: key.clone(),
                holder,
                sharers: None,
                waiters: 0,
                line: Vec::new(),
                mine: None,
            })
        }
    }

    fn page(prefixes: &[&str], limit: usize) -> Page {
        let prefixes = prefixes.iter().map(|&prefix| prefix.to_owned()).collect();
        Page { prefixes, after: None, limit }
    }

    #[tokio::test]
    async fn the_keys_of_a_page_are_looked_at_together_but_not_all_at_once() {
        let toy = Toy::default();
        let held = toy.page(&page(&[""], 150)).await.unwrap();
        let names: Vec<_> = held.locks.iter().map(|status| status.key.to_string()).collect();
        let expected: Vec<_> = (100..400).step_by(2).map(|number| number.to_string()).collect();
        assert_eq!(names, expected);
        assert_eq!(toy.most.into_inner(), LOOKS_AT_ONCE);
    }

    #[test]
    fn one_walk_finds_what_begins_with_any_of_the_prefixes() {
        assert_eq!(common_prefix(&page(&["shop/a", "shop/b", "shop/b/c"], 1)), "shop/");
        assert_eq!(common_prefix(&page(&["shop/"], 1)), "shop/");
        assert_eq!(common_prefix(&page(&["a", "b"], 1)), "");
        assert_eq!(common_prefix(&page(&["é", "è"], 1)), "");
        assert_eq!(common_prefix(&page(&[], 1)), "");
    }
}
