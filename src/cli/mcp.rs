//! `lockkeeper mcp`: a server of the Model Context Protocol over standard input and output, so that
//! the agent of any harness can lock what it works on.
//!
//! `tools` has what a model sees and calls, `acquire` is a claim, `session` keeps each `lease` and
//! gives it back, `words` has the sentences of the answers.

mod acquire;
mod lease;
mod session;
mod told;
mod tools;
mod words;

use std::io;
use std::io::{IsTerminal, stdin};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use clap::Args;
use rmcp::serve_server;
use rmcp::service::ServerInitializeError;
use rmcp::transport::stdio_pipes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::LocalSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::cli::exit::Failure;
use crate::cli::mcp::session::AgentSession;
use crate::cli::mcp::tools::Tools;
use crate::cli::remote::{Remote, duration};
use crate::cli::signals::Signals;
use crate::cli::{exit, runtime};

/// The time for the answers under way once the client has closed our input.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Serve locks to a coding agent, over the Model Context Protocol.
///
/// A harness starts it, as `claude mcp add locks -- lockkeeper mcp` tells it to, and speaks over
/// standard input and output. The agent gets the tools acquire, release, status and list. Its leases
/// are renewed until it releases them, and released when its input closes or a signal ends it; if it
/// is killed by KILL, they end after the TTL.
///
/// Exit codes: 0 when the input closes; 128+N after signal N; 2 wrong usage.
#[derive(Args, Debug)]
pub(super) struct Mcp {
    /// TTL of the leases, which are renewed every third of it: a server that was killed has its keys
    /// for so long, and an outage of the service has to be shorter.
    #[arg(short, long, value_name = "DURATION", value_parser = duration, default_value = "15s")]
    ttl: Duration,
    /// Begin of the name of the holder, shown to others, to which the agent's purpose is added; by
    /// default USER@HOST:PID and the name of the harness.
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

pub(super) fn mcp(mcp: Mcp) -> u8 {
    let voice = mcp.remote.voice();
    runtime::for_harness(voice, async {
        if stdin().is_terminal() {
            voice.complain(|| "waiting for a client of the Model Context Protocol; Ctrl-D ends it");
        }
        // The library spawns a task for each call; they end with the set.
        let tasks = LocalSet::new();
        tasks.run_until(Box::pin(mcp.run())).await
    })
}

impl Mcp {
    async fn run(self) -> Result<u8, Failure> {
        let signals = Signals::catch()?;
        let client = self.remote.client()?;
        let session = Rc::new(AgentSession::new(client, self.remote, self.ttl, self.owner));
        let done = tokio::select! {
            biased;
            signal = signals.ending() => Ok(exit::signalled(signal.as_raw())),
            served = serve(session.clone()) => served.map(|()| 0),
            never = session.keep() => match never {},
        };
        session.end().await;
        Ok(done?)
    }
}

/// Answers the client until it has closed our input.
async fn serve(session: Rc<AgentSession>) -> Result<(), String> {
    let (reader, writer) = stdio_pipes();
    let input = Input { reader, closed: session.ending.clone() };
    let ending = session.ending.clone();
    match serve_server(Tools::new(session), (input, writer)).await {
        Ok(running) => tokio::select! {
            ended = running.waiting() => {
                ended.map(drop).map_err(|error| format!("the server ended: {error}"))
            }
            // A client that has closed our input may not read the last answers either.
            () = async { ending.cancelled().await; sleep(LAST_ANSWERS).await } => Ok(()),
        },
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(ServerInitializeError::ExpectedInitializeRequest(_)) => Err(
            "the client did not begin with `initialize`: this command is for programs that speak \
             the Model Context Protocol"
                .to_owned(),
        ),
        Err(error) => Err(error.to_string()),
    }
}

/// Our input. Its end ends the waiting calls too: the library would wait for their answers.
struct Input<R> {
    reader: R,
    closed: CancellationToken,
}

impl<R: AsyncRead + Unpin> AsyncRead for Input<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.reader).poll_read(context, buffer));
        if read.is_err() || buffer.filled().len() == before {
            self.closed.cancel();
        }
        Poll::Ready(read)
    }
}
