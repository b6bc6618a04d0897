//! HTTP/1.1 as far as the proof needs it, on a connection that can be broken off at any moment.
//!
//! A library would reconnect, retry or drain behind the client's back; here each byte is the client's.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// More than any head or body of the service.
const LARGEST: usize = 1 << 20;

/// The API key of all clients, as a line of a head.
pub(crate) const AUTHORIZED: &str = "authorization: Bearer key-of-the-proof\r\n";

#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// What was received and not yet read.
    received: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    /// The length of the body; `None` if it ends with the connection.
    pub(crate) length: Option<usize>,
    /// Whether the service closes the connection after it.
    pub(crate) closes: bool,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: Vec::with_capacity(1024) })
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    pub(crate) async fn head(&mut self) -> io::Result<Head> {
        loop {
            if let Some((head, length)) = parsed(&self.received)? {
                self.received.drain(..length);
                // An interim answer announces the real one.
                if head.status >= 200 {
                    return Ok(head);
                }
                continue;
            }
            self.more().await?;
        }
    }

    pub(crate) async fn body(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.received.len() < length {
            self.more().await?;
        }
        let rest = self.received.split_off(length);
        Ok(std::mem::replace(&mut self.received, rest))
    }

    /// Reads the next line of a stream, without its end.
    pub(crate) async fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let rest = self.received.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.received, rest);
                line.pop();
                return Ok(line);
            }
            self.more().await?;
        }
    }

    /// Asks one question and reads its whole answer.
    pub(crate) async fn ask(&mut self, question: &[u8]) -> io::Result<(Head, Vec<u8>)> {
        self.send(question).await?;
        let head = self.head().await?;
        let body = self.body(head.length.unwrap_or(0)).await?;
        Ok((head, body))
    }

    /// Asks what every client may, with a token if there is one; returns the status and the body.
    pub(crate) async fn call(
        &mut self,
        question: &str,
        token: Option<&str>,
    ) -> io::Result<(u16, Vec<u8>)> {
        let (head, body) = self.ask(request(question, AUTHORIZED, token).as_bytes()).await?;
        Ok((head.status, body))
    }

    /// Breaks the connection with a reset, in place of an orderly end.
    pub(crate) fn reset(self) {
        // If it fails the connection is broken already.
        let _ = self.stream.set_zero_linger();
    }

    async fn more(&mut self) -> io::Result<()> {
        if self.received.len() > LARGEST {
            return Err(io::Error::other("longer than any answer of the service"));
        }
        match self.stream.read_buf(&mut self.received).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// Returns a question with a line of authorization, and with a token if there is one.
pub(crate) fn request(question: &str, authorization: &str, token: Option<&str>) -> String {
    let token = token.map_or_else(String::new, |token| format!("lock-token: {token}\r\n"));
    format!("{question} HTTP/1.1\r\nhost: localhost\r\n{authorization}{token}\r\n")
}

/// Returns the head of an answer and how long it is, once it is whole.
fn parsed(received: &[u8]) -> io::Result<Option<(Head, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut answer = httparse::Response::new(&mut headers);
    let status = answer.parse(received).map_err(io::Error::other)?;
    let httparse::Status::Complete(end) = status else { return Ok(None) };
    let mut head =
        Head { status: answer.code.unwrap_or(0), length: None, closes: answer.version == Some(0) };
    if head.status == 204 {
        head.length = Some(0);
    }
    for header in answer.headers.iter() {
        let value = std::str::from_utf8(header.value).unwrap_or_default();
        if header.name.eq_ignore_ascii_case("content-length") {
            head.length = value.trim().parse().ok();
        } else if header.name.eq_ignore_ascii_case("connection") {
            head.closes = value.eq_ignore_ascii_case("close");
        }
    }
    Ok(Some((head, end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_once_it_is_whole() {
        let head = b"HTTP/1.1 409 Conflict\r\nContent-Length: 12\r\nConnection: close\r\n\r\n";
        assert!(parsed(&head[..20]).unwrap().is_none());
        let (told, length) = parsed(head).unwrap().unwrap();
        assert_eq!((told.status, told.length, told.closes, length), (409, Some(12), true, 64));
    }
}
