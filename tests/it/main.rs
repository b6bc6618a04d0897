//! All tests that need more than a function: one binary, so one link.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support;

mod api;
mod conformance;
mod embedded_faults;
mod hold;
mod model;
mod php;
mod readme;
mod redis_faults;
mod startup;
mod waiting;
