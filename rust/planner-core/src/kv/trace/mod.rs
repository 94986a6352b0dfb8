//! Request traces: one reader for every format, one request at a time.
//!
//! Memory is bounded by the longest line; nothing of the trace is kept. Gzip is recognised by its
//! first bytes. A line that makes no sense is an error with its file and line number, or is skipped
//! and counted up to [`Options::skip_bad`].
//!
//! | format | one request | blocks |
//! |---|---|---|
//! | `mooncake` | JSON line with `timestamp` (ms), `input_length`, `output_length`, `hash_ids` | the ids, already chained |
//! | `azure` | CSV `TIMESTAMP,ContextTokens,GeneratedTokens` | none: lengths only |
//! | `tokens` | JSON line with `input_toks`, `output_toks`, `arrival_time_ns`, `input_tok_ids` | chained hash of token ids |
//! | `csv` | CSV `arrival_s,input_tokens,output_tokens[,request_id][,block_ids]` | `block_ids`, space separated |

mod csv;
mod json;
mod lines;
mod mooncake;
mod tokens;

use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use lines::Lines;

/// Longest prompt or answer that a trace may state, tokens.
pub const MAX_TOKENS: u64 = 1 << 31;

/// Most blank lines in a row: beyond, a file is no trace (a few kilobytes of gzip hold gigabytes).
const MAX_BLANK: u64 = 1 << 20;

/// One request of a trace. A reader fills the same one again and again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Arrival after the first request, s.
    pub arrival_s: f64,
    /// Prompt, tokens.
    pub input_tokens: u64,
    /// Answer, tokens.
    pub output_tokens: u64,
    /// Chained keys of the prompt's blocks, the partial last one included. Empty in a trace that
    /// has lengths only.
    pub keys: Vec<u64>,
}

/// Layout of a trace file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Mooncake JSON lines with block hash ids.
    Mooncake,
    /// Azure LLM inference CSV: lengths.
    Azure,
    /// JSON lines with token ids.
    Tokens,
    /// The generic CSV of this tool.
    Csv,
}

/// What to do with an arrival earlier than the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unordered {
    /// The line is bad.
    #[default]
    Reject,
    /// Keep the order of the file.
    Keep,
}

/// How to read a trace.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Layout of the file.
    pub format: Format,
    /// Tokens in a KV block of the cache that is studied.
    pub block_tokens: u64,
    /// Tokens that one id of the trace stands for (default: `block_tokens`).
    #[serde(default)]
    pub trace_block_tokens: Option<u64>,
    /// Bad lines to skip before giving up.
    #[serde(default)]
    pub skip_bad: u64,
    /// Arrivals out of order.
    #[serde(default)]
    pub unordered: Unordered,
    /// Blocks need not be multiples of an id's tokens: a block is known by the id that its last token
    /// is in, so that a prefix shared up to the middle of an id counts up to its start only.
    #[serde(default)]
    pub regrid: bool,
}

impl Options {
    /// Tokens of one id in the file.
    fn id_tokens(&self) -> u64 {
        self.trace_block_tokens.unwrap_or(self.block_tokens)
    }

    fn check(&self) -> Result<()> {
        let (block, id) = (self.block_tokens, self.id_tokens());
        if block == 0 || block > MAX_TOKENS {
            let rule = "a block holds between 1 and 2^31 tokens";
            return Err(Error::field("block_size", block, rule));
        }
        if id == 0 || (block % id != 0 && !self.regrid) {
            let rule = format!("a whole multiple of the {id} tokens that a trace id stands for");
            return Err(Error::field("block_size", block, rule));
        }
        Ok(())
    }
}

enum Parser {
    Mooncake,
    Tokens(tokens::Tokens),
    Csv(csv::Csv),
}

/// Reads a trace request by request.
pub struct Reader {
    lines: Lines,
    parser: Parser,
    options: Options,
    first_arrival_s: Option<f64>,
    last_arrival_s: f64,
    requests: u64,
    bad: u64,
    odd_ids: u64,
    names: HashSet<u64>,
    sorted: Vec<u64>,
    first_bad: Option<String>,
}

