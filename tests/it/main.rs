//! All tests that need more than a function: one binary, so one link.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support;

mod api;
mod browser;
mod clients;
mod conformance;
mod dashboard;
mod deploy;
mod docs;
mod embedded_faults;
mod examples;
mod exec;
mod fenced;
mod fuzz;
mod hold;
mod hook;
mod install;
mod interop;
mod legacy;
mod listeners;
mod lives;
mod logging;
mod mcp;
mod migration;
mod model;
mod php;
mod php_frameworks;
mod php_kills;
mod php_package;
mod readme;
mod redis_faults;
mod redlock;
mod reload;
mod sharing;
mod startup;
mod topology_faults;
mod traces;
mod waiting;
