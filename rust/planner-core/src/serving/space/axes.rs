//! The axes of an engine: which values each may take.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::layout::axes::{Choice, divisors, values, values_or_none};

use super::{Facts, Kind, Mode, Side};
use crate::serving::deployment::{Backend, Engine};

/// Most GPUs of a stage that are tried unless the caller asks for more; expert parallelism as wide
/// has been reported (DeepSeek-V3: 320).
pub const STAGE_LIMIT: u32 = 320;
/// Most pipeline stages that are tried unless the caller asks for more.
pub const PP_LIMIT: u32 = 8;
/// Most decode context ranks that are tried unless the caller asks for more.
pub const DCP_LIMIT: u32 = 8;
/// Most draft tokens that are tried unless the caller asks for more.
pub const DRAFT_LIMIT: u32 = 3;
/// Most slots of an attention replica that are tried unless the caller asks for more.
pub const BATCH_LIMIT: u32 = 1024;
/// Token budgets of an attention replica that are tried.
pub const BUDGETS: [u32; 4] = [2048, 4096, 8192, 16_384];
/// Token budget of an attention replica that only decodes, which does not use it.
pub const IDLE_BUDGET: u32 = 8192;

/// What the caller says about each axis of an engine; `None` leaves it open.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineAxes {
    /// GPUs of a stage.
    pub tp: Option<Choice>,
    /// Pipeline stages.
    pub pp: Option<Choice>,
    /// Attention replicas in a stage.
    pub attention_dp: Option<Choice>,
    /// Prefill context ranks of an attention replica; 1 unless the caller asks for more.
    pub pcp: Option<Choice>,
    /// Expert-parallel ranks.
    pub ep: Option<Choice>,
    /// Tensor-parallel degree inside an expert.
    pub moe_tp: Option<Choice>,
    /// Decode context ranks.
    pub dcp: Option<Choice>,
    /// Request slots of the engine.
    pub max_batch: Option<Choice>,
    /// Token budget of a step of the engine.
    pub max_batched_tokens: Option<Choice>,
    /// Tokens in a KV block.
    pub block_tokens: Option<Choice>,
    /// Draft tokens of a step.
    pub spec_tokens: Option<Choice>,
    /// Copies of experts beyond one each.
    pub redundant_experts: Option<Choice>,
    /// Engines.
    pub workers: Option<Choice>,
}

/// What the caller says about the space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axes {
    /// How prefill and decode share engines.
    pub modes: Vec<Mode>,
    /// Engines that decode, alone or besides prefill.
    pub engine: EngineAxes,
    /// Engines that only prefill.
    pub prefill: EngineAxes,
}

/// The values of every axis of one side, sorted and without repetition.
#[derive(Clone, Debug)]
pub struct Lists {
    side: Side,
    /// GPUs of a stage.
    pub tp: Vec<u32>,
    /// Pipeline stages.
    pub pp: Vec<u32>,
    attention_dp: Option<Choice>,
    pcp: Option<Choice>,
    ep: Option<Choice>,
    moe_tp: Option<Choice>,
    dcp: Option<Choice>,
    redundant: Option<Choice>,
    spec: Vec<u32>,
    max_batch: Option<Choice>,
    max_batched_tokens: Option<Choice>,
    budgets: Vec<u32>,
    blocks: Vec<u32>,
    context: bool,
    /// The caller names stage and stages: what is too large for the job is a rejection.
    stated: bool,
}

/// Settings of flags of one layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flags {
    /// Slots, ascending.
    pub batches: Vec<u32>,
    /// Token budgets, ascending.
    pub budgets: Vec<u32>,
    /// Blocks, ascending.
    pub blocks: Vec<u32>,
}

impl Flags {
    /// Settings.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.batches.len() * self.budgets.len() * self.blocks.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A layout with the settings of a number below [`Self::len`]; slots vary fastest.
    #[must_use]
    pub fn setting(&self, number: usize, layout: &Engine) -> Engine {
        let (rest, slot) = (number / self.batches.len(), number % self.batches.len());
        Engine {
            max_batch: self.batches[slot],
            max_batched_tokens: self.budgets[rest % self.budgets.len()],
            block_tokens: self.blocks[rest / self.budgets.len()],
            ..*layout
        }
    }
}

/// Numbers 2^a · 3^b up to `most`, ascending.
///
/// ```
/// use planner_core::serving::space::axes::smooth;
/// assert_eq!(smooth(16), [1, 2, 3, 4, 6, 8, 9, 12, 16]);
/// ```
#[must_use]
pub fn smooth(most: u32) -> Vec<u32> {
    let mut out = Vec::new();
    let mut two = 1_u64;
    while two <= u64::from(most) {
        let mut n = two;
        while n <= u64::from(most) {
            out.extend(u32::try_from(n).ok());
            n *= 3;
        }
        two *= 2;
    }
    out.sort_unstable();
    out
}

