use proptest::prelude::*;

use super::{Group, Layered};
use crate::kv::prefix::{Lru, Order};

const FULL: Group = Group::Full { block_tokens: 16 };
const WINDOW: Group = Group::Window {
    block_tokens: 16,
    window: 33,
};
const STATE: Group = Group::State { block_tokens: 16 };

fn pool(capacity: u64, groups: &[Group], chunk: u64) -> Layered {
    Layered::new(capacity, groups, chunk).unwrap()
}

#[test]
fn a_window_group_needs_the_end_of_the_hit_only() {
    let ids: Vec<u32> = (0..10).collect();
    // 10 blocks of each group; without a bound all is found again but the last token's block.
    let mut all = pool(100, &[FULL, WINDOW], 64);
    assert_eq!(all.request(&ids, 160), 0);
    assert_eq!(all.resident(), 20);
    assert_eq!(all.request(&ids, 160), 144);
    // Given back first, and so evicted first, is what left the window in chunks of 64.
    let mut small = pool(14, &[FULL, WINDOW], 64);
    small.request(&ids, 160);
    assert_eq!(small.evictions(), 6);
    assert_eq!(small.request(&ids, 160), 144);
    // A block less, and the window before token 144 is not whole.
    let mut smaller = pool(13, &[FULL, WINDOW], 64);
    smaller.request(&ids, 160);
    assert_eq!(smaller.request(&ids, 160), 0);
}

#[test]
fn states_are_kept_where_chunks_end() {
    let ids: Vec<u32> = (0..10).collect();
    let mut p = pool(100, &[FULL, STATE], 70); // chunks of 64: 64, 128, then 160
    p.request(&ids, 170);
    assert_eq!(p.resident(), 10 + 3);
    // A prompt that shares 7 blocks finds the state at 64 tokens.
    assert_eq!(p.request(&[0, 1, 2, 3, 4, 5, 6, 20], 128), 64);
    // One that shares all finds that at 160.
    assert_eq!(p.request(&ids, 170), 160);
}

#[test]
fn a_prompt_shorter_than_a_block_leaves_nothing() {
    let mut p = pool(100, &[FULL, STATE], 16);
    assert_eq!(p.request(&[], 15), 0);
    assert_eq!((p.resident(), p.request(&[], 15)), (0, 0));
}

#[test]
fn block_lengths_may_differ() {
    let long = Group::Window {
        block_tokens: 48,
        window: 100,
    };
    let mut p = pool(100, &[FULL, long], 64);
    let ids: Vec<u32> = (0..10).collect();
    p.request(&ids, 160);
    assert_eq!(p.resident(), 10 + 3);
    assert_eq!(p.align_tokens(), 48);
    assert_eq!(p.request(&ids, 160), 144);
}

#[test]
fn bad_groups() {
    assert!(Layered::new(1, &[], 64).is_err());
    assert!(Layered::new(1, &[FULL, Group::Full { block_tokens: 24 }], 64).is_err());
    assert!(Layered::new(1, &[FULL, STATE], 15).is_err());
    assert!(Layered::new(1, &[Group::Full { block_tokens: 0 }], 15).is_err());
}

proptest! {
    #[test]
    fn one_full_group_is_the_plain_pool(
        lengths in prop::collection::vec((0u32..4, 1usize..12, 0u64..16), 1..40),
        capacity in 0u64..60,
    ) {
        let mut layered = pool(capacity, &[FULL], 64);
        let mut plain = Lru::new(capacity, Order::TailFirst);
        for (talk, blocks, rest) in lengths {
            let ids: Vec<u32> = (0..blocks as u32).map(|i| talk * 12 + i).collect();
            let prompt = blocks as u64 * 16 + rest;
            let hits = plain.request(&ids, ((prompt - 1) / 16) as usize);
            prop_assert_eq!(layered.request(&ids, prompt), hits as u64 * 16);
            prop_assert_eq!(layered.evictions(), plain.evictions());
        }
    }
}
