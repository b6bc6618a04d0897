//! The proof of lockkeeper: what clients are told while things fail, held against what is promised.
//!
//! [`history`] is the record, on one monotonic clock. [`drive`] asks and records, [`servers`] runs the
//! service and its stores, [`proxy`] and [`nemesis`] make things fail, [`campaign`] puts them together,
//! and [`outside`] judges a second time.
//! All of it knows the HTTP contract and nothing of the service's code.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test stops at the first surprise"))]

pub mod check;
pub mod history;
pub mod outside;

pub mod http;
pub mod record;

pub mod drive;
pub mod proxy;
pub mod servers;

pub mod campaign;
pub mod nemesis;
