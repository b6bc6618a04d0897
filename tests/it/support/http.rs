//! An HTTP client that sends exactly what it is told, a connection for each request.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// The type of an answer that goes on for as long as it is read.
pub(crate) const STREAM: &str = "application/x-ndjson";

/// A client of one service.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    pub(crate) address: SocketAddr,
    headers: Vec<(String, String)>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Http {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, headers: Vec::new() }
    }

    /// Where the service is.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The same client, sending this header as well.
    pub(crate) fn with(&self, name: &str, value: &str) -> Self {
        let mut with = self.clone();
        with.headers.push((name.to_owned(), value.to_owned()));
        with
    }

    /// The same client, holding this token.
    pub(crate) fn token(&self, token: &str) -> Self {
        self.with("Lock-Token", token)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        self.send("POST", path, body).await
    }

    pub(crate) async fn put(&self, path: &str, body: &str) -> Answer {
        self.send("PUT", path, body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, "").await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        self.try_send(method, path, body).await.unwrap()
    }

    /// What `/metrics` says of a metric without labels.
    pub(crate) async fn figure(&self, name: &str) -> f64 {
        let answer = self.get("/metrics").await;
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    /// The answer, or why there is none.
    pub(crate) async fn try_send(
        &self,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect(self.address).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes())))?;
        let answered = async {
            let (head, body) = sender.send_request(request).await?.into_parts();
            let body = match head.headers.get(CONTENT_TYPE).is_some_and(|kind| kind == STREAM) {
                false => body.collect().await?.to_bytes(),
                true => first_frame(body).await?,
            };
            Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
        };
        tokio::pin!(connection);
        tokio::pin!(answered);
        tokio::select! {
            answer = &mut answered => answer,
            _ = &mut connection => answered.await,
        }
    }
}

/// The beginning of a stream, which ends with this.
async fn first_frame(mut body: Incoming) -> hyper::Result<Bytes> {
    let frame = body.frame().await.transpose()?;
    Ok(frame.and_then(|frame| frame.into_data().ok()).unwrap_or_default())
}

impl Answer {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// A member of the body.
    pub(crate) fn field(&self, name: &str) -> Value {
        self.json()[name].clone()
    }

    /// A member of the body that is a text.
    pub(crate) fn text(&self, name: &str) -> String {
        self.field(name).as_str().unwrap_or_else(|| panic!("no text {name}: {self:?}")).to_owned()
    }

    /// Whether its lease lasts for the TTL that was asked for, less what a commit takes on a busy
    /// machine.
    pub(crate) fn lasts(&self, asked_ms: u64) -> bool {
        (asked_ms / 2..=asked_ms).contains(&self.number("ttl_ms"))
    }

    /// A member of the body that is a number.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.field(name).as_u64().unwrap_or_else(|| panic!("no number {name}: {self:?}"))
    }

    /// A header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Status and, if it is a problem, code: what most tests are about.
    pub(crate) fn told(&self) -> (u16, String) {
        let code = serde_json::from_slice::<Value>(&self.body).ok();
        let code = code.and_then(|body| body["code"].as_str().map(str::to_owned));
        (self.status, code.unwrap_or_default())
    }
}
