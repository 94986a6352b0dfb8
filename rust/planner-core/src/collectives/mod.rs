//! Collectives: volume (closed forms), time (algorithm × protocol × tier), selection.
