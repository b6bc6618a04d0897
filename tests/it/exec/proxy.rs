//! A proxy that fails at will, and knows how long a lease lasts at least: until its TTL after the
//! last request was passed on that was answered well, to the client's knowledge.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::exec::ticker::now;
use crate::support::{PATIENCE, eventually};

/// What it does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Passes it on.
    Pass,
    /// Hangs up.
    HangUp,
    /// Reads it, and says nothing.
    Swallow,
    /// Passes it on, and the answer not: hangs up instead.
    LoseAnswer,
    /// Passes it on, and the answer after [`LATE`].
    Late,
    /// Passes it on, and the answer not: says nothing.
    KeepAnswer,
    /// Passes it on late, whether its client is still there or not.
    Slow,
    /// Passes it on, and gives this answer instead.
    Instead(&'static str),
    /// Gives this answer, and passes nothing on.
    Answer(&'static str),
    /// Swallows requests of this method, and passes all others on.
    DeafTo(&'static str),
}

/// How late a request is passed on.
pub(crate) const SLOW: Duration = Duration::from_millis(300);

/// How late an answer is.
const LATE: Duration = Duration::from_millis(700);

#[derive(Debug)]
struct State {
    mode: Mode,
    /// What it does with the next requests, before it goes by the mode again.
    next: VecDeque<Mode>,
    requests: Vec<String>,
    answered: Option<Duration>,
}

/// One between a client and the service.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    _serving: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn before(service: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state =
            State { mode: Mode::Pass, next: VecDeque::new(), requests: Vec::new(), answered: None };
        let state = Arc::new(Mutex::new(state));
        let mut serving = JoinSet::new();
        let known = state.clone();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let known = known.clone();
                connections.spawn(async move {
                    // Either side may hang up.
                    let _ = serve(client, service, &known).await;
                });
            }
        });
        Self { address, state, _serving: serving }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.state.lock().unwrap().mode = mode;
    }

    /// Does this with the next requests, one after another.
    pub(crate) fn plan(&self, next: &[Mode]) {
        self.state.lock().unwrap().next.extend(next);
    }

    /// The requests that came since this was asked last.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    /// When the last request was passed on whose good answer the client was given.
    pub(crate) fn answered(&self) -> Duration {
        self.state.lock().unwrap().answered.unwrap()
    }
}

async fn serve(
    mut client: TcpStream,
    service: SocketAddr,
    state: &Mutex<State>,
) -> std::io::Result<()> {
    let request = request(&mut client).await?;
    let planned = {
        let mut state = state.lock().unwrap();
        state.requests.push(String::from_utf8_lossy(&request).into_owned());
        state.next.pop_front()
    };
    let mode = || match planned.unwrap_or_else(|| state.lock().unwrap().mode) {
        Mode::DeafTo(method) if request.starts_with(method.as_bytes()) => Mode::Swallow,
        Mode::DeafTo(_) => Mode::Pass,
        mode => mode,
    };
    match mode() {
        Mode::HangUp => return Ok(()),
        Mode::Swallow => return silence(client).await,
        Mode::Answer(answer) => return client.write_all(answer.as_bytes()).await,
        Mode::Slow => {
            let came = now();
            eventually(PATIENCE, async || (now() > came + SLOW).then_some(())).await;
        }
        Mode::Pass
        | Mode::Late
        | Mode::LoseAnswer
        | Mode::KeepAnswer
        | Mode::Instead(_)
        | Mode::DeafTo(_) => (),
    }
    let mut upstream = TcpStream::connect(service).await?;
    let passed_on = now();
    upstream.write_all(&request).await?;
    let mut answer = vec![0; 16_384];
    tokio::select! {
        read = upstream.read(&mut answer) => answer.truncate(read?),
        // A client that hangs up is out of the line.
        _ = client.read_u8(), if mode() != Mode::Slow => return Ok(()),
    }
    match mode() {
        Mode::Pass | Mode::Slow | Mode::DeafTo(_) => (),
        Mode::Late => {
            eventually(PATIENCE, async || (now() > passed_on + LATE).then_some(())).await;
        }
        Mode::HangUp | Mode::LoseAnswer => return Ok(()),
        Mode::Swallow | Mode::KeepAnswer => return silence(client).await,
        Mode::Instead(other) | Mode::Answer(other) => answer = other.into(),
    }
    if answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.1 201") {
        state.lock().unwrap().answered = Some(passed_on);
    }
    client.write_all(&answer).await?;
    client.shutdown().await
}

/// A request with its body, which may come in pieces; less of it if the client hangs up.
async fn request(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut request = Vec::new();
    while !is_whole(&request) && client.read_buf(&mut request).await? > 0 {}
    Ok(request)
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, _)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    request.len() >= head.len() + 4 + length
}

/// Until the client has had enough.
async fn silence(mut client: TcpStream) -> std::io::Result<()> {
    while client.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
}
