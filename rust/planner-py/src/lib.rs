//! Python binding of `planner-core`: convert, call, map errors. No arithmetic.
//!
//! A file here has the name of the core room that it binds, and one `pymodule_export` line below.

use pyo3::prelude::*;

pub mod calc;
pub mod collectives;
pub mod errors;
pub mod frame;
pub mod kernels;
pub mod kv;
pub mod model;
pub mod moe;
pub mod question;
pub mod serving;
pub mod serving_estimate;
pub mod serving_sweep;
pub mod sweep;
pub mod training;

#[pymodule]
mod _core {
    /// Version of the core.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use crate::calc::{calculate, calculators};

    #[pymodule_export]
    use crate::collectives::collective_times;

    #[pymodule_export]
    use crate::kernels::kernel_times;

    #[pymodule_export]
    use crate::frame::Frame;

    #[pymodule_export]
    use crate::model::model_summary;

    #[pymodule_export]
    use crate::question::{explain, training_columns};

    #[pymodule_export]
    use crate::kv::{
        KvSweep, kv_groups, kv_lengths, kv_replay, kv_schedule, kv_size, kv_transfer, kv_waste,
    };
    #[pymodule_export]
    use crate::training::{Jobs, chunk_sizes};

    #[pymodule_export]
    use crate::serving::ServingJobs;

    #[pymodule_export]
    use crate::sweep::{SweepRows, sweep};

    #[pymodule_export]
    use crate::serving_estimate::serving_estimate;

    #[pymodule_export]
    use crate::serving_sweep::{ServingRows, serving_columns, serving_explain, serving_sweep};

    #[pymodule_export]
    use crate::moe::{
        moe_balance, moe_columns, moe_dispatch, moe_fit, moe_imbalance, moe_layer_time, moe_memory,
        moe_rebalance, moe_robust, moe_simulate, moe_sweep,
    };
}
