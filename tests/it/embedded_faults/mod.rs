//! The embedded store on bad days: killed, ended, out of room, on a disk that fails.

mod copies;
mod disk;
mod file;
mod kill;
mod load;
mod others;
mod power;
mod stall;
