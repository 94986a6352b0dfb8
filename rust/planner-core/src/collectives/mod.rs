//! Collectives: volume (closed forms), time (algorithm × protocol × tier), selection.

pub mod custom;
pub mod data_parallel;
pub mod expert_parallel;
pub mod group;
pub mod links;
pub mod straggler;
pub mod tensor_parallel;
pub mod time;
pub mod volume;
