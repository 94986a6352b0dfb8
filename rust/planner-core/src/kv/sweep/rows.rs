//! Columns of a sweep, declared and filled.

use crate::kv::format::KvFormat;
use crate::table::{Column, Data, Table};

/// Columns of the frame.
pub const COLUMNS: &[Column] = &[
    Column {
        name: "block_tokens",
        unit: "tokens",
        doc: "Tokens in a block; larger where a recurrent state asks for it.",
    },
    Column {
        name: "kv_format",
        unit: "",
        doc: "Format of the cache.",
    },
    Column {
        name: "tp",
        unit: "1",
        doc: "Tensor-parallel ranks.",
    },
    Column {
        name: "pp",
        unit: "1",
        doc: "Pipeline stages.",
    },
    Column {
        name: "dcp",
        unit: "1",
        doc: "Decode context ranks.",
    },
    Column {
        name: "share_ratio",
        unit: "1",
        doc: "Share of the device's memory that the engine may use.",
    },
    Column {
        name: "max_len_tokens",
        unit: "tokens",
        doc: "Longest request.",
    },
    Column {
        name: "chunk_tokens",
        unit: "tokens",
        doc: "Tokens of a batch.",
    },
    Column {
        name: "prefix_tokens",
        unit: "tokens",
        doc: "Tokens that all requests share at their start.",
    },
    Column {
        name: "status",
        unit: "",
        doc: "ok; memory: not one request of full length fits; context: the engine refuses the context ranks; layers: more stages than layers.",
    },
    Column {
        name: "num_blocks",
        unit: "1",
        doc: "Blocks of the pool.",
    },
    Column {
        name: "blocks_per_request",
        unit: "1",
        doc: "Blocks of a request of full length.",
    },
    Column {
        name: "full_concurrency",
        unit: "1",
        doc: "Requests of full length at once.",
    },
    Column {
        name: "mean_concurrency",
        unit: "1",
        doc: "Requests of the given lengths at once, the shared prefix held once.",
    },
    Column {
        name: "waste_mean_tokens",
        unit: "tokens",
        doc: "Unused slots in the last block: mean over requests.",
    },
    Column {
        name: "waste_p50_tokens",
        unit: "tokens",
        doc: "Median.",
    },
    Column {
        name: "waste_p99_tokens",
        unit: "tokens",
        doc: "99 % of requests waste at most this.",
    },
    Column {
        name: "waste_worst_tokens",
        unit: "tokens",
        doc: "Largest.",
    },
    Column {
        name: "waste_ratio",
        unit: "1",
        doc: "Wasted over allocated slots, measured on the lengths.",
    },
    Column {
        name: "waste_closed_ratio",
        unit: "1",
        doc: "The same if last blocks were filled evenly.",
    },
    Column {
        name: "saved_prefill_ratio",
        unit: "1",
        doc: "Prompt tokens that the shared prefix saves, whole blocks only.",
    },
    Column {
        name: "prefill_chunks",
        unit: "1",
        doc: "Chunks of a prompt behind the shared prefix: mean.",
    },
    Column {
        name: "block_table_bytes",
        unit: "bytes",
        doc: "Block tables of all sequences of a batch, 4 bytes an entry.",
    },
    Column {
        name: "lookups_per_step",
        unit: "1",
        doc: "Block-table entries that a decode step at mean concurrency reads.",
    },
    Column {
        name: "page_bytes",
        unit: "bytes",
        doc: "One layer's part of a block: the unit of a transfer.",
    },
    Column {
        name: "bytes_per_block",
        unit: "bytes",
        doc: "Bytes of a block on the stage that limits.",
    },
];

const STATUS: &[&str] = &["ok", "memory", "context", "layers"];

/// Code of the status `context`.
pub(super) const CONTEXT: u8 = 2;
/// Code of the status `layers`.
pub(super) const LAYERS: u8 = 3;
const FORMATS: &[KvFormat] = &[
    KvFormat::Fp32,
    KvFormat::Bf16,
    KvFormat::Fp8,
    KvFormat::Int8,
    KvFormat::Fp8DsMla,
    KvFormat::Nvfp4DsMla,
    KvFormat::Nvfp4,
    KvFormat::Q8_0,
    KvFormat::Q4_0,
];
const FORMAT_NAMES: &[&str] = &[
    "fp32",
    "bf16",
    "fp8",
    "int8",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
    "nvfp4",
    "q8_0",
    "q4_0",
];

