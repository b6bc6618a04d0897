//! The service within the test's own process, on a free port.

use lockkeeper::config::{Config, Flags, Sources};
use lockkeeper::server::{Ended, Failed, Server};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::support::Http;

/// A service; it ends gracefully when it is told to, and at once when it is dropped.
#[derive(Debug)]
pub(crate) struct Service {
    http: Http,
    shutdown: oneshot::Sender<()>,
    running: JoinSet<Result<Ended, Failed>>,
}

impl Service {
    /// One on an embedded store of its own, in `directory`.
    pub(crate) async fn embedded(directory: &TempDir) -> Self {
        let store = format!("embedded:{}", directory.path().display());
        Self::start(&[("LOCKKEEPER_STORE", &store)], "").await
    }

    /// One with these variables and this settings file.
    pub(crate) async fn start(variables: &[(&str, &str)], file: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lockkeeper.toml");
        std::fs::write(&path, file).unwrap();
        let flags = Flags { config: Some(path), ..Flags::default() };
        let variables = variables.iter().map(|(name, text)| ((*name).into(), (*text).into()));
        let config = Config::of(&Sources::find(&flags, variables).unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::open(config, &[address.into()]).unwrap();
        let (shutdown, begun) = oneshot::channel();
        let mut running = JoinSet::new();
        running.spawn(server.run(vec![listener.into()], async {
            // The test that ends it may also just drop it.
            let _ = begun.await;
        }));
        Self { http: Http::new(address), shutdown, running }
    }

    /// A client of it.
    pub(crate) fn http(&self) -> Http {
        self.http.clone()
    }

    /// Begins its end; done when it has ended.
    pub(crate) fn shut_down(self) -> impl Future<Output = Ended> {
        let Self { shutdown, mut running, .. } = self;
        let _ = shutdown.send(());
        async move { running.join_next().await.unwrap().unwrap().unwrap() }
    }
}
