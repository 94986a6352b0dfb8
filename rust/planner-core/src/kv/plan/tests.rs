use super::{Plan, Rules, plan};
use crate::kv::layer::{Cache, Class};

fn rules(max_len: u64) -> Rules {
    Rules {
        block_tokens: 16,
        group_slack: 1.5,
        max_len,
        inflight_tokens: 8192,
        context_ranks: 1,
        state_blocks: 2,
        align_tokens: 16,
    }
}

fn hybrid(full: usize, other: usize, class: Class, bytes: u64, rules: &Rules) -> Plan {
    let cache = |class| Cache {
        class,
        entry_bytes: bytes,
        ratio: 1,
    };
    let layers: Vec<_> = (0..full + other)
        .map(|i| (i, cache(if i < full { Class::Full } else { class })))
        .collect();
    plan(&layers, rules).unwrap()
}

/// Group plans read off vLLM's code: model, full and other layers, class, bytes per layer and
/// token, longest request → group size, groups, bytes and blocks per request.
#[test]
fn published_plans() {
    for (full, other, class, bytes, len, size, groups, block_bytes, blocks) in [
        (
            12,
            12,
            Class::Window(128),
            2048,
            131_072,
            12,
            2,
            393_216,
            8713,
        ),
        (
            18,
            18,
            Class::Window(128),
            2048,
            131_072,
            18,
            2,
            589_824,
            8713,
        ),
        (
            10,
            52,
            Class::Window(1024),
            8192,
            131_072,
            10,
            7,
            1_310_720,
            11_654,
        ),
        (
            8,
            40,
            Class::Window(1024),
            8192,
            131_072,
            8,
            6,
            1_048_576,
            11_077,
        ),
        (
            12,
            36,
            Class::Chunk(8192),
            512,
            131_072,
            12,
            4,
            98_304,
            11_264,
        ),
        (
            21,
            21,
            Class::Window(4096),
            8192,
            8192,
            21,
            2,
            2_752_512,
            1025,
        ),
    ] {
        let p = hybrid(full, other, class, bytes, &rules(len));
        assert_eq!((p.group_size, p.groups.len()), (size, groups));
        assert_eq!(p.bytes_per_block(|_| true), block_bytes);
        assert_eq!(p.blocks_per_request(), blocks);
    }
}

/// Start-up logs of models with states, integer for integer.
#[test]
fn logged_states() {
    let run = |full: usize, states: usize, token, state, state_blocks, len| {
        let layers: Vec<_> = (0..full + states)
            .map(|i| {
                let (class, entry_bytes) = if i < full {
                    (Class::Full, token)
                } else {
                    (Class::State, state)
                };
                (
                    i,
                    Cache {
                        class,
                        entry_bytes,
                        ratio: 1,
                    },
                )
            })
            .collect();
        let r = Rules {
            state_blocks,
            ..rules(len)
        };
        let p = plan(&layers, &r).unwrap();
        (
            p.block_tokens(),
            p.groups.len(),
            p.bytes_per_block(|_| true),
            p.blocks_per_request(),
        )
    };
    assert_eq!(
        run(16, 48, 1024, 1_603_584, 2, 131_072),
        (1568, 4, 25_690_112, 90)
    );
    assert_eq!(
        run(10, 30, 1024, 2_146_304, 2, 131_072),
        (2096, 4, 21_463_040, 69)
    );
    // 3 draft tokens: one more attention layer, 5 state blocks.
    assert_eq!(
        run(17, 48, 1024, 1_634_304, 5, 262_144),
        (1600, 4, 27_852_800, 179)
    );
    assert_eq!(
        run(16, 48, 4096, 3_207_168, 1, 32_768),
        (784, 4, 51_380_224, 45)
    );
}

#[test]
fn the_slack_changed_between_generations() {
    let groups = |slack| {
        let r = Rules {
            group_slack: slack,
            ..rules(8192)
        };
        hybrid(10, 13, Class::Window(512), 1024, &r).groups.len()
    };
    assert_eq!(groups(1.25), 3); // 13 ≥ 12.5: groups of 10
    assert_eq!(groups(1.5), 2); // 13 < 15: groups of 13, the full one padded
}

#[test]
fn unequal_widths_of_one_class_are_summed() {
    let cache = |entry_bytes| Cache {
        class: Class::Latent,
        entry_bytes,
        ratio: 1,
    };
    let p = plan(&[(0, cache(656)), (0, cache(132))], &rules(64)).unwrap();
    assert_eq!(p.bytes_per_block(|_| true), 16 * (656 + 132));
    assert_eq!(p.blocks_per_request(), 4);
}

#[test]
fn a_narrow_layer_gets_a_longer_block() {
    let full = Cache {
        class: Class::Full,
        entry_bytes: 1024,
        ratio: 1,
    };
    let window = Cache {
        class: Class::Window(64),
        entry_bytes: 2048,
        ratio: 1,
    };
    let p = plan(&[(0, full), (1, window)], &rules(320)).unwrap();
    assert_eq!(p.groups[0].block_tokens, 32);
    assert_eq!(p.groups[0].blocks_per_request, 10);
    assert_eq!(p.bytes_per_block(|_| true), 32_768);
}

#[test]
fn a_window_larger_than_the_context_keeps_the_context() {
    let p = hybrid(0, 4, Class::Window(100_000), 1024, &rules(1024));
    assert_eq!(p.blocks_per_request(), 65);
}
