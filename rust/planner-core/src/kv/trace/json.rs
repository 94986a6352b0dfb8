//! A cursor over one JSON line: no tree, no allocation, numbers read where they stand.

type Parsed<T> = std::result::Result<T, String>;

/// Deepest nesting that is skipped over.
const MAX_DEPTH: usize = 64;

/// Position in a JSON text.
pub(super) struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// Calls `field` with each key of the object; it must consume the value.
    pub(super) fn object(
        &mut self,
        mut field: impl FnMut(&[u8], &mut Self) -> Parsed<()>,
    ) -> Parsed<()> {
        self.expect(b'{')?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return self.end();
        }
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            field(key, self)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return self.end();
                }
                _ => return Err(self.unexpected("',' or '}'")),
            }
        }
    }

    fn end(&mut self) -> Parsed<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.unexpected("the end of the line")),
        }
    }

    /// A whole number of at least 0; `1.0` counts as whole.
    pub(super) fn unsigned(&mut self) -> Parsed<u64> {
        self.peek();
        let start = self.at;
        let value = self.digits();
        match (value, self.text.get(self.at)) {
            (Some(v), Some(b',' | b'}' | b']' | b' ') | None) => Ok(v),
            _ => {
                self.at = start;
                let v = self.number()?;
                if v >= 0.0 && v.fract() == 0.0 && v < 9.0e15 {
                    Ok(v as u64)
                } else {
                    Err(format!(
                        "expected a whole number from 0 to 2^64 - 1, found {v}"
                    ))
                }
            }
        }
    }

    /// Plain digits; none where the text is anything else or does not fit 64 bits.
    #[inline]
    fn digits(&mut self) -> Option<u64> {
        let start = self.at;
        let mut value = 0u64;
        while let Some(d) = self
            .text
            .get(self.at)
            .map(|c| c.wrapping_sub(b'0'))
            .filter(|d| *d < 10)
        {
            value = value.checked_mul(10)?.checked_add(u64::from(d))?;
            self.at += 1;
        }
        (self.at > start).then_some(value)
    }

    /// Any JSON number.
    pub(super) fn number(&mut self) -> Parsed<f64> {
        self.peek();
        if let Some((value, length)) = short_number(&self.text[self.at..]) {
            // Without the comma, which is the caller's.
            self.at += self.text[self.at..self.at + length]
                .iter()
                .take_while(|c| c.is_ascii_digit())
                .count();
            return Ok(value as f64);
        }
        let start = self.at;
        while matches!(
            self.text.get(self.at),
            Some(b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')
        ) {
            self.at += 1;
        }
        let text = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        text.parse().map_err(|_| {
            self.at = start;
            self.unexpected("a number")
        })
    }

    /// Calls `item` with each whole number of an array.
    #[inline]
    pub(super) fn array(&mut self, mut item: impl FnMut(u64)) -> Parsed<()> {
        self.expect(b'[')?;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            while let Some((value, length)) = short_number(&self.text[self.at..]) {
                item(value);
                self.at += length;
            }
            item(self.unsigned()?);
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.unexpected("',' or ']'")),
            }
            self.peek();
        }
    }

    /// A string, escapes left as they stand.
    pub(super) fn string(&mut self) -> Parsed<&'a [u8]> {
        self.expect(b'"')?;
        let start = self.at;
        while let Some(c) = self.text.get(self.at) {
            match c {
                b'"' => {
                    self.at += 1;
                    return Ok(&self.text[start..self.at - 1]);
                }
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        Err("the line ends inside a string".into())
    }

    /// Skips any value.
    pub(super) fn skip(&mut self) -> Parsed<()> {
        let mut depth = 0;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
                }
                Some(b'{' | b'[') => {
                    depth += 1;
                    self.at += 1;
                }
                Some(b'}' | b']') if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                Some(b',' | b':') if depth > 0 => self.at += 1,
                Some(b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'+' | b'.') => self.word(),
                _ => return Err(self.unexpected("a value")),
            }
            if depth > MAX_DEPTH {
                return Err(format!("nested deeper than {MAX_DEPTH}"));
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn word(&mut self) {
        while matches!(self.text.get(self.at), Some(c) if c.is_ascii_alphanumeric() || matches!(c, b'-' | b'+' | b'.'))
        {
            self.at += 1;
        }
    }

    #[inline]
    fn peek(&mut self) -> Option<u8> {
        while let Some(c) = self.text.get(self.at) {
            if !matches!(c, b' ' | b'\t' | b'\r') {
                return Some(*c);
            }
            self.at += 1;
        }
        None
    }

    fn expect(&mut self, want: u8) -> Parsed<()> {
        if self.peek() == Some(want) {
            self.at += 1;
            return Ok(());
        }
        Err(self.unexpected(&format!("'{}'", want as char)))
    }

    fn unexpected(&self, want: &str) -> String {
        let rest = &self.text[self.at.min(self.text.len())..];
        let shown = String::from_utf8_lossy(&rest[..rest.len().min(16)]).into_owned();
        let found = if rest.is_empty() {
            "the end of the line".into()
        } else {
            format!("'{shown}'")
        };
        format!("column {}: expected {want}, found {found}", self.at + 1)
    }
}

