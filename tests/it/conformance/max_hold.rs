//! The longest time that a lease lasts.

use crate::conformance::on_every_store;

on_every_store!(tests:
    no_renewal_makes_a_lease_last_longer_than_it_may,
    a_linger_ends_a_lease_no_later_than_it_may_last,
    a_stream_tells_that_its_lease_has_lasted_for_as_long_as_it_may,
    a_lease_that_is_older_than_a_new_limit_stays_and_is_not_renewed,
);

mod tests {
    use std::time::{Duration, Instant};

    use lockkeeper::lock::error::StoreError;
    use lockkeeper::lock::hold::{HoldEvent, HoldStart};
    use lockkeeper::lock::lease::{Claim, Lease};
    use lockkeeper::lock::leases::Why;
    use lockkeeper::lock::locks::Locks;
    use lockkeeper::lock::store::{Answer, Ask, Condition, Renewed, Target};
    use lockkeeper::lock::time::Ttl;

    use crate::conformance::aside::pass;
    use crate::conformance::{CAPPED, LIMITS, MAX_HOLD, Stage, claim};
    use crate::support::{PATIENCE, eventually};

    /// More than the limit.
    const LONG_MS: u64 = 30_000;

    /// Whole milliseconds, of several clocks.
    const ROUNDING: Duration = Duration::from_millis(5);

    /// More than Redis stands still on a busy machine between two commands of a script, by which a
    /// renewal makes the lease longer.
    const STILL: Duration = Duration::from_millis(300);

    /// Between two renewals.
    const PAUSE: Duration = Duration::from_millis(10);

    /// A way to renew a lease.
    #[derive(Clone, Copy, Debug)]
    enum Renewal {
        Refresh,
        Repeat,
        Keep,
    }

    fn capped(name: &str) -> Claim {
        claim(&format!("{CAPPED}{name}"), name, LONG_MS)
    }

    /// Renews the lease; `None` if it is over.
    async fn renew(
        stage: &Stage,
        how: Renewal,
        claim: &Claim,
        lease: &Lease,
    ) -> Result<Option<Lease>, StoreError> {
        let (store, key, token) = (&stage.store, &claim.key, &claim.token);
        let ttl = claim.ttl;
        match how {
            Renewal::Refresh => {
                store.renew(&Target::of(key, token, None), Some(ttl)).await.map(Renewed::lease)
            }
            Renewal::Keep => {
                store.renew(&Target::kept(token, lease), Some(ttl)).await.map(Renewed::lease)
            }
            Renewal::Repeat => match store.ask(claim, Ask::Once(None)).await? {
                Answer::Won(win) if win.fresh => {
                    assert!(win.lease.fencing_token > lease.fencing_token, "{win:?}");
                    Ok(None)
                }
                Answer::Won(win) => Ok(Some(win.lease)),
                refused => panic!("held by another: {refused:?}"),
            },
        }
    }

    async fn lasts_for_its_time(stage: &Stage, how: Renewal) {
        let kept = matches!(how, Renewal::Keep);
        let claim = Claim { kept, ..capped(&format!("{how:?}")) };
        let asked = Instant::now();
        let lease = stage.granted(&claim).await;
        assert!(lease.capped && lease.ttl <= MAX_HOLD, "{how:?}: {lease:?}");
        let latest_end = Instant::now() + MAX_HOLD.as_duration() + STILL;
        let took = loop {
            let sent = Instant::now();
            let renewed = match renew(stage, how, &claim, &lease).await {
                // It may end between the votes and their count.
                Err(_) if stage.counts_votes() => continue,
                renewed => renewed.unwrap_or_else(|error| panic!("{how:?}: {error:?}")),
            };
            let is_on = renewed.filter(|lease| !lease.is_over());
            let Some(again) = is_on else { break sent.elapsed() };
            let ttl = again.ttl.as_duration();
            assert!(sent + ttl <= latest_end, "{how:?}: {again:?}");
            assert!(again.capped && again.fencing_token == lease.fencing_token, "{again:?}");
            // Without a pause in its last milliseconds.
            pass(PAUSE.min(ttl.saturating_sub(PAUSE))).await;
        };
        // Several nodes count the time of a call against the lease.
        let lasted = asked.elapsed() + took + ROUNDING;
        assert!(lasted >= MAX_HOLD.as_duration(), "{how:?}: {lasted:?}");
    }

