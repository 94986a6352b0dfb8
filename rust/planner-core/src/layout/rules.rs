//! The rules of a valid layout, as data: one table, read by the space, by its count, by the
//! explanation of a rejection and by the documentation.
//!
//! A rule that a layout itself can break has a predicate. The others are listed with the place
//! that keeps them, so that the table is the whole of what a framework asks.

use crate::layout::facts::Facts;
use crate::layout::{Framework, Layout, Status};

mod table;

pub use table::RULES;

/// How much of a layout is known when a rule is checked; the order of checks.
///
/// A rule reads the fields of its own level and those of the levels named in its sentence, no
/// others: this is what lets a broken rule reject a whole subtree that is counted, not visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// tp and cp.
    Tensor,
    /// ep and etp, besides tp and cp.
    Expert,
    /// pp and dp, besides the above: the whole grid of ranks.
    Stage,
    /// The micro-batch, besides the grid.
    MicroBatch,
    /// Sequence parallelism, besides the grid.
    Sequence,
    /// Recomputation, besides the grid.
    Recompute,
    /// Schedule and chunks per stage, besides ep, pp and the number of micro-batches.
    Schedule,
    /// Sharding and its group, besides the grid.
    Sharding,
}

/// Where a rule is kept.
#[derive(Clone, Copy)]
pub enum Check {
    /// By this predicate: true where the layout obeys.
    Layout(Level, fn(&Facts, &Layout) -> bool),
    /// Not by a layout: this sentence says by whom.
    Elsewhere(&'static str),
}

/// One rule.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Short name: `G` generic, `M` Megatron, `T` torchtitan, `D` DeepSpeed.
    pub id: &'static str,
    /// Status of a layout that breaks it.
    pub status: Status,
    /// Whose rule it is; `Generic` binds every layout.
    pub framework: Framework,
    /// The rule, with `{field}` where the value of a fact or of the layout is shown.
    pub text: &'static str,
    /// Where it is kept.
    pub check: Check,
}

/// A rule that a layout breaks, with the numbers in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Index in [`RULES`].
    pub rule: usize,
    /// Its short name.
    pub id: &'static str,
    /// Its status.
    pub status: Status,
    /// Its sentence, numbers filled in.
    pub text: String,
}

impl Rule {
    /// Whether the rule binds layouts for a framework.
    #[must_use]
    pub fn binds(&self, framework: Framework) -> bool {
        self.framework == Framework::Generic || self.framework == framework
    }

    /// The sentence without values.
    ///
    /// ```
    /// use planner_core::layout::rules::RULES;
    /// assert_eq!(RULES[0].statement(), "query heads must be a multiple of tp");
    /// ```
    #[must_use]
    pub fn statement(&self) -> String {
        let mut out = String::new();
        let mut rest = self.text;
        while let Some(open) = rest.find('(') {
            let Some(close) = rest[open..].find(')') else {
                break;
            };
            let inside = &rest[open..=open + close];
            out.push_str(rest[..open].trim_end());
            if !inside.contains('{') {
                out.push(' ');
                out.push_str(inside);
            }
            rest = &rest[open + close + 1..];
        }
        out.push_str(rest);
        out.replace(['{', '}'], "")
    }

    /// The sentence with the values of one job and layout.
    #[must_use]
    pub fn render(&self, facts: &Facts, layout: &Layout) -> String {
        let mut out = String::new();
        let mut rest = self.text;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((name, tail)) = after.split_once('}') else {
                break;
            };
            out.push_str(before);
            out.push_str(&value(name, facts, layout));
            rest = tail;
        }
        out.push_str(rest);
        out
    }
}

/// The value that a rule's sentence names.
fn value(name: &str, f: &Facts, l: &Layout) -> String {
    if let Some(said) = f.shape.said(name) {
        return said;
    }
    let number: u64 = match name {
        "seq" => f.seq,
        "batch" => f.batch,
        "world" => f.world,
        "expert_dp" => f.expert_dp(l),
        "micro_batches" => f.micro_batches(l),
        "tp" => l.tp.into(),
        "cp" => l.cp.into(),
        "ep" => l.ep.into(),
        "etp" => l.etp.into(),
        "pp" => l.pp.into(),
        "dp" => l.dp.into(),
        "vpp" => l.vpp.into(),
        "micro_batch" => l.micro_batch.into(),
        "recompute_layers" => l.recompute_layers.into(),
        "shard_group" => l.shard_group.into(),
        _ => return format!("{{{name}}}"),
    };
    number.to_string()
}

/// The first rule that a layout breaks, in the order of checks.
///
/// Every field must be at least 1 (recompute_layers apart), as the edge guarantees.
#[must_use]
pub fn first_broken(facts: &Facts, framework: Framework, layout: &Layout) -> Option<Broken> {
    let index = first_broken_index(facts, framework, layout)?;
    let rule = &RULES[index];
    Some(Broken {
        rule: index,
        id: rule.id,
        status: rule.status,
        text: rule.render(facts, layout),
    })
}

/// Index in [`RULES`] of the first rule that a layout breaks.
#[must_use]
pub fn first_broken_index(facts: &Facts, framework: Framework, layout: &Layout) -> Option<usize> {
    RULES.iter().position(|rule| match rule.check {
        Check::Layout(_, holds) => rule.binds(framework) && !holds(facts, layout),
        Check::Elsewhere(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_sorted_by_level_and_named_once() {
        let levels: Vec<_> = RULES
            .iter()
            .filter_map(|r| match r.check {
                Check::Layout(level, _) => Some(level),
                Check::Elsewhere(_) => None,
            })
            .collect();
        assert!(levels.is_sorted());
        let mut ids: Vec<_> = RULES.iter().map(|r| r.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), RULES.len());
    }

    #[test]
    fn every_rule_of_the_frameworks_is_listed() {
        let has = |id: String| {
            RULES
                .iter()
                .any(|r| r.id.trim_end_matches(['a', 'b']) == id)
        };
        for n in 1..=28 {
            assert!(has(format!("M{n}")), "M{n}");
        }
        for n in 1..=10 {
            assert!(has(format!("T{n}")), "T{n}");
        }
        for n in 1..=4 {
            assert!(has(format!("D{n}")), "D{n}");
        }
    }

    #[test]
    fn the_docs_list_every_rule() {
        let docs = include_str!("../../../../docs/space.md");
        for rule in RULES {
            let row = match rule.check {
                Check::Layout(..) => {
                    format!(
                        "| {} | {} | {} |",
                        rule.id,
                        rule.status.name(),
                        rule.statement()
                    )
                }
                Check::Elsewhere(by) => format!("| {} | {} | {by} |", rule.id, rule.text),
            };
            assert!(docs.contains(&row), "docs/space.md lacks: {row}");
        }
    }

    #[test]
    fn sentences_name_only_known_values() {
        let facts = crate::layout::space::tests::facts();
        let layout = crate::layout::space::tests::layout();
        for rule in RULES {
            let text = rule.render(&facts, &layout);
            assert!(!text.contains('{'), "{}: {text}", rule.id);
            assert!(!rule.statement().contains("()"), "{}", rule.statement());
        }
    }
}