/// Slots of an attention replica that are tried: 1 to 8, then four an octave.
///
/// ```
/// use planner_core::serving::space::axes::slots;
/// assert_eq!(slots()[..12], [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16]);
/// assert_eq!(slots().len(), 36);
/// ```
#[must_use]
pub fn slots() -> Vec<u32> {
    let mut out: Vec<u32> = (1..8).collect();
    let mut octave = 8;
    while octave < BATCH_LIMIT {
        out.extend((4..8).map(|quarter| octave * quarter / 4));
        octave *= 2;
    }
    out.push(BATCH_LIMIT);
    out
}

/// GPUs of a stage that are tried: parts of a node, then 2^a · 3^b whole nodes.
fn stages(facts: &Facts) -> Vec<u32> {
    let node = u32::try_from(facts.node).unwrap_or(u32::MAX);
    let gpus = u32::try_from(facts.gpus).unwrap_or(u32::MAX);
    let mut out = divisors(facts.node);
    out.extend(smooth(gpus / node).iter().map(|n| n * node));
    out.sort_unstable();
    out.dedup();
    out.retain(|&tp| tp <= gpus);
    out
}

impl EngineAxes {
    /// The values of every axis for a job.
    ///
    /// # Errors
    /// When an axis is left without values, or copies of experts are asked of an open ep.
    pub fn candidates(&self, facts: &Facts, kind: &Kind, side: Side) -> Result<Lists> {
        let drafts = if facts.draft_heads > 0 {
            DRAFT_LIMIT
        } else {
            0
        };
        let mut budgets = BUDGETS.to_vec();
        if facts.input > u64::from(BUDGETS[3]) {
            let whole = facts.input.next_power_of_two().min(1 << 30);
            budgets.push(u32::try_from(whole).unwrap_or(1 << 30));
        }
        let open_block = vec![kind.defaults.block_tokens];
        let spec = (0..=DRAFT_LIMIT.max(self.most_drafts())).collect();
        Ok(Lists {
            side,
            tp: values("tp", self.tp.as_ref(), stages(facts), STAGE_LIMIT)?,
            pp: values("pp", self.pp.as_ref(), smooth(1024), PP_LIMIT)?,
            attention_dp: self.attention_dp.clone(),
            pcp: self.pcp.clone(),
            ep: self.ep.clone(),
            moe_tp: self.moe_tp.clone(),
            dcp: self.dcp.clone(),
            redundant: self.redundant_experts.clone(),
            spec: match side {
                Side::Prefill => vec![0],
                _ => values_or_none("spec_tokens", self.spec_tokens.as_ref(), spec, drafts)?,
            },
            max_batch: self.max_batch.clone(),
            max_batched_tokens: self.max_batched_tokens.clone(),
            budgets,
            blocks: values(
                "block_tokens",
                self.block_tokens.as_ref(),
                open_block,
                u32::MAX,
            )?,
            context: kind.backend != Backend::Trtllm && side != Side::Prefill,
            stated: named(self.tp.as_ref()) || named(self.pp.as_ref()),
        })
    }

    fn most_drafts(&self) -> u32 {
        match &self.spec_tokens {
            Some(Choice::Range { max: Some(max), .. }) => (*max).min(64),
            _ => 0,
        }
    }

    /// Numbers of engines that the caller states.
    ///
    /// # Errors
    /// When there is none.
    pub fn stated_workers(&self, gpus: u32) -> Result<Option<Vec<u32>>> {
        match &self.workers {
            None => Ok(None),
            some => values("workers", some.as_ref(), (1..=gpus).collect(), u32::MAX).map(Some),
        }
    }
}

/// Whether the caller states values rather than bounds.
const fn named(choice: Option<&Choice>) -> bool {
    matches!(choice, Some(Choice::Pin(_) | Choice::List(_)))
}

/// Open values, or those that the caller states: a list as it is, bounds as a filter.
fn choose(choice: Option<&Choice>, open: Vec<u32>) -> Vec<u32> {
    match choice {
        None => open,
        Some(Choice::Pin(value)) => vec![*value],
        Some(Choice::List(list)) => {
            let mut list = list.clone();
            list.sort_unstable();
            list.dedup();
            list
        }
        Some(Choice::Range { min, max }) => {
            let (min, max) = (min.unwrap_or(0), max.unwrap_or(u32::MAX));
            open.into_iter()
                .filter(|v| (min..=max).contains(v))
                .collect()
        }
    }
}

impl Lists {
    /// Whether an engine is a candidate: it fits the job, or the caller names its size.
    #[must_use]
    pub fn tries(&self, tp: u32, pp: u32, facts: &Facts) -> bool {
        self.stated || u64::from(tp) * u64::from(pp) <= facts.gpus
    }

    /// Attention replicas of a stage whose divisors are `parts`.
    #[must_use]
    pub fn attention_dp(&self, parts: &[u32], facts: &Facts) -> Vec<u32> {
        let open = if facts.shape.is_moe() {
            parts.to_vec()
        } else {
            vec![1]
        };
        choose(self.attention_dp.as_ref(), open)
            .into_iter()
            .filter(|&dp| dp > 0)
            .collect()
    }

