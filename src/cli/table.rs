//! Output of the verbs: rows of columns or lines of JSON for programs, tables for people.

use std::time::Duration;

use serde::de::IgnoredAny;

use crate::cli::terminal::plain;
use crate::lock::slots::Slots;
use crate::wire::{StatusBody, WaiterBody};

const NOTHING: &str = "-";

const GAP: &str = "  ";

/// The heads of columns with texts of clients, and how short such a column may become.
const TEXTS: [&str; 2] = ["KEY", "OWNER"];
const LEAST_WIDTH: usize = 9;

/// The state of a key, its columns separated by tabs; keys and owners contain none.
pub(super) fn row(status: &StatusBody) -> String {
    [
        plain(&status.key),
        if status.held { "held" } else { "free" }.to_owned(),
        shown(status.ttl_ms.map(seconds)),
        shown(status.fencing_token),
        status.waiters.to_string(),
        shown(whose(status)),
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
            fact("owner", shown(whose(status)));
            fact("held for", shown(status.held_ms.map(span)));
            fact("time left", time_left(status));
            fact("fencing token", shown(status.fencing_token));
        }
        Some(_) => {
            fact("holders", shown(whose(status)));
            fact("time left", time_left(status));
        }
    }
    fact("waiters", status.waiters.to_string());
    let leases = status.leases.iter().flatten().map(|lease| {
        [
            shown(lease.slot),
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
    lines(&facts, &widths(&facts))
        .into_iter()
        .chain(below.flat_map(|table| [String::new()].into_iter().chain(table)))
        .collect()
}

/// The held keys, for people with a terminal of so many columns.
pub(super) fn listing(locks: &[StatusBody], most: usize) -> Vec<String> {
    if locks.is_empty() {
        return vec!["no key is held".to_owned()];
    }
    let rows = locks.iter().map(|status| {
        [
            plain(&status.key),
            shown(whose(status)),
            shown(status.held_ms.map(span)),
            time_left(status),
            status.waiters.to_string(),
            shown(status.fencing_token),
        ]
    });
    table(["KEY", "OWNER", "HELD FOR", "TIME LEFT", "WAITERS", "FENCING TOKEN"], rows, most)
}

fn time_left(status: &StatusBody) -> String {
    status.ttl_ms.map_or_else(|| "no end".to_owned(), span)
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

/// A table of at most so many columns of a terminal, if that can be: keys and owners give way.
fn table<const N: usize>(
    heads: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
    most: usize,
) -> Vec<String> {
    let rows: Vec<_> = [heads.map(str::to_owned)].into_iter().chain(rows).collect();
    let mut widths = widths(&rows);
    while widths.iter().sum::<usize>() + GAP.len() * (N - 1) > most {
        let texts = heads.iter().zip(&mut widths).filter(|(head, _)| TEXTS.contains(head));
        let longest = texts.map(|(_, width)| width).max();
        let Some(longest) = longest.filter(|width| **width > LEAST_WIDTH) else { break };
        *longest -= 1;
    }
    lines(&rows, &widths)
}

fn widths<const N: usize>(rows: &[[String; N]]) -> [usize; N] {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    std::array::from_fn(|column| width(column).unwrap_or_default())
}

/// Rows whose columns begin below one another.
fn lines<const N: usize>(rows: &[[String; N]], widths: &[usize; N]) -> Vec<String> {
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths);
        let cells = cells.map(|(cell, &width)| format!("{:width$}", shortened(cell, width)));
        cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// A text without its middle if it is longer than `most`: the ends tell keys apart.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let begin = text.chars().take((most - 1) / 2);
    begin.chain(['\u{2026}']).chain(text.chars().skip(length - most / 2)).collect()
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
            "time left  1.5 s",
            "waiters    0",
            "",
            "SLOT  OWNER  HELD FOR  TIME LEFT  FENCING TOKEN",
            "2     web-1  9.0 s     1.0 s      7",
            "-     -      -         1.5 s      5",
        ];
        assert_eq!(card(&held, 80), lines);
        let readers = r#"{"key":"k","held":true,"waiters":0,"holders":12,"slots":1000}"#;
        assert!(listing(&[status(readers)], 80)[1].contains("12 shared"));
    }

    #[test]
    fn a_list_is_a_table_that_fits_without_the_middle_of_long_keys_and_owners() {
        let page: ListBody = serde_json::from_str(
            r#"{"locks":[{"key":"a","held":true,"ttl_ms":2000,"waiters":0},
                {"key":"tenants/4711/invoices/2026-11/report-1","held":true,"held_ms":400,
                 "owner":"deploy@web-1.example:4711 sh","fencing_token":1795715876551822,
                 "waiters":12}]}"#,
        )
        .unwrap();
        let lines = [
            "KEY              OWNER            HELD FOR  TIME LEFT  WAITERS  FENCING TOKEN",
            "a                -                -         2.0 s      0        -",
            "tenants\u{2026}eport-1  deploy@\u{2026}4711 sh  0.4 s     no end     12       1795715876551822",
        ];
        assert_eq!(listing(&page.locks, 80), lines);
        assert!(
            listing(&page.locks, 1)[2].starts_with("tena\u{2026}rt-1  depl\u{2026}1 sh  0.4 s")
        );
        let wide = "tenants/4711/invoices/2026-11/report-1  deploy@web-1.example:4711 sh  0.4 s";
        assert!(listing(&page.locks, 120)[2].starts_with(wide));
        assert_eq!(listing(&[], 80), ["no key is held"]);
    }
}
