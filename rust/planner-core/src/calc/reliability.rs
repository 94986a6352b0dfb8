//! Calculators of barriers, stragglers, loss and links.

use super::{Calculator, Group, RANKS, number, outcome, rate, ratio, seconds};
use crate::collectives::{links, straggler};

pub(super) const GROUP: Group = Group {
    title: "Barriers, loss and links",
    calculators: &[
        Calculator {
            name: "straggler",
            doc: "What independent delays of ranks cost a collective, and mean utilisation",
            equation: "P = 1 − (1−q)^N; cost ≤ P·D; utilisation = c/(c + P·D)",
            source: "elementary; independent ranks",
            code: "collectives::straggler::expected_delay_s",
            parameters: &[
                RANKS,
                ratio(
                    "probability",
                    "q",
                    "chance that a rank is late in one collective",
                ),
                seconds("delay", "D", "delay of a late rank"),
                seconds("compute", "c", "useful time between collectives").or(1.0),
            ],
            results: &[
                outcome(
                    "any_delayed_probability",
                    "1",
                    "chance that any rank is late",
                ),
                outcome(
                    "expected_delay_s",
                    "s",
                    "mean cost of a collective, at most",
                ),
                outcome("utilisation_ratio", "1", "mean utilisation"),
            ],
            example: &[1000.0, 1e-5, 0.5, 5.0],
            formula: |x| {
                let n = x[0] as u64;
                let delay = straggler::expected_delay_s(x[1], n, x[2]);
                let used = straggler::mean_utilisation(x[3], delay);
                Ok(vec![
                    straggler::any_delayed_probability(x[1], n),
                    delay,
                    used,
                ])
            },
        },
        Calculator {
            name: "jitter",
            doc: "Expected wait for the last of N normal arrivals",
            equation: "σ·√(2 ln N)",
            source: "Boucheron et al. 2013, theorem 2.5 (an upper bound)",
            code: "collectives::straggler::expected_jitter_s",
            parameters: &[
                RANKS,
                seconds("sigma", "σ", "standard deviation of an arrival"),
            ],
            results: &[outcome("wait_s", "s", "expected wait, at most")],
            example: &[1000.0, 1e-3],
            formula: |x| Ok(vec![straggler::expected_jitter_s(x[1], x[0] as u64)]),
        },
        Calculator {
            name: "go-back-n",
            doc: "Goodput of a go-back-N transport under packet loss",
            equation: "(1−p)/(1 + p·(W−1))",
            source: "Tanenbaum and Wetherall, section 3.4; Mittal et al. 2018 (IRN)",
            code: "collectives::straggler::go_back_n_goodput",
            parameters: &[
                ratio("loss", "p", "chance that a packet is lost"),
                super::Parameter {
                    least: 1.0,
                    ..number("window", "W", "packets in flight")
                },
            ],
            results: &[outcome("goodput_ratio", "1", "goodput over line rate")],
            example: &[0.001, 122.0],
            formula: |x| Ok(vec![straggler::go_back_n_goodput(x[0], x[1])]),
        },
        Calculator {
            name: "link-rate",
            doc: "Bytes per second of a port; write its rate in bits, such as '400 Gb/s'",
            equation: "r/8",
            source: "8 bits a byte",
            code: "collectives::links::bytes_per_s",
            parameters: &[rate("rate", "r", "rate of the port")],
            results: &[
                outcome("bytes_per_s", "bytes/s", "each way"),
                outcome("bits_per_s", "number", "each way"),
            ],
            example: &[50e9],
            formula: |x| Ok(vec![links::bytes_per_s(8.0 * x[0]), 8.0 * x[0]]),
        },
    ],
};
