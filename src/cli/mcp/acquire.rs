//! The tool `acquire`: a claim of one key or several, and what came of it.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use futures_util::future::join_all;
use rmcp::RoleServer;
use rmcp::model::ProgressNotificationParam;
use rmcp::service::RequestContext;
use serde::Deserialize;
use tokio::time::sleep;

use crate::cli::claimant::{Claimant, Progress};
use crate::cli::clock::Moment;
use crate::cli::exit::Failure;
use crate::cli::mcp::lease::Lease;
use crate::cli::mcp::session::{AgentSession, MOST_LEASES};
use crate::cli::mcp::told::Told;
use crate::cli::mcp::words;
use crate::cli::remote::key;
use crate::cli::terminal::plain;
use crate::cli::voice::Voice;
use crate::cli::{exit, owner};
use crate::client::{Granted, Wish};
use crate::lock::key::LockKey;
use crate::lock::lease::Owner;
use crate::lock::slots::{Share, Slots};
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::wire::StatusBody;

/// The longest wait, in seconds: shorter than the minute for which harnesses wait for an answer.
pub(super) const MOST_WAIT: f64 = 50.0;

/// The most keys of one claim, as the service has it.
pub(super) const MOST_KEYS: usize = 16;

/// The longest purpose: it is a part of an owner.
const MOST_OF_A_PURPOSE: usize = 200;

/// The pause between two notifications of progress, from the beginning of the wait on.
const TELL: Duration = Duration::from_secs(1);

/// Agents of one session share its server, so a key that it has may be another one's.
const ALREADY: &str = "It stays so until it is released. If that is not your own work, another \
                       agent of this session does it now: do not do yours beside it.";

/// What the model asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AcquireCall {
    key: Option<String>,
    keys: Option<Vec<String>>,
    purpose: String,
    wait_seconds: f64,
    shared: bool,
    slots: Option<u16>,
    units: Option<u16>,
}

/// A claim as the service is asked.
struct Asked {
    keys: Vec<LockKey>,
    share: Option<Share>,
    purpose: String,
    wait: Duration,
}

impl AcquireCall {
    fn parse(self) -> Result<Asked, String> {
        let keys = match (self.key, self.keys) {
            (Some(key), None) => vec![key],
            (None, Some(keys)) if !keys.is_empty() => keys,
            _ => return Err("name one `key`, or several in `keys`".to_owned()),
        };
        let mut keys = keys.iter().map(|text| key(text)).collect::<Result<Vec<_>, _>>()?;
        keys.sort();
        keys.dedup();
        if keys.len() > MOST_KEYS {
            return Err(format!("name at most {MOST_KEYS} `keys` in one call"));
        }
        let purpose = self.purpose.split_whitespace().collect::<Vec<_>>().join(" ");
        if purpose.is_empty() {
            return Err("say in `purpose` what you need it for: others read it".to_owned());
        }
        if purpose.len() > MOST_OF_A_PURPOSE {
            return Err(format!("`purpose` has to be at most {MOST_OF_A_PURPOSE} bytes long"));
        }
        // Quotation marks end it where it is told.
        let purpose = plain(&purpose).replace('"', "'");
        if !(0.0..).contains(&self.wait_seconds) {
            return Err(format!("`wait_seconds` has to be 0 to {MOST_WAIT}"));
        }
        let share = share(self.shared, self.slots, self.units)?;
        let wait = Duration::from_secs_f64(self.wait_seconds.min(MOST_WAIT));
        Ok(Asked { keys, share, purpose, wait })
    }
}

fn share(shared: bool, slots: Option<u16>, units: Option<u16>) -> Result<Option<Share>, String> {
    let units = units.filter(|units| *units != 1);
    let number = match (shared, slots, units) {
        (true, None, None) => return Ok(Some(Share { slots: Slots::SHARED, ..Share::ALONE })),
        (true, ..) => return Err("`shared` stands without `slots` and `units`".to_owned()),
        (false, None, None) => return Ok(None),
        (false, None, Some(_)) => return Err("`units` are of `slots`: name both".to_owned()),
        (false, Some(number), _) => number,
    };
    let known = Slots::from_number(number.into()).filter(|slots| *slots <= Slots::MOST);
    let slots = known.ok_or("`slots` have to be 1 to 1000")?;
    let units = units.unwrap_or(1);
    match slots.has(units) {
        true => Ok(Some(Share { slots, units, slot: None })),
        false => Err("`units` have to be 1 to all of the `slots`".to_owned()),
    }
}

