//! The progress of a wait, on a terminal or for a verbose voice: the claim's place in line, the
//! holder, and the time that it has left.
//!
//! It looks at the key beside the waiting request. A look that fails costs its line and nothing
//! else.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use tokio::time::sleep;

use crate::cli::claimant::Claimant;
use crate::cli::clock::Moment;
use crate::cli::table::{shortened, span, whose};
use crate::lock::lease::Owner;
use crate::lock::time::millis_down;
use crate::wire::StatusBody;

/// The time before the first look: most leases are granted before.
const FIRST: Duration = Duration::from_secs(1);

/// The pause between two looks, on a terminal and elsewhere.
const PAUSE_DRAWN: Duration = Duration::from_secs(1);
const PAUSE_TOLD: Duration = Duration::from_secs(5);

/// The columns of a key on a terminal, so that a line of 80 has the place and the holder, too.
const DRAWN_KEY: usize = 20;

/// The waiting requests that a look asks for: as many as the service allows.
const MAX_PLACES: u64 = 100;

/// The facts whose change is told: the owner and the fencing token of the holder, or the number of
/// holders, and the place in line.
type Facts = (Option<String>, Option<u64>, Option<usize>);

impl Claimant {
    /// Reports on a wait that ends at `until`, if it has an end.
    pub(super) async fn report(&self, until: Option<Moment>) -> Infallible {
        let (voice, draws) = (self.voice, self.voice.draws());
        if !draws && !voice.tells() {
            return pending().await;
        }
        let mut told = None;
        sleep(FIRST).await;
        loop {
            let key_columns = if draws { DRAWN_KEY } else { usize::MAX };
            let (facts, line) = self.look(key_columns, until).await.unzip();
            if draws {
                voice.draw(&line.unwrap_or_default());
            } else if facts.is_some() && facts != told {
                voice.tell(|| line.unwrap_or_default());
                told = facts;
            }
            sleep(if draws { PAUSE_DRAWN } else { PAUSE_TOLD }).await;
        }
    }

    /// The state of the key while the claim waits for it, and a line about it.
    async fn look(&self, key_columns: usize, until: Option<Moment>) -> Option<(Facts, String)> {
        let body = self.client.inspect(&self.key, Some(MAX_PLACES)).await.ok()?;
        let status: StatusBody = serde_json::from_str(&body).ok()?;
        // Nobody is in line: the claim has not arrived yet, or was granted meanwhile.
        let is_waiting = status.held && status.waiters > 0;
        let place = place(&status, self.wish.owner.as_ref());
        let line = line(&status, key_columns, place, until.map(Moment::left));
        is_waiting.then(|| ((whose(&status), status.fencing_token, place), line))
    }
}

/// The place of the one waiting request with this owner. Others may have given the same name.
fn place(status: &StatusBody, owner: Option<&Owner>) -> Option<usize> {
    let owner = owner.map(Owner::as_str);
    let queue = status.queue.as_deref().unwrap_or_default().iter().enumerate();
    let mut ours = queue.filter(|(_, waiter)| waiter.owner.as_deref() == owner);
    match (ours.next(), ours.next()) {
        (Some((index, _)), None) => Some(index + 1),
        _ => None,
    }
}

fn line(
    status: &StatusBody,
    key_columns: usize,
    place: Option<usize>,
    left: Option<Duration>,
) -> String {
    let waiters = status.waiters;
    let place = match place {
        Some(place) => format!("place {place} of {waiters}"),
        None => format!("{waiters} in line"),
    };
    let key = shortened(&status.key, key_columns);
    let mut line = format!("waiting for '{key}', {place}: held");
    if let Some(owner) = whose(status) {
        line.push_str(&format!(" by {owner}"));
    }
    if let Some(held) = status.held_ms {
        line.push_str(&format!(" for {}", span(held)));
    }
    match status.ttl_ms {
        Some(ttl) => line.push_str(&format!(", {} left", span(ttl))),
        None => line.push_str(", no end"),
    }
    if let Some(left) = left {
        line.push_str(&format!("; the wait ends in {}", span(millis_down(left))));
    }
    line
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{line, place};
    use crate::lock::lease::Owner;
    use crate::wire::StatusBody;

    fn status(rest: &str) -> StatusBody {
        serde_json::from_str(&format!(r#"{{"key":"k","held":true,{rest}}}"#)).unwrap()
    }

    #[test]
    fn a_line_has_what_the_service_tells() {
        let full = status(r#""owner":"web-1","held_ms":125000,"ttl_ms":27900,"waiters":3"#);
        let told = "waiting for 'k', place 2 of 3: held by web-1 for 2 min 5 s, 27.9 s left; \
                    the wait ends in 8.0 s";
        assert_eq!(line(&full, 9, Some(2), Some(Duration::from_secs(8))), told);
        let shared = status(r#""ttl_ms":900,"waiters":1,"holders":3,"slots":3"#);
        let told = "waiting for 'k', 1 in line: held by 3 of 3, 0.9 s left";
        assert_eq!(line(&shared, 9, None, None), told);
        let bare = status(r#""waiters":120"#);
        assert_eq!(line(&bare, 9, None, None), "waiting for 'k', 120 in line: held, no end");
        let mut long = bare;
        long.key = "tenants/4711/report-1".to_owned();
        assert_eq!(
            line(&long, 9, None, None),
            "waiting for 'tena\u{2026}rt-1', 120 in line: held, no end"
        );
    }

    #[test]
    fn a_place_is_told_only_if_one_request_has_our_name() {
        let line = status(
            r#""waiters":4,"queue":[{"owner":"a"},{"waited_ms":5},{"owner":"b"},{"owner":"b"}]"#,
        );
        let owner = |name| Owner::parse(name).unwrap();
        for (name, found) in [("a", Some(1)), ("", Some(2)), ("b", None), ("c", None)] {
            assert_eq!(place(&line, owner(name).as_ref()), found, "{name}");
        }
        assert_eq!(place(&status(r#""waiters":4"#), owner("a").as_ref()), None);
    }
}
