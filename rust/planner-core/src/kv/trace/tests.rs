use std::io::Write;

use super::{Format, Options, Reader, Request, Unordered, coarsen};
use crate::error::{Error, Result};

const GOOD: &str =
    r#"{"timestamp": 2000, "input_length": 25, "output_length": 3, "hash_ids": [1, 2, 3]}"#;

fn options(format: Format) -> Options {
    Options {
        format,
        block_tokens: 10,
        trace_block_tokens: None,
        skip_bad: 0,
        unordered: Unordered::Reject,
        regrid: false,
    }
}

fn read(text: &str, options: Options) -> Result<Vec<Request>> {
    let mut reader = Reader::from_bytes("t", text.to_owned(), options)?;
    let (mut request, mut all) = (Request::default(), Vec::new());
    while reader.next(&mut request)? {
        all.push(request.clone());
    }
    Ok(all)
}

fn problem(text: &str, format: Format) -> (u64, String) {
    match read(text, options(format)) {
        Err(Error::Line { line, problem, .. }) => (line, problem),
        other => panic!("expected a line error, found {other:?}"),
    }
}

#[test]
fn mooncake_keys_in_any_order() {
    let text = r#"{"hash_ids": [7], "x": {"a": [1, "}"]}, "output_length": 3, "input_length": 5.0, "timestamp": 1.5e3}"#;
    let all = read(&format!("{GOOD}\n\n{GOOD}\r\n"), options(Format::Mooncake)).unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(all[0].keys, [1, 2, 3]);
    assert_eq!(all[0].arrival_s, 0.0);
    let all = read(text, options(Format::Mooncake)).unwrap();
    assert_eq!((all[0].input_tokens, all[0].output_tokens), (5, 3));
}

