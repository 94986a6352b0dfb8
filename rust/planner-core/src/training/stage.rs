//! Which layers sit on which pipeline stage.

use crate::model::Model;

/// Stages that hold the same layers in the same order: they cost the same, whatever is recomputed, so
/// they are looked at once.
#[derive(Clone, Debug, PartialEq)]
pub struct StageClass {
    /// Layers of each kind.
    pub counts: Vec<f64>,
    /// Kind of each layer, in order.
    pub layers: Vec<usize>,
    /// Holds the embedding.
    pub first: bool,
    /// Holds the LM head (and the MTP heads).
    pub last: bool,
    /// The earliest stage of the class: it has the most micro-batches in flight.
    pub stage: u32,
    /// Stages in the class.
    pub stages: f64,
}

/// The classes of stages of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct StagePlan {
    /// Stages p.
    pub pp: u32,
    /// Virtual chunks per stage v.
    pub vpp: u32,
    /// Distinct stages, by earliest stage.
    pub classes: Vec<StageClass>,
}

/// Layers of each of `chunks` consecutive chunks.
///
/// Equal where layers divide. Otherwise every chunk gets ⌊L/chunks⌋ and the rest goes one by one
/// to the chunks between the first and the last, which hold embedding and LM head; the last two
/// places come last.
///
/// ```
/// use planner_core::training::stage::chunk_sizes;
/// assert_eq!(chunk_sizes(80, 8), vec![10; 8]);
/// assert_eq!(chunk_sizes(126, 16)[..2], [7, 8]); // Llama-3.1-405B: 7 + 14·8 + 7
/// assert_eq!(chunk_sizes(126, 16)[15], 7);
/// assert_eq!(chunk_sizes(61, 16).iter().sum::<usize>(), 61);
/// ```
#[must_use]
pub fn chunk_sizes(layers: usize, chunks: usize) -> Vec<usize> {
    let mut sizes = vec![layers / chunks; chunks];
    let rest = layers % chunks;
    let order = (1..chunks.saturating_sub(1)).chain([0, chunks - 1]);
    for chunk in order.take(rest) {
        sizes[chunk] += 1;
    }
    sizes
}

impl StagePlan {
    /// Plan of `pp` stages with `vpp` chunks each; chunk c sits on stage c mod pp.
    #[must_use]
    pub fn new(model: &Model, pp: u32, vpp: u32) -> Self {
        let (p, chunks) = (pp as usize, (pp * vpp) as usize);
        let mut stages: Vec<Vec<usize>> = vec![Vec::new(); p];
        let mut next = 0;
        for (chunk, size) in chunk_sizes(model.layers.len(), chunks)
            .into_iter()
            .enumerate()
        {
            stages[chunk % p].extend(&model.layers[next..next + size]);
            next += size;
        }
        let mut classes: Vec<StageClass> = Vec::new();
        for (i, layers) in stages.into_iter().enumerate() {
            let mut counts = vec![0.0; model.kinds.len()];
            for &kind in &layers {
                counts[kind] += 1.0;
            }
            let (first, last) = (i == 0, i + 1 == p);
            let twin = classes
                .iter_mut()
                .find(|c| c.first == first && c.last == last && c.layers == layers);
            match twin {
                Some(class) => class.stages += 1.0,
                None => classes.push(StageClass {
                    counts,
                    layers,
                    first,
                    last,
                    stage: i as u32,
                    stages: 1.0,
                }),
            }
        }
        Self { pp, vpp, classes }
    }

    /// Layers of the fullest stage.
    #[must_use]
    pub fn most_layers(&self) -> usize {
        self.classes
            .iter()
            .map(|c| c.layers.len())
            .max()
            .unwrap_or(0)
    }
}
