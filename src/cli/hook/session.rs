//! What a session holds, between two calls: a file that only its user can read.
//!
//! A file beside it is locked while it is read and replaced, and not while the service is asked: tools
//! may be called side by side. A call that is killed leaves the old file or the new one. Without it
//! nothing is lost but time: the leases expire. The token of the session is not in there: it follows
//! from a secret of the directory, so that whichever call writes last, the token is the same.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, remove_file, rename};
use std::io;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::getuid;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::lock::key::LockKey;
use crate::lock::time::wall_clock_micros;
use crate::lock::token::{FencingToken, LeaseToken, TokenMaker};

/// The file that is locked. It has the secret from which the tokens follow.
const LOCK: &str = "lock";

#[derive(Debug)]
pub(super) struct Session {
    /// One for all keys of the session, so that a call that is repeated has its lease again.
    pub(super) token: LeaseToken,
    directory: PathBuf,
    name: String,
}

/// A key, and the number of its lease once it was granted.
pub(super) type SessionLease = (LockKey, Option<FencingToken>);

#[derive(Debug, Default, Deserialize, Serialize)]
struct State {
    leases: BTreeMap<String, Known>,
}

/// What the calls of a session know of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Known {
    /// The fencing token; none from a call that asks for the key until one is granted it, and once
    /// the lease is lost.
    number: Option<u64>,
    /// When it was renewed, in microseconds of the wall clock.
    renewed_us: u64,
    /// Of a key without a number: the lease was lost, or a call was refused it or not answered. A
    /// call that has no answer yet changes nothing.
    missed: bool,
}

impl Known {
    /// Returns true if another session may have had the key before the lease with this number.
    pub(super) fn was_another(self, number: FencingToken) -> bool {
        self.number.map_or(self.missed, |before| before != number.number())
    }
}

impl Session {
    /// The session of a harness with a service.
    pub(super) fn of(id: &str, url: &str, maker: &TokenMaker) -> Result<Self, String> {
        Self::within(directory()?, &format!("{url}\n{id}"), maker)
    }

    fn within(directory: PathBuf, id: &str, maker: &TokenMaker) -> Result<Self, String> {
        let failed = |error| format!("cannot keep a session in {}: {error}", directory.display());
        let secret = secret(&directory, maker).map_err(failed)?;
        let name = format!("{:032x}", digest(id));
        let token = maker.of_digest(digest(&format!("{secret}\n{name}")));
        Ok(Self { token, directory, name })
    }

    /// Notes that the session asks for a key, and returns what its earlier calls know.
    pub(super) fn asks(&self, key: &LockKey) -> Result<Known, String> {
        self.change(|state| *state.leases.entry(key.as_str().to_owned()).or_default())
    }

    /// Notes that a call was refused the key or not answered.
    pub(super) fn missed(&self, key: &LockKey) -> Result<(), String> {
        self.change(|state| {
            let known = state.leases.get_mut(key.as_str());
            known.into_iter().for_each(|known| known.missed = true);
        })
    }

    /// Notes a grant.
    pub(super) fn granted(&self, key: &LockKey, number: FencingToken) -> Result<(), String> {
        let number = Some(number.number());
        let known = Known { number, renewed_us: wall_clock_micros(), missed: false };
        self.change(|state| {
            state.leases.insert(key.as_str().to_owned(), known);
        })
    }

    /// Notes that leases last for their whole TTL again, and that others were lost.
    pub(super) fn renewed(
        &self,
        renewed: &[SessionLease],
        lost: &[SessionLease],
    ) -> Result<(), String> {
        let now = wall_clock_micros();
        self.change(|state| {
            for lease in renewed {
                state.known(lease).into_iter().for_each(|known| known.renewed_us = now);
            }
            for lease in lost {
                let known = state.known(lease).into_iter();
                known.for_each(|known| (known.number, known.missed) = (None, true));
            }
        })
    }

