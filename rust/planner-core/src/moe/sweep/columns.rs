//! Columns of the sweep, declared once.

use crate::table::Column;

/// Columns of the sweep.
pub const COLUMNS: &[Column] = &[
    Column {
        name: "experts",
        unit: "1",
        doc: "Experts E.",
    },
    Column {
        name: "top_k",
        unit: "1",
        doc: "Experts per token k.",
    },
    Column {
        name: "ranks",
        unit: "1",
        doc: "Expert-parallel ranks R.",
    },
    Column {
        name: "nodes",
        unit: "1",
        doc: "Nodes that hold the ranks.",
    },
    Column {
        name: "redundant",
        unit: "1",
        doc: "Redundant experts.",
    },
    Column {
        name: "alpha",
        unit: "1",
        doc: "Dirichlet concentration per expert; 0: uniform.",
    },
    Column {
        name: "tokens_per_rank",
        unit: "tokens",
        doc: "Tokens on each rank.",
    },
    Column {
        name: "capacity_factor",
        unit: "1",
        doc: "Capacity factor; 0: dropless (tutel: the largest load).",
    },
    Column {
        name: "capacity_rule",
        unit: "",
        doc: "Whose rule the factor is of.",
    },
    Column {
        name: "status",
        unit: "",
        doc: "ok, or the rule that the point breaks.",
    },
    Column {
        name: "expert_max_over_mean_ratio",
        unit: "1",
        doc: "Fullest expert over the mean.",
    },
    Column {
        name: "rank_max_over_mean_ratio",
        unit: "1",
        doc: "Fullest rank over the mean, experts in order.",
    },
    Column {
        name: "balanced_max_over_mean_ratio",
        unit: "1",
        doc: "The same after balancing the long-run load with the redundant experts.",
    },
    Column {
        name: "distinct_ranks",
        unit: "1",
        doc: "Different ranks of a token, uniform routing.",
    },
    Column {
        name: "distinct_nodes",
        unit: "1",
        doc: "Different nodes of a token, uniform routing.",
    },
    Column {
        name: "active_experts",
        unit: "1",
        doc: "Experts that the batch wakes, uniform routing.",
    },
    Column {
        name: "capacity_tokens",
        unit: "tokens",
        doc: "Rows that an expert accepts from one rank; 0: dropless.",
    },
    Column {
        name: "dropped_ratio",
        unit: "1",
        doc: "Token-choices beyond the capacity, share of all.",
    },
    Column {
        name: "padded_ratio",
        unit: "1",
        doc: "Rows without a token where experts are padded to the capacity, share of E·C; 0: dropless.",
    },
    Column {
        name: "slots_per_rank",
        unit: "1",
        doc: "Experts that a rank holds, replicas included.",
    },
];
