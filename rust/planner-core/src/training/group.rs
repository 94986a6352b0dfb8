//! What the data-parallel group costs: gradient and parameter traffic, the optimizer step, and the
//! memory that stays whatever the micro-batch. Depends on (tp, cp, ep, etp, pp, vpp) and the
//! sharding, on nothing else.

use crate::layout::{Schedule, Sharding};
use crate::pipeline::bubble::parameter_copies;

use super::Estimator;
use super::links::Span;
use super::stage::{StageClass, StagePlan};

/// Degrees that fix the process groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Grid {
    /// Tensor-parallel degree.
    pub tp: u32,
    /// Context-parallel degree.
    pub cp: u32,
    /// Expert-parallel degree.
    pub ep: u32,
    /// Expert-tensor-parallel degree.
    pub etp: u32,
    /// Pipeline stages.
    pub pp: u32,
}

/// Memory of one stage that no micro-batch changes, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StaticBytes {
    /// Weights, gathered layers included.
    pub weights: f64,
    /// Gradients.
    pub gradients: f64,
    /// Optimizer state and master weights.
    pub optimizer: f64,
}

impl StaticBytes {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.weights + self.gradients + self.optimizer
    }

    /// What a rank holds under a schedule: DualPipe keeps the weights and gradients of two stages.
    /// Their optimizer state is sharded over both holders.
    #[must_use]
    pub fn under(&self, schedule: Schedule) -> Self {
        let copies = parameter_copies(schedule);
        Self {
            weights: copies * self.weights,
            gradients: copies * self.gradients,
            optimizer: self.optimizer,
        }
    }
}

/// Costs of the data-parallel group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupCosts {
    /// Time to gather updated parameters once, s.
    pub gather_s: f64,
    /// Time to reduce gradients once, s.
    pub reduce_s: f64,
    /// Gradients are reduced after every micro-batch.
    pub reduce_every: bool,
    /// Parameters are gathered in every forward and backward of every micro-batch.
    pub gather_every: bool,
    /// All-reduce across replicas of a shard group, and of tied embeddings, once a step, s.
    pub replica_s: f64,
    /// Optimizer step, s.
    pub optimizer_s: f64,
    /// Barriers a step that wait for the slowest rank (per micro-batch where every).
    pub barriers: f64,
    /// Memory per class of the stage plan.
    pub memory: Vec<StaticBytes>,
}

/// Parameters of one stage on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageParams {
    /// Outside routed experts.
    pub dense: f64,
    /// Routed experts.
    pub expert: f64,
    /// Largest layer, both together.
    pub largest_layer: f64,
}

impl Estimator {
    /// Ranks of the dense data-parallel group (dp · cp) and of the expert one.
    #[must_use]
    pub fn data_spans(&self, grid: Grid) -> (Span, Span) {
        let (tp, cp, pp) = (f64::from(grid.tp), f64::from(grid.cp), f64::from(grid.pp));
        let world = self.gpus as f64;
        let expert_width = f64::from(grid.ep * grid.etp);
        let (dense, expert) = (world / (tp * pp), world / (expert_width * pp));
        if self.training.pipeline_outermost {
            (
                self.links.span(dense, tp),
                self.links.span(expert, expert_width),
            )
        } else {
            let inner = self.links.span(cp, tp);
            let outer = self.links.span(dense / cp, tp * cp * pp);
            let joined = Span {
                ranks: dense,
                per_domain: inner.per_domain * outer.per_domain,
                extent: outer.extent + inner.extent - 1.0,
            };
            (joined, self.links.span(expert, expert_width * pp))
        }
    }

