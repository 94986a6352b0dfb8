//! Serving: what a deployment of engines does to time to first token, time per output token and
//! tokens per second.
//!
//! | page | what |
//! |---|---|
//! | [`deployment`] | engines, their layout and flags; aggregated or disaggregated |
//! | [`load`] | requests: lengths and arrivals |
//! | [`engine`] | replay of engines, request by request |
//! | [`disagg`] | prefill and decode on engines of their own |
//! | [`closed`] | the closed form of the replay |
//! | [`estimate`] | one deployment under one load |
//! | [`outcome`] | what a replay or the closed form says |
//! | [`space`], [`rules`], [`facts`] | deployments of a job, and what backends accept |
//! | [`rows`] | estimates as columns |
//! | [`recorded`] | a trace as a load, and the hits of its prompts |
//! | [`timeline`] | requests and the deployment over time, as tables |
//! | [`steps`] | what the engine replay asks of the cost model: time of a step |
//! | [`costs`] | an engine's layout worked out once: its decode steps and prefill passes |
//! | [`operators`] | what a GPU reads, multiplies and launches for a layer |
//! | [`decode`], [`prefill`], [`exchange`] | the formulas |
//! | [`memory`] | where memory goes, and the tokens that an engine keeps |
//! | [`hardware`], [`software`], [`routing`] | their numbers: of a GPU architecture, of a backend, of how tokens choose experts |
//!
//! One definition throughout: **TTFT** is first token − arrival; **TPOT** is (last token − first
//! token) / (output tokens − 1), so it holds every stall by other requests' prefills.

pub mod closed;
pub mod costs;
pub mod decode;
pub mod deployment;
pub mod disagg;
pub mod engine;
pub mod estimate;
pub mod exchange;
pub mod facts;
#[cfg(test)]
pub(crate) mod fixture;
pub mod hardware;
pub mod load;
pub mod memory;
pub mod operators;
pub mod outcome;
pub mod prefill;
pub mod recorded;
pub mod routing;
pub mod rows;
pub mod rules;
pub mod search;
pub mod software;
pub mod space;
pub mod steps;
pub mod timeline;