    /// (ep, expert TP) of a stage of `tp` GPUs.
    #[must_use]
    pub fn experts(&self, tp: u32, parts: &[u32], facts: &Facts) -> Vec<(u32, u32)> {
        let open = if facts.shape.is_moe() {
            parts.to_vec()
        } else {
            vec![1]
        };
        let widths = |ep: u32| match &self.moe_tp {
            Some(choice) => choose(Some(choice), parts.to_vec()),
            None => vec![tp / ep.max(1)],
        };
        let pinned = named(self.ep.as_ref());
        choose(self.ep.as_ref(), open)
            .into_iter()
            .filter(|&ep| ep > 0)
            .flat_map(|ep| widths(ep).into_iter().map(move |moe_tp| (ep, moe_tp)))
            .filter(|&(ep, moe_tp)| pinned || ep * moe_tp == tp)
            .collect()
    }

    /// The layouts that a bare grid of ranks takes: prefill and decode context, copies of experts,
    /// drafts.
    #[must_use]
    pub fn variants(&self, bare: &Engine, facts: &Facts) -> Vec<Engine> {
        let cut = self.pcp(bare).into_iter();
        let cut = cut.map(|pcp| Engine { pcp, ..*bare });
        cut.flat_map(|bare| self.contexts(&bare, facts)).collect()
    }

    fn contexts(&self, bare: &Engine, facts: &Facts) -> Vec<Engine> {
        let mut out = Vec::new();
        for dcp in self.dcp(bare, facts) {
            for redundant_experts in self.redundant(bare, facts) {
                for &spec_tokens in &self.spec {
                    out.push(Engine {
                        dcp,
                        redundant_experts,
                        spec_tokens,
                        ..*bare
                    });
                }
            }
        }
        out
    }

    /// One; powers of two within the GPUs of a replica where the caller bounds them.
    fn pcp(&self, bare: &Engine) -> Vec<u32> {
        let most = bare.tp / bare.attention_dp.max(1);
        let powers = (0..32).map(|power| 1 << power).take_while(|&n| n <= most);
        match (&self.pcp, self.side) {
            (None, _) | (_, Side::Decode) => vec![1],
            (stated, _) => {
                let chosen = choose(stated.as_ref(), powers.collect());
                chosen.into_iter().filter(|&pcp| pcp > 0).collect()
            }
        }
    }

    /// Powers of two within attention TP, where latent vectors would be repeated.
    fn dcp(&self, bare: &Engine, facts: &Facts) -> Vec<u32> {
        if self.side == Side::Prefill {
            return vec![1];
        }
        let most = if self.context && !facts.windowed && bare.pcp == 1 {
            bare.attention_tp().max(1)
        } else {
            1
        };
        let limit = match &self.dcp {
            Some(Choice::Range { max: Some(max), .. }) => *max,
            _ => DCP_LIMIT,
        };
        let open = (0..32)
            .map(|power| 1 << power)
            .filter(|&n| n <= most.min(limit))
            .collect();
        choose(self.dcp.as_ref(), open)
    }

    /// The fewest copies that fill the ranks evenly, and one slot more on every rank.
    fn redundant(&self, bare: &Engine, facts: &Facts) -> Vec<u32> {
        let (ep, experts) = (bare.ep, u32::try_from(facts.shape.experts).unwrap_or(0));
        let least = (ep - experts % ep) % ep;
        let open = match ep {
            1 => vec![0],
            _ if least + ep <= experts => vec![least, least + ep],
            _ => vec![least],
        };
        choose(self.redundant.as_ref(), open)
    }

    /// Settings of flags of a layout.
    #[must_use]
    pub fn flags(&self, engine: &Engine) -> Flags {
        let dp = engine.attention_dp;
        let scaled = |list: &[u32]| list.iter().map(|n| n.saturating_mul(dp)).collect();
        let budgets = match self.side {
            Side::Decode => vec![IDLE_BUDGET.saturating_mul(dp)],
            _ => choose(self.max_batched_tokens.as_ref(), scaled(&self.budgets)),
        };
        let batches = match self.side {
            Side::Prefill => vec![BATCH_LIMIT.saturating_mul(dp)],
            _ => choose(self.max_batch.as_ref(), scaled(&slots())),
        };
        Flags {
            batches,
            budgets,
            blocks: self.blocks.clone(),
        }
    }
}

/// A mode that the caller did not exclude.
///
/// # Errors
/// When none is left.
pub fn modes(axes: &Axes) -> Result<Vec<Mode>> {
    let mut modes = axes.modes.clone();
    modes.sort_unstable();
    modes.dedup();
    if modes.is_empty() {
        return Err(Error::field("mode", "[]", "leaves no value to try"));
    }
    Ok(modes)
}
