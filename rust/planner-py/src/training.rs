//! Many layouts at once, each on its own model, cluster and software: what validation and
//! calibration evaluate again and again with other parameters.

use planner_core::cluster::Cluster;
use planner_core::error::Error;
use planner_core::layout::Layout;
use planner_core::model::Model;
use planner_core::training::Estimator;
use planner_core::training::row::{Row, Rows};
use planner_core::training::software::Software;
use planner_core::training::workload::Training;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use serde::Deserialize;

use crate::errors::CoreResult;
use crate::frame::Frame;

/// One run to predict; numbers index the lists of the request.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    model: usize,
    cluster: usize,
    software: usize,
    gpus: u64,
    training: Training,
    layout: Layout,
}

/// A fixed list of runs, predicted under clusters and software that vary.
#[pyclass(frozen, module = "meshplan._core")]
#[derive(Debug)]
pub struct Jobs {
    models: Vec<Model>,
    jobs: Vec<Job>,
}

#[pymethods]
impl Jobs {
    /// Parse models (canonical JSON each) and jobs (one JSON list).
    #[new]
    fn new(models: Vec<String>, jobs: &str) -> CoreResult<Self> {
        Ok(Self {
            models: models
                .iter()
                .map(|m| serde_json::from_str(m))
                .collect::<Result<_, _>>()?,
            jobs: serde_json::from_str(jobs)?,
        })
    }

    fn __len__(&self) -> usize {
        self.jobs.len()
    }

    /// Jobs that cannot be predicted under these clusters and this software: (number, reason).
    fn problems(
        &self,
        py: Python<'_>,
        clusters: Vec<String>,
        software: Vec<String>,
    ) -> PyResult<Vec<(usize, String)>> {
        let clusters: Vec<Cluster> = parse(&clusters)?;
        let software: Vec<Software> = parse(&software)?;
        py.detach(|| {
            let mut found = Vec::new();
            for i in 0..self.jobs.len() {
                if let Err(error) = self.estimate(i, &clusters, &software)? {
                    found.push((i, error.to_string()));
                }
            }
            Ok(found)
        })
    }

    /// Predict the jobs in `only` (all when `None`): one row each, in order.
    #[pyo3(signature = (clusters, software, *, only = None))]
    fn predict(
        &self,
        py: Python<'_>,
        clusters: Vec<String>,
        software: Vec<String>,
        only: Option<Vec<usize>>,
    ) -> PyResult<Frame> {
        let clusters: Vec<Cluster> = parse(&clusters)?;
        let software: Vec<Software> = parse(&software)?;
        let only = only.unwrap_or_else(|| (0..self.jobs.len()).collect());
        let rows = py.detach(|| -> PyResult<Rows> {
            let mut rows = Rows::default();
            for i in only {
                rows.push(&self.row(i, &clusters, &software)?);
            }
            Ok(rows)
        })?;
        Frame::new(rows.into_table())
    }
}

impl Jobs {
    fn row(&self, i: usize, clusters: &[Cluster], software: &[Software]) -> PyResult<Row> {
        let row = self.estimate(i, clusters, software)?;
        Ok(row.map_err(crate::errors::CoreError::from)?)
    }

    /// The row of a job, or why it has none; an index beside the lists is the caller's mistake.
    fn estimate(
        &self,
        i: usize,
        clusters: &[Cluster],
        software: &[Software],
    ) -> PyResult<Result<Row, Error>> {
        let job = pick(&self.jobs, i)?;
        let estimator = Estimator::new(
            pick(&self.models, job.model)?.clone(),
            pick(clusters, job.cluster)?.clone(),
            job.training.clone(),
            pick(software, job.software)?.clone(),
            job.gpus,
        );
        Ok(estimator.and_then(|estimator| estimator.row(&job.layout)))
    }
}

fn parse<T: for<'de> Deserialize<'de>>(texts: &[String]) -> PyResult<Vec<T>> {
    let parsed: Result<Vec<T>, _> = texts.iter().map(|t| serde_json::from_str(t)).collect();
    Ok(parsed.map_err(crate::errors::CoreError::from)?)
}

fn pick<T>(list: &[T], i: usize) -> PyResult<&T> {
    list.get(i)
        .ok_or_else(|| PyIndexError::new_err(format!("index {i} of {}", list.len())))
}

/// Layers of each of `chunks` consecutive pipeline chunks: how every estimate places them.
#[pyfunction]
pub fn chunk_sizes(layers: usize, chunks: std::num::NonZeroUsize) -> Vec<usize> {
    planner_core::training::stage::chunk_sizes(layers, chunks.get())
}
