//! What a session holds, between two calls: a file that only its user can read.
//!
//! The file is locked while it is read and written, and not while the service is asked: tools may be
//! called side by side. Without it nothing is lost but time: the leases expire.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, remove_file};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::getuid;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::lock::key::LockKey;
use crate::lock::time::wall_clock_micros;
use crate::lock::token::{FencingToken, LeaseToken};

#[derive(Debug)]
pub(super) struct Session {
    name: String,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct State {
    /// One for all keys of the session, so that a call that is repeated has its lease again.
    token: String,
    leases: BTreeMap<String, Known>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Known {
    /// The fencing token; none before the first grant.
    number: Option<u64>,
    /// When it was renewed, in microseconds of the wall clock.
    renewed_us: u64,
    /// Another session had the key when this one last asked.
    #[serde(default)]
    was_refused: bool,
}

impl Known {
    fn now(number: FencingToken) -> Self {
        let renewed_us = wall_clock_micros();
        Self { number: Some(number.number()), renewed_us, was_refused: false }
    }
}

/// The number of a lease, if it was granted.
type Number = Option<FencingToken>;

impl Session {
    /// The session of a harness with a service.
    pub(super) fn of(id: &str, url: &str) -> Self {
        let digest = Sha256::digest(format!("{url}\n{id}"));
        Self { name: digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect() }
    }

    /// The session's token, now that it asks for a key.
    pub(super) fn token_for(
        &self,
        key: &LockKey,
        new: impl FnOnce() -> Result<LeaseToken, String>,
    ) -> Result<LeaseToken, String> {
        self.change(|state| {
            if state.token.is_empty() {
                state.token = new()?.expose().to_owned();
            }
            state.leases.entry(key.as_str().to_owned()).or_default();
            LeaseToken::parse(&state.token).map_err(|error| error.to_string())
        })
    }

    /// Notes a grant. Returns true if another session may have had the key since this one last did,
    /// or since it was refused.
    pub(super) fn granted(&self, key: &LockKey, number: FencingToken) -> Result<bool, String> {
        self.change(|state| {
            let known = state.leases.entry(key.as_str().to_owned()).or_default();
            let is_another = known.number.is_some_and(|before| before != number.number());
            let may_have_changed = is_another || known.was_refused;
            *known = Known::now(number);
            Ok(may_have_changed)
        })
    }

    /// Notes that another session had the key.
    pub(super) fn refused(&self, key: &LockKey) -> Result<(), String> {
        self.change(|state| {
            state.leases.entry(key.as_str().to_owned()).or_default().was_refused = true;
            Ok(())
        })
    }

    /// Notes that a lease lasts for its whole TTL again.
    pub(super) fn renewed(&self, key: &LockKey, number: FencingToken) -> Result<(), String> {
        self.change(|state| {
            state.leases.insert(key.as_str().to_owned(), Known::now(number));
            Ok(())
        })
    }

    /// The leases that were not renewed for so long, but for this one.
    pub(super) fn due(
        &self,
        but: &LockKey,
        after: Duration,
    ) -> Result<Vec<(LockKey, FencingToken)>, String> {
        let now = wall_clock_micros();
        self.change(|state| {
            let due = state.leases.iter().filter(|(key, known)| {
                let age = Duration::from_micros(now.saturating_sub(known.renewed_us));
                *key != but.as_str() && age >= after
            });
            let lease = |(key, known): (&String, &Known)| {
                Some((LockKey::parse(key).ok()?, FencingToken::from_number(known.number?)?))
            };
            Ok(due.filter_map(lease).collect())
        })
    }

    /// Takes the token and the leases, and forgets them; `None` if the session has none.
    #[expect(clippy::type_complexity, reason = "a token, and keys with their numbers")]
    pub(super) fn take(&self) -> Result<Option<(LeaseToken, Vec<(LockKey, Number)>)>, String> {
        let path = directory()?.join(&self.name);
        if !path.exists() {
            return Ok(None);
        }
        let state = self.change(|state| Ok(std::mem::take(state)))?;
        // A call that has opened it by now writes to a file without a name: its lease expires.
        let _ = remove_file(path);
        let Ok(token) = LeaseToken::parse(&state.token) else { return Ok(None) };
        let lease = |(key, known): (String, Known)| {
            Some((LockKey::parse(&key).ok()?, known.number.and_then(FencingToken::from_number)))
        };
        Ok(Some((token, state.leases.into_iter().filter_map(lease).collect())))
    }

    /// Reads the file, changes what it has, and writes it again. A damaged one is an empty one.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> Result<T, String>) -> Result<T, String> {
        let path = directory()?.join(&self.name);
        let failed = |error| format!("cannot keep the session in {}: {error}", path.display());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file: File = options.open(&path).map_err(failed)?;
        file.lock().map_err(failed)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        let mut state = serde_json::from_str(&text).unwrap_or_default();
        let done = change(&mut state)?;
        let text = serde_json::to_vec(&state).map_err(|error| error.to_string())?;
        file.rewind().and_then(|()| file.set_len(0)).map_err(failed)?;
        file.write_all(&text).map_err(failed)?;
        Ok(done)
    }
}

/// The directory of the sessions, which is this user's alone.
fn directory() -> Result<PathBuf, String> {
    let user = getuid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty());
    let path = match runtime {
        Some(runtime) => PathBuf::from(runtime).join("lockkeeper"),
        None => std::env::temp_dir().join(format!("lockkeeper-{user}")),
    };
    let failed = |error| format!("cannot keep a session in {}: {error}", path.display());
    DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed)?;
    let found = path.symlink_metadata().map_err(failed)?;
    let is_ours = found.is_dir() && found.uid() == user.as_raw();
    match is_ours && found.permissions().mode() & 0o077 == 0 {
        true => Ok(path),
        false => Err(format!("{} belongs to others too: set XDG_RUNTIME_DIR", path.display())),
    }
}