    /// Parameters of a stage of this class on one rank.
    #[must_use]
    pub fn stage_params(&self, grid: Grid, class: &StageClass) -> StageParams {
        let (tp, width) = (f64::from(grid.tp), f64::from(grid.ep * grid.etp));
        let mut p = StageParams::default();
        let add = |p: &mut StageParams, kind: usize, n: f64| {
            let k = &self.kind_params[kind];
            let dense = k.dense(tp);
            let expert = k.expert / width;
            p.dense += n * dense;
            p.expert += n * expert;
            if n > 0.0 {
                p.largest_layer = p.largest_layer.max(dense + expert);
            }
        };
        for (kind, &n) in class.counts.iter().enumerate() {
            add(&mut p, kind, n);
        }
        let table = self.table_params(grid.tp);
        let m = &self.model;
        if class.first {
            p.dense += table
                + (m.embedding_extra_params as f64)
                + m.learned_positions as f64 * self.hidden;
        }
        if class.last {
            let shared = m.tied_embeddings && class.first;
            p.dense += if shared { 0.0 } else { table };
            p.dense += (m.final_norm_params + m.head_extra_params) as f64;
            if self.training.mtp {
                for head in &m.mtp {
                    add(&mut p, head.kind, 1.0);
                    p.dense += head.projection_params as f64 / tp;
                }
            }
        }
        p
    }

    /// Costs of the data-parallel group under a sharding. `shard_group` is what HSDP shards over;
    /// the other shardings use the whole group.
    #[must_use]
    pub fn group_costs(
        &self,
        grid: Grid,
        plan: &StagePlan,
        sharding: Sharding,
        shard_group: u32,
    ) -> GroupCosts {
        let (dense, expert) = self.data_spans(grid);
        let params: Vec<StageParams> = plan
            .classes
            .iter()
            .map(|class| self.stage_params(grid, class))
            .collect();
        let whole = grid.pp > 1 && self.software.pipeline_unshards;
        let mut costs = GroupCosts {
            gather_s: 0.0,
            reduce_s: 0.0,
            reduce_every: sharding == Sharding::Zero2,
            gather_every: matches!(sharding, Sharding::Zero3 | Sharding::Hsdp) && !whole,
            replica_s: 0.0,
            optimizer_s: 0.0,
            barriers: 1.0,
            memory: Vec::with_capacity(params.len()),
        };
        for p in &params {
            let traffic = self.traffic(p, sharding, shard_group, &dense, &expert);
            costs.gather_s = costs.gather_s.max(traffic.gather_s);
            costs.reduce_s = costs.reduce_s.max(traffic.reduce_s);
            costs.replica_s = costs.replica_s.max(traffic.replica_s);
            costs.optimizer_s = costs.optimizer_s.max(traffic.optimizer_s);
            costs
                .memory
                .push(self.static_bytes(p, sharding, shard_group, whole, &dense, &expert));
        }
        if sharding != Sharding::None {
            costs.barriers += 1.0;
            costs.gather_s += self.software.shard_broadcast_s * f64::from(shard_group);
        }
        costs.replica_s += self.tied_embedding_s(grid);
        costs
    }

    /// Gradients of a tied embedding are summed over the first and the last stage.
    fn tied_embedding_s(&self, grid: Grid) -> f64 {
        if grid.pp <= 1 || !self.model.tied_embeddings {
            return 0.0;
        }
        let bytes = self.table_params(grid.tp) * self.training.grad_dtype.bytes();
        self.links.all_reduce_s(
            bytes,
            &self
                .links
                .span(2.0, self.stage_stride(grid) * f64::from(grid.pp - 1)),
        )
    }

    /// Ranks between neighbouring stages.
    #[must_use]
    pub fn stage_stride(&self, grid: Grid) -> f64 {
        if self.training.pipeline_outermost {
            self.gpus as f64 / f64::from(grid.pp)
        } else {
            f64::from(grid.tp * grid.cp)
        }
    }

