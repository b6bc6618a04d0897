//! The progress of a wait: the claim's place in line, the holder, and the time that it has left. A
//! terminal has it as one line that is redrawn; elsewhere it is told at the beginning and every
//! minute, to a verbose voice whenever it has changed.
//!
//! It looks at the key beside the waiting request. A look that fails costs its line and nothing
//! else.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;

use crate::cli::claimant::Claimant;
use crate::cli::clock::Moment;
use crate::cli::table::{Holding, LEAST_WIDTH, span};
use crate::cli::terminal::{shortened, width};
use crate::lock::key::LockKey;
use crate::lock::lease::Owner;
use crate::lock::time::millis_down;
use crate::wire::StatusBody;

/// The time before the first look: most leases are granted before.
const FIRST: Duration = Duration::from_secs(1);

/// The pause between two looks, on a terminal and elsewhere.
const PAUSE_DRAWN: Duration = Duration::from_secs(1);
const PAUSE_TOLD: Duration = Duration::from_secs(5);

/// The pause between two lines of a voice that is not verbose: a log stays short.
const PAUSE_USUAL: Duration = Duration::from_secs(60);

/// A service that is absent.
const RETRYING: &str = "no answer, retrying";

/// The waiting requests that a look asks for: as many as the service allows.
const MAX_PLACES: u64 = 100;

/// The facts whose change is told: the holder with its fencing token, and the place in line.
type Facts = (Option<String>, Option<u64>, Option<usize>);

/// The progress of a wait that was told by now.
#[derive(Debug, Default)]
pub(in crate::cli) struct Progress {
    told: Cell<Option<Moment>>,
    /// The reason why the service does not answer.
    silent: RefCell<Option<String>>,
}

impl Progress {
    /// The service does not answer. Returns whether that, or the reason, is new.
    pub(super) fn is_silent(&self, why: &str) -> bool {
        self.silent.replace(Some(why.to_owned())).as_deref() != Some(why)
    }

    /// The service has answered.
    pub(super) fn is_answered(&self) {
        self.silent.replace(None);
    }
}

impl Claimant {
    /// Reports on a wait that ends at `until`, if it has an end.
    pub(super) async fn report(&self, until: Option<Moment>) -> Infallible {
        let voice = self.voice;
        let draws = self.voice.draws();
        if voice.is_quiet() {
            return pending().await;
        }
        let mut known = None;
        sleep(FIRST).await;
        loop {
            let wait = self.look(until).await;
            if wait.is_some() {
                self.progress.is_answered();
            }
            let silence = self.progress.silent.borrow().clone();
            if draws {
                let left = || more(until.map(Moment::left));
                let retrying = || format!("waiting {}for '{}': {RETRYING}", left(), self.key);
                let silent = || silence.as_ref().map_or_else(String::new, |_| retrying());
                voice.draw(|columns| wait.map_or_else(silent, |wait| wait.drawn(columns)));
            } else if !until.is_some_and(Moment::has_come) {
                let facts = wait.as_ref().map(Wait::facts);
                let line = wait.map(|wait| wait.line()).or_else(|| {
                    let left = more(until.map(Moment::left));
                    silence.map(|why| format!("waiting {left}for '{}', retrying: {why}", self.key))
                });
                let is_due = is_due(voice.tells(), facts != known, self.progress.told.get());
                if let Some(line) = line.filter(|_| is_due) {
                    voice.complain(|| line);
                    self.progress.told.set(Some(Moment::now()));
                    known = facts;
                }
            }
            sleep(if draws { PAUSE_DRAWN } else { PAUSE_TOLD }).await;
        }
    }

    /// The progress of a wait that ends at `until`, in a line; `None` if it is not known.
    pub(in crate::cli) async fn line(&self, until: Option<Moment>) -> Option<String> {
        self.look(until).await.map(|wait| wait.line())
    }

    /// The state of the key for which the claim waits.
    async fn look(&self, until: Option<Moment>) -> Option<Wait> {
        let waits = join_all(self.keys().map(|key| self.look_at(key, until))).await;
        // Of several keys the one in whose line it is.
        let mut waits: Vec<_> = waits.into_iter().flatten().collect();
        waits.sort_by_key(|wait| wait.place.is_none());
        waits.into_iter().next()
    }

    async fn look_at(&self, key: &LockKey, until: Option<Moment>) -> Option<Wait> {
        let body = self.client.inspect(key, Some(MAX_PLACES)).await.ok()?;
        let status: StatusBody = serde_json::from_str(&body).ok()?;
        // Nobody is in line: the claim has not arrived yet, or was granted meanwhile.
        let is_waiting = status.held && status.waiters > 0;
        let place = place(&status, self.wish.owner.as_ref());
        is_waiting.then(|| Wait { status, place, left: until.map(Moment::left) })
    }
}

/// The time for which a wait goes on, if it has an end.
fn more(left: Option<Duration>) -> String {
    let left = left.filter(|left| !left.is_zero());
    left.map_or_else(String::new, |left| format!("{} more ", span(millis_down(left))))
}

