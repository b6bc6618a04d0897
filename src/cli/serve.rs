//! `lockkeeper serve`: binds, serves, and shuts down on a signal.

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use tokio::net::{TcpSocket, lookup_host};
use tokio::sync::oneshot;

use crate::cli::signals::Ends;
use crate::cli::{exit, log, voice};
use crate::config::Config;
use crate::server::{Ended, Server};

/// The most connections that wait to be accepted.
const BACKLOG: u32 = 1_024;

/// A failure of the service.
enum ServeError {
    /// It cannot start.
    Start(String),
    /// It failed while it served.
    Serving(String),
}

/// Serves until SIGTERM, SIGINT or SIGHUP; a second signal ends it at once.
pub(super) fn serve(config: Config) -> ExitCode {
    let (log, lost_lines) = log::start(&config.log);
    let served = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => {
            let served = runtime.block_on(run(config, lost_lines));
            // The rest was given up, and must not delay the exit.
            runtime.shutdown_background();
            served
        }
        Err(error) => Err(ServeError::Start(format!("cannot start the runtime: {error}"))),
    };
    drop(log);
    match served {
        Ok(Ended::Well) => ExitCode::SUCCESS,
        Ok(Ended::Early) => exit::ENDED_EARLY.into(),
        Err(ServeError::Start(sentence)) => {
            voice::last_words(&sentence);
            ExitCode::FAILURE
        }
        Err(ServeError::Serving(sentence)) => {
            voice::last_words(&sentence);
            exit::FAILED.into()
        }
    }
}

async fn run(
    config: Config,
    lost_lines: impl Fn() -> u64 + Send + Sync + 'static,
) -> Result<Ended, ServeError> {
    let listen = config.listen.clone();
    let cannot =
        |error| ServeError::Start(format!("cannot listen on {listen} (setting `listen`): {error}"));
    let socket = bind(&listen).await.map_err(cannot)?;
    let address: SocketAddr = socket.local_addr().map_err(cannot)?;
    let mut ends = Ends::catch()
        .map_err(|error| ServeError::Start(format!("cannot receive signals: {error}")))?;
    let store = format!("{:?}", config.store);
    // A store on disk may take long to open.
    let opening = tokio::task::spawn_blocking(move || Server::open(config, address));
    let server = tokio::select! {
        opened = opening => opened
            .map_err(|panic| ServeError::Start(format!("cannot open the store: {panic}")))?
            .map_err(|error| ServeError::Start(error.to_string()))?,
        _ = ends.next() => return Ok(Ended::Well), // Nothing was served yet.
    };
    server.count_lost_log_lines(lost_lines);
    let listener = socket.listen(BACKLOG).map_err(cannot)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), store, "serving locks on http://{address}");
    let (begin_end, end_begun) = oneshot::channel::<()>();
    let mut ended = Box::pin(server.run(listener, async {
        // An error means that the sender is dropped, which means shutdown as well.
        let _ = end_begun.await;
    }));
    tokio::select! {
        ended = &mut ended => ended.map_err(|failed| ServeError::Serving(failed.to_string())),
        () = async {
            ends.next().await;
            let _ = begin_end.send(());
            ends.next().await;
        } => {
            tracing::warn!("second signal; shutdown cut short");
            // Dropping it would wait for the disk.
            std::mem::forget(ended);
            Ok(Ended::Early)
        }
    }
}

/// Binds the address. Clients are refused until the store is open.
async fn bind(listen: &str) -> io::Result<TcpSocket> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in lookup_host(listen).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // An address in TIME_WAIT is free.
        socket.set_reuseaddr(true)?;
        match socket.bind(address) {
            Ok(()) => return Ok(socket),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}
