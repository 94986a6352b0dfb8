use super::{Axes, COLUMNS, Sweep, sweep};
use crate::kv::format::KvFormat;
use crate::kv::fragment::Lengths;
use crate::kv::size::tests::{dense, query};
use crate::kv::size::{Memory, size};
use crate::table::{Data, Table};

fn axes() -> Axes {
    Axes {
        block_tokens: vec![16, 64],
        kv_format: vec![KvFormat::Bf16, KvFormat::Fp8],
        tp: vec![1, 4],
        pp: vec![1, 3],
        dcp: vec![1],
        share: vec![0.9],
        max_len: vec![4096, 20_000],
        chunk_tokens: vec![2048, 512],
        prefix_tokens: vec![0, 100],
    }
}

fn whole(table: &Table, name: &str) -> Vec<u64> {
    let at = COLUMNS.iter().position(|c| c.name == name).unwrap();
    match &table.data[at] {
        Data::U64(v) => v.clone(),
        Data::U32(v) => v.iter().map(|n| u64::from(*n)).collect(),
        other => panic!("{name}: {other:?}"),
    }
}

fn real(table: &Table, name: &str) -> Vec<f64> {
    let at = COLUMNS.iter().position(|c| c.name == name).unwrap();
    match &table.data[at] {
        Data::F64(v) => v.clone(),
        other => panic!("{name}: {other:?}"),
    }
}

fn lengths() -> Lengths {
    Lengths::merged(vec![(1000, 100, 3), (3000, 17, 1)])
}

#[test]
fn every_row_equals_the_single_question() {
    for span in [
        r#"{"kind": "full"}"#,
        r#"{"kind": "window", "tokens": 512}"#,
    ] {
        let base = query(dense(32, 8, 128, span), 1, 20.0);
        let table = sweep(&base, &axes(), &lengths()).unwrap();
        let (blocks, need) = (
            whole(&table, "num_blocks"),
            whole(&table, "blocks_per_request"),
        );
        assert_eq!(blocks.len(), 2 * 2 * 2 * 2 * 2 * 2 * 2);
        let columns = [
            "block_tokens",
            "tp",
            "pp",
            "max_len_tokens",
            "chunk_tokens",
            "bytes_per_block",
        ];
        let by_name: Vec<_> = columns.iter().map(|n| whole(&table, n)).collect();
        let Data::Name { codes, names } = &table.data[1] else {
            panic!()
        };
        for row in 0..blocks.len() {
            let mut q = query(dense(32, 8, 128, span), by_name[3][row], 20.0);
            q.block_tokens = Some(by_name[0][row]);
            q.tp = by_name[1][row];
            q.pp = by_name[2][row];
            q.max_batched_tokens = by_name[4][row];
            q.kv_format = if names[codes[row] as usize] == "fp8" {
                KvFormat::Fp8
            } else {
                KvFormat::Bf16
            };
            let one = size(&q).unwrap();
            assert_eq!(
                (blocks[row], need[row]),
                (one.num_blocks, one.blocks_per_request)
            );
            assert_eq!(by_name[5][row], one.bytes_per_block);
        }
    }
}

#[test]
fn lengths_and_prefixes_by_hand() {
    let mut a = axes();
    (a.block_tokens, a.kv_format, a.tp, a.pp) = (vec![16], vec![KvFormat::Bf16], vec![1], vec![1]);
    (a.max_len, a.chunk_tokens) = (vec![4096], vec![512]);
    let base = query(dense(32, 8, 128, r#"{"kind": "full"}"#), 1, 20.0);
    let table = sweep(&base, &a, &lengths()).unwrap();
    // 1,100 tokens waste 4 slots, 3,017 waste 7.
    assert_eq!(real(&table, "waste_mean_tokens"), [4.75, 4.75]);
    assert_eq!(whole(&table, "waste_worst_tokens"), [7, 7]);
    // 96 of the 100 shared tokens are whole blocks; three of four requests find them.
    assert_eq!(
        real(&table, "saved_prefill_ratio"),
        [0.0, 0.75 * 4.0 * 96.0 / 6000.0]
    );
    // Chunks of 512: 2, 2, 2, 6; with the prefix 904 and 2,904 tokens are left.
    assert_eq!(real(&table, "prefill_chunks"), [3.0, 3.0]);
    // 69 and 189 blocks.
    let mean = real(&table, "mean_concurrency")[0];
    assert!((mean - whole(&table, "num_blocks")[0] as f64 / 99.0).abs() < 1e-9);
}

#[test]
fn what_does_not_fit_is_a_row() {
    let mut base = query(dense(32, 8, 128, r#"{"kind": "full"}"#), 1, 20.0);
    base.memory = Memory::Available { bytes: vec![-1.0] };
    let table = sweep(&base, &axes(), &lengths()).unwrap();
    let Data::Name { codes, names } = &table.data[9] else {
        panic!()
    };
    assert!(codes.iter().all(|c| names[*c as usize] == "memory"));
}

#[test]
fn bad_axes() {
    let base = query(dense(4, 8, 128, r#"{"kind": "full"}"#), 1, 20.0);
    let mut a = axes();
    a.block_tokens = vec![];
    assert!(sweep(&base, &a, &lengths()).is_err());
    let mut a = axes();
    a.share = vec![1.5];
    assert!(sweep(&base, &a, &lengths()).is_err());
    assert!(sweep(&base, &axes(), &Lengths::default()).is_err());
}

#[test]
fn rows_come_in_order_whatever_the_chunk() {
    let base = query(dense(32, 8, 128, r#"{"kind": "full"}"#), 1, 20.0);
    let whole = sweep(&base, &axes(), &lengths()).unwrap();
    let mut some = Sweep::new(&base, &axes(), &lengths()).unwrap();
    assert_eq!(some.rows(), whole.data[0].len() as u64);
    let (mut table, mut lens) = (Table::default(), Vec::new());
    while some.fill(&mut table, 10).unwrap() {
        lens.extend(super::tests::whole(&table, "max_len_tokens"));
        assert_eq!(table.data[0].len() % 4, 0);
    }
    assert_eq!(lens, super::tests::whole(&whole, "max_len_tokens"));
}

#[test]
fn every_column_has_the_type_of_its_values() {
    let mut base = query(dense(4, 8, 128, r#"{"kind": "full"}"#), 1, 20.0);
    base.max_seqs = 7;
    let table = sweep(&base, &axes(), &lengths()).unwrap();
    assert!(table.data.iter().all(|d| d.len() == table.data[0].len()));
}
