//! The sentences of the answers. A model reads them: each says what is so, and what to do next.
//!
//! The names of holders were given by others, so they stand in quotation marks.

use std::time::Duration;

use crate::cli::clock::Moment;
use crate::cli::mcp::lease::Lease;
use crate::cli::table::{span, whose};
use crate::cli::terminal::plain;
use crate::lock::key::LockKey;
use crate::lock::time::millis_down;
use crate::wire::{StatusBody, WaiterBody};

/// The most holders of a shared key, and of waiting requests, that an answer names.
pub(super) const MOST_NAMES: usize = 5;

/// A shorter wait is not told.
const WORTH_TELLING: Duration = Duration::from_secs(1);

pub(super) fn since(moment: Moment) -> String {
    span(millis_down(moment.elapsed()))
}

pub(super) fn lost(key: &LockKey, lease: &Lease) -> String {
    format!(
        "LOST: the lock on '{key}', which this session had for {} (\"{}\"), is not yours any \
         more: somebody ended it, or it expired while this machine or the service was away. \
         Another may have it now. Stop the work that it protects, tell the user, and acquire it \
         and look at the state of things again before you go on.",
        since(lease.since),
        lease.purpose
    )
}

pub(super) fn unsure(key: &LockKey, lease: &Lease) -> String {
    format!(
        "MAYBE LOST: the lock on '{key}' (\"{}\") could not be renewed in time, so another may have \
         it soon. Pause the work that it protects, and tell the user.",
        lease.purpose
    )
}

/// The state of a key: who holds it, for how long by now, and how many wait.
pub(super) fn state(status: &StatusBody) -> String {
    let key = plain(&status.key);
    if !status.held {
        return match status.waiters {
            0 => format!("'{key}' is free"),
            _ => format!("'{key}' is just handed over{}", line(status)),
        };
    }
    let mut text = format!("'{key}' is held");
    if let Some(held) = status.held_ms {
        text.push_str(&format!(" for {} by now", span(held)));
    }
    text.push_str(&holders(status));
    match status.ttl_ms {
        Some(left) => {
            text.push_str(&format!("; unless its holder renews it, it ends in {}", span(left)))
        }
        None => text.push_str("; it has no end"),
    }
    text + &line(status)
}

fn holders(status: &StatusBody) -> String {
    let quoted = |owner: &Option<String>| match owner {
        Some(owner) => quoted_text(owner),
        None => "somebody without a name".to_owned(),
    };
    let Some(leases) = &status.leases else {
        return match status.holders {
            None => format!(" by {}", quoted(&status.owner)),
            Some(_) => {
                let whose = whose(None, status.holders, (status.units, status.slots));
                format!(" by {}", whose.unwrap_or_default())
            }
        };
    };
    let number = whose(None, status.holders, (status.units, status.slots)).unwrap_or_default();
    let names: Vec<_> = leases.iter().take(MOST_NAMES).map(|lease| quoted(&lease.owner)).collect();
    let more = if leases.len() > MOST_NAMES { ", ..." } else { "" };
    format!(" by {number} ({}{more})", names.join(", "))
}

/// A name that others gave, which ends where its quotation marks do.
fn quoted_text(name: &str) -> String {
    format!("\"{}\"", plain(name).replace('"', "'"))
}

fn line(status: &StatusBody) -> String {
    match status.waiters {
        0 => String::new(),
        1 => "; 1 other waits in line".to_owned(),
        waiters => format!("; {waiters} others wait in line"),
    }
}

/// The answer to a claim that was granted.
pub(super) fn acquired(leases: &[(LockKey, Lease)], began: Moment, capped: bool) -> String {
    let each = |(key, lease): &(LockKey, Lease)| {
        let slot = lease.share.and_then(|share| Some((share.slot?, share.slots.number())));
        let slot = slot.map_or_else(String::new, |(slot, of)| format!(", slot {slot} of {of}"));
        format!("'{key}' (fencing token {}{slot})", lease.number)
    };
    let keys = leases.iter().map(each).collect::<Vec<_>>().join(", ");
    let waited = match began.after(WORTH_TELLING).has_come() {
        true => format!(" after {}", since(began)),
        false => String::new(),
    };
    let rest = match capped {
        true => "The service allows that for a limited time only, whatever you do.",
        false => "That lasts until you release it or this session ends.",
    };
    format!("Acquired {keys}{waited}. {rest} Release it as soon as the work is done.")
}

/// The answer to a claim of keys that others hold.
pub(super) fn busy(states: &[StatusBody], waited: bool) -> String {
    let held: Vec<_> = states.iter().filter(|status| status.held).collect();
    let Some(first) = held.first() else {
        return "Not acquired: it was held until now. Call acquire again.".to_owned();
    };
    let told = held.iter().map(|status| state(status)).collect::<Vec<_>>().join(". ");
    let next = match waited {
        true => {
            "To go on waiting, call acquire again with the same keys at once: within 5 seconds you \
             have your place in line back, but a key that becomes free between two calls goes to \
             the next one. Or do other work first."
        }
        false => {
            "Do other work first and try again later, or wait in line with wait_seconds (50 at \
             most)."
        }
    };
    format!(
        "Not acquired: {told}. {next} Do not do the work without the lock. Only the user may take \
         it from its holder: `lockkeeper force-release {}`.",
        plain(&first.key)
    )
}

pub(super) fn unreachable(why: &str) -> String {
    format!(
        "Not acquired: the lock service does not answer ({why}). Tell the user; do not do the work \
         without the lock."
    )
}

/// A lease of this session.
pub(super) fn own(key: &LockKey, lease: &Lease) -> String {
    let (since, purpose) = (since(lease.since), &lease.purpose);
    let number = lease.number;
    format!("This session has '{key}' (fencing token {number}), for {since} by now: \"{purpose}\".")
}

/// A waiting request.
pub(super) fn waiter(place: usize, waiter: &WaiterBody) -> String {
    let waited = waiter.waited_ms.map_or_else(String::new, |ms| format!(", for {}", span(ms)));
    let owner = quoted_text(waiter.owner.as_deref().unwrap_or("somebody"));
    format!("{place}. in line{waited}: {owner}")
}
