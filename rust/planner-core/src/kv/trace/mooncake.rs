//! Mooncake JSON lines: `timestamp` in ms, lengths in tokens, chained block ids.

use super::Request;
use super::json::Cursor;

/// Parser of one line.
pub(super) struct Mooncake;

impl Mooncake {
    pub(super) fn parse(line: &[u8], request: &mut Request) -> Result<Option<u64>, String> {
        let (mut input, mut output, mut time_ms, mut ids) = (None, None, None, false);
        request.keys.clear();
        Cursor::new(line).object(|key, value| {
            match key {
                b"input_length" => input = Some(named("input_length", value.unsigned())?),
                b"output_length" => output = Some(named("output_length", value.unsigned())?),
                b"timestamp" => time_ms = Some(named("timestamp", value.number())?),
                b"hash_ids" if ids => return Err("the field \"hash_ids\" comes twice".into()),
                b"hash_ids" => {
                    ids = true;
                    named("hash_ids", value.array(|id| request.keys.push(id)))?;
                }
                _ => value.skip()?,
            }
            Ok(())
        })?;
        request.input_tokens = input.ok_or("expected the field \"input_length\"")?;
        request.output_tokens = output.ok_or("expected the field \"output_length\"")?;
        request.arrival_s = time_ms.ok_or("expected the field \"timestamp\" (ms)")? / 1000.0;
        if !ids || request.keys.is_empty() {
            return Err("expected \"hash_ids\" with at least one id".into());
        }
        Ok(None)
    }
}

/// Puts the field's name before a problem.
pub(super) fn named<T>(field: &str, parsed: Result<T, String>) -> Result<T, String> {
    parsed.map_err(|problem| format!("{field}: {problem}"))
}
