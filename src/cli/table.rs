//! Output of the verbs: rows of columns or lines of JSON for programs, tables for people.

use std::fmt::{Display, Formatter};
use std::time::Duration;

use serde::de::IgnoredAny;

use crate::cli::terminal::{plain, shortened, shortened_apart, width};
use crate::lock::slots::Slots;
use crate::wire::{LeaseBody, StatusBody, WaiterBody};

const NOTHING: &str = "-";

const GAP: &str = "  ";

/// The heads of columns with texts of clients.
const KEY: &str = "KEY";
const TEXTS: [&str; 2] = [KEY, "OWNER"];

/// The columns below which such a text is not cut.
pub(super) const LEAST_WIDTH: usize = 9;

/// The columns of a list that people miss least, the first to go first. A key that others wait for
/// is what people look for, so that column goes only where it says nothing.
const SPARE: [&str; 2] = ["FENCING TOKEN", WAITERS];
const WAITERS: &str = "WAITERS";

/// The column that goes where shortened keys and owners do not make room for all.
const LAST_SPARE: &str = "TIME LEFT";

/// The state of a key, its columns separated by tabs; keys and owners contain none.
pub(super) fn row(status: &StatusBody) -> String {
    [
        plain(&status.key),
        if status.held { "held" } else { "free" }.to_owned(),
        shown(status.ttl_ms.map(seconds)),
        shown(status.fencing_token),
        status.waiters.to_string(),
        shown(holder(status)),
    ]
    .join("\t")
}

/// The state of a key, and the claims in its line: place, seconds waited, owner.
pub(super) fn rows(status: &StatusBody) -> Vec<String> {
    let queue = status.queue.as_deref().unwrap_or_default().iter().enumerate();
    let waiter = |(index, waiter): (usize, &WaiterBody)| {
        let waited = shown(waiter.waited_ms.map(seconds));
        [(index + 1).to_string(), waited, shown(waiter.owner.as_deref().map(plain))].join("\t")
    };
    [row(status)].into_iter().chain(queue.map(waiter)).collect()
}

/// The state of a key and the first of its line, for people with a terminal of so many columns.
pub(super) fn card(status: &StatusBody, most: usize) -> Vec<String> {
    let mut facts = Vec::new();
    let mut fact = |name: &str, text: String| facts.push([name.to_owned(), text]);
    fact("key", plain(&status.key));
    fact("state", if status.held { "held" } else { "free" }.to_owned());
    match status.holders {
        _ if !status.held => (),
        None => {
            fact("owner", shown(holder(status)));
            fact("held for", shown(status.held_ms.map(span)));
            fact("time left", time_left(status));
            fact("fencing token", shown(status.fencing_token));
        }
        Some(_) => {
            fact("holders", shown(holder(status)));
            fact("time left", time_left(status));
        }
    }
    fact("waiters", status.waiters.to_string());
    let leases = status.leases.iter().flatten().map(|lease| {
        [
            shown(part(lease)),
            shown(lease.owner.as_deref().map(plain)),
            shown(lease.held_ms.map(span)),
            shown(lease.ttl_ms.map(span)),
            shown(lease.fencing_token),
        ]
    });
    let line = status.queue.iter().flatten().enumerate().map(|(index, waiter)| {
        let owner = shown(waiter.owner.as_deref().map(plain));
        [(index + 1).to_string(), shown(waiter.waited_ms.map(span)), owner]
    });
    let leases = table(["SLOT", "OWNER", "HELD FOR", "TIME LEFT", "FENCING TOKEN"], leases, most);
    let line = table(["#", "WAITED", "OWNER"], line, most);
    let below = [leases, line].into_iter().filter(|table| table.len() > 1);
    let names = facts.iter().map(|[name, _]| width(name)).max().unwrap_or_default();
    let fact = |[name, text]: &[String; 2]| format!("{name:names$}{GAP}{text}");
    facts
        .iter()
        .map(fact)
        .chain(below.flat_map(|table| [String::new()].into_iter().chain(table)))
        .collect()
}

/// What a list shows where a terminal is too narrow for all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Uncut {
    /// All columns.
    pub(super) wide: bool,
    /// Whole keys and owners.
    pub(super) whole: bool,
}

