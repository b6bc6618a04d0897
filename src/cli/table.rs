//! Output of the verbs: rows of columns or lines of JSON for programs, tables for people.

use std::time::Duration;

use serde::de::IgnoredAny;

use crate::cli::voice::plain;
use crate::lock::slots::Slots;
use crate::wire::{StatusBody, WaiterBody};

/// The text of an empty column.
const NOTHING: &str = "-";

/// The state of a key, its columns separated by tabs; keys and owners contain none.
pub(super) fn row(status: &StatusBody) -> String {
    [
        plain(&status.key),
        if status.held { "held" } else { "free" }.to_owned(),
        shown(status.ttl_ms.map(seconds)),
        shown(status.fencing_token.map(|number| number.to_string())),
        status.waiters.to_string(),
        shown(whose(status)),
    ]
    .join("\t")
}

/// A claim in line at this place, its columns separated by tabs: place, seconds waited, owner.
pub(super) fn waiter_row(place: usize, waiter: &WaiterBody) -> String {
    let waited = shown(waiter.waited_ms.map(seconds));
    [place.to_string(), waited, shown(waiter.owner.as_deref().map(plain))].join("\t")
}

/// The state of a key and the first of its line, for people.
pub(super) fn card(status: &StatusBody) -> Vec<String> {
    let mut facts = vec![["key", &plain(&status.key)].map(str::to_owned)];
    let mut fact = |name: &str, text: String| facts.push([name.to_owned(), text]);
    fact("state", if status.held { "held" } else { "free" }.to_owned());
    if status.held {
        let time_left = status.ttl_ms.map_or_else(|| "no end".to_owned(), span);
        match status.holders {
            None => {
                fact("owner", shown(whose(status)));
                fact("held for", shown(status.held_ms.map(span)));
                fact("time left", time_left);
                fact("fencing token", shown(status.fencing_token.map(|number| number.to_string())));
            }
            Some(_) => {
                fact("holders", shown(whose(status)));
                fact("time left", time_left);
            }
        }
    }
    fact("waiters", status.waiters.to_string());
    let mut lines = columns(&facts);
    let leases = status.leases.as_deref().unwrap_or_default();
    if !leases.is_empty() {
        let heads = ["SLOT", "OWNER", "HELD FOR", "TIME LEFT", "FENCING TOKEN"];
        let mut rows = vec![heads.map(str::to_owned)];
        rows.extend(leases.iter().map(|lease| {
            [
                shown(lease.slot.map(|slot| slot.to_string())),
                shown(lease.owner.as_deref().map(plain)),
                shown(lease.held_ms.map(span)),
                shown(lease.ttl_ms.map(span)),
                shown(lease.fencing_token.map(|number| number.to_string())),
            ]
        }));
        lines.push(String::new());
        lines.extend(columns(&rows));
    }
    let queue = status.queue.as_deref().unwrap_or_default();
    if !queue.is_empty() {
        let mut rows = vec![["#", "WAITED", "OWNER"].map(str::to_owned)];
        rows.extend(queue.iter().enumerate().map(|(index, waiter)| {
            let owner = shown(waiter.owner.as_deref().map(plain));
            [(index + 1).to_string(), shown(waiter.waited_ms.map(span)), owner]
        }));
        lines.push(String::new());
        lines.extend(columns(&rows));
    }
    lines
}

/// The held keys, for people.
pub(super) fn listing(locks: &[StatusBody]) -> Vec<String> {
    if locks.is_empty() {
        return vec!["no key is held".to_owned()];
    }
    let heads = ["KEY", "OWNER", "HELD FOR", "TIME LEFT", "WAITERS", "FENCING TOKEN"];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(locks.iter().map(|status| {
        [
            plain(&status.key),
            shown(whose(status)),
            shown(status.held_ms.map(span)),
            status.ttl_ms.map_or_else(|| "no end".to_owned(), span),
            status.waiters.to_string(),
            shown(status.fencing_token.map(|number| number.to_string())),
        ]
    }));
    columns(&rows)
}

/// The holder of a key, or the number of its holders if they share it.
pub(super) fn whose(status: &StatusBody) -> Option<String> {
    match (status.holders, status.slots) {
        (Some(holders), Some(slots)) if slots < Slots::MOST.number() => {
            Some(format!("{holders} of {slots}"))
        }
        (Some(holders), _) => Some(format!("{holders} shared")),
        (None, _) => status.owner.as_deref().map(plain),
    }
}

/// Rows whose columns begin below one another.
fn columns<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..N).map(|column| width(column).unwrap_or_default()).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// A time for people: two units at most.
pub(super) fn span(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{}.{} s", seconds, ms % 1_000 / 100),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

fn seconds(ms: u64) -> String {
    format!("{:.1}", Duration::from_millis(ms).as_secs_f64())
}

fn shown(text: Option<String>) -> String {
    text.unwrap_or_else(|| NOTHING.to_owned())
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
    use super::{card, listing, span};
    use crate::wire::{ListBody, StatusBody};

    fn status(json: &str) -> StatusBody {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_time_has_the_two_units_that_matter() {
        for (ms, text) in [
            (0, "0.0 s"),
            (999, "0.9 s"),
            (59_999, "59.9 s"),
            (60_000, "1 min 0 s"),
            (3_599_999, "59 min 59 s"),
            (7_500_000, "2 h 5 min"),
            (86_400_000, "1 d 0 h"),
            (900_000_000, "10 d 10 h"),
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
            "held for       1 min 1 s",
            "time left      1.5 s",
            "fencing token  7",
            "waiters        2",
            "",
            "#  WAITED     OWNER",
            "1  1 min 0 s  a",
            "2  -          longer",
        ];
        assert_eq!(card(&held), lines);
        let free = status(r#"{"key":"k","held":false,"waiters":0,"queue":[]}"#);
        assert_eq!(card(&free), ["key      k", "state    free", "waiters  0"]);
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
            "time left  1.5 s",
            "waiters    0",
            "",
            "SLOT  OWNER  HELD FOR  TIME LEFT  FENCING TOKEN",
            "2     web-1  9.0 s     1.0 s      7",
            "-     -      -         1.5 s      5",
        ];
        assert_eq!(card(&held), lines);
        let readers = r#"{"key":"k","held":true,"waiters":0,"holders":12,"slots":1000}"#;
        assert!(listing(&[status(readers)])[1].contains("12 shared"));
    }

    #[test]
    fn a_list_is_a_table_in_which_nothing_is_missing_without_a_dash() {
        let page: ListBody = serde_json::from_str(
            r#"{"locks":[{"key":"a","held":true,"ttl_ms":2000,"waiters":0},
                {"key":"a/b","held":true,"owner":"o","fencing_token":5,"held_ms":400,"waiters":12}]}"#,
        )
        .unwrap();
        let lines = [
            "KEY  OWNER  HELD FOR  TIME LEFT  WAITERS  FENCING TOKEN",
            "a    -      -         2.0 s      0        -",
            "a/b  o      0.4 s     no end     12       5",
        ];
        assert_eq!(listing(&page.locks), lines);
        assert_eq!(listing(&[]), ["no key is held"]);
    }
}
