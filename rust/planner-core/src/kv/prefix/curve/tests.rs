use proptest::prelude::*;

use super::{Curve, HitCurve};
use crate::kv::prefix::{Fifo, Lru, Order};

/// Requests whose ids behave as chained hashes: a node of a random tree and its ancestors.
fn requests() -> impl Strategy<Value = Vec<Vec<u32>>> {
    let walks = prop::collection::vec(prop::collection::vec(0u32..3, 1..12), 1..60);
    walks.prop_map(|walks| {
        let mut names = std::collections::HashMap::new();
        walks
            .into_iter()
            .map(|walk| {
                (1..=walk.len())
                    .map(|n| {
                        let next = names.len() as u32;
                        *names.entry(walk[..n].to_vec()).or_insert(next)
                    })
                    .collect()
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn equals_the_direct_replay_at_every_capacity(trace in requests(), cap in 0usize..12) {
        let mut curve = Curve::new();
        for ids in &trace {
            curve.request(ids, cap.min(ids.len()), |_| 1);
        }
        let unique = u64::from(curve.unique());
        let hits = curve.finish();
        for capacity in 1..=unique + 1 {
            let mut pool = Lru::new(capacity, Order::TailFirst);
            let direct: usize = trace.iter().map(|ids| pool.request(ids, cap.min(ids.len()))).sum();
            prop_assert_eq!(HitCurve::at(&hits.hit_blocks, capacity), direct as u64);
            prop_assert!(pool.resident() <= capacity);
        }
        prop_assert!(hits.hit_blocks.is_sorted());
        prop_assert_eq!(&hits.hit_blocks, &hits.hit_tokens);
    }

    #[test]
    fn an_unbounded_pool_is_the_same_under_any_policy(trace in requests()) {
        let mut pools = (Lru::new(u64::MAX, Order::TailFirst), Lru::new(u64::MAX, Order::HeadFirst), Fifo::new(u64::MAX));
        for ids in &trace {
            let tail = pools.0.request(ids, usize::MAX);
            prop_assert_eq!(tail, pools.1.request(ids, usize::MAX));
            prop_assert_eq!(tail, pools.2.request(ids, usize::MAX));
        }
        prop_assert_eq!(pools.0.evictions(), 0);
        prop_assert_eq!(pools.2.evictions(), 0);
    }
}

#[test]
fn compaction_keeps_positions() {
    let mut curve = Curve::new();
    let mut pool = Lru::new(50, Order::TailFirst);
    let mut hits = 0;
    for i in 0..200_000u32 {
        let ids = [i % 97, 100 + (i * 7) % 31, 200 + i.wrapping_mul(i) % 23];
        curve.request(&ids[..1 + i as usize % 3], 3, |_| 1);
        hits += pool.request(&ids[..1 + i as usize % 3], 3);
    }
    assert_eq!(HitCurve::at(&curve.finish().hit_blocks, 50), hits as u64);
}
