//! The domain: what a lock is, without HTTP, Redis or files.
//!
//! A client states a [`lease::Claim`] for a [`key::LockKey`]. The [`store::Store`] answers with a
//! [`lease::Lease`] or with who has it. The lease ends when its holder releases it, when its
//! [`time::Ttl`] passes without a refresh, or by force; it is never revived. Each new lease of a
//! key has a higher [`token::FencingToken`]. [`table::Table`] states these rules without I/O,
//! [`locks::Locks`] offers them to callers that may vanish.

pub mod error;
mod heard_out;
pub mod key;
pub mod lease;
pub mod locks;
mod owed;
pub mod store;
pub mod table;
pub mod time;
pub mod token;