impl Reader {
    /// Opens a trace file.
    ///
    /// # Errors
    /// The file cannot be read, is empty, or its header is not of the stated format.
    pub fn open(path: &Path, options: Options) -> Result<Self> {
        Self::new(Lines::open(path)?, options)
    }

    /// Reads a trace held in memory; `name` stands in error messages.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn from_bytes(
        name: &str,
        bytes: impl AsRef<[u8]> + Send + 'static,
        options: Options,
    ) -> Result<Self> {
        Self::new(Lines::from_bytes(name, bytes)?, options)
    }

    fn new(mut lines: Lines, options: Options) -> Result<Self> {
        options.check()?;
        let parser = match options.format {
            Format::Mooncake => Parser::Mooncake,
            Format::Tokens => Parser::Tokens(tokens::Tokens::new(options.block_tokens)),
            Format::Azure => Parser::Csv(csv::Csv::azure(&mut lines)?),
            Format::Csv => Parser::Csv(csv::Csv::generic(&mut lines)?),
        };
        Ok(Self {
            lines,
            parser,
            options,
            first_arrival_s: None,
            last_arrival_s: f64::NEG_INFINITY,
            requests: 0,
            bad: 0,
            odd_ids: 0,
            names: HashSet::new(),
            sorted: Vec::new(),
            first_bad: None,
        })
    }

    /// Requests read so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Bad lines skipped so far, and what the first one was.
    #[must_use]
    pub fn skipped(&self) -> (u64, Option<&str>) {
        (self.bad, self.first_bad.as_deref())
    }

    /// Requests whose number of ids is not ⌈prompt / tokens of an id⌉.
    #[must_use]
    pub fn odd_ids(&self) -> u64 {
        self.odd_ids
    }

    /// Reads the next request into `request`; false at the end of the trace.
    ///
    /// # Errors
    /// A bad line beyond the allowance, or a file without any request.
    pub fn next(&mut self, request: &mut Request) -> Result<bool> {
        let mut blank = 0;
        loop {
            let Some(line) = self.lines.next()? else {
                self.finish()?;
                return Ok(false);
            };
            if line.is_empty() {
                blank += 1;
                if blank > MAX_BLANK {
                    let problem = format!("more than {MAX_BLANK} blank lines in a row");
                    return Err(self.lines.error(&problem));
                }
                continue;
            }
            let parsed = match &mut self.parser {
                Parser::Mooncake => mooncake::Mooncake::parse(line, request),
                Parser::Tokens(p) => p.parse(line, request),
                Parser::Csv(p) => p.parse(line, request),
            };
            match parsed.and_then(|name| self.check(request, name)) {
                Ok(()) => return Ok(true),
                Err(problem) => self.skip(&problem)?,
            }
        }
    }

    fn skip(&mut self, problem: &str) -> Result<()> {
        if self.bad >= self.options.skip_bad {
            return Err(self.lines.error(problem));
        }
        self.bad += 1;
        if self.first_bad.is_none() {
            self.first_bad = Some(self.lines.error(problem).to_string());
        }
        Ok(())
    }

    /// Rules that hold in every format; then makes the arrival relative and the keys those of
    /// whole cache blocks.
    fn check(
        &mut self,
        request: &mut Request,
        name: Option<u64>,
    ) -> std::result::Result<(), String> {
        if request.input_tokens == 0 {
            return Err("prompt of 0 tokens: expected at least 1".into());
        }
        if request.input_tokens > MAX_TOKENS || request.output_tokens > MAX_TOKENS {
            return Err("more than 2^31 tokens in one request".into());
        }
        if !request.arrival_s.is_finite() {
            return Err("arrival time is not a finite number".into());
        }
        let earlier = request.arrival_s < self.last_arrival_s;
        if earlier && self.options.unordered == Unordered::Reject {
            let (now, last) = (request.arrival_s, self.last_arrival_s);
            return Err(format!(
                "arrival {now} s is before {last} s of the request above: expected times that do not decrease (--unordered keep reads in file order)"
            ));
        }
        if let Some(name) = name
            && !self.names.insert(name)
        {
            return Err("request id seen before: expected each once".into());
        }
        self.check_ids(request)?;
        self.last_arrival_s = self.last_arrival_s.max(request.arrival_s);
        let first = *self.first_arrival_s.get_or_insert(request.arrival_s);
        request.arrival_s -= first;
        self.requests += 1;
        Ok(())
    }

    fn check_ids(&mut self, request: &mut Request) -> std::result::Result<(), String> {
        let found = request.keys.len() as u64;
        if found == 0 || matches!(self.parser, Parser::Tokens(_)) {
            return Ok(());
        }
        self.check_distinct(&request.keys)?;
        let id_tokens = self.options.id_tokens();
        let due = request.input_tokens.div_ceil(id_tokens);
        if found != due {
            self.odd_ids += 1;
            let tries = self.requests + 1;
            if tries >= 64 && self.odd_ids * 2 > tries {
                return Err(mismatch(request.input_tokens, found, due, id_tokens));
            }
        }
        let block = self.options.block_tokens;
        if !block.is_multiple_of(id_tokens) {
            regrid(request, block, id_tokens);
        } else if block != id_tokens {
            coarsen(&mut request.keys, (block / id_tokens) as usize);
        }
        Ok(())
    }

    /// An id is the hash of the whole prefix, so it cannot come twice in one request. Ids that rise
    /// (as in the published traces, mostly) need no sort.
    fn check_distinct(&mut self, keys: &[u64]) -> std::result::Result<(), String> {
        if keys.windows(2).all(|w| w[0] < w[1]) {
            return Ok(());
        }
        self.sorted.clear();
        self.sorted.extend_from_slice(keys);
        self.sorted.sort_unstable();
        match self.sorted.windows(2).find(|w| w[0] == w[1]) {
            None => Ok(()),
            Some(w) => Err(format!(
                "block id {} twice in one request: a chained hash cannot repeat",
                w[0]
            )),
        }
    }

    fn finish(&self) -> Result<()> {
        if self.requests == 0 {
            return Err(self
                .lines
                .error("no request in the file: expected at least one"));
        }
        if self.odd_ids * 2 > self.requests {
            let id_tokens = self.options.id_tokens();
            return Err(self.lines.error(&format!(
                "{} of {} requests do not have one id per {id_tokens} tokens: state the trace's own block size (--trace-block-size)",
                self.odd_ids, self.requests
            )));
        }
        Ok(())
    }
}

