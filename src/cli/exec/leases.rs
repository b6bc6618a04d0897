//! The leases of COMMAND: one, several with `--also`, or none with `--if-down run`. COMMAND needs
//! all of them, so the earliest end counts.

use std::cell::{Cell, OnceCell};
use std::io;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, Stream, StreamExt};
use tokio::time::sleep;

use crate::cli::claimant::{LEAVE_TIME, PAUSE};
use crate::cli::clock::Moment;
use crate::cli::exec::lease::{KnownLease, LeaseKeeper, LossReason};
use crate::cli::exit;
use crate::cli::exit::{Failure, about};
use crate::lock::key::LockKey;
use crate::platform::clock::Alarm;

/// The moment up to which a lease is refreshed before COMMAND runs.
const END: fn(&KnownLease) -> Moment = |lease| lease.end;

/// The leases, in the order in which they were acquired.
#[derive(Debug, Default)]
pub(super) struct Leases<'a>(Vec<KeptLease<'a>>);

#[derive(Debug)]
struct KeptLease<'a> {
    keeper: &'a LeaseKeeper,
    lease: Cell<KnownLease>,
    lost: Cell<bool>,
}

impl<'a> KeptLease<'a> {
    fn new(keeper: &'a LeaseKeeper, lease: KnownLease) -> Self {
        Self { keeper, lease: Cell::new(lease), lost: Cell::new(false) }
    }

    /// Refreshes the lease until that has failed up to `limit`, a moment of the lease; `refreshed` is
    /// called after each refresh.
    async fn keep(
        &self,
        limit: fn(&KnownLease) -> Moment,
        refreshed: impl Fn(),
    ) -> io::Result<LossReason> {
        let alarm = Alarm::new()?;
        loop {
            let lease = self.lease.get();
            alarm.at(lease.renew.min(limit(&lease)).since_boot()).await?;
            if let Some(loss) = self.renew(&alarm, limit).await? {
                // One that lasts no longer is there until its end, and is released before.
                self.lost.set(!matches!(loss, LossReason::Capped));
                return Ok(loss);
            }
            refreshed();
        }
    }

    /// Refreshes the lease now, as [`keep`](Self::keep) does; `None` once it is.
    async fn renew(
        &self,
        alarm: &Alarm,
        limit: fn(&KnownLease) -> Moment,
    ) -> io::Result<Option<LossReason>> {
        let lease = self.lease.get();
        let refreshed = self.keeper.refresh(alarm, &lease, limit).await?;
        Ok(refreshed.map(|next| self.lease.set(next)).err())
    }
}

impl<'a> Leases<'a> {
    pub(super) fn of(keeper: &'a LeaseKeeper, lease: KnownLease) -> Self {
        Self(vec![KeptLease::new(keeper, lease)])
    }

    /// Acquires a lease of every key, in their order: clients that take keys in one order never
    /// wait for each other in a circle. Refreshes those it has while it waits for the next, forever
    /// without `wait`, which is the limit of all, and once more at the end. After an error it has
    /// tried to leave nothing.
    ///
    /// Dropping the future leaves the line, but may leave leases: see [`leave`].
    pub(super) async fn acquire(
        keepers: &'a [LeaseKeeper],
        wait: Option<Duration>,
    ) -> Result<Self, Failure> {
        let until = wait.map(|wait| Moment::now().after(wait));
        let leases: Vec<_> = keepers.iter().map(|_| OnceCell::new()).collect();
        let mut losses = FuturesUnordered::new();
        for (keeper, lease) in keepers.iter().zip(&leases) {
            tokio::select! {
                biased;
                acquired = keeper.acquire(until.map(Moment::left)) => match acquired {
                    Ok(acquired) => {
                        let kept: &KeptLease<'_> =
                            lease.get_or_init(|| KeptLease::new(keeper, acquired));
                        losses.push(async move {
                            Ok::<_, io::Error>((&keeper.claimant.key, kept.keep(END, || ()).await?))
                        });
                    }
                    Err(why) => {
                        leave(keepers).await;
                        return Err(why);
                    }
                },
                Some(loss) = losses.next() => {
                    let (key, loss) = loss?;
                    return Err(without(keepers, key, loss).await);
                }
            }
        }
        drop(losses);
        let leases = Self(leases.into_iter().filter_map(OnceCell::into_inner).collect());
        // One may have been ended by force since its last refresh, or while another is renewed.
        let several: Vec<_> = leases.0.iter().filter(|_| keepers.len() > 1).collect();
        let renew = async |held: &KeptLease<'_>| held.renew(&Alarm::new()?, END).await;
        let renewed = join_all(several.iter().map(|held| renew(held))).await;
        for (held, loss) in several.into_iter().zip(renewed) {
            if let Some(loss) = loss? {
                return Err(without(keepers, &held.keeper.claimant.key, loss).await);
            }
        }
        Ok(leases)
    }

