//! The names of a lock's keys on Redis.
//!
//! The lock is `<key_prefix><key>`, the key that an application on Redis directly would use. Its
//! record, and while clients wait its line, the line's crew and who is in it, and while leases share
//! the lock their ends and the facts of each, are beside it in the same Cluster slot. Redis finds the
//! lock's slot from its name, with the user's braces; a tag made of that name would often land
//! elsewhere. So the other names' tag comes from a table with one short text for each slot.

use std::sync::LazyLock;

use crc::{CRC_16_XMODEM, Crc};

use crate::lock::key::LockKey;

/// The prefix of all names beside locks. No lock has it: a [`LockKey`] has no empty segment, and a
/// `key_prefix` that begins with it is refused.
pub(in crate::store) const SIDE_PREFIX: &str = "lk//";

pub(super) const SLOTS: usize = 16_384;
const SLOT_HASH: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The shortest text of letters and digits for each slot that hashes to it.
static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut tags = vec![String::new(); SLOTS];
    let mut missing = SLOTS;
    for number in 0.. {
        if missing == 0 {
            break;
        }
        let text = base36(number);
        let tag = &mut tags[hash(text.as_bytes())];
        if tag.is_empty() {
            *tag = text;
            missing -= 1;
        }
    }
    tags
});

/// Makes the table of tags now: the deadline of a call does not wait for it.
pub(super) fn make_tags() {
    LazyLock::force(&TAGS);
}

/// The names of one lock's keys.
#[derive(Debug)]
pub(in crate::store) struct Keys {
    /// The lock itself.
    pub(super) lock: String,
    record: String,
    line: String,
    crew: String,
    who: String,
    share: String,
    facts: String,
    /// The prefix of the names beside the lock, with its slot's tag.
    beside: String,
}

impl Keys {
    /// The names of `key` under the configured prefix.
    pub(in crate::store) fn of(key_prefix: &str, key: &LockKey) -> Self {
        let lock = [key_prefix, key.as_str()].concat();
        let beside = [SIDE_PREFIX, "{", &TAGS[slot(lock.as_bytes())], "}"].concat();
        let named = |kind| [beside.as_str(), kind, &lock].concat();
        let [record, line, crew, who, share, facts] =
            ["", "/line//", "/crew//", "/who//", "/share//", "/facts//"].map(named);
        Self { lock, record, line, crew, who, share, facts, beside }
    }

    /// A key in the lock's slot that may be written at any time and is never read.
    pub(super) fn mark(&self) -> String {
        format!("{}/mark", self.beside)
    }

    /// All names in the order of the scripts.
    pub(in crate::store) fn all(&self) -> [&str; 7] {
        let Self { lock, record, line, crew, who, share, facts, .. } = self;
        [lock, record, line, crew, who, share, facts]
    }
}

/// An evenly spread number of the key, which selects its shared connection.
pub(super) fn spread(lock: &str) -> usize {
    hash(lock.as_bytes())
}

/// The Cluster slot of a key: the hash of the text between the first `{` and the next `}`, or of
/// the whole key if there is none.
pub(super) fn slot(key: &[u8]) -> usize {
    let tagged = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let length = key[open + 1..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[open + 1..=open + length])
    });
    hash(tagged.unwrap_or(key))
}

fn hash(bytes: &[u8]) -> usize {
    usize::from(SLOT_HASH.checksum(bytes)) % SLOTS
}

fn base36(mut number: u32) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(char::from_digit(number % 36, 36).expect("a digit below 36"));
        number /= 36;
        if number == 0 {
            return digits.into_iter().rev().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::any;
    use proptest::{prop_assert_eq, proptest};

    use super::{Keys, TAGS, slot};
    use crate::lock::key::LockKey;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo{hash_tag}"), 2_515);
        assert_eq!(slot(b"bar{hash_tag}"), 2_515);
        assert_ne!(slot(b"foo{}{hash_tag}"), 2_515);
    }

    #[test]
    fn every_slot_has_a_tag_of_its_own() {
        for (expected, tag) in TAGS.iter().enumerate() {
            assert_eq!(slot(tag.as_bytes()), expected);
        }
    }

    proptest! {
        #[test]
        fn the_data_beside_a_lock_is_in_its_slot(
            text in "[ab{}:/é]{1,12}",
            prefixed in any::<bool>(),
        ) {
            if let Ok(key) = LockKey::parse(&text) {
                let keys = Keys::of(if prefixed { "lock:" } else { "" }, &key);
                let mark = keys.mark();
                for beside in keys.all().into_iter().chain([mark.as_str()]) {
                    prop_assert_eq!(slot(keys.lock.as_bytes()), slot(beside.as_bytes()));
                }
            }
        }
    }
}
