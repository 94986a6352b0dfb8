//! Pipeline schedules: bubble, in-flight micro-batches, replay.