/// Returns whether a line is due: to a verbose voice after a change, to another one a minute after
/// the last.
fn is_due(is_verbose: bool, is_changed: bool, told: Option<Moment>) -> bool {
    match is_verbose {
        true => is_changed,
        false => told.is_none_or(|told| told.after(PAUSE_USUAL).has_come()),
    }
}

/// A wait for a key.
struct Wait {
    status: StatusBody,
    place: Option<usize>,
    left: Option<Duration>,
}

impl Wait {
    fn facts(&self) -> Facts {
        (Holding::of(&self.status).whose, self.status.fencing_token, self.place)
    }

    fn line(&self) -> String {
        self.words(&more(self.left), &self.status.key, Holding::of(&self.status))
    }

    /// The line for so many columns: the key and the holder give way, then the end of the wait.
    fn drawn(&self, columns: usize) -> String {
        let holding = |whose: Option<String>| Holding { whose, ..Holding::of(&self.status) };
        let holder = Holding::of(&self.status).whose.unwrap_or_default();
        let room = |left: &str| {
            let rest = width(&self.words(left, "", holding(Some(String::new()))));
            columns.saturating_sub(rest + 1)
        };
        let needed = (width(&self.status.key) + width(&holder)).min(2 * LEAST_WIDTH);
        let left = Some(more(self.left)).filter(|left| room(left) >= needed).unwrap_or_default();
        // The longer of the two gives way first.
        let key = &self.status.key;
        let room = room(&left).max(2 * LEAST_WIDTH);
        let most_key = (room - width(&holder).min(room / 2)).min(width(key));
        let holder = shortened(&holder, room - most_key);
        self.words(
            &left,
            &shortened(key, most_key),
            holding(Some(holder).filter(|it| !it.is_empty())),
        )
    }

    fn words(&self, left: &str, key: &str, holding: Holding) -> String {
        let waiters = self.status.waiters;
        let place = match self.place {
            Some(place) => format!("place {place} of {waiters}"),
            None => format!("{waiters} in line"),
        };
        format!("waiting {left}for '{key}', {place}: {holding}")
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Wait, is_due, place};
    use crate::cli::clock::Moment;
    use crate::cli::terminal::width;
    use crate::lock::lease::Owner;
    use crate::wire::StatusBody;

    fn status(rest: &str) -> StatusBody {
        serde_json::from_str(&format!(r#"{{"key":"k","held":true,{rest}}}"#)).unwrap()
    }

    #[test]
    fn a_line_has_what_the_service_tells_times_first() {
        let status_of = status;
        let wait = |status, place, left| Wait { status, place, left };
        let full = status_of(r#""owner":"web-1","held_ms":125000,"ttl_ms":27900,"waiters":3"#);
        let told = "waiting 8.0s more for 'k', place 2 of 3: held for 2m5s, 27.9s left, by web-1";
        let full = wait(full, Some(2), Some(Duration::from_secs(8)));
        assert_eq!((full.line(), full.drawn(200)), (told.to_owned(), told.to_owned()));
        let shared = wait(status(r#""ttl_ms":900,"waiters":1,"holders":3,"slots":3"#), None, None);
        assert_eq!(shared.line(), "waiting for 'k', 1 in line: held, 0.9s left, by 3 of 3");
        let bare = wait(status(r#""waiters":120"#), None, None);
        let told = "waiting for 'k', 120 in line: held, no end";
        assert_eq!((bare.line(), bare.drawn(80)), (told.to_owned(), told.to_owned()));
    }

    #[test]
    fn a_drawn_line_fits_and_has_the_ends_of_a_key_and_of_its_holder() {
        let facts = r#""owner":"deploy@web-1.example:4711 make","held_ms":125000,"ttl_ms":27900,"waiters":3"#;
        let mut long = status(facts);
        long.key = "tenants/4711/report-1".to_owned();
        let mut wait = Wait { status: long, place: Some(2), left: None };
        let told = "waiting for 'tena\u{2026}ort-1', place 2 of 3: held for 2m5s, 27.9s left, \
                    by depl\u{2026}make";
        assert_eq!(wait.drawn(80), told);
        wait.left = Some(Duration::from_secs(8));
        for owner in ["web-1", "deploy@web-1.example:4711 make", "東京の配備サーバー第一号"]
        {
            wait.status.owner = Some(owner.to_owned());
            for (columns, has_end) in [(80, false), (100, true), (160, true)] {
                let line = wait.drawn(columns);
                assert!(width(&line) < columns, "{line}");
                assert_eq!(line.contains("8.0s more"), has_end, "{line}");
                assert!(line.contains("27.9s left, by "), "{line}");
            }
        }
    }

    #[test]
    fn a_wait_is_told_every_minute_and_to_a_verbose_voice_when_it_changes() {
        let ago = |seconds| Some(Moment::now().before(Duration::from_secs(seconds)));
        for (is_verbose, is_changed, told, due) in [
            (false, true, None, true),
            (false, true, ago(59), false),
            (false, false, ago(60), true),
            (true, true, ago(0), true),
            (true, false, ago(600), false),
        ] {
            assert_eq!(is_due(is_verbose, is_changed, told), due, "{is_verbose} {told:?}");
        }
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
