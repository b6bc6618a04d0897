//! `lockkeeper serve`: binds, serves, reads settings again, and shuts down on a signal.

use std::process::ExitCode;

use tokio::sync::oneshot;

use crate::cli::listen::Bound;
use crate::cli::live::{LiveSettings, reload_certificate};
use crate::cli::log::LogFilter;
use crate::cli::reload::{Reloads, WatchedFiles};
use crate::cli::signals::Orders;
use crate::cli::{exit, log, settings, voice};
use crate::config::{Config, Flags, Sources};
use crate::platform::processes::use_small_pages;
use crate::server::{Address, Ended, Server};

/// A failure of the service.
enum ServeError {
    /// It cannot start.
    Start(String),
    /// It failed while it served.
    Serving(String),
}

/// The settings of a service, and how to read them again.
struct Reading {
    flags: Flags,
    /// The file of the settings, watched since before it was read.
    file: WatchedFiles,
    /// The files of TLS, also watched since before they were read.
    tls: WatchedFiles,
    sources: Sources,
    filter: LogFilter,
}

impl Reading {
    /// Reads the settings and the files of TLS again when they change.
    fn watch(self, server: &Server) -> Reloads {
        let Self { flags, file, tls, sources: at_start, filter } = self;
        let controls = server.controls();
        let reloads = Reloads::new(controls.clone());
        let live = LiveSettings { flags, at_start, controls, filter };
        reloads.add("settings", file, move |cause| live.reload(cause));
        if let Some(certificate) = server.certificate() {
            reloads.add("tls", tls, move |cause| reload_certificate(&certificate, cause));
        }
        reloads
    }
}

/// Serves until SIGTERM, SIGINT or SIGQUIT; a second signal ends it at once.
pub(super) fn serve(flags: Flags) -> ExitCode {
    // With huge pages it only takes more memory.
    let _ = use_small_pages();
    let file = WatchedFiles::new(flags.config.clone());
    let (sources, config) = match settings(&flags) {
        Ok(read) => read,
        Err(sentence) => {
            voice::last_words(&sentence);
            return ExitCode::FAILURE;
        }
    };
    let (log::Log { writer, filter }, lost_lines) = log::start(&config.log);
    let tls = WatchedFiles::new(config.tls.files());
    let reading = Reading { flags, file, tls, sources, filter };
    let served = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => {
            let served = runtime.block_on(run(config, reading, lost_lines));
            // The rest was given up, and must not delay the exit.
            runtime.shutdown_background();
            served
        }
        Err(error) => Err(ServeError::Start(format!("cannot start the runtime: {error}"))),
    };
    drop(writer);
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
    reading: Reading,
    lost_lines: impl Fn() -> u64 + Send + Sync + 'static,
) -> Result<Ended, ServeError> {
    let bound = Bound::of(&config).await.map_err(ServeError::Start)?;
    let addresses = bound.addresses().map_err(ServeError::Start)?;
    let [main, admin] = addresses.each_ref().map(|address| address.as_ref().map(shown(&config)));
    let mut orders = Orders::catch()
        .map_err(|error| ServeError::Start(format!("cannot receive signals: {error}")))?;
    let store = format!("{:?}", config.store);
    let addresses: Vec<_> = addresses.into_iter().flatten().collect();
    // A store on disk may take long to open.
    let opening = tokio::task::spawn_blocking(move || Server::open(config, &addresses));
    let server = tokio::select! {
        opened = opening => opened
            .map_err(|panic| ServeError::Start(format!("cannot open the store: {panic}")))?
            .map_err(|error| ServeError::Start(error.to_string()))?,
        _ = orders.end(|| ()) => return Ok(Ended::Well), // Nothing was served yet.
    };
    server.count_lost_log_lines(lost_lines);
    let listeners = bound.listen().map_err(ServeError::Start)?;
    tracing::info!(
        target: "audit",
        audit = "start",
        version = env!("CARGO_PKG_VERSION"),
        store,
        pid = std::process::id(),
        admin,
        "serving locks on {}",
        main.unwrap_or_default()
    );
    let reloads = reading.watch(&server);
    let (begin_end, end_begun) = oneshot::channel::<()>();
    let mut ended = Box::pin(server.run(listeners, async {
        // An error means that the sender is dropped, which means shutdown as well.
        let _ = end_begun.await;
    }));
    tokio::select! {
        ended = &mut ended => ended.map_err(|failed| ServeError::Serving(failed.to_string())),
        () = async {
            let signal = orders.end(|| reloads.ask()).await;
            tracing::info!(target: "audit", audit = "stop", signal, "told to shut down");
            let _ = begin_end.send(());
            orders.end(|| reloads.ask()).await;
        } => {
            tracing::warn!("second signal; shutdown cut short");
            // Dropping it would wait for the disk.
            std::mem::forget(ended);
            Ok(Ended::Early)
        }
        never = reloads.run() => match never {},
    }
}

/// An address as clients write it.
fn shown(config: &Config) -> impl Fn(&Address) -> String {
    let scheme = if config.tls.is_used() { "https" } else { "http" };
    move |address| match address {
        Address::Network(address) => format!("{scheme}://{address}"),
        Address::Unix(_) => address.to_string(),
    }
}
