//! The data of answers over HTTP/2 that their clients have not taken yet. It waits in memory, each
//! stream has its own window, and the socket does not show which of them stand still.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Buf, Frame, SizeHint};
use tokio::time::Instant;

use crate::server::socket::{LEAST_SENT, SEND_TIME};

/// The answers of one connection with data that waits to be sent.
#[derive(Debug, Default)]
pub(super) struct Unread(Mutex<HashMap<u64, Waiting>>);

/// The data of one answer.
#[derive(Debug)]
struct Waiting {
    bytes: usize,
    since: Instant,
    sent: usize,
}

/// A part of an answer, which reports what is sent of it.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    answer: u64,
    unread: Arc<Unread>,
}

/// The body of an answer over HTTP/2; `T` lives as long.
pub(super) struct Answer<T> {
    body: Body,
    number: u64,
    unread: Arc<Unread>,
    turn: T,
}

/// Something that has to know when an answer is whole.
pub(super) trait Whole {
    /// The body has ended.
    fn whole(&mut self);
}

impl Unread {
    /// Returns whether a client takes too little of an answer in the time limit.
    pub(super) fn is_stalled(&self) -> bool {
        self.with(|answers| answers.values().any(|one| one.since.elapsed() >= SEND_TIME))
    }

    fn add(&self, answer: u64, bytes: usize) {
        let new = || Waiting { bytes: 0, since: Instant::now(), sent: 0 };
        self.with(|answers| answers.entry(answer).or_insert_with(new).bytes += bytes);
    }

    fn sent(&self, answer: u64, bytes: usize) {
        self.with(|answers| {
            let Some(waiting) = answers.get_mut(&answer) else { return };
            waiting.bytes = waiting.bytes.saturating_sub(bytes);
            waiting.sent += bytes;
            if waiting.sent >= LEAST_SENT {
                (waiting.since, waiting.sent) = (Instant::now(), 0);
            }
            if waiting.bytes == 0 {
                answers.remove(&answer);
            }
        });
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut HashMap<u64, Waiting>) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Piece {
    fn new(bytes: Bytes, answer: u64, unread: Arc<Unread>) -> Self {
        if !bytes.is_empty() {
            unread.add(answer, bytes.len());
        }
        Self { bytes, answer, unread }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.unread.sent(self.answer, count);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.unread.sent(self.answer, self.bytes.len());
    }
}

impl<T: Whole> Answer<T> {
    /// The body of the answer with this number, which is unique on its connection.
    pub(super) fn new(body: Body, number: u64, unread: Arc<Unread>, mut turn: T) -> Self {
        if body.is_end_stream() {
            turn.whole();
        }
        Self { body, number, unread, turn }
    }
}

impl<T: Whole + Unpin> HttpBody for Answer<T> {
    type Data = Piece;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            self.turn.whole();
        }
        polled.map_ok(|frame| {
            frame.map_data(|bytes| Piece::new(bytes, self.number, self.unread.clone()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
