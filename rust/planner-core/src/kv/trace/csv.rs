//! Comma-separated traces: Azure's and the generic one.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::Request;
use super::lines::Lines;
use crate::error::Result;

/// What a time column holds.
#[derive(Clone, Copy, PartialEq)]
enum Clock {
    Seconds,
    Milliseconds,
    /// `2023-11-16 18:17:03.9799600`.
    Date,
}

/// Parser of one line, by the columns that the header names.
pub(super) struct Csv {
    width: usize,
    time: usize,
    clock: Clock,
    input: usize,
    output: usize,
    name: Option<usize>,
    blocks: Option<usize>,
    cells: Vec<(usize, usize)>,
}

impl Csv {
    /// Header `TIMESTAMP,ContextTokens,GeneratedTokens`.
    pub(super) fn azure(lines: &mut Lines) -> Result<Self> {
        let header = header(lines)?;
        let find = |name: &str| header.iter().position(|h| h == name);
        let found = (
            find("TIMESTAMP"),
            find("ContextTokens"),
            find("GeneratedTokens"),
        );
        let (Some(time), Some(input), Some(output)) = found else {
            return Err(lines.error("expected the header TIMESTAMP,ContextTokens,GeneratedTokens"));
        };
        Ok(Self::with(&header, (time, Clock::Date), input, output))
    }

    /// Header with `arrival_s` (or `arrival_ms`, or `timestamp` as a date), `input_tokens`,
    /// `output_tokens` and perhaps `request_id` and `block_ids`.
    pub(super) fn generic(lines: &mut Lines) -> Result<Self> {
        let header = header(lines)?;
        let find = |name: &str| header.iter().position(|h| h == name);
        let time = find("arrival_s")
            .map(|i| (i, Clock::Seconds))
            .or_else(|| find("arrival_ms").map(|i| (i, Clock::Milliseconds)))
            .or_else(|| find("timestamp").map(|i| (i, Clock::Date)));
        let (Some(time), Some(input), Some(output)) =
            (time, find("input_tokens"), find("output_tokens"))
        else {
            return Err(lines.error(
                "expected a header with arrival_s (or arrival_ms, timestamp), input_tokens, output_tokens",
            ));
        };
        let mut csv = Self::with(&header, time, input, output);
        csv.name = find("request_id");
        csv.blocks = find("block_ids");
        Ok(csv)
    }

    fn with(header: &[String], time: (usize, Clock), input: usize, output: usize) -> Self {
        Self {
            width: header.len(),
            time: time.0,
            clock: time.1,
            input,
            output,
            name: None,
            blocks: None,
            cells: Vec::new(),
        }
    }

    pub(super) fn parse(
        &mut self,
        line: &[u8],
        request: &mut Request,
    ) -> std::result::Result<Option<u64>, String> {
        let text = std::str::from_utf8(line).map_err(|_| "not UTF-8 text".to_string())?;
        self.split(text)?;
        let cell = |i: usize| {
            let (from, to) = self.cells[i];
            text[from..to].trim().trim_matches('"')
        };
        request.input_tokens = whole("prompt tokens", cell(self.input))?;
        request.output_tokens = whole("answer tokens", cell(self.output))?;
        request.arrival_s = match self.clock {
            Clock::Seconds => real(cell(self.time))?,
            Clock::Milliseconds => real(cell(self.time))? / 1000.0,
            Clock::Date => date_s(cell(self.time))?,
        };
        request.keys.clear();
        if let Some(i) = self.blocks {
            for id in cell(i).split_ascii_whitespace() {
                request.keys.push(whole("block id", id)?);
            }
        }
        Ok(self.name.map(|i| {
            let mut hasher = DefaultHasher::new();
            cell(i).hash(&mut hasher);
            hasher.finish()
        }))
    }

    fn split(&mut self, text: &str) -> std::result::Result<(), String> {
        self.cells.clear();
        let mut start = 0;
        for (i, c) in text.bytes().enumerate() {
            if c == b',' {
                self.cells.push((start, i));
                start = i + 1;
            }
        }
        self.cells.push((start, text.len()));
        if self.cells.len() == self.width {
            return Ok(());
        }
        Err(format!(
            "expected {} columns, found {}",
            self.width,
            self.cells.len()
        ))
    }
}

fn header(lines: &mut Lines) -> Result<Vec<String>> {
    let Some(line) = lines.next()? else {
        return Err(lines.error("the file is empty: expected a header and at least one request"));
    };
    let text = String::from_utf8_lossy(line).into_owned();
    Ok(text
        .split(',')
        .map(|h| h.trim().trim_matches('"').to_string())
        .collect())
}

fn whole(what: &str, text: &str) -> std::result::Result<u64, String> {
    if let Ok(v) = text.parse() {
        return Ok(v);
    }
    match text.parse::<f64>() {
        Ok(v) if v >= 0.0 && v.fract() == 0.0 && v < 9.0e15 => Ok(v as u64),
        _ => Err(format!(
            "{what}: expected a whole number from 0 to 2^64 - 1, found '{text}'"
        )),
    }
}

fn real(text: &str) -> std::result::Result<f64, String> {
    text.parse()
        .map_err(|_| format!("arrival: expected a number, found '{text}'"))
}

/// Seconds since 1970 of `YYYY-MM-DD HH:MM:SS[.fff]` (a `T` and a trailing `Z` or `+00:00` are
/// read as well), or of a plain number of seconds.
fn date_s(text: &str) -> std::result::Result<f64, String> {
    let wrong = || format!("timestamp: expected 2023-11-16 18:17:03.97 or seconds, found '{text}'");
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let clean = text.trim_end_matches('Z').trim_end_matches("+00:00");
    let (date, time) = clean.split_once([' ', 'T']).ok_or_else(wrong)?;
    let mut ymd = date.split('-').map(|p| p.parse::<i64>());
    let mut hms = time.split(':').map(|p| p.parse::<f64>());
    let (Some(Ok(y)), Some(Ok(m)), Some(Ok(d)), None) =
        (ymd.next(), ymd.next(), ymd.next(), ymd.next())
    else {
        return Err(wrong());
    };
    let (Some(Ok(hour)), Some(Ok(minute)), Some(Ok(second)), None) =
        (hms.next(), hms.next(), hms.next(), hms.next())
    else {
        return Err(wrong());
    };
    if !(1..=12).contains(&m) || !(1..=31).contains(&d) || !(0..=9999).contains(&y) {
        return Err(wrong());
    }
    Ok(days(y, m, d) as f64 * 86400.0 + hour * 3600.0 + minute * 60.0 + second)
}

/// Days from 1970-01-01 in the Gregorian calendar (H. Hinnant, *chrono-Compatible Low-Level Date
/// Algorithms*).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let yoe = y - era * 400;
    let doy = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

#[cfg(test)]
mod tests {
    use super::{date_s, days};

    #[test]
    fn dates() {
        assert_eq!(days(1970, 1, 1), 0);
        assert_eq!(days(2000, 3, 1), 11017);
        let t = date_s("2023-11-16 18:17:03.9799600").unwrap();
        assert!((t - 1_700_158_623.979_96).abs() < 1e-5);
        assert_eq!(date_s("12.5"), Ok(12.5));
        assert!(date_s("yesterday").is_err());
        assert!(date_s("2023-13-16 18:17:03").is_err());
    }
}
