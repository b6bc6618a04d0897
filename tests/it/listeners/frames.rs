//! HTTP/2 as raw frames: what a client of good manners does not send.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

/// The types of frames.
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;

/// A setting: the window of new streams.
pub(super) const INITIAL_WINDOW: u16 = 4;

/// The longest that a test waits for a frame.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection that is spoken frame by frame.
pub(super) struct Frames(TlsStream<TcpStream>);

/// A frame.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Frames {
    /// Begins a connection with these settings.
    pub(super) async fn begin(stream: TlsStream<TcpStream>, settings: &[(u16, u32)]) -> Self {
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut begun = Self(stream);
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend_from_slice(&name.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        bytes.extend(frame(SETTINGS, 0, 0, &payload));
        begun.send(&bytes).await.unwrap();
        begun
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_all(bytes).await?;
        self.0.flush().await
    }

    /// The next frame; `None` at the end of the connection.
    pub(super) async fn next(&mut self) -> Option<Received> {
        let read = async {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0; length];
            self.0.read_exact(&mut payload).await.ok()?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            Some(Received { kind: head[3], flags: head[4], stream, payload })
        };
        timeout(PATIENCE, read).await.expect("neither a frame nor an end")
    }

    /// The frames up to the first of this kind; the last one is of another kind if the connection
    /// has ended.
    pub(super) async fn until(&mut self, kind: u8) -> Vec<Received> {
        let mut all = Vec::new();
        while let Some(next) = self.next().await {
            let found = next.kind == kind;
            all.push(next);
            if found {
                break;
            }
        }
        all
    }
}

/// A frame as bytes.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A whole request without a body, with these headers.
pub(super) fn request(stream: u32, method: &str, path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    // Of HPACK's static table: 7 is https, and 2, 4 and 1 are the names of method, path and host.
    let mut head = vec![0x87];
    for (name, value) in [(2, method), (4, path), (1, "localhost")] {
        head.push(name);
        head.extend(text(value));
    }
    for (name, value) in headers {
        head.push(0);
        head.extend(text(name));
        head.extend(text(value));
    }
    frame(HEADERS, 0x5, stream, &head)
}

/// The reset of a stream.
pub(super) fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}
