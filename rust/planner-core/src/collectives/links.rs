//! Datasheet rates of common links: facts, one direction unless said. Efficiencies live elsewhere.

/// A link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Name.
    pub name: &'static str,
    /// Peak of one GPU's links (NVLink) or of one port, bytes/s each way.
    pub bytes_per_s: f64,
    /// Hardware latency, s: lower and upper end of what is quoted.
    pub latency_s: (f64, f64),
    /// Where the rate is stated.
    pub source: &'static str,
}

const NVLINK_LATENCY: (f64, f64) = (1e-6, 1e-6);
const INFINIBAND_LATENCY: (f64, f64) = (1e-6, 2e-6);
const ROCE_LATENCY: (f64, f64) = (2e-6, 5e-6);

const fn link(
    name: &'static str,
    bytes_per_s: f64,
    latency_s: (f64, f64),
    source: &'static str,
) -> Link {
    Link {
        name,
        bytes_per_s,
        latency_s,
        source,
    }
}

const NIC: &str = "InfiniBand Trade Association roadmap; 8 bits a byte";

/// The links that engineers quote. NCCL's own latencies per step are larger.
pub const LINKS: &[Link] = &[
    link(
        "NVLink 3 (A100)",
        300e9,
        NVLINK_LATENCY,
        "NVIDIA A100 datasheet: 600 GB/s both ways",
    ),
    link(
        "NVLink 4 (H100, H200)",
        450e9,
        NVLINK_LATENCY,
        "NVIDIA H100 datasheet: 900 GB/s both ways",
    ),
    link(
        "NVLink 5 (B200, GB200)",
        900e9,
        NVLINK_LATENCY,
        "NVIDIA B200 datasheet: 1.8 TB/s both ways",
    ),
    link("InfiniBand HDR 200 Gb/s", 25e9, INFINIBAND_LATENCY, NIC),
    link("InfiniBand NDR 400 Gb/s", 50e9, INFINIBAND_LATENCY, NIC),
    link("InfiniBand XDR 800 Gb/s", 100e9, INFINIBAND_LATENCY, NIC),
    link(
        "RoCE 200 Gb/s",
        25e9,
        ROCE_LATENCY,
        "IEEE 802.3; 8 bits a byte",
    ),
    link(
        "RoCE 400 Gb/s",
        50e9,
        ROCE_LATENCY,
        "IEEE 802.3; 8 bits a byte",
    ),
    link(
        "RoCE 800 Gb/s",
        100e9,
        ROCE_LATENCY,
        "IEEE 802.3; 8 bits a byte",
    ),
];

/// Bytes/s of a rate in bits/s: r/8.
///
/// ```
/// use planner_core::collectives::links::bytes_per_s;
/// assert_eq!(bytes_per_s(400e9), 50e9);
/// ```
#[must_use]
pub const fn bytes_per_s(bits_per_s: f64) -> f64 {
    bits_per_s / 8.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvlink_is_nine_to_eighteen_nics() {
        let rate = |name: &str| {
            let found = LINKS.iter().find(|l| l.name.starts_with(name));
            found.expect("a named link").bytes_per_s
        };
        let ndr = rate("InfiniBand NDR");
        assert_eq!(ndr, bytes_per_s(400e9));
        assert_eq!(rate("NVLink 4") / ndr, 9.0);
        assert_eq!(rate("NVLink 5") / ndr, 18.0);
        assert_eq!(rate("NVLink 3") / rate("InfiniBand HDR"), 12.0);
    }
}
