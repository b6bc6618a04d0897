//! `lockkeeper serve`: binds, serves, and ends on a signal.

use std::io::IsTerminal;
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::signal::unix::SignalKind;
use tokio::signal::unix::signal;
use tracing_subscriber::filter::LevelFilter;

use crate::config::Config;
use crate::config::Level;
use crate::config::Log;
use crate::config::LogFormat;
use crate::server::Server;

/// Serves until SIGTERM or SIGINT; a second signal ends it at once.
pub(super) fn serve(config: Config) -> Result<(), String> {
    start_log(&config.log);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| format!("no runtime: {error}"))?.block_on(run(config))
}

async fn run(config: Config) -> Result<(), String> {
    let listen = config.listen.clone();
    let cannot = |error| format!("cannot listen on {listen} (setting `listen`): {error}");
    let listener = TcpListener::bind(&listen).await.map_err(cannot)?;
    let address: SocketAddr = listener.local_addr().map_err(cannot)?;
    let mut ends = [SignalKind::terminate(), SignalKind::interrupt()].map(signal).into_iter();
    let (Some(Ok(mut terminate)), Some(Ok(mut interrupt))) = (ends.next(), ends.next()) else {
        return Err("signals cannot be received".to_owned());
    };
    let mut signalled = async || {
        tokio::select! {
            _ = terminate.recv() => (),
            _ = interrupt.recv() => (),
        }
    };
    let store = format!("{:?}", config.store);
    let server = Server::open(config, address).map_err(|error| error.to_string())?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), store, "serving locks on http://{address}");
    let (begin_end, end_begun) = tokio::sync::oneshot::channel::<()>();
    let ended = server.run(listener, async {
        // An error means that the sender is gone, which is the end as well.
        let _ = end_begun.await;
    });
    tokio::select! {
        () = ended => (),
        () = async {
            signalled().await;
            let _ = begin_end.send(());
            signalled().await;
        } => tracing::warn!("ended at once by a second signal"),
    }
    Ok(())
}

fn start_log(log: &Log) {
    let level = match log.level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let terminal = std::io::stderr().is_terminal();
    let log_lines = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    let as_json = match log.format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    if as_json {
        log_lines.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
    } else {
        log_lines.with_ansi(terminal).with_target(false).init();
    }
}
