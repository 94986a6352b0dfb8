use proptest::prelude::*;

use super::{Counted, Curve, HitCurve};
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
        let capacities: Vec<u64> = (1..40).collect();
        let mut curve = Curve::new(&capacities);
        let mut pool = Lru::new(1, Order::TailFirst);
        // The second round runs in the memory of the first.
        for round in 0..2 {
            // Tokens of a request: whole blocks of 10, the last one with 3.
            let counted = |ids: &[u32]| Counted {
                max_hits: cap,
                whole: ids.len() - 1,
                empty_slots: 7,
                block_tokens: 10,
            };
            curve.clear();
            for ids in &trace {
                curve.request(ids, counted(ids));
            }
            let hits = curve.finish();
            let mut seen = std::collections::HashSet::new();
            trace.iter().flatten().for_each(|id| {
                seen.insert(*id);
            });
            prop_assert_eq!(curve.unique(), seen.len() as u64, "round {}", round);
            for (capacity, mark) in capacities.iter().zip(&hits.marks) {
                pool.clear(*capacity);
                let (mut blocks, mut tokens, mut with_hit) = (0, 0, 0);
                for ids in &trace {
                    let n = pool.request(ids, cap);
                    blocks += n as u64;
                    tokens += (n * 10).min(ids.len() * 10 - 7) as u64;
                    with_hit += u64::from(n > 0);
                }
                prop_assert_eq!(HitCurve::at(&hits.hit_blocks, *capacity), blocks);
                prop_assert_eq!(blocks * 10 - mark.empty_slots, tokens);
                prop_assert_eq!(mark.requests_with_hit, with_hit);
                prop_assert!(pool.resident() <= *capacity);
                let total: usize = trace.iter().map(Vec::len).sum();
                let entered = total as u64 - blocks - mark.present_blocks;
                prop_assert_eq!(entered - pool.resident(), pool.evictions());
            }
            prop_assert!(hits.hit_blocks.is_sorted());
        }
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
    let mut curve = Curve::new(&[]);
    let mut pool = Lru::new(50, Order::TailFirst);
    let mut hits = 0;
    for i in 0..200_000u32 {
        let ids = [i % 97, 100 + (i * 7) % 31, 200 + i.wrapping_mul(i) % 23];
        curve.request(&ids[..1 + i as usize % 3], Counted::ALL);
        hits += pool.request(&ids[..1 + i as usize % 3], 3);
    }
    assert_eq!(HitCurve::at(&curve.finish().hit_blocks, 50), hits as u64);
}

/// A plain list of blocks, the most recent last; what the quick ones are held to.
fn list(trace: &[Vec<u32>], capacity: usize, order: Order) -> (usize, u64) {
    let (mut pool, mut hits, mut out) = (Vec::new(), 0, 0);
    for ids in trace {
        hits += ids.iter().take_while(|id| pool.contains(*id)).count();
        let mut touched = ids.clone();
        if order == Order::TailFirst {
            touched.reverse();
        }
        for id in touched {
            pool.retain(|other| *other != id);
            pool.push(id);
        }
        let excess = pool.len().saturating_sub(capacity);
        out += excess as u64;
        pool.drain(..excess);
    }
    (hits, out)
}

proptest! {
    #[test]
    fn both_orders_equal_a_plain_list(trace in requests(), capacity in 0usize..40) {
        for order in [Order::TailFirst, Order::HeadFirst] {
            let mut pool = Lru::new(capacity as u64, order);
            let hits: usize = trace.iter().map(|ids| pool.request(ids, usize::MAX)).sum();
            prop_assert_eq!((hits, pool.evictions()), list(&trace, capacity, order));
        }
    }

    #[test]
    fn ids_without_any_order_equal_a_plain_list(
        trace in prop::collection::vec(prop::collection::vec(0u32..30, 1..20), 1..60),
        capacity in 0usize..40,
    ) {
        for order in [Order::TailFirst, Order::HeadFirst] {
            let mut pool = Lru::new(capacity as u64, order);
            let hits: usize = trace.iter().map(|ids| pool.request(ids, usize::MAX)).sum();
            prop_assert_eq!((hits, pool.evictions()), list(&trace, capacity, order));
        }
    }
}
