//! The table of rules: what each framework asks of a layout, a line or two a rule.

use super::{Check, Level, Rule};
use crate::layout::facts::Facts;
use crate::layout::{Framework, Layout, Recompute, Schedule, Sharding, Status};

const fn divides(divisor: u64, value: u64) -> bool {
    value.is_multiple_of(divisor)
}

/// Heads of one kind spread over t ranks, or are repeated on several of them.
fn spread(counts: &[u64], t: u32) -> bool {
    let t = u64::from(t);
    counts.iter().all(|&n| divides(t, n) || divides(n, t))
}

const fn rule(
    id: &'static str,
    status: Status,
    level: Level,
    text: &'static str,
    holds: fn(&Facts, &Layout) -> bool,
) -> Rule {
    let framework = match id.as_bytes()[0] {
        b'M' => Framework::Megatron,
        b'T' => Framework::TorchTitan,
        b'D' => Framework::DeepSpeed,
        _ => Framework::Generic,
    };
    Rule {
        id,
        status,
        framework,
        text,
        check: Check::Layout(level, holds),
    }
}

const fn elsewhere(id: &'static str, text: &'static str, by: &'static str) -> Rule {
    let Rule {
        id,
        framework,
        text,
        ..
    } = rule(id, Status::Framework, Level::Tensor, text, |_, _| true);
    Rule {
        id,
        status: Status::Framework,
        framework,
        text,
        check: Check::Elsewhere(by),
    }
}

