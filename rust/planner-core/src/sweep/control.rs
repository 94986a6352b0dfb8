//! The line between a running sweep and whoever waits for it: progress one way, stop the other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Shared by a sweep and its caller.
#[derive(Debug, Default)]
pub struct Control {
    stop: AtomicBool,
    done: AtomicU64,
}

impl Control {
    /// Ask the sweep to stop; it returns [`Error::Interrupted`] within some milliseconds.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Layouts looked at or ruled out so far.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Count layouts as done, and see whether to go on.
    pub(crate) fn advance(&self, layouts: u64) -> Result<()> {
        self.done.fetch_add(layouts, Ordering::Relaxed);
        if self.stop.load(Ordering::Relaxed) {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    }
}