    /// The leases that were not renewed for so long, but for this one.
    pub(super) fn due(
        &self,
        but: Option<&LockKey>,
        after: Duration,
    ) -> Result<Vec<SessionLease>, String> {
        let now = wall_clock_micros();
        let is_due = |key: &str, known: &Known| {
            // The clock was set back since a renewal in the future.
            let age = now.checked_sub(known.renewed_us).map_or(after, Duration::from_micros);
            but.is_none_or(|but| key != but.as_str()) && known.number.is_some() && age >= after
        };
        self.change(|state| state.held(is_due))
    }

    /// All that the session has, or asks for.
    pub(super) fn held(&self) -> Result<Vec<SessionLease>, String> {
        self.change(|state| state.held(|_, _| true))
    }

    /// Forgets leases that were released, unless a later one has come meanwhile.
    pub(super) fn forget(&self, leases: &[SessionLease]) -> Result<(), String> {
        self.change(|state| {
            for lease in leases {
                if state.known(lease).is_some() {
                    state.leases.remove(lease.0.as_str());
                }
            }
        })
    }

    /// Reads the file, changes what it has, and replaces it. A damaged one is an empty one.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> Result<T, String> {
        let path = self.directory.join(&self.name);
        let failed = |error| format!("cannot keep the session in {}: {error}", path.display());
        let lock = opened(&self.directory.join(LOCK)).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let before = read(&path).map_err(failed)?;
        let mut state = serde_json::from_str(&before).unwrap_or_default();
        let done = change(&mut state);
        let after = serde_json::to_string(&state).map_err(|error| error.to_string())?;
        if state.leases.is_empty() {
            gone(remove_file(&path)).map_err(failed)?;
        } else if after != before {
            let new = self.directory.join(format!("{}.new", self.name));
            gone(remove_file(&new)).map_err(failed)?; // Of a call that was killed.
            opened(&new).and_then(|mut file| file.write_all(after.as_bytes())).map_err(failed)?;
            rename(&new, &path).map_err(failed)?;
        }
        Ok(done)
    }
}

impl State {
    /// What is known of a lease, unless a later one of its key has come meanwhile.
    fn known(&mut self, (key, number): &SessionLease) -> Option<&mut Known> {
        let known = self.leases.get_mut(key.as_str());
        known.filter(|known| known.number == number.map(FencingToken::number))
    }

    /// Those of its leases.
    fn held(&self, which: impl Fn(&str, &Known) -> bool) -> Vec<SessionLease> {
        let those = self.leases.iter().filter(|(key, known)| which(key, known));
        let lease = |(key, known): (&String, &Known)| {
            Some((LockKey::parse(key).ok()?, known.number.and_then(FencingToken::from_number)))
        };
        those.filter_map(lease).collect()
    }
}

/// The secret of a directory, made by the first call.
fn secret(directory: &Path, maker: &TokenMaker) -> io::Result<String> {
    let mut file = opened(&directory.join(LOCK))?;
    file.lock()?;
    let mut secret = String::new();
    file.read_to_string(&mut secret)?;
    if secret.is_empty() {
        maker.make().expose().clone_into(&mut secret);
        file.write_all(secret.as_bytes())?;
    }
    Ok(secret)
}

fn digest(text: &str) -> u128 {
    Sha256::digest(text).iter().take(16).fold(0, |all, byte| all << 8 | u128::from(*byte))
}

/// A file of this user alone, and not the target of a link.
fn opened(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)
}

/// What a file has; nothing if there is none.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path);
    match file {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(text),
        file => _ = file?.read_to_string(&mut text)?,
    }
    Ok(text)
}

