//! HTTP by hand, for what no proper client sends.

use std::net::SocketAddr;

use hyper::HeaderMap;
use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::Answer;

/// Sends these very bytes on a connection of their own, and reads until it ends.
pub(crate) async fn exchange(address: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    last_answer(&mut stream).await
}

/// The answer after which the service closes the connection.
pub(crate) async fn last_answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    parse(&bytes)
}

/// Reads as far as `end`.
pub(crate) async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end.as_bytes()) {
        let byte = stream.read_u8().await;
        bytes.push(byte.unwrap_or_else(|error| panic!("{error} after {bytes:?}")));
    }
    String::from_utf8(bytes).unwrap()
}

fn parse(bytes: &[u8]) -> Answer {
    const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
    let bytes = bytes.strip_prefix(CONTINUE).unwrap_or(bytes);
    let shown = String::from_utf8_lossy(bytes);
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no answer: {shown:?}"));
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let (line, lines) = head.split_once("\r\n").unwrap_or((head, ""));
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let mut headers = HeaderMap::new();
    for (name, value) in lines.split("\r\n").filter_map(|line| line.split_once(": ")) {
        let name = HeaderName::try_from(name).unwrap();
        headers.append(name, HeaderValue::try_from(value).unwrap());
    }
    let body = Bytes::copy_from_slice(&bytes[end + 4..]);
    Answer { status: status.unwrap_or_else(|| panic!("no status: {shown:?}")), headers, body }
}
