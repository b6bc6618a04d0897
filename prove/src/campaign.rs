//! A campaign: each store in turn, under load and faults, and then held against its promises.

use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use crate::drive::Amount;
use crate::drive::Load;
use crate::history::Line;
use crate::history::Run;
use crate::nemesis::Nemesis;
use crate::nemesis::kinds::Kind;
use crate::record::Recorder;
use crate::servers::Site;
use crate::servers::Store;

/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(10);

/// One store, for so long, from a seed.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The store.
    pub store: Store,
    /// How long there are clients.
    pub lasts: Duration,
    /// From which everything that is left to chance follows.
    pub seed: u64,
    /// The service.
    pub binary: PathBuf,
    /// Where the history and the logs go.
    pub directory: PathBuf,
}

impl Trial {
    /// Runs it, and returns its history.
    ///
    /// # Errors
    /// Something under test did not start, or the history could not be written.
    pub async fn run(&self) -> io::Result<Vec<Line>> {
        std::fs::create_dir_all(&self.directory)?;
        let logs = self.directory.join(self.store.name());
        std::fs::create_dir_all(&logs)?;
        let mut site = Site::start(self.store, &self.binary, &logs).await?;
        let (recorder, recording) = Recorder::start(&self.history())?;
        recorder.write(Line::Run(Run {
            store: self.store.name().to_owned(),
            seed: self.seed,
            instances: u16::try_from(self.store.instances()).unwrap_or(u16::MAX),
            deadline: self.store.deadline(),
            drift_ppm: self.store.drift_ppm(),
        }));
        let routes = site.routes();
        let kinds = Kind::of_run(self.store, self.seed);
        let mut nemesis = Nemesis::new(&mut site, &recorder, self.seed, &kinds);
        let load = Load::start(self.amount(), &routes, &recorder, self.seed);
        let end = Instant::now() + self.lasts;
        let mut told = Instant::now();
        while Instant::now() < end {
            nemesis.round(end).await?;
            if told.elapsed() > PROGRESS {
                told = Instant::now();
                let left = end.saturating_duration_since(told).as_secs();
                let operations = recorder.operations();
                eprintln!("{}: {operations} operations, {left} s left", self.store.name());
            }
        }
        load.stop().await;
        nemesis.leftovers(self.amount().keys).await?;
        recording.finish()
    }

    /// Returns where its history is.
    pub fn history(&self) -> PathBuf {
        self.directory.join(format!("{}.jsonl", self.store.name()))
    }

    fn amount(&self) -> Amount {
        let mut chance = fastrand::Rng::with_seed(self.seed);
        Amount { clients: 96, keys: chance.u32(32..65) }
    }
}

/// Returns the binary of the service.
///
/// # Errors
/// There is none.
pub fn binary() -> io::Result<PathBuf> {
    let named = std::env::var_os("LOCKKEEPER_BIN").map(PathBuf::from);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let path = named.unwrap_or_else(|| workspace.join("target/release/lockkeeper"));
    std::fs::canonicalize(&path)
        .map_err(|error| io::Error::other(format!("{}: {error}; see LOCKKEEPER_BIN", path.display())))
}
