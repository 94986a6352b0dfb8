//! MoE routing: loads, hot ranks, expert placement.
