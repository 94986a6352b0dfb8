//! Lines of a plain or gzip file, one at a time, with their numbers.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::error::{Error, Result};

/// Longest line that is read.
const MAX_LINE: usize = 256 << 20;
const BUFFER: usize = 1 << 18;

/// A numbered line reader.
pub(super) struct Lines {
    name: String,
    source: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    number: u64,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|e| Error::File {
            file: name.clone(),
            problem: e.to_string(),
        })?;
        Self::new(name, BufReader::with_capacity(BUFFER, file))
    }

    pub(super) fn from_bytes(name: &str, bytes: impl AsRef<[u8]> + Send + 'static) -> Result<Self> {
        Self::new(name.into(), Cursor::new(bytes))
    }

    fn new(name: String, mut source: impl BufRead + Send + 'static) -> Result<Self> {
        let head = source.fill_buf().map_err(|e| Error::File {
            file: name.clone(),
            problem: e.to_string(),
        })?;
        let source: Box<dyn BufRead + Send> = if head.starts_with(&[0x1f, 0x8b]) {
            Box::new(BufReader::with_capacity(
                BUFFER,
                MultiGzDecoder::new(source),
            ))
        } else {
            Box::new(source)
        };
        Ok(Self {
            name,
            source,
            line: Vec::new(),
            number: 0,
        })
    }

    /// The next line without its end; a byte-order mark before the first one is dropped.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>> {
        self.line.clear();
        let mut limited = (&mut self.source).take(MAX_LINE as u64);
        let read = limited.read_until(b'\n', &mut self.line);
        self.number += 1;
        match read {
            Err(e) => return Err(self.error(&e.to_string())),
            Ok(0) => return Ok(None),
            Ok(MAX_LINE) => return Err(self.error("line longer than 256 MiB")),
            Ok(_) => {}
        }
        let mut text = self.line.as_slice();
        if self.number == 1 {
            text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        }
        Ok(Some(text.trim_ascii()))
    }

    /// An error at the line read last.
    pub(super) fn error(&self, problem: &str) -> Error {
        Error::Line {
            file: self.name.clone(),
            line: self.number,
            problem: problem.into(),
        }
    }
}