/// What an unexpected number of ids says, with the block size that would fit.
fn mismatch(input: u64, found: u64, due: u64, id_tokens: u64) -> String {
    let fits = (0..16)
        .map(|p| 1u64 << p)
        .find(|b| input.div_ceil(*b) == found);
    let hint = fits.map_or(String::new(), |b| {
        format!("; blocks of {b} tokens would fit: --trace-block-size {b}")
    });
    format!(
        "{found} ids for a prompt of {input} tokens: expected {due} at {id_tokens} tokens an id{hint}"
    )
}

/// Keeps the last key of each run of `k`: the id of a block is the chained hash of all up to it,
/// so the last small block names the large one.
fn coarsen(keys: &mut Vec<u64>, k: usize) {
    let n = keys.len();
    let blocks = n.div_ceil(k);
    for block in 0..blocks {
        keys[block] = keys[((block + 1) * k).min(n) - 1];
    }
    keys.truncate(blocks);
}

/// Keys of whole blocks of `block` tokens, each from the id that its last token is in.
fn regrid(request: &mut Request, block: u64, id_tokens: u64) {
    let key = |n: u64| {
        let last = (n * block - 1) / id_tokens;
        let id = request.keys.get(last as usize)?;
        // The number of the block tells apart those that end in one id.
        Some((id ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93))
    };
    request.keys = (1..=request.input_tokens / block).map_while(key).collect();
}

#[cfg(test)]
mod tests;
