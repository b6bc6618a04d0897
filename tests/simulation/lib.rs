//! The simulation of Redlock: `mod.rs`, within a copy of the store that `build.rs` makes.

#![cfg(test)]
#![expect(dead_code, reason = "the service uses more of what is copied")]

include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));

/// For rustfmt, which does not read the copy.
#[cfg(false)]
#[path = "mod.rs"]
mod simulation;
