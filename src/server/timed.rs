//! A connection's stream with its timers. It tells whether the client is idle, gone, or has only
//! closed its sending side.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::server::tls::{Transport, socket};
use crate::server::turns::Turns;

/// The time a handler runs before a client that sent more behind its request is watched. Faster
/// answers are not worth the effort.
const WATCH_AFTER: Duration = Duration::from_millis(50);
/// The most bytes read ahead to find the end of the stream behind them.
const AHEAD: usize = 16 * 1024;

/// The interval and number of looks at whether a client that closed its sending side is gone,
/// before its request goes on: the reset takes a round trip, and a gone client must not be granted
/// anything.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const LOOKS_IN_DOUBT: u32 = 20;
/// The interval of looks after that.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// A stream with a time limit for heads, from their first byte on, which never reports its end in
/// the same poll as data before it.
///
/// It closes three gaps of hyper. hyper has one timer for a head and the silence before it, but
/// only the silence may be long. If it reads a request and the end at once, it drops the handler
/// before its first poll, but a client that sends DELETE and hangs up must still release. And it
/// stops reading at the first byte of the next request: so this stream reads ahead while a handler
/// runs, so that a pipelined byte cannot hide a disconnect.
///
/// A client that only closed its sending side looks like one that is gone. An interim answer tells
/// them apart: the system of a gone client answers it with a reset.
pub(super) struct TimedHead {
    stream: Transport,
    turns: Arc<Turns>,
    allowed: Duration,
    /// The number of complete heads when the current one began.
    complete: u32,
    began: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    /// The run of the connection's task that last read something.
    read_at: u32,
    /// The run in which hyper waited for more: while it does, it sees the end itself.
    wanted_at: u32,
    /// The timer before reading ahead.
    watch: Option<Pin<Box<Sleep>>>,
    /// The data read ahead.
    ahead: Vec<u8>,
    /// The position in the current head, and the byte before it.
    line: LinePart,
    last: u8,
    /// The turn of the last write.
    written_in: u32,
    /// The looks at a client that closed its sending side.
    look: Option<Look>,
}

enum LinePart {
    Before,
    /// The request line.
    Within,
    /// The begin of a header's line.
    NewLine,
    Header,
    Behind,
}

struct Look {
    timer: Pin<Box<Sleep>>,
    /// The looks left before the client counts as connected.
    left: u32,
}

impl TimedHead {
    pub(super) fn new(stream: Transport, turns: Arc<Turns>, allowed: Duration) -> Self {
        Self {
            stream,
            turns,
            allowed,
            complete: 0,
            began: None,
            timer: None,
            read_at: 0,
            wanted_at: 0,
            watch: None,
            ahead: Vec::new(),
            line: LinePart::Before,
            last: 0,
            written_in: 0,
            look: None,
        }
    }

