//! Columns declared once, and the struct of arrays that carries them to Arrow.
//!
//! Each engine (layouts, KV, MoE) declares its columns as a `&'static [Column]`; the Arrow schema,
//! `planner columns`, the docs page and the tests read that declaration.

/// Declaration of one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name, with its unit as suffix: `step_time_s`, `peak_memory_bytes`.
    pub name: &'static str,
    /// Unit in words (`s`, `bytes`, `bytes/s`, `1`), empty for names and switches.
    pub unit: &'static str,
    /// One sentence.
    pub doc: &'static str,
}

/// Values of one column.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Small counts.
    U32(Vec<u32>),
    /// Large counts and bytes that are exact.
    U64(Vec<u64>),
    /// Real numbers.
    F64(Vec<f64>),
    /// Switches.
    Bool(Vec<bool>),
    /// Names out of a fixed list: becomes a dictionary-encoded (categorical) column.
    Name {
        /// Index into `names`, per row.
        codes: Vec<u8>,
        /// The dictionary.
        names: &'static [&'static str],
    },
    /// Free text.
    Text(Vec<String>),
}

impl Data {
    /// Rows.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::U32(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::F64(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::Name { codes, .. } => codes.len(),
            Self::Text(v) => v.len(),
        }
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::U32(v) => size_of_val(&v[..]),
            Self::U64(v) => size_of_val(&v[..]),
            Self::F64(v) => size_of_val(&v[..]),
            Self::Bool(v) => v.len(),
            Self::Name { codes, .. } => codes.len(),
            Self::Text(v) => v.iter().map(String::len).sum(),
        }
    }
}

/// A struct of arrays: one `Data` per declared column, all of one length.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Declarations, in order.
    pub columns: Vec<Column>,
    /// Values, in the same order.
    pub data: Vec<Data>,
}
