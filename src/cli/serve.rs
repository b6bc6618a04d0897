//! `lockkeeper serve`: binds, serves, reads settings again, and shuts down on a signal.

use tokio::runtime::Builder;
use tokio::sync::{Notify, oneshot};

use crate::cli::exit::{Failure, failed};
use crate::cli::listen::{Bound, bind};
use crate::cli::live::Live;
use crate::cli::reload::{Reloads, WatchedFiles};
use crate::cli::signals::Orders;
use crate::cli::{exit, log, settings, stderr};
use crate::config::{Config, Flags};
use crate::platform::processes::use_small_pages;
use crate::server::{Address, Ended, Server};

/// Serves until SIGTERM, SIGINT or SIGQUIT; a second signal ends it at once.
pub(super) fn serve(flags: Flags) -> Result<u8, Failure> {
    // With huge pages it only takes more memory.
    let _ = use_small_pages();
    // Files are watched since before they are read.
    let file = WatchedFiles::new(flags.config.clone());
    let (sources, config) = settings(&flags).map_err(failed)?;
    let set_level = Box::new(log::start(&config.log));
    let tls = WatchedFiles::new([config.tls.files(), config.redis.tls.files()].concat());
    let watched = |server: &Server| {
        let controls = server.controls();
        let certificates = server.certificates();
        let live = Live { flags, at_start: sources, set_level, controls, certificates };
        Reloads { settings: file, tls, live }
    };
    let runtime = Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(format!("cannot start the runtime: {error}")))?;
    let served = runtime.block_on(run(config, watched));
    // The rest was given up, and must not delay the exit.
    runtime.shutdown_background();
    stderr::flush();
    Ok(match served? {
        Ended::Well => 0,
        Ended::Early => exit::ENDED_EARLY,
    })
}

async fn run(config: Config, watched: impl FnOnce(&Server) -> Reloads) -> Result<Ended, Failure> {
    let bound = bind(&config).await.map_err(failed)?;
    let addresses: Vec<_> = bound.iter().map(|bound| bound.address.clone()).collect();
    let mut names = addresses.iter().map(|address| shown(address, &config));
    let main = names.next().unwrap_or_default();
    let admin = names.next();
    let orders = Orders::catch();
    let mut orders = orders.map_err(|error| failed(format!("cannot receive signals: {error}")))?;
    let store = format!("{:?}", config.store);
    // A store on disk may take long to open.
    let opening = tokio::task::spawn_blocking(move || Server::open(config, &addresses));
    let server = tokio::select! {
        opened = opening => opened
            .map_err(|panic| failed(format!("cannot open the store: {panic}")))?
            .map_err(|error| failed(error.to_string()))?,
        _ = orders.end(|| ()) => return Ok(Ended::Well), // Nothing was served yet.
    };
    server.count_lost_log_lines(stderr::lost);
    let listeners = bound.into_iter().map(Bound::listen).collect::<Result<_, _>>();
    let listeners = listeners.map_err(failed)?;
    let operators = admin.as_ref().unwrap_or(&main);
    let dashboard = operators.starts_with("http").then(|| format!("{operators}/ui"));
    tracing::info!(
        target: "audit",
        audit = "start",
        version = env!("CARGO_PKG_VERSION"),
        store,
        pid = std::process::id(),
        admin,
        dashboard,
        "serving locks on {main}"
    );
    let reloads = watched(&server);
    let hup = Notify::new();
    let (begin_end, end_begun) = oneshot::channel::<()>();
    let mut ended = Box::pin(server.run(listeners, async {
        // An error means that the sender is dropped, which means shutdown as well.
        let _ = end_begun.await;
    }));
    tokio::select! {
        ended = &mut ended => {
            ended.map_err(|error| Failure { code: exit::FAILED, why: error.to_string() })
        }
        () = async {
            let signal = orders.end(|| hup.notify_one()).await;
            tracing::info!(target: "audit", audit = "stop", signal, "told to shut down");
            let _ = begin_end.send(());
            orders.end(|| hup.notify_one()).await;
        } => {
            tracing::warn!("second signal; shutdown cut short");
            // Dropping it would wait for the disk.
            std::mem::forget(ended);
            Ok(Ended::Early)
        }
        never = reloads.run(&hup) => match never {},
    }
}

/// An address as clients write it.
fn shown(address: &Address, config: &Config) -> String {
    match address {
        Address::Network(address) if config.tls.is_used() => format!("https://{address}"),
        Address::Network(address) => format!("http://{address}"),
        Address::Unix(_) => address.to_string(),
    }
}
