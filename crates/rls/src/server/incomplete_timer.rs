//! Maximum time for what a client has begun to send and not completed: its settings, the header section of a call.
//!
//! Without it, half a frame would hold a connection for the connection's maximum age.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// Timer of one connection. It exists only while something is incomplete after a read.
#[derive(Debug, Default)]
pub(super) struct IncompleteTimer {
    /// What is incomplete, by its number.
    number: Option<u64>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl IncompleteTimer {
    /// Ready if the same thing has been incomplete for `max`. `number` is that of what is incomplete now.
    pub(super) fn poll(&mut self, number: Option<u64>, max: Duration, cx: &mut Context<'_>) -> Poll<()> {
        if self.number != number {
            self.number = number;
            self.timer = number.map(|_| Box::pin(sleep(max)));
        }
        self.timer.as_mut().map_or(Poll::Pending, |timer| timer.as_mut().poll(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn is_ready(timer: &mut IncompleteTimer, number: Option<u64>) -> bool {
        poll_fn(|cx| Poll::Ready(timer.poll(number, Duration::from_secs(60), cx).is_ready())).await
    }

    #[tokio::test]
    async fn only_the_same_thing_is_timed() {
        let mut timer = IncompleteTimer::default();
        poll_fn(|cx| timer.poll(Some(1), Duration::ZERO, cx)).await;
        assert!(!is_ready(&mut timer, Some(2)).await, "it has its own time");
        assert!(!is_ready(&mut timer, None).await && timer.timer.is_none(), "nothing is incomplete");
    }
}