    /// Each lease with its keeper.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = (&'a LeaseKeeper, KnownLease)> {
        self.0.iter().map(|held| (held.keeper, held.lease.get()))
    }

    /// The earliest of a moment of the leases; never, without a lease.
    pub(super) fn earliest(&self, moment: fn(&KnownLease) -> Moment) -> Moment {
        self.all().map(|(_, lease)| moment(&lease)).min().unwrap_or(Moment::NEVER)
    }

    /// Refreshes each lease until that has failed up to `limit`, a moment of the lease, and returns
    /// the losses as they come, each with its key; `refreshed` is called after each refresh.
    pub(super) fn losses(
        &self,
        limit: fn(&KnownLease) -> Moment,
        refreshed: impl Fn() + Copy,
    ) -> impl Stream<Item = io::Result<(&'a LockKey, LossReason)>> {
        let kept = self.0.iter().map(move |held| async move {
            Ok((&held.keeper.claimant.key, held.keep(limit, refreshed).await?))
        });
        kept.collect::<FuturesUnordered<_>>()
    }

    /// Notes which leases ended while nobody could keep them.
    pub(super) fn expire(&self) {
        for held in &self.0 {
            held.lost.set(held.lost.get() || held.lease.get().kill.has_come());
        }
    }

    /// Releases what was not lost, the last first, or lets it last until `earliest`. Returns false
    /// if one was gone already.
    pub(super) async fn give_back(&self, earliest: Moment) -> bool {
        let give_back =
            async |held: &KeptLease<'_>| held.keeper.give_back(&held.lease.get(), earliest).await;
        !join_all(self.left().map(give_back)).await.contains(&false)
    }

    /// Reports that what was not lost lasts until it expires.
    pub(super) fn not_given_back(&self) {
        self.left().for_each(|held| held.keeper.not_given_back());
    }

    fn left(&self) -> impl Iterator<Item = &KeptLease<'a>> {
        self.0.iter().rev().filter(|held| !held.lost.get())
    }
}

/// Leaves all lines, and releases the leases that were granted. Returns true if the service answered.
pub(super) async fn leave(keepers: &[LeaseKeeper]) -> bool {
    let leave = keepers.iter().rev().map(|keeper| keeper.claimant.leave());
    join_all(leave).await.contains(&true)
}

/// Leaves all lines after the requests for the leases were given up.
pub(super) async fn withdraw(keepers: &[LeaseKeeper]) {
    join_all(keepers.iter().rev().map(|keeper| keeper.claimant.withdraw())).await;
}

/// Leaves all lines, repeatedly for [`LEAVE_TIME`], until the service answers. Returns true if it did.
pub(super) async fn answers(keepers: &[LeaseKeeper]) -> bool {
    let until = Moment::now().after(LEAVE_TIME);
    while !leave(keepers).await {
        if until.has_come() {
            return false;
        }
        sleep(PAUSE).await;
    }
    true
}

/// Leaves all lines after a loss. The last attempts to refresh are short, so a service that did not
/// answer them, but answers now, is not down.
async fn without(keepers: &[LeaseKeeper], key: &LockKey, loss: LossReason) -> Failure {
    let answers = leave(keepers).await;
    let (code, why) = match loss {
        LossReason::Late { why, unanswered: true } if !answers => (exit::UNREACHABLE, why),
        loss => (exit::LOST, loss.to_string()),
    };
    Failure { code, why: about(key, why) }
}