/// Acquires what is asked for, or says who has it. An error is for the model: its call is wrong, or
/// the service does not answer.
pub(super) async fn acquire(
    session: &AgentSession,
    asked: AcquireCall,
    call: &RequestContext<RoleServer>,
) -> Result<Told, String> {
    let mut asked = asked.parse()?;
    let about = asked.keys.clone();
    let mut had = Vec::new();
    if asked.keys.iter().any(|key| session.lease(key).is_some()) {
        session.check().await;
        for key in &asked.keys {
            let Some(lease) = session.lease(key) else { continue };
            if lease.share.map(alike) != asked.share.map(alike) {
                let text = format!(
                    "Not acquired: this session has '{key}' already, with another share. Release \
                     it first."
                );
                return Ok(text.into());
            }
            had.push(words::own(key, &lease));
        }
        asked.keys.retain(|key| session.lease(key).is_none());
    }
    if asked.keys.is_empty() {
        let text = format!("{} {ALREADY}", had.join(" "));
        return Ok(Told { text, about, acquired: Vec::new() });
    }
    if session.leases().len() + asked.keys.len() > MOST_LEASES {
        return Err(format!("a session has at most {MOST_LEASES} locks: release some first"));
    }
    let _claimed = match session.claim(asked.keys.clone()) {
        Ok(claimed) => claimed,
        Err(key) => {
            let text = format!(
                "Not acquired: another call of this session is waiting for '{key}', or was \
                 cancelled just now. Wait for its answer, or call again."
            );
            return Ok(text.into());
        }
    };
    let (told, acquired) = claim(session, &asked, call).await?;
    if !had.is_empty() {
        had.push(ALREADY.to_owned());
    }
    had.push(told);
    Ok(Told { text: had.join(" "), about, acquired })
}

/// A share without the slot that was granted.
fn alike(share: Share) -> (u16, u16) {
    (share.slots.number(), share.units)
}

/// What came of a claim, and the leases that it acquired.
async fn claim(
    session: &AgentSession,
    asked: &Asked,
    call: &RequestContext<RoleServer>,
) -> Result<(String, Vec<(LockKey, FencingToken)>), String> {
    let claimant = claimant(session, asked, call)?;
    let began = Moment::now();
    let acquired = tokio::select! {
        biased;
        () = call.ct.cancelled() => None,
        () = session.ending.cancelled() => None,
        acquired = claimant.acquire(Some(asked.wait)) => Some(acquired),
        never = progress(&claimant, asked.wait, began, call) => match never {},
    };
    let Some(acquired) = acquired else {
        claimant.withdraw().await;
        return Ok(("Not acquired: the call was cancelled.".to_owned(), Vec::new()));
    };
    match acquired {
        Ok((sent, granted)) => {
            let leases = leases(session, asked, &claimant, (sent, &granted));
            let told = words::acquired(&leases, began, granted.capped);
            let acquired = leases.iter().map(|(key, lease)| (key.clone(), lease.number)).collect();
            session.add(leases);
            Ok((told, acquired))
        }
        Err(Failure { code: exit::BUSY, .. }) => {
            let waited = !asked.wait.is_zero();
            if waited {
                session.keep_place(name(asked), claimant.token);
            }
            let looks = asked.keys.iter().map(|key| session.client.inspect(key, None));
            let looks = join_all(looks).await.into_iter().flatten();
            let states = looks.filter_map(|body| serde_json::from_str::<StatusBody>(&body).ok());
            Ok((words::busy(&states.collect::<Vec<_>>(), waited), Vec::new()))
        }
        Err(Failure { code: exit::LOST, why }) => Ok((format!("Not acquired: {why}."), Vec::new())),
        Err(Failure { code: exit::UNREACHABLE, why }) => Err(words::unreachable(&why)),
        Err(Failure { why, .. }) => Err(format!("Not acquired: {why}.")),
    }
}

fn claimant(
    session: &AgentSession,
    asked: &Asked,
    call: &RequestContext<RoleServer>,
) -> Result<Claimant, String> {
    let client = call.client_info().map(|client| client.name).unwrap_or_default();
    let who = session.owner.clone().unwrap_or_else(|| owner::ourselves_at_length(&client));
    let token = session.take_place(&name(asked)).map_or_else(|| session.remote.new_token(), Ok)?;
    let mut keys = asked.keys.iter().cloned();
    Ok(Claimant {
        client: session.client.clone(),
        key: keys.next().ok_or("name a key")?,
        also: keys.map(|key| (key, asked.share)).collect(),
        token,
        wish: Wish {
            ttl: Some(Ttl::lasting(session.ttl)),
            owner: Owner::shortened(&format!("{who}: {}", asked.purpose)),
            share: asked.share,
        },
        voice: Voice::Quiet,
        progress: Progress::default(),
    })
}