    fn traffic(
        &self,
        p: &StageParams,
        sharding: Sharding,
        shard_group: u32,
        dense: &Span,
        expert: &Span,
    ) -> Traffic {
        let grad = self.training.grad_dtype.bytes();
        let param = self.training.param_dtype.bytes();
        let l = &self.links;
        let both = |f: &dyn Fn(f64, &Span) -> f64, bytes: f64| {
            f(p.dense * bytes, dense) + f(p.expert * bytes, expert)
        };
        let (shard_dense, shard_expert) = shards(sharding, shard_group, dense, expert);
        let optimizer_bytes =
            30.0 * (p.dense / shard_dense + p.expert / shard_expert) + 6.0 * (p.dense + p.expert);
        let optimizer_s = self.software.optimizer_ratio * optimizer_bytes
            / self.cluster.device.memory_bytes_per_s;
        let mut t = Traffic {
            optimizer_s,
            ..Traffic::default()
        };
        match sharding {
            Sharding::None => t.reduce_s = both(&|b, s| l.all_reduce_s(b, s), grad),
            Sharding::Zero1 | Sharding::Zero2 => {
                t.reduce_s = both(&|b, s| l.gather_s(b, s), grad);
                t.gather_s = both(&|b, s| l.gather_s(b, s), param);
            }
            Sharding::Zero3 => {
                let ratio = self.software.fsdp_time_ratio;
                t.reduce_s = ratio * both(&|b, s| l.gather_s(b, s), grad);
                t.gather_s = ratio * both(&|b, s| l.gather_s(b, s), param);
            }
            Sharding::Hsdp => {
                let ratio = self.software.fsdp_time_ratio;
                let (inner_d, outer_d) = split_span(dense, f64::from(shard_group));
                let (inner_e, outer_e) = split_span(expert, f64::from(shard_group));
                let inner = |bytes: f64| {
                    l.gather_s(p.dense * bytes, &inner_d) + l.gather_s(p.expert * bytes, &inner_e)
                };
                t.reduce_s = ratio * inner(grad);
                t.gather_s = ratio * inner(param);
                t.replica_s = l.all_reduce_s(p.dense * grad / inner_d.ranks, &outer_d)
                    + l.all_reduce_s(p.expert * grad / inner_e.ranks, &outer_e);
            }
        }
        t
    }

    fn static_bytes(
        &self,
        p: &StageParams,
        sharding: Sharding,
        shard_group: u32,
        whole: bool,
        dense: &Span,
        expert: &Span,
    ) -> StaticBytes {
        let (sd, se) = shards(sharding, shard_group, dense, expert);
        let all = p.dense + p.expert;
        let sharded = p.dense / sd + p.expert / se;
        let params_sharded = matches!(sharding, Sharding::Zero3 | Sharding::Hsdp);
        let grads_sharded = params_sharded || sharding == Sharding::Zero2;
        let weight = self.training.param_dtype.bytes();
        let stored = if params_sharded && self.software.shard_is_master {
            0.0
        } else {
            weight
        };
        let grad = self.training.grad_dtype.bytes();
        let gathered = if params_sharded && !whole {
            (2.0 * p.largest_layer).min(all) * weight
        } else {
            0.0
        };
        let held = if params_sharded && whole {
            all - sharded
        } else {
            0.0
        };
        StaticBytes {
            weights: stored * if params_sharded { sharded } else { all } + weight * held + gathered,
            gradients: grad * (if grads_sharded { sharded } else { all } + held)
                + self.software.unsharded_bytes_per_param * all,
            optimizer: self.training.optimizer_bytes_per_param * sharded,
        }
    }
}

#[derive(Default)]
struct Traffic {
    gather_s: f64,
    reduce_s: f64,
    replica_s: f64,
    optimizer_s: f64,
}

/// Ranks over which optimizer state is sharded, dense and expert.
fn shards(sharding: Sharding, shard_group: u32, dense: &Span, expert: &Span) -> (f64, f64) {
    match sharding {
        Sharding::None => (1.0, 1.0),
        Sharding::Hsdp => {
            let group = f64::from(shard_group);
            (group.min(dense.ranks), group.min(expert.ranks))
        }
        _ => (dense.ranks, expert.ranks),
    }
}

/// Shard groups of `size` neighbouring ranks, and the replicas across them.
fn split_span(span: &Span, size: f64) -> (Span, Span) {
    let size = size.min(span.ranks);
    let stride = span.stride();
    let inner = Span {
        ranks: size,
        per_domain: span.per_domain.min(size),
        extent: (size - 1.0) * stride + 1.0,
    };
    let replicas = span.ranks / size;
    let outer = Span {
        ranks: replicas,
        per_domain: (span.per_domain / size).floor().clamp(1.0, replicas),
        extent: (replicas - 1.0) * size * stride + 1.0,
    };
    (inner, outer)
}
