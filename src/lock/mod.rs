//! The domain: the rules of a lock, without HTTP, Redis or files.
//!
//! A client states a [`lease::Claim`] for a [`key::LockKey`]. The [`store::Store`] answers with a
//! [`lease::Lease`] or the current holder. A lease ends by release, by force, or when its
//! [`time::Ttl`] passes without a refresh; it is never revived. Each new lease of a key has a
//! higher [`token::FencingToken`]. [`table::Table`] states these rules without I/O;
//! [`locks::Locks`] offers them, with waiting, to callers that may vanish.

pub(crate) mod backoff;
pub(crate) mod detach_on_drop;
pub mod error;
pub mod hold;
pub mod key;
mod key_line;
pub mod lease;
pub mod leases;
pub(crate) mod line;
pub mod locks;
mod next;
pub mod permit;
pub mod prefixes;
#[cfg(test)]
pub(crate) mod sample;
pub mod several;
pub mod slots;
pub mod store;
pub mod table;
mod ticket;
pub mod time;
pub mod token;
mod turns;
mod undo_queue;
pub mod waiting;
mod waiting_request;
pub mod wakeup;
pub(crate) mod watched;
