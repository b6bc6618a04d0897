//! The nemesis: rounds of one to three faults at a time, from a seed, each recorded from its start to
//! its end.
//!
//! `kinds` is the table of faults, `strike` does what concerns processes and networks, `disk` the
//! embedded store, `data` servers and what they know. `left` counts what is there at the end.

mod data;
mod disk;
pub(crate) mod kinds;
mod left;
mod strike;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::history::{Fault, Line, Nanos};
use crate::nemesis::kinds::{Kind, Net, Target};
use crate::nemesis::left::Baseline;
use crate::record::Recorder;
use crate::servers::Site;

/// Makes things fail, and mends them.
#[derive(Debug)]
pub(crate) struct Nemesis<'a> {
    site: &'a mut Site,
    recorder: Arc<Recorder>,
    chance: fastrand::Rng,
    /// Which kinds may be struck.
    allowed: Vec<Kind>,
    /// Those that have not been struck since all were.
    due: Vec<Kind>,
    floods: Vec<TcpStream>,
    /// What keeps instances from running.
    starving: JoinSet<()>,
    baseline: Vec<Baseline>,
    /// The most fields that the crew of a line had.
    crew: u64,
}

#[derive(Clone, Copy, Debug)]
struct Struck {
    kind: Kind,
    target: Target,
    from: Nanos,
    until: Instant,
    /// For how much longer than its end it may be felt: clocks that were set back.
    after: Nanos,
}

impl<'a> Nemesis<'a> {
    /// Prepares faults of these kinds; their order and targets follow from a seed.
    pub(crate) fn new(
        site: &'a mut Site,
        recorder: &Arc<Recorder>,
        seed: u64,
        kinds: &[Kind],
    ) -> Self {
        let baseline = left::baseline(site);
        Self {
            site,
            recorder: recorder.clone(),
            chance: fastrand::Rng::with_seed(!seed),
            allowed: kinds.to_vec(),
            due: Vec::new(),
            floods: Vec::new(),
            starving: JoinSet::new(),
            baseline,
            crew: 0,
        }
    }

    /// Strikes one to three faults, mends them, and leaves everybody alone for a moment.
    pub(crate) async fn round(&mut self, end: Instant) -> io::Result<()> {
        let epoch = self.site.epoch();
        let mut faults: Vec<Struck> = Vec::new();
        let number = self.chance.usize(1..4);
        for _ in 0..number {
            let Some((kind, target)) = self.choose(&faults) else { break };
            let from = self.recorder.now();
            let lasts = self.lasts(kind);
            let after = self.strike(kind, target).await?;
            faults.push(Struck { kind, target, from, until: Instant::now() + lasts, after });
            sleep(Duration::from_millis(self.chance.u64(..200))).await;
        }
        faults.sort_by_key(|fault| fault.until);
        let mut healed = Vec::new();
        for fault in faults {
            sleep_until(fault.until.min(end.max(Instant::now()))).await;
            self.heal(fault.kind, fault.target).await?;
            healed.push((fault, self.recorder.now()));
        }
        self.revive().await?;
        sleep(Duration::from_millis(self.chance.u64(300..1_500))).await;
        // The next fault means what it says only on a store that is whole.
        self.site.until_whole().await?;
        self.measure_crews();
        let replaced = self.site.epoch() != epoch;
        for (fault, until) in healed {
            let until = if replaced { self.recorder.now() } else { until };
            self.recorder.write(Line::Fault(Fault {
                kind: fault.kind.name(),
                target: fault.target.name(fault.kind),
                from: fault.from,
                until: until + fault.after,
                forgets: replaced || fault.kind.forgets(self.site.store),
            }));
        }
        Ok(())
    }

    /// Returns a kind that is due, and a target that is not struck yet.
    fn choose(&mut self, faults: &[Struck]) -> Option<(Kind, Target)> {
        for _ in 0..8 {
            if self.due.is_empty() {
                self.due.clone_from(&self.allowed);
                self.chance.shuffle(&mut self.due);
            }
            let kind = self.due.pop()?;
            let target = kind.target(&mut self.chance, self.site);
            if faults.iter().any(|fault| fault.target.clashes(target)) {
                self.due.insert(0, kind);
                continue;
            }
            return Some((kind, target));
        }
        None
    }

    fn lasts(&mut self, kind: Kind) -> Duration {
        let milliseconds = match kind {
            Kind::Front(Net::Cut | Net::HalfClose) | Kind::Link(Net::Cut | Net::HalfClose) => 1..50,
            Kind::ScriptsFlushed | Kind::Flushed | Kind::ClientsKilled => 1..50,
            Kind::InstanceKill | Kind::InstanceTerm | Kind::ServerTerm => 1..600,
            _ if self.chance.u32(..4) == 0 => 1_000..5_000,
            _ => 200..1_200,
        };
        Duration::from_millis(self.chance.u64(milliseconds))
    }

    async fn revive(&mut self) -> io::Result<()> {
        for server in self.site.servers.iter_mut().chain(&mut self.site.sentinels) {
            if !server.process.runs() {
                server.restart().await?;
            }
        }
        for instance in &mut self.site.instances {
            if !instance.process.runs() {
                instance.restart().await?;
            }
        }
        Ok(())
    }
}
