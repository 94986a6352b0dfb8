//! What benchmarks share. The benchmarks themselves are in `benches/`, one file an engine.

/// Rows of the buffers that are filled: 8 MiB of `f64`, more than a second-level cache holds.
pub const FILL_ROWS: usize = 1 << 20;

/// Fill `columns` row by row with plain stores: the rate that no engine can beat on this machine.
pub fn fill(columns: &mut [Vec<f64>]) {
    for (index, column) in columns.iter_mut().enumerate() {
        let start = index as f64;
        for (row, value) in column.iter_mut().enumerate() {
            *value = start + row as f64;
        }
    }
}