/// A number of one to seven digits with the comma, and perhaps the blank, behind it: its value and
/// the length of all. Eight bytes are looked at together: digits are found by carries out of each
/// byte, moved to the top, and added up in pairs, fours and eights.
#[inline]
fn short_number(text: &[u8]) -> Option<(u64, usize)> {
    let bytes: [u8; 8] = text.get(..8)?.try_into().ok()?;
    let digits = u64::from_le_bytes(bytes) ^ 0x3030_3030_3030_3030;
    let others = (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080;
    let n = (others.trailing_zeros() / 8) as usize;
    if n == 0 || n > 7 || bytes[n] != b',' {
        return None;
    }
    let top = digits << (64 - 8 * n);
    let pairs = (top.wrapping_mul(10) + (top >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100) + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    let value = (fours.wrapping_mul(10_000) + (fours >> 32)) & 0xffff_ffff;
    Some((value, n + 1 + usize::from(text.get(n + 1) == Some(&b' '))))
}

#[cfg(test)]
mod tests {
    use super::{Cursor, short_number};

    proptest::proptest! {
        #[test]
        fn arrays_in_any_spacing(
            numbers in proptest::collection::vec(proptest::prop_oneof![0u64..100, 0u64..20_000_000, proptest::num::u64::ANY], 0..50),
            blanks in proptest::collection::vec(0usize..3, 101),
        ) {
            let gap = |i: usize| " ".repeat(blanks[i]);
            let cells = numbers.iter().enumerate();
            let cells: Vec<String> = cells.map(|(i, n)| format!("{}{n}{}", gap(2 * i), gap(2 * i + 1))).collect();
            let text = format!("[{}]", cells.join(","));
            let mut found = Vec::new();
            let parsed = Cursor::new(text.as_bytes()).array(|n| found.push(n));
            proptest::prop_assert_eq!(parsed, Ok(()));
            proptest::prop_assert_eq!(found, numbers);
        }

        #[test]
        fn short_numbers(n in 0u64..10_000_000, rest in "[ -~]{8}") {
            let text = format!("{n},{rest}");
            let length = text.len() - rest.len() + usize::from(rest.starts_with(' '));
            proptest::prop_assert_eq!(short_number(text.as_bytes()), Some((n, length)));
        }

        #[test]
        fn only_short_numbers(text in proptest::collection::vec(proptest::num::u8::ANY, 0..12)) {
            if let Some((value, _)) = short_number(&text) {
                let n = text.iter().position(|c| *c == b',').unwrap();
                proptest::prop_assert_eq!(std::str::from_utf8(&text[..n]).unwrap().parse(), Ok(value));
            }
        }
    }

    #[test]
    fn what_an_array_must_not_hold() {
        for text in [
            "[1,]",
            "[,1]",
            "[1 2]",
            "[1",
            "[1,",
            "[-1, 2, 3, 4]",
            "[1.5, 2, 3, 4]",
            "[18446744073709551616, 1]",
            "[nan, 1, 2, 3]",
        ] {
            assert!(
                Cursor::new(text.as_bytes()).array(|_| {}).is_err(),
                "{text}"
            );
        }
    }
}
