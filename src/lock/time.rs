//! Time: the TTL of a lease, a store's own clock, and the wall clock of fencing tokens.

use std::time::{Duration, Instant, SystemTime};

use crate::platform::clock::since_boot;

/// The time that a lease lasts without a refresh, in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(u64);

impl Ttl {
    /// A TTL of `ms` milliseconds; [`TtlBounds`] checks its bounds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms)
    }

    /// A TTL of the whole milliseconds of `span`.
    pub fn lasting(span: Duration) -> Self {
        Self(millis_down(span))
    }

    /// The TTL in milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The TTL as a duration.
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

/// Whole milliseconds, rounded down; no more than there can be.
pub fn millis_down(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up; no more than there can be.
pub fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The bounds and the default of TTLs.
#[derive(Clone, Copy, Debug)]
pub struct TtlBounds {
    /// The shortest that a client may ask for.
    pub min: Ttl,
    /// The TTL of clients that ask for none.
    pub default: Ttl,
    /// The longest that a client may ask for.
    pub max: Ttl,
}

impl TtlBounds {
    /// The TTL of a client that asked for `wish`, or `None` if that is out of bounds.
    pub fn admit(&self, wish: u64) -> Option<Ttl> {
        (self.min.0..=self.max.0).contains(&wish).then_some(Ttl(wish))
    }
}

/// A moment on a store's own clock, in microseconds since that store was made.
///
/// The clock of the embedded store runs with the monotonic clock while the process lives and stops
/// otherwise, so no step of the wall clock can end a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The moment `us` microseconds after the beginning.
    pub const fn from_micros(us: u64) -> Self {
        Self(us)
    }

    /// Microseconds since the beginning.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The moment `ttl` later.
    pub fn after(self, ttl: Ttl) -> Self {
        Self(self.0.saturating_add(ttl.0.saturating_mul(1_000)))
    }

    /// The moment `span` later.
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }

    /// The time from `now` until this moment; zero once it has come.
    pub fn left(self, now: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(now.0))
    }
}

/// A clock that continues from a given moment by the monotonic clock of the process.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
    at: Timestamp,
}

impl Clock {
    /// A clock that shows `at` now.
    pub fn starting_at(at: Timestamp) -> Self {
        Self { began: Instant::now(), at }
    }

    /// The time on this clock.
    pub fn now(&self) -> Timestamp {
        let elapsed = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        Timestamp(self.at.0.saturating_add(elapsed))
    }
}

/// A moment on the clock that keeps running in suspend, which counts the rest of a confirmed lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uptime(Duration);

impl Uptime {
    pub(crate) fn now() -> Self {
        Self(since_boot())
    }

    /// Converts a moment of the runtime's clock, which stops in suspend, by its age there.
    pub(crate) fn at(moment: tokio::time::Instant) -> Self {
        Self(Self::now().0.saturating_sub(moment.elapsed()))
    }

    pub(crate) fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }
}

/// The wall clock. It may step either way: no lease ends by it.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub(crate) fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// The wall clock in microseconds since 1970, to propose fencing tokens and date certificates.
pub fn wall_clock_micros() -> u64 {
    let since = wall_clock().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Parses a duration of settings, queries and the command line: a number and `ms`, `s`, `m`, `h` or
/// `d`, or several of them, as in `1h30m`; a bare number is seconds. Like `flock` and `timeout` it
/// knows fractions (`0.2`, `1.5m`), and cuts what is too long. Fractions are rounded up to
/// milliseconds: zero has a meaning of its own.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let is_number = |letter: char| letter.is_ascii_digit() || letter == '.';
    let mut rest = text;
    let mut ms = 0_u64;
    loop {
        let (number, after) = rest.split_at(rest.find(|one| !is_number(one)).unwrap_or(rest.len()));
        let (unit, after) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        let unit_ms = match unit {
            "ms" => 1,
            "" if rest == text => 1_000,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        ms = ms.saturating_add(number_ms(number, unit_ms)?);
        if after.is_empty() {
            return Some(Duration::from_millis(ms));
        }
        rest = after;
    }
}

/// A number of a unit, in milliseconds.
fn number_ms(number: &str, unit_ms: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    // Digits that cannot be parsed are too many.
    let whole = if whole.is_empty() { 0 } else { whole.parse().unwrap_or(u64::MAX) };
    Some(whole.saturating_mul(unit_ms).saturating_add(fraction_ms(fraction, unit_ms)))
}

/// A duration in the form that [`parse_duration`] reads, by the largest unit that divides it; a day
/// is 24 hours.
pub fn shortest(duration: Duration) -> String {
    let ms = millis_down(duration);
    let mut units = [("h", 3_600_000), ("m", 60_000), ("s", 1_000)].into_iter();
    let whole = units.find(|(_, unit)| ms > 0 && ms.is_multiple_of(*unit));
    let (name, unit) = whole.unwrap_or(("ms", 1));
    format!("{}{name}", ms / unit)
}

/// The digits behind the point, from the last to the first, in whole milliseconds.
fn fraction_ms(digits: &str, unit_ms: u64) -> u64 {
    let digits = digits.bytes().rev().map(|digit| u64::from(digit - b'0'));
    digits.fold(0, |ms, digit| (ms + digit * unit_ms).div_ceil(10))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{parse_duration, shortest};

    #[test]
    fn a_duration_is_numbers_with_units() {
        for (text, ms) in [
            ("30", 30_000),
            ("500ms", 500),
            ("0.2", 200),
            (".1", 100),
            ("1.", 1_000),
            ("1.5s", 1_500),
            ("2.25m", 135_000),
            ("0.1h", 360_000),
            ("1d", 86_400_000),
            ("0.5d", 43_200_000),
            ("9.999999999", 10_000),
            ("0.07", 70),
            ("0.1ms", 1),
            ("0.0000000000000000000000000000000000001", 1),
            ("0.0", 0),
            ("1h30m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("1m1.5s", 61_500),
            ("99999999999999999999", u64::MAX),
            ("18446744073709551615d", u64::MAX),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for (ms, text) in
            [(0, "0ms"), (100, "100ms"), (1_500, "1500ms"), (90_000, "90s"), (86_400_000, "24h")]
        {
            assert_eq!(shortest(Duration::from_millis(ms)), text);
        }
        for text in ["", "s", ".", ".s", "1.2.3", "1D", "1e3", "-1", "+1", "1 s", "inf"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        for text in ["1m30", "1m s", "1m-30s", "1m.s", "m30s", "1h 30m", "1h30x"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
