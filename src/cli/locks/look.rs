//! `get` and `list`: tables for people on a terminal, lines for programs elsewhere.

use std::io::{IsTerminal, stdout};

use clap::Args;
use clap::value_parser;

use crate::cli::locks::watch::{Size, watch};
use crate::cli::locks::{Named, Shown, Undone, insist, print};
use crate::cli::table::{card, json_line, listing, row, waiter_row};
use crate::client::{Client, PAGE};
use crate::wire::{ListBody, StatusBody};

/// The waiting requests that a terminal shows of a key.
const SHOWN_WAITERS: u64 = 10;

#[derive(Args, Debug)]
pub(in crate::cli) struct Get {
    /// Also print the first N waiting requests, 100 at most [default: 10 on a terminal].
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(..=100))]
    waiters: Option<u64>,
    /// Redraw the table every 2 s, until Ctrl-C.
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    #[command(flatten)]
    pub(super) named: Named,
}

#[derive(Args, Debug)]
pub(in crate::cli) struct List {
    /// Prefix of the keys.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    prefix: String,
    /// Redraw the table every 2 s, until Ctrl-C.
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    #[command(flatten)]
    pub(super) shown: Shown,
}

impl Get {
    pub(super) async fn run(&self, client: &Client) -> Result<(), Undone> {
        let on_terminal = stdout().is_terminal();
        let usual = (on_terminal && !self.named.shown.json).then_some(SHOWN_WAITERS);
        let waiters = self.waiters.or(usual);
        let ask = || client.inspect(&self.named.key, None, waiters);
        if self.watch {
            return watch(async |_| Ok(card(&serde_json::from_str(&ask().await?)?))).await;
        }
        let body = insist(ask).await.map_err(|(error, _)| error)?;
        if self.named.shown.json {
            return print(&json_line(&body)?);
        }
        let status: StatusBody = serde_json::from_str(&body)?;
        if on_terminal {
            return print(&card(&status).join("\n"));
        }
        let queue = status.queue.as_deref().unwrap_or_default().iter().enumerate();
        let line = queue.map(|(index, waiter)| waiter_row(index + 1, waiter));
        print(&[row(&status)].into_iter().chain(line).collect::<Vec<_>>().join("\n"))
    }
}

impl List {
    pub(super) async fn run(&self, client: &Client) -> Result<(), Undone> {
        if self.watch {
            return watch(async |size| self.frame(client, size).await).await;
        }
        let mut cursors: Vec<String> = Vec::new();
        loop {
            let cursor = cursors.last().map(|at| &**at);
            let page = insist(|| client.list(&self.prefix, cursor, PAGE)).await;
            let page: ListBody = serde_json::from_str(&page.map_err(|(error, _)| error)?)?;
            // Later pages may be empty.
            if cursors.is_empty() || !page.locks.is_empty() {
                self.print(&page)?;
            }
            match page.cursor {
                None => return Ok(()),
                Some(cursor) if cursors.contains(&cursor) => {
                    return Err(Undone::Wrong("the service repeats a page of the list".to_owned()));
                }
                Some(cursor) => cursors.push(cursor),
            }
        }
    }

    fn print(&self, page: &ListBody) -> Result<(), Undone> {
        if stdout().is_terminal() && !self.shown.json {
            return print(&listing(&page.locks).join("\n"));
        }
        for status in &page.locks {
            let json = || json_line(&serde_json::to_string(status)?);
            print(&if self.shown.json { json()? } else { row(status) })?;
        }
        Ok(())
    }

    /// The held keys that fit on the terminal.
    async fn frame(&self, client: &Client, size: Size) -> Result<Vec<String>, Undone> {
        let page = client.list(&self.prefix, None, size.rows.clamp(1, PAGE)).await?;
        let page: ListBody = serde_json::from_str(&page)?;
        let mut lines = listing(&page.locks);
        lines.extend(page.cursor.map(|_| "... and more keys".to_owned()));
        Ok(lines)
    }
}