/// The held keys, for people with a terminal of so many columns: at least one.
pub(super) fn listing(locks: &[StatusBody], most: usize, all: Uncut) -> Vec<String> {
    let rows = locks.iter().map(|status| {
        vec![
            plain(&status.key),
            shown(holder(status)),
            shown(status.held_ms.map(span)),
            time_left(status),
            status.waiters.to_string(),
            shown(status.fencing_token),
        ]
    });
    let heads = vec![KEY, "OWNER", "HELD FOR", LAST_SPARE, WAITERS, "FENCING TOKEN"];
    let mut table = Table { heads, rows: rows.collect() };
    let waits = locks.iter().any(|status| status.waiters > 0);
    for head in SPARE.into_iter().filter(|head| !(waits && *head == WAITERS)) {
        if !all.wide && table.columns(&table.widths()) > most {
            table = table.without(head);
        }
    }
    if !all.wide && table.columns(&table.least_widths()) > most {
        table = table.without(LAST_SPARE);
    }
    table.fitted(if all.whole { usize::MAX } else { most })
}

/// The slot of a lease, or its units if it has several.
fn part(lease: &LeaseBody) -> Option<String> {
    let units = lease.units.map(|units| format!("{units} units"));
    units.or_else(|| lease.slot.map(|slot| slot.to_string()))
}

fn time_left(status: &StatusBody) -> String {
    status.ttl_ms.map_or_else(|| "no end".to_owned(), span)
}

/// The holder of a key, or the number of its holders if they share it, with their units if some have
/// several.
pub(super) fn whose(
    owner: Option<&str>,
    holders: Option<u64>,
    (units, slots): (Option<u64>, Option<u16>),
) -> Option<String> {
    match (holders, units, slots) {
        (Some(holders), Some(units), Some(slots)) => {
            Some(format!("{holders} with {units} of {slots}"))
        }
        (Some(holders), None, Some(slots)) if slots < Slots::MOST.number() => {
            Some(format!("{holders} of {slots}"))
        }
        (Some(holders), ..) => Some(format!("{holders} shared")),
        (None, ..) => owner.map(plain),
    }
}

/// The holder of a key as a sentence has it: times come before a name, which may be long.
pub(super) struct Holding {
    pub(super) whose: Option<String>,
    pub(super) held_ms: Option<u64>,
    pub(super) ttl_ms: Option<u64>,
}

impl Holding {
    pub(super) fn of(status: &StatusBody) -> Self {
        let held_ms = status.held_ms;
        let ttl_ms = status.ttl_ms;
        Self { whose: holder(status), held_ms, ttl_ms }
    }
}

impl Display for Holding {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("held")?;
        if let Some(held) = self.held_ms {
            write!(f, " for {}", span(held))?;
        }
        match self.ttl_ms {
            Some(ttl) => write!(f, ", {} left", span(ttl))?,
            None => f.write_str(", no end")?,
        }
        self.whose.as_ref().map_or(Ok(()), |whose| write!(f, ", by {whose}"))
    }
}

/// The holder of a key that was looked at.
fn holder(status: &StatusBody) -> Option<String> {
    whose(status.owner.as_deref(), status.holders, (status.units, status.slots))
}

/// A table of at most so many columns of a terminal, if that can be: keys and owners give way.
fn table<const N: usize>(
    heads: [&'static str; N],
    rows: impl Iterator<Item = [String; N]>,
    most: usize,
) -> Vec<String> {
    let rows: Vec<_> = rows.map(|row| row.into_iter().collect()).collect();
    Table { heads: heads.to_vec(), rows }.fitted(most)
}

/// A table with any number of columns.
struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Without a column.
    fn without(mut self, head: &str) -> Self {
        if let Some(at) = self.heads.iter().position(|one| *one == head) {
            self.heads.remove(at);
            self.rows.iter_mut().for_each(|row| drop(row.remove(at)));
        }
        self
    }

    fn widths(&self) -> Vec<usize> {
        let width_of = |at: usize| self.rows.iter().map(|row| width(&row[at])).max().unwrap_or(0);
        self.heads.iter().enumerate().map(|(at, head)| width(head).max(width_of(at))).collect()
    }

    /// The widths where keys and owners are as short as they may be.
    fn least_widths(&self) -> Vec<usize> {
        let least = |(head, width): (&&str, usize)| match TEXTS.contains(head) {
            true => width.min(LEAST_WIDTH),
            false => width,
        };
        self.heads.iter().zip(self.widths()).map(least).collect()
    }

    /// The columns that it takes with these widths.
    fn columns(&self, widths: &[usize]) -> usize {
        widths.iter().sum::<usize>() + GAP.len() * (widths.len() - 1)
    }

    /// Its lines, in at most so many columns if keys and owners can give way so far.
    fn fitted(mut self, most: usize) -> Vec<String> {
        let mut widths = self.widths();
        while self.columns(&widths) > most {
            let texts = self.heads.iter().zip(&mut widths).filter(|(head, _)| TEXTS.contains(head));
            let longest = texts.map(|(_, width)| width).max();
            let Some(longest) = longest.filter(|width| **width > LEAST_WIDTH) else { break };
            *longest -= 1;
        }
        for (at, most) in widths.iter().enumerate().filter(|(at, _)| self.heads[*at] == KEY) {
            let keys: Vec<_> = self.rows.iter().map(|row| row[at].as_str()).collect();
            let keys = shortened_apart(&keys, *most);
            self.rows.iter_mut().zip(keys).for_each(|(row, key)| row[at] = key);
        }
        let heads = self.heads.iter().map(|head| (*head).to_owned()).collect();
        [heads].iter().chain(&self.rows).map(|row| line(row, &widths)).collect()
    }
}

