//! Which layers a pipeline stage holds.

use crate::error::{Error, Result};

/// vLLM: `⌊L/p⌋` each, the remainder to the stages before the last, from the end (`distributed/
/// utils.get_pp_indices`).
///
/// ```
/// use planner_core::kv::size::stages::even_vllm;
/// assert_eq!(even_vllm(92, 8), [11, 11, 11, 12, 12, 12, 12, 11]);
/// ```
#[must_use]
pub fn even_vllm(layers: u64, stages: u64) -> Vec<u64> {
    let (each, rest) = (layers / stages, layers % stages);
    (0..stages)
        .map(|i| each + u64::from(i + 1 < stages && i + 1 + rest >= stages))
        .collect()
}

/// SGLang and TensorRT-LLM: the remainder to the first stages.
///
/// ```
/// use planner_core::kv::size::stages::even_first;
/// assert_eq!(even_first(10, 4), [3, 3, 2, 2]);
/// ```
#[must_use]
pub fn even_first(layers: u64, stages: u64) -> Vec<u64> {
    (0..stages)
        .map(|i| layers / stages + u64::from(i < layers % stages))
        .collect()
}

/// Indices of the layers of each stage; `extra` further layers (drafts) lie on the last.
///
/// # Errors
/// The stated numbers of layers do not add up to the model's.
pub fn assign(counts: &[u64], layers: u64, extra: u64) -> Result<Vec<Vec<usize>>> {
    if counts.iter().sum::<u64>() != layers {
        let shown = format!("{counts:?}");
        return Err(Error::field(
            "pp_layers",
            shown,
            format!("must add up to {layers} layers"),
        ));
    }
    let mut first = 0;
    let mut stages: Vec<Vec<usize>> = counts
        .iter()
        .map(|n| {
            let range = first..first + *n as usize;
            first = range.end;
            range.collect()
        })
        .collect();
    if let Some(last) = stages.last_mut() {
        last.extend((layers as usize)..(layers + extra) as usize);
    }
    Ok(stages)
}
