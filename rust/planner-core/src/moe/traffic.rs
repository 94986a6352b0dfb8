//! Which rank sends how many tokens to which.

use super::monte_carlo::Batch;
use super::rng::Pcg64;
use crate::error::{Error, Result};

impl Batch {
    /// Tokens from rank (row) to rank (column) in one batch, one per destination rank of a token.
    ///
    /// # Errors
    /// As [`Batch::check`]; more than 1,024 ranks or 100 million tokens.
    pub fn traffic(&self, seed: u64) -> Result<Vec<Vec<u32>>> {
        self.check()?;
        if self.ranks > 1024 || self.tokens > 100_000_000 {
            return Err(Error::field(
                "ranks",
                self.ranks,
                "a matrix of at most 1,024 ranks and 1e8 tokens",
            ));
        }
        let mut rng = Pcg64::new(seed, 0);
        let sampler = self.sampler(0, &mut rng);
        let layout = self.layout();
        let mut matrix = vec![vec![0u32; self.ranks as usize]; self.ranks as usize];
        let mut picks = vec![0; self.top_k as usize];
        let mut homes = Vec::new();
        for token in 0..self.tokens {
            sampler.token(self.experts, &mut picks, &mut rng);
            homes.clear();
            homes.extend(picks.iter().map(|e| layout.home(*e, token)));
            homes.sort_unstable();
            homes.dedup();
            let source = u64::from(token) * u64::from(self.ranks) / u64::from(self.tokens);
            for home in &homes {
                matrix[source as usize][*home as usize] += 1;
            }
        }
        Ok(matrix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moe::Routing;

    #[test]
    fn all_tokens_leave_for_one_to_k_ranks() {
        let batch = Batch {
            routing: Routing::Zipf { s: 1.0 },
            experts: 32,
            top_k: 4,
            tokens: 800,
            ranks: 8,
            nodes: 2,
            group_limit: None,
            placement: Vec::new(),
            capacity: None,
        };
        let matrix = batch.traffic(1).unwrap();
        for row in &matrix {
            let sent: u32 = row.iter().sum();
            assert!((100..=400).contains(&sent));
        }
    }
}