/// A row whose columns begin below those of the others.
fn line(row: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    let mut end = 0;
    for (at, (cell, columns)) in row.iter().zip(widths).enumerate() {
        // A key that is too long for its column is whole: it tells the row apart.
        let cell = if at == 0 { cell.clone() } else { shortened(cell, *columns) };
        end += columns + GAP.len();
        line.push_str(&cell);
        line.extend(std::iter::repeat_n(' ', end.saturating_sub(width(&line))));
    }
    line.trim_end().to_owned()
}

/// A time for people, as options have it: two units at most.
pub(super) fn span(ms: u64) -> String {
    let seconds = ms / 1_000;
    let minutes = seconds / 60;
    let hours = seconds / 3_600;
    let days = seconds / 86_400;
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{}.{}s", seconds, ms % 1_000 / 100),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, ..) => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

fn seconds(ms: u64) -> String {
    format!("{:.1}", Duration::from_millis(ms).as_secs_f64())
}

fn shown(fact: Option<impl ToString>) -> String {
    fact.map_or_else(|| NOTHING.to_owned(), |fact| fact.to_string())
}

/// The JSON of an answer in one line. Outside of strings JSON allows only these control characters,
/// inside only the remaining ones.
pub(super) fn json_line(body: &str) -> Result<String, serde_json::Error> {
    let _: IgnoredAny = serde_json::from_str(body)?;
    let mut line = String::with_capacity(body.len());
    for letter in body.trim().chars() {
        match letter {
            '\n' | '\r' | '\t' => line.push(' '),
            letter if letter.is_control() => {
                line.push_str(&format!("\\u{:04x}", u32::from(letter)))
            }
            letter => line.push(letter),
        }
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::{Uncut, card, listing, span};
    use crate::cli::terminal::width;
    use crate::wire::{ListBody, StatusBody};

    fn status(json: &str) -> StatusBody {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_time_has_the_two_units_that_matter() {
        for (ms, text) in [
            (0, "0.0s"),
            (999, "0.9s"),
            (59_999, "59.9s"),
            (60_000, "1m0s"),
            (3_599_999, "59m59s"),
            (7_500_000, "2h5m"),
            (86_400_000, "1d0h"),
            (900_000_000, "10d10h"),
        ] {
            assert_eq!(span(ms), text);
        }
    }

    #[test]
    fn a_held_key_is_a_card_with_its_line_below() {
        let held = status(
            r#"{"key":"k\u001b","held":true,"owner":"web-1","fencing_token":7,"ttl_ms":1500,
                "held_ms":61000,"waiters":2,
                "queue":[{"owner":"a","waited_ms":60000},{"owner":"longer"}]}"#,
        );
        let lines = [
            "key            k\\u{1b}",
            "state          held",
            "owner          web-1",
            "held for       1m1s",
            "time left      1.5s",
            "fencing token  7",
            "waiters        2",
            "",
            "#  WAITED  OWNER",
            "1  1m0s    a",
            "2  -       longer",
        ];
        assert_eq!(card(&held, 80), lines);
        let free = status(r#"{"key":"k","held":false,"waiters":0,"queue":[]}"#);
        assert_eq!(card(&free, 80), ["key      k", "state    free", "waiters  0"]);
    }

    #[test]
    fn the_leases_of_a_shared_key_are_listed_by_their_slots() {
        let held = status(
            r#"{"key":"k","held":true,"ttl_ms":1500,"waiters":0,"holders":2,"slots":3,"leases":[
                {"owner":"web-1","fencing_token":7,"ttl_ms":1000,"held_ms":9000,"slots":3,"slot":2},
                {"fencing_token":5,"ttl_ms":1500,"slots":1000}]}"#,
        );
        let lines = [
            "key        k",
            "state      held",
            "holders    2 of 3",
            "time left  1.5s",
            "waiters    0",
            "",
            "SLOT  OWNER  HELD FOR  TIME LEFT  FENCING TOKEN",
            "2     web-1  9.0s      1.0s       7",
            "-     -      -         1.5s       5",
        ];
        assert_eq!(card(&held, 80), lines);
        let units = status(
            r#"{"key":"k","held":true,"waiters":0,"holders":2,"slots":8,"units":4,"leases":[
                {"fencing_token":7,"slots":8,"slot":1},{"fencing_token":8,"slots":8,"units":3}]}"#,
        );
        let lines = card(&units, 80);
        assert_eq!(lines[2], "holders    2 with 4 of 8");
        assert!(lines[7].starts_with("1 ") && lines[8].starts_with("3 units "), "{lines:?}");
        let readers = r#"{"key":"k","held":true,"waiters":0,"holders":12,"slots":1000}"#;
        assert!(listing(&[status(readers)], 80, Uncut::default())[1].contains("12 shared"));
    }

    #[test]
    fn a_list_fits_and_its_keys_keep_their_end_and_their_difference() {
        let page: ListBody = serde_json::from_str(
            r#"{"locks":[{"key":"a","held":true,"ttl_ms":2000,"waiters":0},
                {"key":"tenants/4711/invoices/2026-11/eu-central-1/report","held":true,
                 "held_ms":400,"owner":"deploy@web-1.example:4711 sh",
                 "fencing_token":1795715876551822,"waiters":12},
                {"key":"tenants/4711/invoices/2026-12/eu-central-1/report","held":true,
                 "ttl_ms":9,"owner":"東京の配備サーバー第一号機の仕事","waiters":0}]}"#,
        )
        .unwrap();
        let list = |most, wide, whole| listing(&page.locks, most, Uncut { wide, whole });
        let lines = [
            "KEY                       OWNER                     HELD FOR  TIME LEFT  WAITERS",
            "a                         -                         -         2.0s       0",
            "\u{2026}-11/eu-central-1/report  deploy@web-\u{2026}mple:4711 sh  0.4s      no end     12",
            "\u{2026}-12/eu-central-1/report  東京の配備\u{2026}一号機の仕事   -         0.0s       0",
        ];
        assert_eq!(list(80, false, false), lines);
        // Where nobody waits, the column says nothing, and keys and owners have its room.
        let alone = listing(&page.locks[..1], 45, Uncut::default());
        assert_eq!(alone[0], "KEY  OWNER  HELD FOR  TIME LEFT  WAITERS");
        let alone = listing(&page.locks[..1], 39, Uncut::default());
        assert_eq!(alone[0], "KEY  OWNER  HELD FOR  TIME LEFT");
        for (columns, last) in [(131, "FENCING TOKEN"), (130, "WAITERS"), (50, "WAITERS")] {
            let list = list(columns, false, false);
            assert!(list[0].ends_with(last), "{columns}: {}", list.join("\n"));
        }
        let narrow = list(49, false, false);
        assert!(narrow[0].ends_with("HELD FOR  WAITERS"), "{narrow:?}");
        assert!(narrow.iter().all(|line| width(line) <= 49), "{narrow:?}");
        // All columns, at the cost of texts, and of lines that wrap.
        let wide = list(80, true, false);
        assert!(wide[0].ends_with("WAITERS  FENCING TOKEN"), "{wide:?}");
        assert!(wide.iter().all(|line| width(line) <= 80), "{wide:?}");
        assert_ne!(wide[2].split(' ').next(), wide[3].split(' ').next());
        let whole = list(80, false, true);
        assert!(whole[2].starts_with("tenants/4711/invoices/2026-11/eu-central-1/report  deploy@"));
        assert!(whole[0].ends_with("WAITERS"), "{whole:?}");
        let all = list(80, true, true);
        assert!(all[2].ends_with("1795715876551822") && all[2].starts_with(&whole[2][..78]));
    }
}
