//! Sweeps: engine, table, Pareto front, bounds.
