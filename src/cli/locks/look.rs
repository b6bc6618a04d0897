//! `get` and `list`: tables for people on a terminal, lines for programs elsewhere.

use std::io::{ErrorKind, IsTerminal, stdout};

use clap::Args;
use clap::value_parser;

use crate::cli::exit::Failure;
use crate::cli::locks::{Named, Shown, insist};
use crate::cli::table::{card, json_line, listing, row, rows};
use crate::cli::terminal::columns;
use crate::cli::{exit, table, voice};
use crate::client::Client;
use crate::wire::{ListBody, StatusBody};

/// A list that is not whole.
const INCOMPLETE: &str = "keys are left out: their hash slot of the Cluster moves";

/// The waiting requests that a terminal shows of a key.
const SHOWN_WAITERS: u64 = 10;

#[derive(Args, Debug)]
pub(in crate::cli) struct Get {
    /// Also print the first N waiting requests, 100 at most [default: 10 on a terminal].
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(..=100))]
    waiters: Option<u64>,
    #[command(flatten)]
    pub(super) named: Named,
}

#[derive(Args, Debug)]
pub(in crate::cli) struct List {
    /// Prefix of the keys.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    prefix: String,
    /// On a terminal, print all columns; keys and owners become shorter for it.
    #[arg(long)]
    wide: bool,
    /// On a terminal, print keys and owners whole, though lines may wrap.
    #[arg(long)]
    no_trunc: bool,
    /// A prefix that was meant for the option.
    #[arg(value_name = "TEXT", value_parser = no_prefix, hide = true)]
    rest: Option<String>,
    #[command(flatten)]
    pub(super) shown: Shown,
}

fn no_prefix(text: &str) -> Result<String, String> {
    Err(format!("to list the keys that begin so, use `--prefix {text}`"))
}

/// Prints a line for a reader that may have seen enough.
fn print(line: &str) -> Result<(), Failure> {
    voice::written(&format!("{line}\n")).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure { code: exit::UNREAD, why: String::new() },
        _ => format!("cannot write to standard output: {error}").into(),
    })
}

impl Get {
    pub(super) async fn run(&self, client: &Client) -> Result<u8, Failure> {
        let on_terminal = stdout().is_terminal();
        let usual = (on_terminal && !self.named.shown.json).then_some(SHOWN_WAITERS);
        let waiters = self.waiters.or(usual);
        let body = insist(|| client.inspect(&self.named.key, waiters)).await.0?;
        if self.named.shown.json {
            return print(&json_line(&body)?).map(|()| 0);
        }
        let status: StatusBody = serde_json::from_str(&body)?;
        let lines = if on_terminal { card(&status, columns(stdout())) } else { rows(&status) };
        print(&lines.join("\n")).map(|()| 0)
    }
}

impl List {
    pub(super) async fn run(&self, client: &Client) -> Result<u8, Failure> {
        let mut cursor = None;
        let mut incomplete = false;
        loop {
            let (page, _) = insist(|| client.list(&self.prefix, cursor.as_deref())).await;
            let page: ListBody = serde_json::from_str(&page?)?;
            incomplete |= page.incomplete;
            // Later pages may be empty.
            if cursor.is_none() || !page.locks.is_empty() {
                self.print(&page)?;
            }
            if page.cursor.is_none() && incomplete {
                return Err(INCOMPLETE.to_owned().into());
            } else if page.cursor.is_none() {
                return Ok(0);
            }
            if page.cursor == cursor {
                return Err("the service repeats a page of the list".to_owned().into());
            }
            cursor = page.cursor;
        }
    }

    fn print(&self, page: &ListBody) -> Result<(), Failure> {
        if stdout().is_terminal() && !self.shown.json {
            if page.locks.is_empty() {
                return print("no key is held");
            }
            let all = table::Uncut { wide: self.wide, whole: self.no_trunc };
            return print(&listing(&page.locks, columns(stdout()), all).join("\n"));
        }
        for status in &page.locks {
            let json = || json_line(&serde_json::to_string(status)?);
            print(&if self.shown.json { json()? } else { row(status) })?;
        }
        Ok(())
    }
}