#[test]
fn bad_lines_are_named() {
    let after = |bad: &str| problem(&format!("{GOOD}\n{bad}\n"), Format::Mooncake);
    for (bad, want) in [
        (r#"{"timestamp": 1"#, "',' or '}'"),
        (r#"[1]"#, "expected '{'"),
        (
            r#"{"timestamp": 2001, "input_length": 5, "output_length": 1}"#,
            "hash_ids",
        ),
        (
            r#"{"timestamp": 2001, "input_length": -5, "output_length": 1, "hash_ids": [1]}"#,
            "input_length",
        ),
        (
            r#"{"timestamp": 2001, "input_length": 0, "output_length": 1, "hash_ids": [1]}"#,
            "prompt of 0 tokens",
        ),
        (
            r#"{"timestamp": 1999, "input_length": 5, "output_length": 1, "hash_ids": [1]}"#,
            "do not decrease",
        ),
        (
            r#"{"timestamp": 2001, "input_length": 25, "output_length": 1, "hash_ids": [4, 2, 4]}"#,
            "twice",
        ),
        (
            r#"{"timestamp": 2001, "input_length": "x", "output_length": 1, "hash_ids": [1]}"#,
            "a number",
        ),
    ] {
        let (line, problem) = after(bad);
        assert_eq!(line, 2);
        assert!(problem.contains(want), "{problem} lacks {want}");
    }
}

#[test]
fn some_bad_lines_may_be_skipped() {
    let mut o = options(Format::Mooncake);
    o.skip_bad = 1;
    let text = format!("{GOOD}\nnonsense\n{GOOD}\n");
    assert_eq!(read(&text, o).unwrap().len(), 2);
    assert!(read(&format!("{text}nonsense\n"), o).is_err());
}

#[test]
fn blank_lines_end_somewhere() {
    let (_, p) = problem(&"\n".repeat((1 << 20) + 2), Format::Mooncake);
    assert!(p.contains("blank lines"), "{p}");
    let text = format!("{GOOD}{}", "\n".repeat(1000));
    assert_eq!(
        read(&format!("{text}{GOOD}"), options(Format::Mooncake))
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn an_id_comes_once_in_a_request_of_any_format() {
    let text = "arrival_s,input_tokens,output_tokens,block_ids\n0.5,25,2,5 6 5\n";
    assert!(problem(text, Format::Csv).1.contains("twice"));
    let twice = GOOD.replace("\"hash_ids\"", "\"hash_ids\": [9], \"hash_ids\"");
    assert!(problem(&twice, Format::Mooncake).1.contains("comes twice"));
}

#[test]
fn empty_files() {
    for format in [Format::Mooncake, Format::Tokens, Format::Azure, Format::Csv] {
        assert!(matches!(read("", options(format)), Err(Error::Line { .. })));
    }
    let (_, p) = problem("TIMESTAMP,ContextTokens,GeneratedTokens\n", Format::Azure);
    assert!(p.contains("no request"), "{p}");
}

#[test]
fn a_wrong_block_size_is_told() {
    let line = r#"{"timestamp": 0, "input_length": 1000, "output_length": 3, "hash_ids": [1, 2]}"#;
    let (_, p) = problem(&format!("{line}\n").repeat(70), Format::Mooncake);
    assert!(p.contains("--trace-block-size 512"), "{p}");
    let (_, p) = problem(line, Format::Mooncake);
    assert!(p.contains("--trace-block-size"), "{p}");
}

#[test]
fn coarser_blocks_keep_the_last_key() {
    let mut keys = vec![1, 2, 3, 4, 5];
    coarsen(&mut keys, 2);
    assert_eq!(keys, [2, 4, 5]);
    let mut o = options(Format::Mooncake);
    o.block_tokens = 20;
    o.trace_block_tokens = Some(10);
    assert_eq!(read(GOOD, o).unwrap()[0].keys, [2, 3]);
    o.block_tokens = 25;
    assert!(read(GOOD, o).is_err());
}

#[test]
fn blocks_that_do_not_divide_take_the_id_of_their_last_token() {
    let mut o = options(Format::Mooncake);
    (o.block_tokens, o.trace_block_tokens, o.regrid) = (8, Some(10), true);
    let a = read(GOOD, o).unwrap().remove(0).keys;
    assert_eq!(a.len(), 3); // 25 tokens: blocks end at 8, 16, 24
    // Another second id: the first block alone, in the first id, is the same.
    let b = read(&GOOD.replace("1, 2, 3", "1, 4, 5"), o)
        .unwrap()
        .remove(0)
        .keys;
    assert_eq!((a[0], a[1] == b[1], a[2] == b[2]), (b[0], false, false));
    o.block_tokens = 20; // a multiple: exact
    assert_eq!(read(GOOD, o).unwrap()[0].keys, [2, 3]);
}

#[test]
fn azure() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.5,480,10\n2023-11-16 18:18:04.0,31,8\n";
    let all = read(text, options(Format::Azure)).unwrap();
    assert_eq!(
        all[1],
        Request {
            arrival_s: 60.5,
            input_tokens: 31,
            output_tokens: 8,
            keys: vec![]
        }
    );
    let (line, p) = problem(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.5,480\n",
        Format::Azure,
    );
    assert_eq!(line, 2);
    assert!(p.contains("expected 3 columns"), "{p}");
}

#[test]
fn generic_csv() {
    let text = "\u{feff}request_id,arrival_s,input_tokens,output_tokens,block_ids\na,0.5,25,2,5 6 7\nb,1.5,10,2,5\n";
    let all = read(text, options(Format::Csv)).unwrap();
    assert_eq!(all[0].keys, [5, 6, 7]);
    assert_eq!(all[1].arrival_s, 1.0);
    let (line, p) = problem(&text.replace("\nb,", "\na,"), Format::Csv);
    assert_eq!(line, 3);
    assert!(p.contains("request id"), "{p}");
    assert!(problem("a,b\n1,2\n", Format::Csv).1.contains("arrival_s"));
}

#[test]
fn tokens_make_chained_blocks() {
    let line = |ids: &str, n: u32| {
        format!(
            "{{\"input_toks\": {n}, \"output_toks\": 2, \"arrival_time_ns\": 5, \"input_tok_ids\": [{ids}], \"output_tok_ids\": [1]}}\n"
        )
    };
    let mut o = options(Format::Tokens);
    o.block_tokens = 2;
    let all = read(
        &format!("{}{}", line("1,2,3,4,5", 5), line("1,2,9,4,5", 5)),
        o,
    )
    .unwrap();
    assert_eq!(all[0].keys.len(), 3);
    assert_eq!(all[0].keys[0], all[1].keys[0]);
    assert_ne!(all[0].keys[1], all[1].keys[1]);
    assert!(read(&line("1,2", 3), o).is_err());
}

#[test]
fn gzip_is_recognised() {
    let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zip.write_all(GOOD.as_bytes()).unwrap();
    let mut reader =
        Reader::from_bytes("t.gz", zip.finish().unwrap(), options(Format::Mooncake)).unwrap();
    let mut request = Request::default();
    assert!(reader.next(&mut request).unwrap());
    assert_eq!(request.input_tokens, 25);
}

#[test]
fn no_such_file() {
    let error = Reader::open(std::path::Path::new("/no/such/trace"), options(Format::Csv))
        .err()
        .unwrap();
    assert!(matches!(error, Error::File { .. }));
}

proptest::proptest! {
    #[test]
    fn never_panics_on_noise(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        for format in [Format::Mooncake, Format::Tokens, Format::Azure, Format::Csv] {
            if let Ok(mut reader) = Reader::from_bytes("noise", bytes.clone(), options(format)) {
                let mut request = Request::default();
                while let Ok(true) = reader.next(&mut request) {}
            }
        }
    }
}
