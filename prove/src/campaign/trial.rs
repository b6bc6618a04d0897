//! A trial: one store under load and faults, from one seed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::drive::{Amount, Load};
use crate::history::{Line, Nanos, Run};
use crate::nemesis::Nemesis;
use crate::nemesis::kinds::Kind;
use crate::record::{Recorder, Recording};
use crate::servers::{DEADLINE, LONGEST_LEASE, Site, Store};

/// How long nothing is made to fail, at first and after so many rounds of faults, and the part of a short
/// trial that this is at most: what has to be prompt is judged where nothing has failed for seconds.
const QUIET: Duration = Duration::from_secs(8);
const QUIET_PART: u32 = 4;
const ROUNDS: u32 = 6;

/// How many clients share keys: about a fifth of all operations are theirs.
const SHARERS: u32 = 36;

/// The longest lease on Redlock where leases are to outlast the run.
const LASTING: &str = "31s";

/// One store, for so long, from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) store: Store,
    pub(crate) lasts: Duration,
    /// From which everything that is left to chance follows.
    pub(crate) seed: u64,
    pub(crate) binary: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) kinds: Vec<Kind>,
}

impl Trial {
    /// Prepares a trial with the kinds of faults of its seed, or with those that `PROVE_KINDS` names; its
    /// files go below this directory.
    pub(crate) fn new(
        store: Store,
        lasts: Duration,
        seed: u64,
        binary: &Path,
        below: &Path,
    ) -> Self {
        let directory = below.join(seed.to_string());
        let mut kinds = Kind::of_run(store, seed);
        if let Ok(wanted) = std::env::var("PROVE_KINDS") {
            kinds = Kind::of(store);
            kinds.retain(|kind| wanted.split(',').any(|name| name == kind.name()));
        }
        Self { store, lasts, seed, binary: binary.to_owned(), directory, kinds }
    }

    pub(crate) async fn run(&self) -> io::Result<Vec<Line>> {
        let (mut site, recorder, recording) = self.begin(LONGEST_LEASE).await?;
        let routes = site.routes();
        let amount = self.amount();
        let mut nemesis = Nemesis::new(&mut site, &recorder, self.seed, &self.kinds);
        let load = Load::start(amount, &routes, &recorder, self.seed);
        let end = Instant::now() + self.lasts;
        for round in 0.. {
            if round % ROUNDS == 0 {
                let left = end.saturating_duration_since(Instant::now());
                tokio::time::sleep(QUIET.min(self.lasts / QUIET_PART).min(left)).await;
            }
            if Instant::now() >= end {
                break;
            }
            nemesis.round(end).await?;
        }
        load.stop().await;
        nemesis.leftovers(amount.all_keys()).await?;
        recording.finish()
    }

    /// Starts what is under test, without the logs of before, and the record of it.
    async fn begin(&self, longest_lease: &str) -> io::Result<(Site, Arc<Recorder>, Recording)> {
        let logs = self.logs();
        if logs.exists() {
            std::fs::remove_dir_all(&logs)?;
        }
        std::fs::create_dir_all(&logs)?;
        let site = Site::start(self.store, &self.binary, &logs, longest_lease).await?;
        let (recorder, recording) = Recorder::start(&self.history())?;
        recorder.write(Line::Run(Run {
            store: self.store.name().to_owned(),
            seed: self.seed,
            deadline: DEADLINE.as_nanos() as Nanos,
            drift_ppm: self.store.drift_ppm(),
        }));
        Ok((site, recorder, recording))
    }

    /// Has clients take exclusive leases that outlast the run, without faults, and returns the history.
    pub(crate) async fn lasting(&self) -> io::Result<Vec<Line>> {
        let (site, recorder, recording) = self.begin(LASTING).await?;
        let keys = fastrand::Rng::with_seed(self.seed).u32(48..97);
        let amount = Amount { clients: 24, keys, sharers: 0, lasting: true, far: false };
        let load = Load::start(amount, &site.routes(), &recorder, self.seed);
        tokio::time::sleep(self.lasts).await;
        load.stop().await;
        recording.finish()
    }

    /// Returns where the logs and the data of what is under test are.
    pub(crate) fn logs(&self) -> PathBuf {
        self.directory.join(self.store.name())
    }

    pub(crate) fn history(&self) -> PathBuf {
        self.directory.join(format!("{}.jsonl", self.store.name()))
    }

    fn amount(&self) -> Amount {
        let keys = fastrand::Rng::with_seed(self.seed).u32(32..65);
        let sharers = if self.store.shares() { SHARERS } else { 0 };
        let far = self.store == Store::RedisFar;
        Amount { clients: 96, keys, sharers, lasting: false, far }
    }
}
