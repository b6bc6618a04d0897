//! A distributed lock service over HTTP: leases with fencing tokens, on an embedded store or on
//! Redis. The modules are in reading order; each names only those before it (`tests/tidy.rs`,
//! ARCHITECTURE.md).

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test stops at the first surprise"))]

pub mod platform;

pub mod lock;

pub mod metrics;
mod pem;
pub mod store;

pub mod auth;
pub mod config;
mod wire;

pub mod api;
mod client;
pub mod server;

pub mod cli;
