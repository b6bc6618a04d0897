//! Damage to the file of an embedded store: places, and bytes to put there. Whatever it is, the store
//! opens with all its leases, or says in one line what is wrong.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use lockkeeper::lock::key::LockKey;
use lockkeeper::lock::lease::{Acquired, Claim, Origin};
use lockkeeper::lock::locks::Locks;
use lockkeeper::lock::prefixes::Prefixes;
use lockkeeper::lock::time::Ttl;
use lockkeeper::lock::token::TokenMaker;
use lockkeeper::lock::waiting::WaitLimits;
use lockkeeper::metrics::Metrics;
use lockkeeper::store::embedded::{EmbeddedSettings, EmbeddedStore, OpenError};
use tokio::runtime::Runtime;

use super::directory;

const DAY: u64 = 86_400_000;
const KEYS: [&str; 4] = ["a", "b/c", "d e", "a key of some length, with an umlaut: \u{fc}"];

/// The file of a store with a lease on each of [`KEYS`].
static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let directory = directory();
    let locks = open(directory.path()).unwrap();
    for key in KEYS {
        assert!(acquire(&locks, key));
    }
    drop(locks);
    std::fs::read(directory.path().join("locks.sqlite")).unwrap()
});

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());

/// Damages a file as the input says, opens it, and panics if it is neither refused nor whole.
pub fn judge(input: &[u8]) {
    let mut file = WHOLE.clone();
    damage(&mut file, input);
    let directory = directory();
    std::fs::write(directory.path().join("locks.sqlite"), file).unwrap();
    match open(directory.path()) {
        Ok(locks) => {
            for key in KEYS {
                assert!(!acquire(&locks, key), "the lease on {key} is lost");
            }
            assert!(acquire(&locks, "new"));
        }
        Err(error) => {
            let said = error.to_string();
            assert!(!said.is_empty() && !said.contains('\n'), "{said}");
        }
    }
}

/// Each piece of the input is a place (3 bytes), a length, and so many bytes to put there; a length of 0
/// ends the file at the place.
fn damage(file: &mut Vec<u8>, mut input: &[u8]) {
    while let Some((&[a, b, c, length], rest)) = input.split_first_chunk() {
        let (place, length) = (u32::from_be_bytes([0, a, b, c]) as usize, usize::from(length));
        let (bytes, rest) = rest.split_at(length.min(rest.len()));
        input = rest;
        let place = place % (file.len() + 1);
        if length == 0 {
            file.truncate(place);
        }
        for (old, new) in file[place..].iter_mut().zip(bytes) {
            *old = *new;
        }
    }
}

fn open(directory: &Path) -> Result<Locks, OpenError> {
    let settings = EmbeddedSettings {
        position_kept: Ttl::from_millis(10_000),
        command_timeout: Duration::from_secs(30),
        prefixes: Prefixes::default(),
    };
    let store = EmbeddedStore::open(directory, settings, Arc::new(Metrics::for_embedded()))?;
    let limits = WaitLimits { per_key: 1, per_instance: 1, keys: 1 };
    Ok(Locks::new(Arc::new(store), limits))
}

/// Whether the key was free.
fn acquire(locks: &Locks, key: &str) -> bool {
    let claim = Claim {
        key: LockKey::parse(key).unwrap(),
        token: TokenMaker::new("").unwrap().make(),
        ttl: Ttl::from_millis(DAY),
        owner: None,
        origin: Origin::Client,
        slots: None,
        units: None,
        kept: false,
        named: None,
        permit: None,
    };
    let acquired = RUNTIME.block_on(locks.acquire(claim, Duration::ZERO)).unwrap();
    matches!(acquired, Acquired::Granted(_))
}