/// The outcome of a removal: a file that is gone already is removed.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::time::Duration;

    use super::Session;
    use crate::lock::sample::{key, number, token};
    use crate::lock::token::TokenMaker;

    fn session(directory: &Path) -> Session {
        Session { token: token("one"), directory: directory.to_owned(), name: "one".to_owned() }
    }

    #[test]
    fn a_session_knows_its_leases_until_they_are_released() {
        let directory = tempfile::tempdir().unwrap();
        let session = session(directory.path());
        assert_eq!(session.held(), Ok(vec![]));
        for on in ["a", "b"] {
            let before = session.asks(&key(on)).unwrap();
            assert_eq!(session.asks(&key(on)), Ok(before), "it has got nothing");
            assert!(!before.was_another(number(7)), "the call before may go on");
        }
        session.missed(&key("a")).unwrap();
        assert!(session.asks(&key("a")).unwrap().was_another(number(7)));
        assert_eq!(session.granted(&key("a"), number(7)), Ok(()));
        let before = session.asks(&key("a")).unwrap();
        assert!(!before.was_another(number(7)) && before.was_another(number(8)));
        let all = vec![(key("a"), Some(number(7))), (key("b"), None)];
        for _ in 0..2 {
            assert_eq!(session.held(), Ok(all.clone()), "it is not taken");
        }
        session.forget(&[(key("a"), Some(number(6)))]).unwrap();
        assert_eq!(session.held(), Ok(all.clone()), "a later lease has come");
        session.forget(&all).unwrap();
        assert_eq!(session.held(), Ok(vec![]));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "the lock alone");
        // Answers to calls that met the end.
        session.renewed(&all, &[]).unwrap();
        assert_eq!(session.held(), Ok(vec![]));
        assert_eq!(session.granted(&key("b"), number(8)), Ok(()));
        assert_eq!(session.held(), Ok(vec![(key("b"), Some(number(8)))]));
    }

    #[test]
    fn a_session_has_one_token_whatever_became_of_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let of = |id| {
            let maker = TokenMaker::new("shop-").unwrap();
            Session::within(directory.path().to_owned(), id, &maker).unwrap()
        };
        let one = of("one");
        one.asks(&key("a")).unwrap();
        one.forget(&[(key("a"), None)]).unwrap();
        assert_eq!(of("one").token, one.token);
        assert!(one.token.expose().starts_with("shop-"));
        assert_ne!(of("two").token, one.token);
        fs::remove_file(directory.path().join("lock")).unwrap();
        assert_ne!(of("one").token, one.token, "it is a secret");
    }

    #[test]
    fn a_lease_that_was_lost_is_renewed_no_more_and_its_file_may_have_changed() {
        let directory = tempfile::tempdir().unwrap();
        let session = session(directory.path());
        session.granted(&key("a"), number(7)).unwrap();
        let lease = [(key("a"), Some(number(7)))];
        let due = || session.due(None, Duration::ZERO).unwrap();
        session.renewed(&lease, &[]).unwrap();
        assert_eq!(due(), lease);
        session.renewed(&[], &lease).unwrap();
        assert_eq!(due(), []);
        assert_eq!(session.held(), Ok(vec![(key("a"), None)]));
        assert!(session.asks(&key("a")).unwrap().was_another(number(8)));
    }

    #[test]
    fn a_lease_that_was_renewed_before_the_clock_was_set_back_is_due() {
        let directory = tempfile::tempdir().unwrap();
        let session = session(directory.path());
        session.granted(&key("a"), number(7)).unwrap();
        let due = || session.due(None, Duration::from_secs(60)).unwrap().len();
        assert_eq!(due(), 0);
        let ahead = |state: &mut super::State| {
            state.leases.values_mut().for_each(|known| known.renewed_us += 3_600_000_000);
        };
        session.change(ahead).unwrap();
        assert_eq!(due(), 1);
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        fs::write(&target, "kept").unwrap();
        for name in ["lock", "one", "one.new"] {
            symlink(&target, directory.path().join(name)).unwrap();
            let asked = session(directory.path()).asks(&key("a"));
            assert_eq!(asked.is_err(), name != "one.new", "{name}: {asked:?}");
            assert_eq!(fs::read_to_string(&target).unwrap(), "kept", "{name}");
            let _ = fs::remove_file(directory.path().join(name));
        }
    }
}