/// What a claim asks for, without its purpose.
fn name(asked: &Asked) -> String {
    format!("{:?} {:?}", asked.keys, asked.share)
}

/// The leases of a grant.
fn leases(
    session: &AgentSession,
    asked: &Asked,
    claimant: &Claimant,
    (sent, granted): (Moment, &Granted),
) -> Vec<(LockKey, Lease)> {
    let began = sent.after(granted.waited);
    let of = |(key, number, slot)| {
        let lease = Lease {
            token: claimant.token.clone(),
            number,
            share: asked.share.map(|share| Share { slot, ..share }),
            purpose: asked.purpose.clone(),
            since: Moment::now(),
            renew: began.after(session.ttl / 3),
            end: began.after(granted.ttl),
        };
        (key, lease)
    };
    granted.each(&claimant.key).into_iter().map(of).collect()
}

/// Notifies the client of the wait, if it wants that.
async fn progress(
    claimant: &Claimant,
    wait: Duration,
    began: Moment,
    call: &RequestContext<RoleServer>,
) -> Infallible {
    let Some(token) = call.meta.get_progress_token() else { return pending().await };
    loop {
        sleep(TELL).await;
        let message = claimant.line(Some(began.after(wait))).await;
        let known = ProgressNotificationParam::new(token.clone(), began.elapsed().as_secs_f64());
        let known = known.with_total(wait.as_secs_f64());
        let message = message.unwrap_or_else(|| format!("waiting for '{}'", claimant.key));
        // A client that does not read is one without progress.
        let _ = call.peer.notify_progress(known.with_message(message)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::AcquireCall;
    use crate::lock::slots::{Share, Slots};

    fn parsed(text: &str) -> Result<super::Asked, String> {
        let asked: AcquireCall = serde_json::from_str(text).map_err(|error| error.to_string())?;
        asked.parse()
    }

    #[test]
    fn a_call_names_keys_a_purpose_and_a_share() {
        let share =
            |slots, units| Share { slots: Slots::from_number(slots).unwrap(), units, slot: None };
        for (rest, expected) in [
            ("", None),
            (r#", "shared": true"#, Some(Share { slots: Slots::SHARED, ..Share::ALONE })),
            (r#", "slots": 8"#, Some(share(8, 1))),
            (r#", "slots": 8, "units": 3"#, Some(share(8, 3))),
            (r#", "units": 1"#, None),
        ] {
            let text = format!(r#"{{"key": "gpu", "purpose": " a\n b" {rest}}}"#);
            let asked = parsed(&text).unwrap();
            assert_eq!((asked.share, &*asked.purpose), (expected, "a b"), "{rest}");
        }
        let asked = parsed(r#"{"keys": ["b", "a", "b"], "purpose": "x", "wait_seconds": 300}"#);
        let asked = asked.unwrap();
        assert_eq!(asked.keys.iter().map(|key| key.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(asked.wait.as_secs(), 50);
    }

    #[test]
    fn a_wrong_call_is_told_what_to_change() {
        for (text, told) in [
            (r#"{"purpose": "x"}"#, "name one `key`"),
            (r#"{"key": "a", "keys": ["b"], "purpose": "x"}"#, "name one `key`"),
            (r#"{"keys": [], "purpose": "x"}"#, "name one `key`"),
            (r#"{"key": "a"}"#, "`purpose`"),
            (r#"{"key": "/srv/a", "purpose": "x"}"#, "use `srv/a`"),
            (r#"{"key": "a", "purpose": "x", "wait_seconds": -1}"#, "0 to 50"),
            (r#"{"key": "a", "purpose": "x", "slots": 0}"#, "1 to 1000"),
            (r#"{"key": "a", "purpose": "x", "slots": 2, "units": 3}"#, "1 to all"),
            (r#"{"key": "a", "purpose": "x", "units": 3}"#, "name both"),
            (r#"{"key": "a", "purpose": "x", "shared": true, "slots": 2}"#, "stands without"),
            (r#"{"key": "a", "purpose": "x", "ttl": 5}"#, "unknown field `ttl`"),
            (r#"{"key": "a", "purpose": "x", "wait_seconds": "5"}"#, "expected f64"),
        ] {
            let error = parsed(text).map(|_| ()).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
