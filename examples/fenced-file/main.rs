//! Takes a lease, writes its standard input to a file that refuses late writers, and ends the
//! lease; or writes under the lease that you have. With -a it appends. `write.php` does the same.
//!
//! ```sh
//! make-report | fenced-file [-a] 'http://localhost:8080/locks/report?ttl=30s' report.csv
//! make-report | LOCK_TOKEN=... fenced-file [-a] FENCING_TOKEN report.csv
//! fenced-file report.csv
//! ```
//!
//! It ends with 0 if it has written, 1 if it was too late, and 75 if somebody else has the key. The
//! last form shows the content.

mod fenced_file;

use std::error::Error;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::fenced_file::{FencedFile, Verdict};

/// Longer than the service lets anybody wait.
const PATIENCE: Duration = Duration::from_secs(30);

const REFUSED: u8 = 1;
const USAGE: u8 = 64;
const FAILED: u8 = 70;
const NOT_NOW: u8 = 75;

type Failure = Box<dyn Error>;

/// What becomes of what is in the file.
#[derive(Clone, Copy)]
enum Change {
    Replace,
    Append,
}

fn main() -> ExitCode {
    let mut arguments: Vec<_> = std::env::args().skip(1).collect();
    let mut change = Change::Replace;
    if arguments.first().is_some_and(|first| first == "-a") {
        arguments.remove(0);
        change = Change::Append;
    }
    let done = match &*arguments {
        [path] => show(path.as_ref()),
        [lease, path] => run(lease, path.as_ref(), change),
        _ => {
            eprintln!("usage: fenced-file [-a] [URL_OF_A_LOCK|FENCING_TOKEN] FILE");
            return USAGE.into();
        }
    };
    done.unwrap_or_else(|failure| {
        eprintln!("{failure}");
        FAILED.into()
    })
}

fn show(path: &Path) -> Result<ExitCode, Failure> {
    std::io::stdout().write_all(&FencedFile::new(path).content()?)?;
    Ok(ExitCode::SUCCESS)
}

fn run(lease: &str, path: &Path, change: Change) -> Result<ExitCode, Failure> {
    if let Ok(fencing_token) = lease.parse() {
        return write(path, fencing_token, &std::env::var("LOCK_TOKEN")?, change);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (lock, _) = lease.split_once('?').unwrap_or((lease, ""));
    let lease_token = Uuid::new_v4().to_string();
    let (status, answer) = locks(&runtime, "POST", lease, &lease_token)?;
    if status != 201 {
        eprintln!("not now: {}", answer["detail"].as_str().unwrap_or("no answer"));
        return Ok(if status == 409 { NOT_NOW } else { FAILED }.into());
    }
    let fencing_token = answer["fencing_token"].as_u64().ok_or("a grant without fencing token")?;
    let written = write(path, fencing_token, &lease_token, change);
    // The answer changes nothing: a lease that is over is one that the file has judged by itself.
    let _ = locks(&runtime, "DELETE", lock, &lease_token);
    written
}

fn write(
    path: &Path,
    fencing_token: u64,
    lease_token: &str,
    change: Change,
) -> Result<ExitCode, Failure> {
    // All of it is there before the file is locked: a slow source must keep nobody waiting.
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input)?;
    let verdict = FencedFile::new(path).update(fencing_token, lease_token, |old| match change {
        Change::Replace => input,
        Change::Append => [old, input].concat(),
    })?;
    Ok(match verdict {
        Verdict::Accepted => {
            println!("written");
            ExitCode::SUCCESS
        }
        Verdict::Refused => {
            println!("too late: another lease has written");
            REFUSED.into()
        }
    })
}

/// Status and body.
fn locks(
    runtime: &Runtime,
    method: &str,
    url: &str,
    lease_token: &str,
) -> Result<(u16, Value), Failure> {
    runtime.block_on(async { tokio::time::timeout(PATIENCE, ask(method, url, lease_token)).await? })
}

async fn ask(method: &str, url: &str, lease_token: &str) -> Result<(u16, Value), Failure> {
    let uri: Uri = url.parse()?;
    let host = uri.host().ok_or("the URL has no host")?;
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::builder().method(method).uri(path);
    let request = request.header("host", host).header("lock-token", lease_token);
    let request = request.body(Empty::<Bytes>::new())?;
    let answered = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    };
    tokio::pin!(connection);
    tokio::pin!(answered);
    tokio::select! {
        answer = &mut answered => answer,
        // It may end with the answer that it has just delivered.
        _ = &mut connection => answered.await,
    }
}
