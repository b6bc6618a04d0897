//! An `exec` within another one.

use crate::cli::claimant::Claimant;
use crate::cli::exec::{IfDown, Prepared};
use crate::cli::exit::Failure;
use crate::cli::outer::Standing;
use crate::cli::{exit, outer};
use crate::lock::key::LockKey;

impl Prepared<'_> {
    /// Takes what an outer `exec` has instead of asking for it: one that waits for its COMMAND would
    /// be waited for. Of a pool one key is enough, and those that an outer one excludes are not
    /// asked for.
    pub(super) async fn go_within_outer_leases(&mut self) -> Result<(), Failure> {
        let contention = &self.exec.contention;
        let voice = self.exec.remote.voice();
        let is_pool = !self.exec.any_of.is_empty();
        let mut excluded = Vec::new();
        for keeper in &self.keepers {
            let Claimant { client, key, wish, .. } = &keeper.claimant;
            let found = match outer::look(client, (key, wish.share), contention).await {
                // It is asked for again, and runs without a lease then.
                Err(why) if why.code == exit::UNREACHABLE && self.exec.if_down == IfDown::Run => {
                    None
                }
                found => found.map_err(|failure| failure.about(key))?,
            };
            match found {
                Some((lease, Standing::Within)) => {
                    let number = lease.fencing_token;
                    voice.complain(|| {
                        let within = "COMMAND runs within the lease of the outer exec";
                        format!("'{key}': {within}, fencing token {number}")
                    });
                    self.outer.push(lease);
                }
                Some((_, Standing::InTheWay)) if contention.waits() => {
                    excluded.push(key.clone());
                    if is_pool && excluded.len() < self.keepers.len() {
                        continue;
                    }
                    let why = format!(
                        "'{key}': an outer exec has the key with another share (--slots, --units, \
                         --shared), so that COMMAND would wait for its own end"
                    );
                    return Err(Failure { code: exit::NESTED, why });
                }
                Some((_, Standing::InTheWay | Standing::Apart)) | None => (),
            }
        }
        let outer = &self.outer;
        let is_there = |key: &LockKey| outer.iter().any(|lease| lease.key == *key);
        self.keepers.retain(|keeper| match is_pool {
            true => outer.is_empty() && !excluded.contains(&keeper.claimant.key),
            false => !is_there(&keeper.claimant.key),
        });
        Ok(())
    }
}
