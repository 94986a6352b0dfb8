//! What an engine has seen: sums and peaks.

/// Sums and peaks of one engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Books {
    /// Most requests that decoded at once.
    pub peak_running: u32,
    /// Most tokens held.
    pub peak_held: f64,
    /// Requests that lost their blocks.
    pub preemptions: u32,
    /// Passes over prompts.
    pub passes: u32,
    /// Prompt tokens computed, recomputation included.
    pub prompt_tokens: u64,
    /// Time in which a request that was seen found no slot or no room, s.
    pub blocked_s: f64,
    /// ∫ running requests dt, s.
    pub area_s: f64,
}

impl Books {
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    #[inline]
    pub(super) fn span(&mut self, running: f64, span_s: f64, blocked: bool, held: f64) {
        self.area_s += running * span_s;
        if blocked {
            self.blocked_s += span_s;
        }
        if held > self.peak_held {
            self.peak_held = held;
        }
    }

    #[inline]
    pub(super) fn running(&mut self, running: u32) {
        self.peak_running = self.peak_running.max(running);
    }
}
