//! The table of rules: what each backend asks of an engine, a line or two a rule.

use super::super::deployment::Backend;
use super::super::facts::Facts;
use super::super::space::{Side, Status};
use super::{Candidate, Check, Level, Rule};
use crate::layout::shape::{divides, spread};

/// A GPU's share of an expert's width is a multiple of `piece`, where one scale covers a block.
fn whole_blocks(f: &Facts, c: &Candidate<'_>, piece: u64) -> bool {
    let pieces = piece * u64::from(c.engine.moe_tp);
    !f.shape.is_moe() || !c.blocked() || divides(pieces, f.shape.expert_width)
}

const fn rule(
    id: &'static str,
    status: Status,
    level: Level,
    text: &'static str,
    holds: fn(&Facts, &Candidate<'_>) -> bool,
) -> Rule {
    let backend = match id.as_bytes()[0] {
        b'V' => Some(Backend::Vllm),
        b'S' => Some(Backend::Sglang),
        b'R' => Some(Backend::Trtllm),
        _ => None,
    };
    Rule {
        id,
        status,
        backend,
        text,
        check: Check::Engine(level, holds),
    }
}

const fn elsewhere(id: &'static str, text: &'static str, by: &'static str) -> Rule {
    let whole = rule(id, Status::Backend, Level::Layout, text, |_, _| true);
    Rule {
        check: Check::Elsewhere(by),
        ..whole
    }
}

/// Every rule, in the order of checks: by level, then generic before backend.
#[rustfmt::skip]
pub static RULES: &[Rule] = &[
    // layout
    rule("G1", Status::Topology, Level::Layout,
        "attention replicas times prefill context ranks ({attention_dp} · {pcp}) must divide the stage's GPUs (tp = {tp})",
        |_, c| divides(u64::from(c.engine.attention_dp) * u64::from(c.engine.pcp), c.engine.tp.into())),
    rule("G2", Status::Experts, Level::Layout,
        "ep · moe_tp ({ep} · {moe_tp}) must be tp ({tp})",
        |_, c| c.engine.ep * c.engine.moe_tp == c.engine.tp),
    rule("G3", Status::Topology, Level::Layout,
        "a stage lies inside a node of {node} GPUs and divides it, or fills whole nodes (tp = {tp})",
        |f, c| { let tp = u64::from(c.engine.tp); divides(tp, f.node) || divides(f.node, tp) }),
    rule("G4", Status::Topology, Level::Layout,
        "an engine (tp · pp = {tp} · {pp}) needs at most the {gpus} GPUs",
        |f, c| u64::from(c.engine.tp) * u64::from(c.engine.pp) <= f.gpus),
    rule("G5", Status::Layers, Level::Layout,
        "every stage needs a layer: pp ({pp}) must be at most the layers ({layers})",
        |f, c| c.engine.pp as u64 <= f.shape.layers),
    rule("G6", Status::Heads, Level::Layout,
        "query heads ({heads}) must be a multiple of attention TP ({attention_tp})",
        |f, c| divides(c.engine.attention_tp().into(), f.shape.heads)),
    rule("G7", Status::Heads, Level::Layout,
        "key/value heads ({kv_heads}) must be a multiple or a divisor of attention TP ({attention_tp})",
        |f, c| spread(&f.shape.kv_heads, c.engine.attention_tp())),
    rule("G8", Status::Heads, Level::Layout,
        "linear-attention and state-space heads ({state_heads}) must be a multiple of attention TP ({attention_tp})",
        |f, c| divides(c.engine.attention_tp().into(), f.shape.state_heads)),
    rule("G9", Status::Heads, Level::Layout,
        "state-space groups ({state_groups}) must be a multiple or a divisor of attention TP ({attention_tp})",
        |f, c| spread(&f.shape.state_groups, c.engine.attention_tp())),
    rule("G10", Status::Width, Level::Layout,
        "feed-forward widths ({width}) must be a multiple of attention TP ({attention_tp})",
        |f, c| divides(c.engine.attention_tp().into(), f.shape.width)),
    rule("G11", Status::Experts, Level::Layout,
        "a model without experts has neither expert parallelism nor copies (ep = {ep}, copies {redundant_experts})",
        |f, c| f.shape.is_moe() || (c.engine.ep == 1 && c.engine.redundant_experts == 0)),
    rule("G12", Status::Experts, Level::Layout,
        "attention replicas ({attention_dp}) share experts: a model without them takes replicas instead",
        |f, c| f.shape.is_moe() || c.engine.attention_dp == 1),
    rule("G13", Status::Experts, Level::Layout,
        "experts and copies ({experts} + {redundant_experts}) must be a multiple of ep ({ep})",
        |f, c| divides(c.engine.ep.into(), f.shape.experts + c.engine.redundant_experts as u64)),
    rule("G14", Status::Experts, Level::Layout,
        "copies of experts ({redundant_experts}) need expert parallelism, and are at most the experts ({experts})",
        |f, c| c.engine.redundant_experts == 0
            || (c.engine.ep > 1 && c.engine.redundant_experts as u64 <= f.shape.experts)),
    rule("G15", Status::Width, Level::Layout,
        "the width of an expert ({expert_width}) must be a multiple of moe_tp ({moe_tp})",
        |f, c| !f.shape.is_moe() || divides(c.engine.moe_tp.into(), f.shape.expert_width)),
    rule("G17", Status::Drafts, Level::Layout,
        "draft tokens ({spec_tokens}) need a multi-token-prediction head in the model",
        |f, c| c.engine.spec_tokens == 0 || f.draft_heads > 0),
    rule("G19", Status::Backend, Level::Layout,
        "recurrent states pass through a prompt in order: no prefill context ranks (pcp = {pcp})",
        |f, c| c.engine.pcp == 1 || f.shape.state_heads == 0),
    rule("V3", Status::Backend, Level::Layout,
        "experts are cut over all of the engine's GPUs or not at all: ep ({ep}) must be 1 or tp ({tp})",
        |_, c| c.engine.ep == 1 || c.engine.ep == c.engine.tp),
    rule("V6", Status::Backend, Level::Layout,
        "attention TP ({attention_tp}) must be a multiple of dcp ({dcp}); beside prefill context ranks ({pcp}) dcp is 1, their number, or tp",
        |_, c| match c.engine.pcp {
            1 => divides(c.engine.dcp.into(), c.engine.attention_tp().into()),
            pcp => [1, pcp, c.engine.tp].contains(&c.engine.dcp),
        }),
    rule("V17", Status::Backend, Level::Layout,
        "prefill context ranks ({pcp}) exclude attention replicas ({attention_dp})",
        |_, c| c.engine.pcp == 1 || c.engine.attention_dp == 1),
    rule("V7", Status::Backend, Level::Layout,
        "dcp ({dcp}) needs attention TP ({attention_tp}) above the KV heads ({kv_heads}) by at least dcp, and their query heads a multiple of it",
        |f, c| {
            let (t, dcp) = (u64::from(c.engine.attention_tp()), u64::from(c.engine.dcp));
            dcp == 1 || c.engine.pcp > 1 || f.shape.kv_heads.iter().all(|&kv| {
                t > kv && dcp <= t / kv && divides(dcp, f.shape.heads / kv)
            })
        }),
    rule("V8", Status::Backend, Level::Layout,
        "sliding windows, chunks and states cannot be cut over context ranks (dcp = {dcp}, pcp = {pcp})",
        |f, c| (c.engine.dcp == 1 && c.engine.pcp == 1) || !(f.windowed || f.shape.state_heads > 0)),
    rule("V15", Status::Backend, Level::Layout,
        "an engine that receives a cache shares latent vectors over all of attention TP ({attention_tp}) or none (dcp = {dcp})",
        |f, c| c.side != Side::Decode || c.engine.dcp == 1
            || (f.latent && c.engine.dcp == c.engine.attention_tp())),
    rule("V16", Status::Width, Level::Layout,
        "blocks of 128 weights are cut into pieces of 32 at least: expert width over moe_tp ({expert_width} / {moe_tp}) must be a multiple of 32",
        |f, c| whole_blocks(f, c, 32)),
    rule("S7", Status::Backend, Level::Layout,
        "tp ({tp}) must be a multiple of dcp ({dcp})",
        |_, c| divides(c.engine.dcp.into(), c.engine.tp.into())),
    rule("S11", Status::Backend, Level::Layout,
        "decode context ranks share latent vectors and lie inside attention TP (dcp = {dcp}, attention TP {attention_tp})",
        |f, c| c.engine.dcp == 1
            || (f.latent && divides(c.engine.dcp.into(), c.engine.attention_tp().into()))),
    rule("S12", Status::Backend, Level::Layout,
        "drafts in a pipeline (draft tokens {spec_tokens}, pp = {pp}) exist for prefill engines only",
        |_, c| c.engine.pp == 1 || c.engine.spec_tokens == 0 || c.side == Side::Prefill),
    rule("S13", Status::Backend, Level::Layout,
        "prefill context ranks ({pcp}) exclude those of decode ({dcp})",
        |_, c| c.engine.pcp == 1 || c.engine.dcp == 1),
    rule("S16", Status::Width, Level::Layout,
        "blocks of 128 weights cannot be cut: expert width over moe_tp ({expert_width} / {moe_tp}) must be a multiple of 128",
        |f, c| whole_blocks(f, c, 128)),
    rule("R1", Status::Backend, Level::Layout,
        "there is no decode context parallelism inside tp (dcp = {dcp})",
        |_, c| c.engine.dcp == 1),
    rule("R11", Status::Backend, Level::Layout,
        "no prompt is cut exactly: cp_size is for decoding, or for attention by approximation (pcp = {pcp})",
        |_, c| c.engine.pcp == 1),
    rule("R7", Status::Backend, Level::Layout,
        "attention DP is a switch: attention_dp ({attention_dp}) must be 1 or tp ({tp})",
        |_, c| c.engine.attention_dp == 1 || c.engine.attention_dp == c.engine.tp),
    rule("R10", Status::Width, Level::Layout,
        "blocks of 128 weights cannot be cut: expert width over moe_tp ({expert_width} / {moe_tp}) must be a multiple of 128",
        |f, c| whole_blocks(f, c, 128)),
    // flags
    rule("G18", Status::Batch, Level::Flags,
        "every attention replica ({attention_dp}) needs a slot (max_batch = {max_batch})",
        |_, c| c.side == Side::Prefill || c.engine.max_batch >= c.engine.attention_dp),
    rule("V11", Status::Batch, Level::Flags,
        "the token budget ({max_batched_tokens}) must be at least the slots ({max_batch})",
        |_, c| c.side == Side::Prefill || c.engine.max_batched_tokens >= c.engine.max_batch),
    rule("S8", Status::Batch, Level::Flags,
        "the prefill chunk of an attention replica ({max_batched_tokens} / {attention_dp}) must be a multiple of the page ({block_tokens})",
        |_, c| {
            let (tokens, dp) = (u64::from(c.engine.max_batched_tokens), u64::from(c.engine.attention_dp));
            divides(dp * u64::from(c.engine.block_tokens), tokens)
        }),
    rule("R8", Status::Batch, Level::Flags,
        "prompts are not cut: the token budget of an attention replica ({max_batched_tokens} / {attention_dp}) must hold the longest ({input})",
        |f, c| c.side == Side::Decode
            || u64::from(c.engine.max_batched_tokens / c.engine.attention_dp.max(1)) >= f.input),
    rule("R9", Status::Batch, Level::Flags,
        "a block ({block_tokens}) is a power of two of at least 2 tokens",
        |_, c| c.engine.block_tokens >= 2 && c.engine.block_tokens.is_power_of_two()),
    // kept elsewhere
    elsewhere("V1", "heads must be a multiple of tensor parallelism", "G6"),
    elsewhere("V2", "key/value heads are repeated beyond their number", "G7"),
    elsewhere("V4", "experts may be uneven without copies", "G13 is stricter: even experts only"),
    elsewhere("V5", "copies need expert parallelism", "G14"),
    elsewhere("V9", "GPUs of a replica = tp · pp · pcp; pcp lies inside tp here", "the grid of the space"),
    elsewhere("V10", "layers need not divide by pp", "the stages of the memory model"),
    elsewhere("V12", "widths must be a multiple of tensor parallelism", "G10"),
    elsewhere("V13", "dense models take replicas instead of attention DP", "G12"),
    elsewhere("S1", "GPUs = tp · pp, over whole nodes", "G3"),
    elsewhere("S2", "tp must be a multiple of attention DP", "G1"),
    elsewhere("S4", "tp must be a multiple of attention DP · attention CP", "G1"),
    elsewhere("S5", "ep · moe_tp = tp without expert-data parallelism", "G2"),
    elsewhere("S9", "heads of a rank", "G6 and G7"),
    elsewhere("R2", "moe_tp · moe_ep = tp", "G2"),
    elsewhere("R5", "pp is at most the layers", "G5"),
];
