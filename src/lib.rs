//! A distributed lock service over HTTP: leases with fencing tokens, on an embedded store or on
//! Redis. The modules in reading order, each naming only those before it; `tests/tidy.rs` holds
//! them to that, ARCHITECTURE.md says why.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test stops at the first surprise"))]

mod seeded;

pub mod lock;

pub mod metrics;
pub mod store;

pub mod auth;
pub mod config;
pub mod wire;

pub mod api;
pub mod client;
pub mod server;

pub mod cli;
