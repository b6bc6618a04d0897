//! What hyper lets pass in a head, and two readers may understand in two ways.

use hyper::body::Incoming;
use hyper::header::{HOST, HeaderMap, TRANSFER_ENCODING};
use hyper::{Request, Version};
use tokio::time::Instant;

/// A head that is being read, to find what hyper lets pass: a `#` in the request line, and a line
/// that ends without a CR. A proxy may take such a line and the next one for one header. Heads that
/// a client sends ahead of an answer are not looked at.
pub(super) struct Head {
    /// Its first byte.
    pub(super) since: Instant,
    /// Set if it is to be refused.
    pub(super) has_fault: bool,
    part: Part,
    /// Set once the current line has more than line breaks.
    has_text: bool,
    last: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The request line, and empty lines before it.
    RequestLine,
    Headers,
    Behind,
}

impl Head {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            has_fault: false,
            part: Part::RequestLine,
            has_text: false,
            last: 0,
        }
    }

    pub(super) fn read(&mut self, bytes: &[u8]) {
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.has_fault |= self.is_faulty(line);
        }
    }

    /// Reads a line, or the part of one that has come.
    fn is_faulty(&mut self, line: &[u8]) -> bool {
        self.has_text |= line.iter().any(|byte| !matches!(byte, b'\r' | b'\n'));
        let ends = line.ends_with(b"\n");
        let before = line.len().checked_sub(2).map_or(self.last, |place| line[place]);
        self.last = line.last().copied().unwrap_or(self.last);
        let is_bare = ends && before != b'\r';
        let part = self.part;
        let has_text = self.has_text;
        if ends {
            self.has_text = false;
            self.part = match part {
                Part::RequestLine if !has_text => part,
                Part::Headers if !has_text => Part::Behind,
                Part::RequestLine => Part::Headers,
                Part::Headers | Part::Behind => part,
            };
        }
        match part {
            Part::RequestLine => has_text && (is_bare || line.contains(&b'#')),
            Part::Headers => is_bare,
            Part::Behind => false,
        }
    }
}

/// Returns whether a request has exactly one host, or none in HTTP/1.0.
pub(super) fn has_one_host(request: &Request<Incoming>) -> bool {
    match request.headers().get_all(HOST).iter().count() {
        0 => request.version() == Version::HTTP_10,
        hosts => hosts == 1,
    }
}

/// Returns whether all readers of a head agree on the end of its body: if it has an encoding, that
/// is `chunked` alone.
pub(super) fn has_one_length(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let chunked =
        encodings.next().is_none_or(|one| one.as_bytes().eq_ignore_ascii_case(b"chunked"));
    chunked && encodings.next().is_none()
}
