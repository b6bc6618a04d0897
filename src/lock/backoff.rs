//! The pauses between the attempts at one thing.

use std::time::Duration;

use tokio::time::sleep;

/// A pause that doubles with each attempt, up to a longest one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Begins with the first pause.
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { next: first, longest }
    }

    /// The next pause.
    pub(crate) fn next(&self) -> Duration {
        self.next
    }

    /// Waits for the next pause.
    ///
    /// # Cancel safety
    ///
    /// The pause counts only if it was waited for.
    pub(crate) async fn pause(&mut self) {
        sleep(self.next).await;
        self.next = self.longest.min(2 * self.next);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::Backoff;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(120));
        let mut began = Instant::now();
        for awaited in [50, 100, 120, 120] {
            assert_eq!(backoff.next().as_millis(), awaited);
            backoff.pause().await;
            assert_eq!(began.elapsed().as_millis(), awaited);
            began = Instant::now();
        }
    }
}
