//! Columns of a sweep, declared and filled.

use super::{BlockPart, Pool};
use crate::kv::format::KvFormat;
use crate::kv::size::Query;
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
        doc: "ok; memory: not one request of full length fits; context: the engine refuses the context ranks.",
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

const STATUS: &[&str] = &["ok", "memory", "context"];
const FORMATS: &[(KvFormat, &str)] = &[
    (KvFormat::Fp32, "fp32"),
    (KvFormat::Bf16, "bf16"),
    (KvFormat::Fp8, "fp8"),
    (KvFormat::Int8, "int8"),
    (KvFormat::Fp8DsMla, "fp8_ds_mla"),
    (KvFormat::Nvfp4DsMla, "nvfp4_ds_mla"),
    (KvFormat::Nvfp4, "nvfp4"),
    (KvFormat::Q8_0, "q8_0"),
    (KvFormat::Q4_0, "q4_0"),
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

/// What does not vary with the prefix.
pub(super) struct Fixed<'a> {
    pub query: &'a Query,
    pub share: f64,
    pub max_len: u64,
    pub chunk: u64,
}

/// Columns under construction, in the order of [`COLUMNS`].
pub(super) struct Rows {
    whole: [Vec<u64>; 15],
    real: [Vec<f64>; 9],
    format: Vec<u8>,
    status: Vec<u8>,
}

impl Rows {
    pub(super) fn with_capacity(rows: usize) -> Self {
        Self {
            whole: std::array::from_fn(|_| Vec::with_capacity(rows)),
            real: std::array::from_fn(|_| Vec::with_capacity(rows)),
            format: Vec::with_capacity(rows),
            status: Vec::with_capacity(rows),
        }
    }

    #[inline]
    pub(super) fn push(
        &mut self,
        fixed: &Fixed<'_>,
        pool: &Pool,
        part: &BlockPart,
        prefix: u64,
        i: usize,
        chunks: f64,
    ) {
        let (query, waste) = (fixed.query, &part.waste);
        let (saved, shared) = part.saved[i];
        let shared = (shared as f64).min((pool.mean_need - 1.0).max(0.0));
        let own = (pool.mean_need - shared).max(1.0);
        let free = (pool.num_blocks as f64 - shared).max(0.0);
        let mean = if pool.status == 2 { 0.0 } else { free / own };
        let running = mean.min(query.max_seqs as f64);
        let full = if pool.need == 0 {
            0.0
        } else {
            pool.num_blocks as f64 / pool.need as f64
        };
        let tables =
            4 * query.max_seqs * fixed.max_len.div_ceil(pool.block_tokens.max(1)) * pool.groups;
        let whole = [
            pool.block_tokens,
            query.tp,
            query.pp,
            query.dcp,
            fixed.max_len,
            fixed.chunk,
            prefix,
            pool.num_blocks,
            pool.need,
            waste.p50_tokens,
            waste.p99_tokens,
            waste.worst_tokens,
            tables,
            pool.page_bytes,
            pool.bytes_per_block,
        ];
        let real = [
            fixed.share,
            full,
            mean,
            waste.mean_tokens,
            waste.ratio,
            waste.closed_ratio,
            saved,
            chunks,
            running * pool.mean_need,
        ];
        for (column, value) in self.whole.iter_mut().zip(whole) {
            column.push(value);
        }
        for (column, value) in self.real.iter_mut().zip(real) {
            column.push(value);
        }
        let code = FORMATS
            .iter()
            .position(|(f, _)| *f == query.kv_format)
            .unwrap_or(0);
        self.format.push(code as u8);
        self.status.push(pool.status);
    }

    pub(super) fn table(self) -> Table {
        let mut whole = self.whole.into_iter().map(Data::U64);
        let mut real = self.real.into_iter().map(Data::F64);
        let (mut format, mut status) = (Some(self.format), Some(self.status));
        let reals = [
            "share_ratio",
            "full_concurrency",
            "mean_concurrency",
            "waste_mean_tokens",
            "waste_ratio",
            "waste_closed_ratio",
            "saved_prefill_ratio",
            "prefill_chunks",
            "lookups_per_step",
        ];
        let take = |column: &Column| match column.name {
            "kv_format" => Data::Name {
                codes: format.take().unwrap_or_default(),
                names: FORMAT_NAMES,
            },
            "status" => Data::Name {
                codes: status.take().unwrap_or_default(),
                names: STATUS,
            },
            name if reals.contains(&name) => real.next().unwrap_or(Data::F64(Vec::new())),
            _ => whole.next().unwrap_or(Data::U64(Vec::new())),
        };
        Table {
            columns: COLUMNS.to_vec(),
            data: COLUMNS.iter().map(take).collect(),
        }
    }
}
