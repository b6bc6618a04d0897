//! What hyper lets pass in a head, and two readers may understand in two ways.

use hyper::body::Incoming;
use hyper::header::{HOST, HeaderMap, TRANSFER_ENCODING};
use hyper::{Request, Version};

/// The position in a head, to find what hyper lets pass: a `#` in the request line, and a line that
/// ends without a CR. A proxy may take such a line and the next one for one header. Heads that a
/// client sends ahead of an answer are not looked at.
#[derive(Default)]
pub(super) struct Head {
    part: Part,
    last: u8,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Before,
    RequestLine,
    /// The begin of a header.
    NewLine,
    Header,
    Behind,
}

impl Head {
    pub(super) fn has_fault(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().any(|&byte| {
            let bare = byte == b'\n' && self.last != b'\r';
            self.last = byte;
            let part = self.part;
            self.part = match (part, byte) {
                (Part::Before | Part::NewLine, b'\r') | (Part::Before, b'\n') => part,
                (Part::Before, _) => Part::RequestLine,
                (Part::NewLine, b'\n') => Part::Behind,
                (Part::NewLine, _) => Part::Header,
                (Part::RequestLine | Part::Header, b'\n') => Part::NewLine,
                (Part::RequestLine | Part::Header | Part::Behind, _) => part,
            };
            match part {
                Part::Before | Part::Behind => false,
                Part::RequestLine => bare || byte == b'#',
                Part::NewLine | Part::Header => bare,
            }
        })
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
