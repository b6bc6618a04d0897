//! Faults of Redis servers: the processes, their disks and clocks, and what they know.

use std::io;
use std::time::Duration;

use redis::Value;
use rustix::process::Signal;
use tokio::time::sleep;

use crate::history::Nanos;
use crate::nemesis::Nemesis;
use crate::nemesis::kinds::{Kind, Target};
use crate::servers::shim::Word;

const EIO: i64 = 5;
const ENOSPC: i64 = 28;

const SECOND: i64 = 1_000_000_000;

/// The longest step of a clock: two nodes whose clocks step apart are still within the longest lease
/// of Redlock here.
const STEP: i64 = SECOND * 7 / 5;

/// The most bytes that a log loses: some dozens of writes.
const LOG_LOST: u64 = 8_192;

impl Nemesis<'_> {
    /// Strikes all servers, or one of several by chance.
    pub(super) async fn strike_servers(&mut self, kind: Kind) -> io::Result<()> {
        match kind {
            Kind::Failover => self.site.fail_over(self.chance.usize(..3)),
            Kind::SlotsMoved => self.site.move_slot(self.chance.u32(..32)).await?,
            Kind::ServerRoll => {
                for server in &mut self.site.servers {
                    server.process.end().await;
                    server.restart().await?;
                }
            }
            _ => self.site.servers.iter_mut().for_each(|server| server.process.kill()),
        }
        Ok(())
    }

    pub(super) async fn strike_server(&mut self, kind: Kind, number: usize) -> io::Result<()> {
        let server = &mut self.site.servers[number];
        match kind {
            Kind::ServerStop => server.process.signal(Signal::STOP),
            Kind::ServerTerm => server.process.end().await,
            Kind::ServerDiskSlow => server.shim.set(Word::SlowSync, self.chance.i64(10..400)),
            Kind::ServerDiskFull => server.shim.set(Word::Full, ENOSPC),
            Kind::ServerDiskFails => server.shim.fail_syncs(1, EIO),
            Kind::ServerLogTruncated => {
                server.process.kill();
                server.truncate_log(self.chance.u64(1..LOG_LOST))?;
            }
            _ => server.process.kill(),
        }
        Ok(())
    }

    pub(super) async fn heal_servers(&mut self, kind: Kind, target: Target) -> io::Result<()> {
        let struck = match target {
            Target::Server(number) => &mut self.site.servers[number..=number],
            Target::Sentinel(number) => &mut self.site.sentinels[number..=number],
            _ => &mut self.site.servers[..],
        };
        for server in struck {
            server.shim.heal();
            server.process.signal(Signal::CONT);
            // A server whose disk failed ends by itself, perhaps in this moment.
            sleep(Duration::from_millis(30)).await;
            if !server.process.runs() {
                server.restart().await?;
            }
        }
        if kind == Kind::SlotsMoved { self.site.until_whole().await } else { Ok(()) }
    }

    /// Strikes what a server knows, and returns for how long that may be felt after its end.
    pub(super) fn strike_data(&mut self, kind: Kind, number: usize) -> Nanos {
        let server = &self.site.servers[number];
        match kind {
            Kind::ClientsKilled => ignore(server.run(&["CLIENT", "KILL", "TYPE", "normal"])),
            Kind::ScriptsFlushed => ignore(server.run(&["SCRIPT", "FLUSH"])),
            Kind::Flushed => ignore(server.run(&["FLUSHALL"])),
            Kind::Sleep => {
                let seconds = format!("0.{:03}", self.chance.u32(50..800));
                server.send(&["DEBUG", "SLEEP", &seconds]);
            }
            Kind::Pause => {
                let milliseconds = self.chance.u32(50..1_500).to_string();
                server.send(&["CLIENT", "PAUSE", &milliseconds, "ALL"]);
            }
            Kind::MemoryFull => ignore(server.run(&["CONFIG", "SET", "maxmemory", "1"])),
            _ => {
                let step = self.chance.i64(SECOND / 10..STEP);
                let ahead = if kind == Kind::ClockForward { step } else { -step };
                server.shim.set(Word::Ahead, ahead);
                return step.unsigned_abs();
            }
        }
        0
    }

    pub(super) fn heal_data(&mut self, kind: Kind, number: usize) {
        let server = &self.site.servers[number];
        match kind {
            Kind::Pause => ignore(server.run(&["CLIENT", "UNPAUSE"])),
            Kind::MemoryFull => {
                // It has to be undone, also where the server is busy.
                let undo = || server.run::<Value>(&["CONFIG", "SET", "maxmemory", "0"]);
                let _ = (0..5).any(|_| undo().is_ok());
            }
            Kind::ClockForward | Kind::ClockBack => server.shim.heal(),
            _ => (),
        }
    }
}

/// A server that is struck twice may not answer; then there was one fault less.
fn ignore(_: io::Result<Value>) {}