/// Values of a column over the rows of a cell: lengths × prefixes, prefixes fastest.
pub(super) enum Values<'a> {
    /// The same small count in every row.
    Count(u64),
    /// The same large count.
    Whole(u64),
    /// The same real number.
    Real(f64),
    /// The same name.
    Code(u8),
    /// A name by length.
    CodeByLength(&'a [u8]),
    /// A small count by length.
    CountByLength(&'a [u32]),
    /// A large count by length.
    WholeByLength(&'a [u64]),
    /// A real number by length.
    RealByLength(&'a [f64]),
    /// A small count by prefix.
    CountByPrefix(&'a [u32]),
    /// A real number by prefix.
    RealByPrefix(&'a [f64]),
}

/// Lengths and prefixes of a cell.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    pub lengths: usize,
    pub prefixes: usize,
}

/// An empty table of [`COLUMNS`].
pub(super) fn empty() -> Table {
    const WHOLE: [&str; 6] = [
        "block_tokens",
        "num_blocks",
        "blocks_per_request",
        "block_table_bytes",
        "page_bytes",
        "bytes_per_block",
    ];
    let data = |column: &Column| match (column.name, column.unit) {
        ("kv_format", _) => name(FORMAT_NAMES),
        ("status", _) => name(STATUS),
        (name, _) if WHOLE.contains(&name) => Data::U64(Vec::new()),
        ("tp" | "pp" | "dcp", _) => Data::U32(Vec::new()),
        (name, "tokens") if name != "waste_mean_tokens" => Data::U32(Vec::new()),
        _ => Data::F64(Vec::new()),
    };
    Table {
        columns: COLUMNS.to_vec(),
        data: COLUMNS.iter().map(data).collect(),
    }
}

fn name(names: &'static [&'static str]) -> Data {
    Data::Name {
        codes: Vec::new(),
        names,
    }
}

/// Code of a format.
pub(super) fn code(format: KvFormat) -> u8 {
    FORMATS.iter().position(|f| *f == format).unwrap_or(0) as u8
}

/// Empties a table and keeps its memory.
pub(super) fn clear(table: &mut Table) {
    for data in &mut table.data {
        match data {
            Data::U32(v) => v.clear(),
            Data::U64(v) => v.clear(),
            Data::F64(v) => v.clear(),
            Data::Bool(v) => v.clear(),
            Data::Name { codes, .. } => codes.clear(),
            Data::Text(v) => v.clear(),
        }
    }
}

/// Makes room for as many rows in an empty table.
pub(super) fn reserve(table: &mut Table, rows: usize) {
    for data in &mut table.data {
        match data {
            Data::U32(v) => v.reserve(rows),
            Data::U64(v) => v.reserve(rows),
            Data::F64(v) => v.reserve(rows),
            Data::Bool(v) => v.reserve(rows),
            Data::Name { codes, .. } => codes.reserve(rows),
            Data::Text(v) => v.reserve(rows),
        }
    }
}

/// Writes the rows of a cell, column by column: most are one value, or a row of values copied.
pub(super) fn write(table: &mut Table, cell: Cell, values: &[Values<'_>; 26]) {
    for (data, values) in table.data.iter_mut().zip(values) {
        match (data, values) {
            (Data::U32(v), Values::Count(n)) => same(v, cell, *n as u32),
            (Data::U64(v), Values::Whole(n)) => same(v, cell, *n),
            (Data::F64(v), Values::Real(x)) => same(v, cell, *x),
            (Data::Name { codes, .. }, Values::Code(c)) => same(codes, cell, *c),
            (Data::Name { codes, .. }, Values::CodeByLength(c)) => by_length(codes, cell, c),
            (Data::U32(v), Values::CountByLength(n)) => by_length(v, cell, n),
            (Data::U64(v), Values::WholeByLength(n)) => by_length(v, cell, n),
            (Data::F64(v), Values::RealByLength(x)) => by_length(v, cell, x),
            (Data::U32(v), Values::CountByPrefix(n)) => by_prefix(v, cell, n),
            (Data::F64(v), Values::RealByPrefix(x)) => by_prefix(v, cell, x),
            _ => unreachable!("a column and its values are of one type"),
        }
    }
}

fn same<T: Copy>(column: &mut Vec<T>, cell: Cell, value: T) {
    column.resize(column.len() + cell.lengths * cell.prefixes, value);
}

fn by_length<T: Copy>(column: &mut Vec<T>, cell: Cell, values: &[T]) {
    for value in values {
        column.resize(column.len() + cell.prefixes, *value);
    }
}

fn by_prefix<T: Copy>(column: &mut Vec<T>, cell: Cell, values: &[T]) {
    for _ in 0..cell.lengths {
        column.extend_from_slice(values);
    }
}
