//! JSON lines with token ids: `input_toks`, `output_toks`, `arrival_time_ns` (or `arrival_time` in
//! s), `input_tok_ids`. Without ids the lengths are used alone.

use super::Request;
use super::json::Cursor;
use super::mooncake::named;
use crate::kv::prefix::Chain;

/// Parser of one line.
pub(super) struct Tokens {
    block_tokens: u64,
}

impl Tokens {
    pub(super) fn new(block_tokens: u64) -> Self {
        Self { block_tokens }
    }

    pub(super) fn parse(
        &mut self,
        line: &[u8],
        request: &mut Request,
    ) -> Result<Option<u64>, String> {
        let (mut input, mut output, mut arrival_s, mut outputs) = (None, None, None, None);
        let mut ids = None;
        request.keys.clear();
        let block = self.block_tokens;
        Cursor::new(line).object(|key, value| {
            match key {
                b"input_toks" => input = Some(named("input_toks", value.unsigned())?),
                b"output_toks" => output = Some(named("output_toks", value.unsigned())?),
                b"arrival_time_ns" => {
                    arrival_s = Some(named("arrival_time_ns", value.number())? / 1e9);
                }
                b"arrival_time" => arrival_s = Some(named("arrival_time", value.number())?),
                b"input_tok_ids" => {
                    let mut chain = Chain::new(block);
                    let keys = &mut request.keys;
                    named(
                        "input_tok_ids",
                        value.array(|token| keys.extend(chain.push(token))),
                    )?;
                    keys.extend(chain.rest());
                    ids = Some(chain.tokens());
                }
                b"output_tok_ids" => {
                    let mut count = 0u64;
                    named("output_tok_ids", value.array(|_| count += 1))?;
                    outputs = Some(count);
                }
                _ => value.skip()?,
            }
            Ok(())
        })?;
        request.input_tokens = input
            .or(ids)
            .ok_or("expected \"input_toks\" or \"input_tok_ids\"")?;
        request.output_tokens = output
            .or(outputs)
            .ok_or("expected \"output_toks\" or \"output_tok_ids\"")?;
        request.arrival_s = arrival_s.ok_or("expected \"arrival_time_ns\" or \"arrival_time\"")?;
        match ids {
            Some(n) if n != request.input_tokens => Err(format!(
                "{n} input_tok_ids but input_toks = {}: expected the same",
                request.input_tokens
            )),
            _ => Ok(None),
        }
    }
}
