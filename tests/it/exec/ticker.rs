//! A COMMAND that shows that it lives: it writes the time to a file, again and again, by the clock
//! that its wrapper goes by.

use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::support::{PATIENCE, eventually};

/// Writes its number, then the time every 10 ms, for a minute at most; `$deaf` lets it end by
/// nothing but KILL.
const SCRIPT: &str = r#"
use Time::HiRes qw(clock_gettime sleep);
my ($path, $deaf) = @ARGV;
$SIG{$_} = 'IGNORE' for $deaf ? qw(TERM INT HUP) : ();
open my $file, '>>', $path or die $path;
syswrite $file, "$$\n";
my $end = clock_gettime(7) + 60;
while (clock_gettime(7) < $end) {
    syswrite $file, sprintf "%.6f\n", clock_gettime(7);
    sleep 0.01;
}
"#;

/// Whether it ends when it is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manners {
    Polite,
    Deaf,
}

/// Where a ticker writes.
#[derive(Debug)]
pub(super) struct Ticker {
    path: String,
}

impl Ticker {
    pub(super) fn new(path: String) -> Self {
        Self { path }
    }

    /// The command line.
    pub(super) fn words(&self, manners: Manners) -> Vec<String> {
        let deaf = if manners == Manners::Deaf { "1" } else { "" };
        ["perl", "-e", SCRIPT, &self.path, deaf].map(str::to_owned).to_vec()
    }

    /// The command line of a shell that starts it, and waits.
    pub(super) fn words_of_a_grandchild(&self, manners: Manners) -> Vec<String> {
        let mut words = ["sh", "-c", "\"$@\" & wait", "sh"].map(str::to_owned).to_vec();
        words.extend(self.words(manners));
        words
    }

    /// Waits until it ticks, and gives its number.
    pub(super) async fn ticks(&self) -> u32 {
        eventually(PATIENCE, async || (self.lines().len() > 2).then(|| self.lines())).await[0]
            .parse()
            .unwrap()
    }

    /// When it last showed that it lives.
    pub(super) fn last(&self) -> Duration {
        Duration::from_secs_f64(self.lines().last().unwrap().parse().unwrap())
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(Path::new(&self.path)).unwrap_or_default();
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        whole.lines().map(str::to_owned).collect()
    }
}

/// The clock of tickers.
pub(super) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap()
}
