//! The rules in every order: `mod.rs`, within a copy of the table that `build.rs` makes.

#![cfg(test)]
#![expect(dead_code, reason = "the service uses more of what is copied")]
#![expect(unused_qualifications, reason = "the same text stands for a rule in all files")]

include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));

/// For rustfmt, which does not read the copy.
#[cfg(false)]
#[path = "mod.rs"]
mod orders;
#[cfg(false)]
#[path = "seen.rs"]
mod seen;