/// Every rule, in the order of checks: by level, then generic before framework.
#[rustfmt::skip]
pub static RULES: &[Rule] = &[
    // tp and cp
    rule("G1", Status::Heads, Level::Tensor,
        "query heads ({heads}) must be a multiple of tp ({tp})",
        |f, l| divides(l.tp as u64, f.heads)),
    rule("G2", Status::Heads, Level::Tensor,
        "key/value heads ({kv_heads}) must be a multiple or a divisor of tp ({tp})",
        |f, l| spread(&f.kv_heads, l.tp)),
    rule("G3", Status::Heads, Level::Tensor,
        "linear-attention and state-space heads ({state_heads}) must be a multiple of tp ({tp})",
        |f, l| divides(l.tp as u64, f.state_heads)),
    rule("G4", Status::Heads, Level::Tensor,
        "state-space groups ({state_groups}) must be a multiple or a divisor of tp ({tp})",
        |f, l| spread(&f.state_groups, l.tp)),
    rule("G5", Status::Heads, Level::Tensor,
        "exchanging heads for sequence: query heads ({heads}) must be a multiple of tp · cp ({tp} · {cp})",
        |f, l| !f.cp_by_heads || divides(l.tp as u64 * l.cp as u64, f.heads)),
    rule("G6", Status::Width, Level::Tensor,
        "feed-forward widths ({width}) must be a multiple of tp ({tp})",
        |f, l| divides(l.tp as u64, f.width)),
    rule("G7", Status::Sequence, Level::Tensor,
        "with cp > 1 the sequence ({seq}) must be a multiple of 2 · cp (cp = {cp})",
        |f, l| l.cp == 1 || divides(2 * l.cp as u64, f.seq)),
    rule("M24", Status::Framework, Level::Tensor,
        "linear-attention heads ({state_heads}) must be a multiple of tp · cp ({tp} · {cp})",
        |f, l| divides(l.tp as u64 * l.cp as u64, f.state_heads)),
    rule("T3", Status::Framework, Level::Tensor,
        "the sequence ({seq}) must be a multiple of tp · 2 · cp (tp = {tp}, cp = {cp})",
        |f, l| divides(2 * l.tp as u64 * l.cp as u64, f.seq)),
    rule("T4", Status::Framework, Level::Tensor,
        "key/value heads ({kv_heads}) must be a multiple of tp ({tp}): they are not repeated",
        |f, l| f.kv_heads.iter().all(|&n| divides(l.tp as u64, n))),
    rule("D4", Status::Framework, Level::Tensor,
        "Ulysses: query heads ({heads}) must be a multiple of tp · cp ({tp} · {cp}), and the sequence ({seq}) of cp",
        |f, l| divides(l.tp as u64 * l.cp as u64, f.heads) && divides(l.cp as u64, f.seq)),
    // ep and etp
    rule("G8", Status::Experts, Level::Expert,
        "a model without experts has ep = etp = 1 (ep = {ep}, etp = {etp})",
        |f, l| f.is_moe() || (l.ep == 1 && l.etp == 1)),
    rule("G9", Status::Experts, Level::Expert,
        "experts ({experts}) must be a multiple of ep ({ep})",
        |f, l| divides(l.ep as u64, f.experts)),
    rule("G10", Status::Width, Level::Expert,
        "the width of an expert ({expert_width}) must be a multiple of etp ({etp})",
        |f, l| divides(l.etp as u64, f.expert_width)),
    rule("T11", Status::Framework, Level::Expert,
        "experts have no tensor parallelism of their own (etp = {etp})",
        |_, l| l.etp == 1),
    rule("D5", Status::Framework, Level::Expert,
        "experts are split over the tensor-parallel group or not at all (etp = {etp}, tp = {tp})",
        |f, l| !f.is_moe() || l.etp == 1 || l.etp == l.tp),
    // the grid
    rule("G11", Status::Topology, Level::Stage,
        "tp · cp · pp · dp ({tp} · {cp} · {pp} · {dp}) must be the number of GPUs ({world})",
        |f, l| l.world() == f.world),
    rule("G12", Status::Layers, Level::Stage,
        "every stage needs a layer: pp ({pp}) must be at most the layers ({layers})",
        |f, l| l.pp as u64 <= f.layers),
    rule("G13", Status::Experts, Level::Stage,
        "the expert grid must fit: etp · ep · pp ({etp} · {ep} · {pp}) must divide the GPUs ({world})",
        |f, l| divides(l.etp as u64 * l.ep as u64 * l.pp as u64, f.world)),
    rule("G14", Status::Batch, Level::Stage,
        "the batch ({batch} sequences) must be a multiple of dp ({dp})",
        |f, l| divides(l.dp as u64, f.batch)),
    rule("M5", Status::Framework, Level::Stage,
        "with data parallelism outermost, experts need the same data-parallel size ({expert_dp}) as the rest (dp = {dp}), or pp = 1",
        |f, l| f.pipeline_outermost || !f.is_moe() || l.pp == 1 || f.expert_dp(l) == l.dp as u64),
    rule("T5", Status::Framework, Level::Stage,
        "tied embeddings need pp = 1 (pp = {pp})",
        |f, l| !f.tied || l.pp == 1),
    rule("D6", Status::Framework, Level::Stage,
        "ep ({ep}) must divide dp ({dp})",
        |_, l| divides(l.ep as u64, l.dp as u64)),
    // the micro-batch
    rule("G15", Status::Batch, Level::MicroBatch,
        "the batch ({batch} sequences) must be a multiple of micro_batch · dp ({micro_batch} · {dp})",
        |f, l| divides(l.micro_batch as u64 * l.dp as u64, f.batch)),
    // sequence parallelism
    rule("G16", Status::Sequence, Level::Sequence,
        "sequence parallelism needs tp > 1 (tp = {tp})",
        |_, l| !l.sequence_parallel || l.tp > 1),
    rule("G17", Status::Sequence, Level::Sequence,
        "with sequence parallelism the sequence ({seq}) must be a multiple of tp · cp ({tp} · {cp})",
        |f, l| !l.sequence_parallel || divides(l.tp as u64 * l.cp as u64, f.seq)),
    rule("M19", Status::Framework, Level::Sequence,
        "tp > 1 with ep > 1 needs sequence parallelism (tp = {tp}, ep = {ep})",
        |_, l| l.tp == 1 || l.ep == 1 || l.sequence_parallel),
    rule("D7", Status::Framework, Level::Sequence,
        "there is no Megatron-style sequence parallelism",
        |_, l| !l.sequence_parallel),
    // recomputation
    rule("G18", Status::Recompute, Level::Recompute,
        "block recomputation needs 1 to one less than a stage's layers (recompute_layers = {recompute_layers}, pp = {pp} of {layers} layers)",
        |f, l| match l.recompute {
            Recompute::Block => l.recompute_layers >= 1 && (l.recompute_layers as u64) < f.stage_layers(l.pp),
            _ => l.recompute_layers == 0,
        }),
    rule("M25a", Status::Framework, Level::Recompute,
        "hiding expert dispatch behind another micro-batch excludes full recomputation",
        |f, l| !f.overlap_ep || l.ep == 1 || l.recompute != Recompute::Full),
    // schedule and chunks
    rule("G19", Status::Schedule, Level::Schedule,
        "vpp ({vpp}) is above 1 with the interleaved schedule and only there",
        |_, l| l.vpp >= 1 && (l.vpp > 1) == (l.schedule == Schedule::Interleaved)),
    rule("G20", Status::Schedule, Level::Schedule,
        "one stage has one schedule: pp = 1 goes with 1f1b",
        |_, l| l.pp > 1 || l.schedule == Schedule::OneFOneB),
    rule("G21", Status::Layers, Level::Schedule,
        "interleaving needs equal chunks: layers ({layers}) must be a multiple of pp · vpp ({pp} · {vpp})",
        |f, l| l.vpp == 1 || divides(l.pp as u64 * l.vpp as u64, f.layers)),
    rule("G22", Status::Schedule, Level::Schedule,
        "interleaving needs a number of micro-batches ({micro_batches}) that is a multiple of pp ({pp})",
        |f, l| l.vpp == 1 || divides(l.pp as u64, f.micro_batches(l))),
    rule("G23", Status::Schedule, Level::Schedule,
        "DualPipe needs an even pp ({pp}) and an even number of micro-batches ({micro_batches}), at least 2 · pp",
        |f, l| l.schedule != Schedule::DualPipe
            || (l.pp.is_multiple_of(2) && f.micro_batches(l).is_multiple_of(2) && f.micro_batches(l) >= 2 * l.pp as u64)),
    rule("M25b", Status::Framework, Level::Schedule,
        "hiding expert dispatch behind another micro-batch needs vpp > 1 where pp > 1 (pp = {pp}, vpp = {vpp})",
        |f, l| !f.overlap_ep || l.ep == 1 || l.pp == 1 || l.vpp > 1),
    rule("M29", Status::Framework, Level::Schedule,
        "the schedules are 1f1b and interleaved",
        |_, l| matches!(l.schedule, Schedule::OneFOneB | Schedule::Interleaved)),
    rule("T6", Status::Framework, Level::Schedule,
        "the schedules are gpipe and 1f1b with one stage per rank, interleaved with more",
        |_, l| matches!(l.schedule, Schedule::GPipe | Schedule::OneFOneB | Schedule::Interleaved)),
    rule("D8", Status::Framework, Level::Schedule,
        "the schedule is 1f1b",
        |_, l| l.schedule == Schedule::OneFOneB),
    // sharding
    rule("G24", Status::Sharding, Level::Sharding,
        "sharding needs more than one data-parallel rank (dp · cp = {dp} · {cp})",
        |_, l| l.sharding == Sharding::None || l.dp as u64 * l.cp as u64 > 1),
    rule("G25", Status::Sharding, Level::Sharding,
        "an HSDP group ({shard_group}) must divide dp · cp ({dp} · {cp}) and be neither 1 nor all of it",
        |_, l| {
            let (group, all) = (l.shard_group as u64, l.dp as u64 * l.cp as u64);
            l.sharding != Sharding::Hsdp || (group > 1 && group < all && divides(group, all))
        }),
    rule("M20", Status::Framework, Level::Sharding,
        "optimizer instances, dp · cp / shard group ({dp} · {cp} / {shard_group}), must divide the expert data-parallel size ({expert_dp})",
        |f, l| l.sharding != Sharding::Hsdp || !f.is_moe()
            || divides(l.dp as u64 * l.cp as u64 / l.shard_group.max(1) as u64, f.expert_dp(l))),
    rule("T2", Status::Framework, Level::Sharding,
        "dp_shard · cp · tp (group {shard_group} · tp {tp}) must be a multiple of ep ({ep})",
        |_, l| {
            let ranks = if l.sharding == Sharding::None { l.cp } else { l.shard_group };
            divides(l.ep as u64, ranks as u64 * l.tp as u64)
        }),
    rule("T12", Status::Framework, Level::Sharding,
        "parameters are sharded by FSDP2: zero2 (kept gathered), zero3 or hsdp where dp · cp > 1, and cp ({cp}) divides the group ({shard_group})",
        |_, l| match l.sharding {
            Sharding::None => l.dp as u64 * l.cp as u64 == 1,
            Sharding::Zero1 => false,
            Sharding::Zero2 | Sharding::Zero3 => true,
            Sharding::Hsdp => divides(l.cp as u64, l.shard_group as u64),
        }),
    rule("D9", Status::Framework, Level::Sharding,
        "pipeline stages exclude ZeRO-2 and ZeRO-3 (pp = {pp})",
        |_, l| l.pp == 1 || matches!(l.sharding, Sharding::None | Sharding::Zero1)),
    rule("D10", Status::Framework, Level::Sharding,
        "there is no HSDP: MiCS was removed",
        |_, l| l.sharding != Sharding::Hsdp),
    // kept elsewhere
    elsewhere("M1", "world is a multiple of tp · pp · cp", "rule G11; dp is derived"),
    elsewhere("M2", "world is a multiple of etp · ep · pp", "rule G13"),
    elsewhere("M3", "etp defaults to tp", "the exporter always writes etp"),
    elsewhere("M4", "ep may exceed dp: it folds over tp · cp · dp", "rule G13 allows it"),
    elsewhere("M6", "one rank generator never has ep > 1 and cp > 1", "dense and expert grids have a generator each"),
    elsewhere("M7", "query heads are a multiple of tp", "rule G1"),
    elsewhere("M8", "key/value groups are a multiple or a divisor of tp", "rule G2"),
    elsewhere("M9", "layers split evenly, unless a layout string is given", "the exporter writes a layout string for uneven stages"),
    elsewhere("M10", "chunks are equal", "rule G21"),
    elsewhere("M11", "uneven stages are multiples of vpp", "rule G21: uneven stages have vpp = 1"),
    elsewhere("M12", "a layout string excludes the other flags", "the exporter"),
    elsewhere("M13", "interleaving needs pp > 1, or pp > 2 without overlapped p2p", "rule G20; the exporter keeps p2p overlap on"),
    elsewhere("M14", "interleaving needs pp <= micro-batches, in whole groups", "rule G22, with the default group of pp"),
    elsewhere("M15", "the batch is a multiple of micro_batch · dp", "rule G15"),
    elsewhere("M16", "with cp > 1 the sequence is a multiple of 2 · cp", "rule G7"),
    elsewhere("M17", "max_position_embeddings is at least the sequence", "the exporter sets it"),
    elsewhere("M18", "experts are a multiple of ep", "rules G8 and G9"),
    elsewhere("M21", "projections are a multiple of tp, experts of etp", "rules G1, G6 and G10"),
    elsewhere("M22", "the vocabulary is padded to a multiple of 128 · tp", "the memory model uses the padded size"),
    elsewhere("M23", "torch FSDP2 excludes pp, ep, tied embeddings and fp16", "the exporter uses Megatron-FSDP for zero2, zero3 and hsdp"),
    elsewhere("M26", "recomputation flags: full needs a method, selective has none", "the exporter; rule G18 bounds the layers"),
    elsewhere("M27", "MLA excludes grouped queries", "the exporter"),
    elsewhere("M28", "weight shards", "not an axis of the space"),
    elsewhere("T1", "dp_replicate · dp_shard · cp · tp · pp = world", "rules G11 and G25"),
    elsewhere("T7", "the local batch is a multiple of the pipeline's micro-batch", "rule G15"),
    elsewhere("T8", "the batch is a multiple of local batch · dp", "rule G15"),
    elsewhere("T9", "experts are a multiple of routing groups and of ep", "the model's own routing; rule G9"),
    elsewhere("T10", "asynchronous TP needs compilation", "the exporter"),
    elsewhere("D1", "batch = micro-batch · accumulation · dp", "rule G15"),
    elsewhere("D2", "the ZeRO stage is 0 to 3", "the type of the sharding axis"),
    elsewhere("D3", "experts are a multiple of ep", "rule G9"),
];
