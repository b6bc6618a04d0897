//! A wire between a replica and its master that a test can cut: what was not passed on by then is
//! never passed on, as it were if the cable was pulled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// A wire to a port; gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Wire {
    port: u16,
    cut: watch::Sender<bool>,
    broken: watch::Sender<()>,
    deaf: watch::Sender<()>,
    hung_up: watch::Sender<()>,
    /// The bytes that a cut has kept from the port.
    kept: Arc<AtomicUsize>,
    _ends: JoinSet<()>,
}

impl Wire {
    /// A wire to this port of this machine.
    pub(crate) async fn to(port: u16) -> Self {
        Self::long(port, Duration::ZERO).await
    }

    /// The same, which takes so long in either direction.
    pub(crate) async fn long(port: u16, takes: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap().port();
        let (cut, uncut) = watch::channel(false);
        let (broken, whole) = watch::channel(());
        let (deaf, hearing) = watch::channel(());
        let (hung_up, hanging) = watch::channel(());
        let kept = Arc::<AtomicUsize>::default();
        let keeps = kept.clone();
        let mut ends = JoinSet::new();
        ends.spawn(async move {
            let mut streams = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                let ((from_near, to_near), (from_far, to_far)) =
                    (near.into_split(), far.into_split());
                for (from, to, mut hearing, mut hanging, kept) in [
                    (from_near, to_far, Some(hearing.clone()), None, keeps.clone()),
                    (from_far, to_near, None, Some(hanging.clone()), Arc::default()),
                ] {
                    let passing = pass(from, to, takes, uncut.clone(), kept);
                    let mut whole = whole.clone();
                    whole.mark_unchanged();
                    let watched = hearing.iter_mut().chain(&mut hanging);
                    watched.for_each(watch::Receiver::mark_unchanged);
                    streams.spawn(async move {
                        let mut passing = std::pin::pin!(passing);
                        tokio::select! {
                            () = &mut passing => (),
                            // Neither end hears that it is one.
                            _ = whole.changed() => std::future::pending().await,
                            () = changed(hearing) => std::future::pending().await,
                            () = changed(hanging) => (),
                        }
                    });
                }
            }
        });
        Self { port: here, cut, broken, deaf, hung_up, kept, _ends: ends }
    }

    /// Where it begins.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Passes nothing on any more.
    pub(crate) fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Passes on nothing any more of the connections that there are; new ones pass.
    pub(crate) fn break_connections(&self) {
        self.broken.send_replace(());
    }

    /// Passes on nothing any more that is sent to the port over the connections that there are; what
    /// comes from there passes, and so do new connections.
    pub(crate) fn deafen(&self) {
        self.deaf.send_replace(());
    }

    /// Ends the connections that there are for those who began them; what they have sent arrives all
    /// the same.
    pub(crate) fn hang_up(&self) {
        self.hung_up.send_replace(());
    }

    /// The bytes that a cut keeps from the port.
    pub(crate) fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    /// Passes on again, and what it has kept first.
    pub(crate) fn mend(&self) {
        self.cut.send_replace(false);
    }
}

/// Done at the next change; never, of nothing.
async fn changed(of: Option<watch::Receiver<()>>) {
    match of {
        Some(mut of) => drop(of.changed().await),
        None => std::future::pending().await,
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    takes: Duration,
    mut cut: watch::Receiver<bool>,
    kept: Arc<AtomicUsize>,
) {
    // What comes next is read, and so counted, while this is on its way.
    let (pieces, mut on_their_way) = unbounded_channel();
    let reading = async {
        let mut bytes = vec![0; 65_536];
        while let Ok(read @ 1..) = from.read(&mut bytes).await {
            kept.fetch_add(read, Ordering::Relaxed);
            let _ = pieces.send((Instant::now() + takes, bytes[..read].to_vec()));
        }
        drop(pieces);
        std::future::pending().await
    };
    let passing = async {
        while let Some((due, piece)) = on_their_way.recv().await {
            // Even a sleep of nothing takes a moment, and a cut in it would keep what came before.
            if !takes.is_zero() {
                sleep_until(due).await;
            }
            let uncut = cut.wait_for(|cut| !*cut).await.is_ok();
            kept.fetch_sub(piece.len(), Ordering::Relaxed);
            if !uncut || to.write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = reading => (),
        () = passing => (),
    }
}
