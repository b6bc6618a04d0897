//! Streams, replacements, and requests that their client has given up and that arrive late.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::lock::lease::{Claim, Origin};
use crate::lock::store::{Answer, Ask, Condition, Renewed, Store, Target};
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::store::redlock::simulation::history::Wrong;
use crate::store::redlock::simulation::wish::{Outcome, Wish, unheard};
use crate::store::redlock::simulation::worker::{REPEATS, Worker};
use crate::store::redlock::simulation::world::World;

/// The longest delay of a late request, in milliseconds.
const LATE_MS: u64 = 3_000;

/// The time for which a lingering lease lasts.
const LINGER: Ttl = Ttl::from_millis(300);

/// A request without a client. What it gets is taken back, or its stream hangs up.
struct Late {
    world: Arc<World>,
    claim: Claim,
    instance: usize,
    after: u64,
    hangs_up: bool,
}

impl Late {
    async fn arrives(self) {
        sleep(Duration::from_millis(self.after)).await;
        let Some(store) = self.world.of(self.instance).store else { return };
        let Ok(Answer::Won(win)) = store.ask(&self.claim, Ask::Once(None)).await else { return };
        if !win.fresh {
            return;
        }
        self.world.state().counts.ghosts += 1;
        let Claim { key, token, origin, kept, .. } = &self.claim;
        let only = if *kept && self.hangs_up {
            Condition::LetGo { grants: false }
        } else {
            unheard(*origin, win.by)
        };
        let grant = Target::of(key, token, Some(win.lease.fencing_token)).only(only);
        for _ in 0..5 * REPEATS {
            if store.end(&grant).await.is_ok() {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Worker {
    /// An earlier request of a client's token, of any kind.
    pub(super) fn late_request(&mut self, wish: &mut Wish) -> impl Future<Output = ()> + use<> {
        let is_late = wish.claim.origin == Origin::Client && self.rng.u32(..8) == 0;
        let claim = Claim { kept: self.rng.bool(), ttl: self.ttl(), ..wish.claim.clone() };
        self.late(wish, is_late.then_some(claim))
    }

    fn late(&mut self, wish: &mut Wish, claim: Option<Claim>) -> impl Future<Output = ()> + use<> {
        let late = claim.map(|claim| {
            // What it leaves is not the wish's.
            (wish.is_shared, wish.orphaned, wish.granted) = (true, true, None);
            wish.asked = wish.asked.max(claim.ttl);
            let (instance, after) = (self.instance(), self.rng.u64(..LATE_MS));
            let hangs_up = self.rng.bool();
            Late { world: self.world.clone(), claim, instance, after, hangs_up }
        });
        async {
            if let Some(late) = late {
                late.arrives().await;
            }
        }
    }

    /// Replaces the lease of this number, and uses the new one.
    pub(super) async fn goes_on_by_name(&mut self, mut wish: Wish, number: FencingToken) {
        if self.replace(&mut wish, number).await == Outcome::Granted {
            Box::pin(self.hold(wish)).await;
        }
    }

    /// Names a lease, or the one that a refusal tells, until one is granted or there is none.
    async fn replace(&mut self, wish: &mut Wish, mut number: FencingToken) -> Outcome {
        // Sending it gives the lease up.
        self.world.state().history.ends(wish.key, wish.token, self.world.now());
        (wish.until, wish.claim.kept, wish.claim.ttl) = (0, self.rng.bool(), self.ttl());
        let named = |number, wish: &Wish| Claim { named: Some(number), ..wish.claim.clone() };
        let is_late = self.rng.u32(..6) == 0;
        let late = self.late(wish, is_late.then(|| named(number, wish)));
        let refresh = self.late_refresh(wish, number);
        let asks = async {
            for _ in 0..2 * REPEATS {
                let (instance, asked) = (self.instance(), self.world.now());
                let claim = named(number, wish);
                let answer = self
                    .ask(instance, async |store| store.ask(&claim, Ask::Once(None)).await)
                    .await;
                match answer {
                    Some(Ok(Answer::Won(win))) => {
                        let before = win.replaces.expect("the named lease").number.number();
                        let fence = win.lease.fencing_token.number();
                        wish.fence = fence;
                        if !wish.is_shared {
                            wish.asked = claim.ttl;
                        }
                        let mut state = self.world.state();
                        state.counts.replaced += 1;
                        state.history.replaces(wish.key, wish.token, [before, fence]);
                        drop(state);
                        return self.won(wish, asked, &win);
                    }
                    Some(Ok(Answer::Lost(Some(other)))) => number = other,
                    Some(Ok(Answer::Lost(None))) => return Outcome::Held,
                    Some(Ok(other)) => panic!("{other:?}"),
                    Some(Err(error)) => _ = self.failed(&error),
                    None => _ = wish.orphaned(),
                }
                self.sleep(100).await;
            }
            Outcome::Unknown
        };
        tokio::join!(late, refresh, asks).2
    }

    /// A refresh of the lease that is replaced, which its client has given up.
    fn late_refresh(
        &mut self,
        wish: &Wish,
        number: FencingToken,
    ) -> impl Future<Output = ()> + use<> {
        let is_late = self.rng.u32(..3) == 0;
        let lease = Target::of(&wish.claim.key, &wish.claim.token, Some(number));
        let (world, instance, after) = (self.world.clone(), self.instance(), self.rng.u64(..60));
        async move {
            sleep(Duration::from_millis(after)).await;
            if let Some(store) = world.of(instance).store.filter(|_| is_late) {
                let _ = store.renew(&lease, None).await;
            }
        }
    }

    /// Keeps the lease as a stream does, and lets it go in one of the ways of a stream.
    pub(super) async fn keep(&mut self, mut wish: Wish) {
        let Some(lease) = wish.lease.clone() else { return };
        let kept = Target::kept(&wish.claim.token, &lease);
        for _ in 0..self.rng.u32(..4) {
            self.sleep(wish.claim.ttl.as_millis() / 2).await;
            if self.rng.u32(..4) == 0 {
                self.refreshes_what_is_kept(&mut wish).await;
            }
            let (instance, asked) = (self.instance(), self.world.now());
            match self.ask(instance, async |store| store.renew(&kept, None).await).await {
                Some(Ok(Renewed::Lease(lease))) => {
                    self.world.state().counts.kept += 1;
                    self.stays(&mut wish, asked, &lease);
                }
                Some(Ok(Renewed::Lost(_))) => return self.is_lost(&mut wish, "kept"),
                Some(Ok(Renewed::Kept(_))) => panic!("it keeps it"),
                Some(Err(_)) | None => (),
            }
        }
        let word = kept.only(Condition::LetGo { grants: false });
        match self.rng.u32(..5) {
            0 => self.goes_on_by_name(wish, lease.fencing_token).await,
            1 => {
                // The client, behind a proxy, does not see the end of the connection.
                self.world.state().history.ends(wish.key, wish.token, self.world.now());
                wish.until = 0;
                let (one, pause) = (self.instance(), self.rng.u64(..50));
                let (world, of) = (self.world.clone(), word.clone());
                let end = async move {
                    sleep(Duration::from_millis(pause)).await;
                    let Some(store) = world.of(one).store else { return };
                    let _ = store.end(&of).await;
                };
                tokio::join!(end, self.refreshes_what_is_kept(&mut wish));
                self.sleep(500).await;
                if wish.until > self.world.now() {
                    self.refresh(&mut wish).await;
                }
            }
            2 => {
                // It is drained, or its connection has timed out: the client relies on its last line.
                let (one, two) = (self.instance(), self.instance());
                for instance in [one, two] {
                    self.ask(instance, async |store| store.renew(&word, None).await).await;
                }
                self.sleep(200).await;
                self.refresh(&mut wish).await;
                let instance = self.instance();
                self.release(&mut wish, instance).await;
            }
            how => {
                self.world.state().history.ends(wish.key, wish.token, self.world.now());
                let instance = self.instance();
                self.ask(instance, async |store| match how {
                    3 => store.renew(&word, Some(LINGER)).await.map(drop),
                    _ => store.end(&word).await.map(drop),
                })
                .await;
            }
        }
    }

    /// The client of a stream refreshes as if it had no stream.
    async fn refreshes_what_is_kept(&mut self, wish: &mut Wish) {
        let (instance, asked, of) = (self.instance(), self.world.now(), self.target(wish));
        match self.ask(instance, async |store| store.renew(&of, None).await).await {
            Some(Ok(Renewed::Lease(lease))) => {
                let story = format!("{lease:?} of {}", wish.token);
                self.world.state().history.wrong(Wrong::NotAlone, story);
                self.stays(wish, asked, &lease);
            }
            Some(Ok(Renewed::Kept(_))) => self.world.state().counts.mine += 1,
            _ => (),
        }
    }
}
