//! Faults of the embedded store: its disk, its file, its directory.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use crate::nemesis::Nemesis;
use crate::nemesis::kinds::Kind;
use crate::servers::instance::Log;
use crate::servers::shim::Word;

const EIO: i64 = 5;
const ENOSPC: i64 = 28;

/// How long a process may take to say that it does not serve a file or a directory.
const REFUSAL: Duration = Duration::from_secs(5);

impl Nemesis<'_> {
    pub(super) fn strike_disk(&mut self, kind: Kind) {
        let shim = &self.site.instances[0].shim;
        match kind {
            Kind::DiskSlow => shim.set(Word::SlowSync, self.chance.i64(10..1_500)),
            Kind::DiskFull => shim.set(Word::Full, ENOSPC),
            _ => {
                let times = if kind == Kind::DiskFails { -1 } else { 1 };
                shim.fail_syncs(times, if self.chance.bool() { EIO } else { ENOSPC });
            }
        }
    }

    pub(super) async fn heal_disk(&mut self) -> io::Result<()> {
        let instance = &mut self.site.instances[0];
        instance.shim.heal();
        // A process whose disk failed ends by itself, and is not ready until then.
        let limit = Instant::now() + REFUSAL;
        while instance.process.runs() && Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if instance.answers("/readyz").await {
                return Ok(());
            }
        }
        if instance.process.runs() { Ok(()) } else { instance.restart().await }
    }

    pub(super) async fn strike_file(&mut self, kind: Kind) -> io::Result<()> {
        let (file, directory, aside) = (self.site.file(), self.site.data(), self.aside());
        match kind {
            Kind::FileMoved => fs::rename(&file, &aside)?,
            Kind::DirectoryMoved => fs::rename(&directory, &aside)?,
            Kind::FileReplaced => {
                fs::rename(&file, &aside)?;
                fs::copy(&aside, &file)?;
            }
            Kind::SecondProcess => {
                let instance = &mut self.site.instances[0];
                let ended = instance.try_start(REFUSAL).await?;
                if !instance.process.runs() {
                    // Its disk had failed, and the directory was nobody's.
                    return instance.restart().await;
                }
                refused(ended.and_then(|status| status.code()), "the directory of another")?;
            }
            Kind::FileDeleted => fs::remove_file(&file)?,
            Kind::FileRolledBack => {
                let instance = &mut self.site.instances[0];
                instance.process.end().await;
                fs::copy(&file, &aside)?;
                instance.restart().await?;
            }
            _ => self.damage(&file, &aside).await?,
        }
        Ok(())
    }

    pub(super) async fn heal_file(&mut self, kind: Kind) -> io::Result<()> {
        let (file, directory, aside) = (self.site.file(), self.site.data(), self.aside());
        let instance = &mut self.site.instances[0];
        match kind {
            Kind::FileMoved | Kind::FileReplaced => fs::rename(&aside, &file)?,
            Kind::DirectoryMoved => {
                // A service that was restarted meanwhile has made a new one.
                let _ = fs::remove_dir_all(&directory);
                fs::rename(&aside, &directory)?;
            }
            Kind::FileDeleted => {
                remove_beside(&file);
                instance.roll(Log::File).await?;
            }
            Kind::FileRolledBack => {
                instance.process.end().await;
                remove_beside(&file);
                fs::rename(&aside, &file)?;
                instance.restart().await?;
            }
            _ => (),
        }
        Ok(())
    }

    /// Has the service refuse a damaged file, and then serve the right one.
    async fn damage(&mut self, file: &Path, aside: &Path) -> io::Result<()> {
        let at = self.chance.f64();
        let instance = &mut self.site.instances[0];
        instance.process.end().await;
        fs::copy(file, aside)?;
        let damaged = fs::File::options().write(true).open(file)?;
        let length = damaged.metadata()?.len();
        // The first page says what the file is: anywhere else a page may be unused.
        let from = if at < 0.5 { 0 } else { (length as f64 * at) as u64 & !4095 };
        damaged.write_all_at(&[0x5a; 4096], from)?;
        let ended = instance.try_start(REFUSAL).await?;
        fs::rename(aside, file)?;
        instance.restart().await?;
        match ended {
            Some(status) => refused(status.code(), "a damaged file"),
            // The page was unused, and the file is whole.
            None if from > 0 => Ok(()),
            None => Err(io::Error::other("a file without its first page was served")),
        }
    }

    fn aside(&self) -> PathBuf {
        self.site.directory.join("aside")
    }
}

/// What belongs to a file that is not there any more.
fn remove_beside(file: &Path) {
    for beside in ["-wal", "-shm", "-note"] {
        let mut name = file.as_os_str().to_owned();
        name.push(beside);
        let _ = fs::remove_file(name);
    }
}

fn refused(code: Option<i32>, what: &str) -> io::Result<()> {
    match code {
        Some(1) => Ok(()),
        other => Err(io::Error::other(format!("{what} was not refused: {other:?}"))),
    }
}