    /// Returns whether the current head takes too long; wakes the task when it does.
    fn late(&mut self, context: &mut Context<'_>) -> bool {
        let Some(began) = self.began else { return false };
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(began + self.allowed)));
        timer.as_mut().poll(context).is_ready()
    }

    /// Returns whether a client that closed its sending side still wants its answer; wakes the task
    /// for the next look. One that waits in line has left it.
    fn wants_answer(&mut self, context: &mut Context<'_>) -> bool {
        const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
        let turns = &self.turns;
        if turns.in_line.get() {
            return false;
        }
        let told = self.written_in == turns.begun.load(Ordering::Relaxed);
        let asked = turns.whole.load(Ordering::Relaxed) && turns.modern.load(Ordering::Relaxed);
        if self.look.is_none() {
            let sent =
                (!told && asked).then(|| Pin::new(&mut self.stream).poll_write(context, INTERIM));
            if !matches!(sent, Some(Poll::Ready(Ok(length))) if length == INTERIM.len()) {
                return false;
            }
            self.turns.doubtful.store(true, Ordering::Relaxed);
            self.look = Some(Look { timer: Box::pin(sleep(LOOK_EVERY)), left: LOOKS_IN_DOUBT });
        }
        loop {
            if !matches!(socket(&self.stream).take_error(), Ok(None)) {
                return false;
            }
            let Some(look) = &mut self.look else { return false };
            if look.timer.as_mut().poll(context).is_pending() {
                return true;
            }
            look.left = look.left.saturating_sub(1);
            self.turns.doubtful.store(look.left > 0, Ordering::Relaxed);
            look.timer = Box::pin(sleep(if look.left > 0 { LOOK_EVERY } else { LOOK_AGAIN }));
        }
    }

    /// Looks for what hyper lets pass in a head, except in bytes that were sent ahead of an answer:
    /// a `#` in the request line, and a line that ends without a CR. A proxy may take such a line
    /// and the next one for one header.
    fn look_for_faults(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let &[first, ..] = rest {
            let end = rest.iter().position(|byte| *byte == b'\n');
            let line = &rest[..end.unwrap_or(rest.len())];
            let bare = end.is_some() && line.last().unwrap_or(&self.last) != &b'\r';
            let (fault, length) = match self.line {
                LinePart::Behind => return,
                LinePart::Before if matches!(first, b'\r' | b'\n') => (false, 1),
                LinePart::NewLine if matches!(first, b'\r' | b'\n') => {
                    if first == b'\n' {
                        self.line = LinePart::Behind;
                    }
                    (first == b'\n' && bare, 1)
                }
                LinePart::Before | LinePart::Within => {
                    self.line = if end.is_some() { LinePart::NewLine } else { LinePart::Within };
                    (bare || line.contains(&b'#'), line.len() + usize::from(end.is_some()))
                }
                LinePart::NewLine | LinePart::Header => {
                    self.line = if end.is_some() { LinePart::NewLine } else { LinePart::Header };
                    (bare, line.len() + usize::from(end.is_some()))
                }
            };
            if fault {
                self.turns.faulty.store(true, Ordering::Relaxed);
            }
            self.last = rest[length - 1];
            rest = &rest[length..];
        }
    }

    /// Reads the data read ahead, then the stream.
    fn read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = self.ahead.len().min(buffer.remaining());
        buffer.put_slice(&self.ahead[..length]);
        self.ahead.drain(..length);
        Poll::Ready(Ok(()))
    }

    /// Fails if a handler runs, hyper does not read, and the client is gone.
    fn watch(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let moment = self.turns.moments.load(Ordering::Relaxed);
        if !self.turns.is_answering() || self.wanted_at == moment {
            self.watch = None;
            return Ok(());
        }
        let watch = self.watch.get_or_insert_with(|| Box::pin(sleep(WATCH_AFTER)));
        if !watch.is_elapsed() && watch.as_mut().poll(context).is_pending() {
            return Ok(());
        }
        let mut piece = [0; 1024];
        while self.ahead.len() < AHEAD {
            let mut buffer = ReadBuf::new(&mut piece);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => break,
                Poll::Ready(read) => read?,
            }
            if buffer.filled().is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.ahead.extend_from_slice(buffer.filled());
        }
        if self.ahead.len() >= AHEAD {
            // The end behind so much data could not be seen.
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(())
    }
}

impl AsyncRead for TimedHead {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let begun = self.turns.begun.load(Ordering::Relaxed);
        if begun != self.complete {
            (self.complete, self.began, self.timer) = (begun, None, None);
            (self.line, self.look) = (LinePart::Before, None);
        }
        let answering = self.turns.is_answering();
        let (moment, filled) = (self.turns.moments.load(Ordering::Relaxed), buffer.filled().len());
        let polled = self.read(context, buffer);
        if polled.is_pending() {
            self.wanted_at = moment;
        }
        if buffer.filled().len() > filled {
            self.read_at = moment;
            if !answering && self.turns.whole.load(Ordering::Relaxed) {
                self.look_for_faults(&buffer.filled()[filled..]);
            }
        } else if answering && polled.is_ready() && self.read_at == moment {
            // The end is found again at the next run, after the handler's first poll.
            context.waker().wake_by_ref();
            return Poll::Pending;
        } else if answering && matches!(polled, Poll::Ready(Ok(()))) && self.wants_answer(context) {
            self.wanted_at = moment;
            return Poll::Pending;
        }
        if answering {
            return polled;
        }
        if polled.is_ready() {
            self.began = self.began.or_else(|| Some(Instant::now()));
        } else if self.late(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl AsyncWrite for TimedHead {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written_in = self.turns.begun.load(Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes at every run.
        self.watch(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.written_in = self.turns.begun.load(Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }
}