    pub(super) async fn no_renewal_makes_a_lease_last_longer_than_it_may(stage: Stage) {
        tokio::join!(
            lasts_for_its_time(&stage, Renewal::Refresh),
            lasts_for_its_time(&stage, Renewal::Repeat),
            lasts_for_its_time(&stage, Renewal::Keep),
        );
        let unlimited = stage.granted(&claim("a", "one", LONG_MS)).await;
        assert!(!unlimited.capped && stage.lasts(unlimited.ttl, LONG_MS), "{unlimited:?}");
    }

    pub(super) async fn a_linger_ends_a_lease_no_later_than_it_may_last(stage: Stage) {
        let claim = Claim { kept: true, ..capped("one") };
        let lease = stage.granted(&claim).await;
        let linger = Some(Ttl::from_millis(LONG_MS));
        let of = Target::kept(&claim.token, &lease).only(Condition::LetGo { grants: false });
        stage.store.renew(&of, linger).await.unwrap();
        let holder = stage.store.look(&claim.key, None, 0).await.unwrap().holder;
        let left = holder.map(|holder| holder.left.unwrap());
        assert!(left.is_none_or(|left| left <= MAX_HOLD.as_duration()), "{left:?}");
    }

    pub(super) async fn a_stream_tells_that_its_lease_has_lasted_for_as_long_as_it_may(
        stage: Stage,
    ) {
        let locks = Locks::new(stage.store.clone(), LIMITS);
        let asked = Instant::now();
        let wish = crate::conformance::wish(capped("one"));
        let HoldStart::Hold(mut hold) = locks.hold(wish).await.unwrap() else { panic!("held") };
        let acquired = hold.next().await;
        assert!(matches!(acquired, Some(HoldEvent::Acquired(_))), "{acquired:?}");
        let reason = loop {
            match hold.next().await {
                Some(HoldEvent::Alive(left)) => assert!(left <= MAX_HOLD.as_duration()),
                Some(HoldEvent::Lost(loss)) => break loss,
                other => panic!("{other:?}"),
            }
            assert!(asked.elapsed() < PATIENCE, "it goes on");
        };
        assert_eq!(reason, Why::MaxHold);
        assert!(asked.elapsed() + ROUNDING >= MAX_HOLD.as_duration() * 9 / 10);
        eventually(PATIENCE, async || {
            let next = Claim { token: capped("next").token, ..capped("one") };
            let attempt = stage.store.ask(&next, Ask::Once(None)).await.unwrap();
            matches!(attempt, Answer::Won(_)).then_some(())
        })
        .await;
    }

    pub(super) async fn a_lease_that_is_older_than_a_new_limit_stays_and_is_not_renewed(
        stage: Stage,
    ) {
        let name = |how| format!("later/{how:?}");
        let all = [Renewal::Refresh, Renewal::Keep, Renewal::Repeat];
        let claims = all.map(|how| {
            let kept = matches!(how, Renewal::Keep);
            (how, Claim { kept, ..claim(&name(how), "one", LONG_MS * 10) })
        });
        let mut leases = Vec::new();
        for (how, mine) in claims {
            let lease = stage.granted(&mine).await;
            leases.push((how, mine, lease));
        }
        let holder = async |stage: &Stage, mine: &Claim| {
            stage.store.look(&mine.key, Some(&mine.token), 0).await.unwrap().holder
        };
        let (_, youngest, _) = &leases[2];
        eventually(PATIENCE, async || {
            let held = holder(&stage, youngest).await.unwrap().held;
            held.filter(|held| *held > MAX_HOLD.as_duration())
        })
        .await;
        let stage = stage.restarted_limiting("later/").await;
        for (how, mine, lease) in leases {
            let held = "it was granted for longer";
            let left = async || holder(&stage, &mine).await.expect(held).left.unwrap();
            let before = left().await;
            let long = Claim { ttl: Ttl::from_millis(LONG_MS * 20), ..mine.clone() };
            let renewed = renew(&stage, how, &long, &lease).await.unwrap();
            let renewed = renewed.unwrap_or_else(|| panic!("{how:?}: it was granted for longer"));
            assert!(renewed.capped && renewed.ttl.as_duration() <= before + ROUNDING, "{how:?}");
            let after = left().await;
            assert!(after <= before + ROUNDING && after > MAX_HOLD.as_duration(), "{after:?}");
        }
    }
}
