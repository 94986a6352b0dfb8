use super::*;
use crate::serving::fixture::{FP8, HARDWARE, SOFTWARE, cluster, dense, engine, latent_moe};
use crate::serving::load::Lengths as Spread;

fn load(concurrency: u32, input: u32, output: u32) -> Load {
    let spread = |tokens| Spread { tokens, low: 0.8 };
    Load {
        arrivals: Arrivals::Closed { concurrency },
        input: spread(input),
        output: spread(output),
        requests: None,
        prefix_hit_ratio: 0.0,
        acceptance: None,
        seed: 0,
    }
}

fn aggregated(backend: Backend, engine: Engine, workers: u32) -> Deployment {
    Deployment {
        backend,
        precision: FP8,
        prefill: None,
        decode: Pool { workers, engine },
    }
}

fn ask(model: &Model, deployment: &Deployment, load: &Load, mode: Mode) -> Estimate {
    let cluster = cluster();
    let setting = Setting {
        model,
        cluster: &cluster,
        hardware: &HARDWARE,
        software: &SOFTWARE,
        backend: deployment.backend,
        routing: Routing::UNIFORM,
        measured: None,
    };
    let question = Question {
        setting,
        deployment,
        load,
        limits: Limits::NONE,
        mode,
    };
    answer(&question, &mut Space::default()).unwrap()
}

fn near(a: f64, b: f64, band: f64) -> bool {
    (a / b - 1.0).abs() < band
}

#[test]
fn three_modes_agree() {
    let model = dense();
    for backend in [Backend::Vllm, Backend::Sglang, Backend::Trtllm] {
        for concurrency in [1, 8, 64] {
            let deployment = aggregated(backend, engine(1), 1);
            let load = load(concurrency, 1024, 1024);
            let go = |mode| ask(&model, &deployment, &load, mode).outcome;
            let (a, b, c) = (go(Mode::Replay), go(Mode::Tabulated), go(Mode::Mean));
            assert!(near(b.ttft_s.mean, a.ttft_s.mean, 0.01), "{a:?} {b:?}");
            assert!(near(b.tpot_s.mean, a.tpot_s.mean, 0.01), "{a:?} {b:?}");
            assert!(near(c.ttft_s.mean, a.ttft_s.mean, 0.15), "{a:?} {c:?}");
            assert!(near(c.tpot_s.mean, a.tpot_s.mean, 0.06), "{a:?} {c:?}");
        }
    }
}

#[test]
fn alone_a_request_is_its_terms() {
    let mut load = load(1, 1024, 128);
    (load.input.low, load.output.low) = (1.0, 1.0);
    let e = ask(
        &dense(),
        &aggregated(Backend::Vllm, engine(1), 1),
        &load,
        Mode::Replay,
    );
    let outside = SOFTWARE.ttft_s + 1024.0 * SOFTWARE.ttft_per_token_s;
    assert!(near(
        e.outcome.ttft_s.mean,
        outside + e.prefill.total_s(),
        1e-9
    ));
    assert!(near(e.outcome.tpot_s.mean, e.decode.total_s(), 1e-3));
    assert!(e.fits && e.memory.available_bytes > 0.0);
}

#[test]
fn drafts_shorten_and_small_memory_does_not_fit() {
    let model = latent_moe();
    let wide = Engine {
        ep: 8,
        moe_tp: 1,
        ..engine(8)
    };
    let plain = aggregated(Backend::Sglang, wide, 1);
    let mut tight = plain;
    tight.decode.engine.memory_share = 0.05;
    let load = load(16, 2048, 512);
    let a = ask(&model, &plain, &load, Mode::Replay);
    assert!(a.fits && a.outcome.ttft_s.mean > 0.0);
    let b = ask(&model, &tight, &load, Mode::Replay);
    assert!(!b.fits && b.outcome.requests == 0);
}

#[test]
fn apart_nothing_stalls_decoding() {
    let model = dense();
    let pool = |workers| Pool {
        workers,
        engine: engine(1),
    };
    let split = Deployment {
        prefill: Some(pool(3)),
        ..aggregated(Backend::Trtllm, engine(1), 1)
    };
    let load = load(48, 4096, 512);
    let (a, b, c) = (
        ask(&model, &split, &load, Mode::Replay),
        ask(&model, &split, &load, Mode::Tabulated),
        ask(&model, &split, &load, Mode::Mean),
    );
    let together = ask(
        &model,
        &aggregated(Backend::Trtllm, engine(1), 1),
        &load,
        Mode::Replay,
    );
    assert!(a.outcome.tpot_s.mean < together.outcome.tpot_s.mean);
    assert!(
        near(b.outcome.ttft_s.mean, a.outcome.ttft_s.mean, 0.02),
        "{a:?} {b:?}"
    );
    assert!(
        near(b.outcome.tpot_s.mean, a.outcome.tpot_s.mean, 0.01),
        "{a:?} {b:?}"
    );
    println!(
        "{:?}\n{:?}\n{:?} {:?}",
        a.outcome, c.outcome, a.prefill_busy_ratio, c.prefill_busy_ratio
    );
    assert!(
        near(c.outcome.tpot_s.mean, a.outcome.tpot_s.mean, 0.1),
        "{a:?} {c:?}"
    );
    assert!(
        near(c.outcome.ttft_s.mean, a.outcome.ttft_s.mean, 0.4),
        "{a:?} {c:?}"
    );
    let busy = a.prefill_busy_ratio.unwrap();
    assert!(
        near(c.prefill_busy_ratio.unwrap(), busy, 0.2),
        "{a:?} {c:?}"
    );
}

#[test]
fn a_trace_and_an_open_loop() {
    let model = dense();
    let mut open = load(1, 1024, 256);
    open.arrivals = Arrivals::Open {
        rate_per_s: 4.0,
        cv: 1.0,
    };
    let deployment = aggregated(Backend::Vllm, engine(1), 2);
    let (a, b) = (
        ask(&model, &deployment, &open, Mode::Tabulated),
        ask(&model, &deployment, &open, Mode::Mean),
    );
    assert!(
        near(b.outcome.tpot_s.mean, a.outcome.tpot_s.mean, 0.05),
        "{a:?} {b:?}"
    );
    assert!(
        near(b.outcome.ttft_s.mean, a.outcome.ttft_s.mean, 0.2),
        "{a:?} {b:?}"
    );
    let request = |i: u32| crate::serving::load::Request {
        arrival_s: f64::from(i) * 0.1,
        input: 500 + i,
        output: 100,
        hit: 64,
    };
    open.arrivals = Arrivals::Trace {
        requests: (0..50).map(request).collect(),
    };
    let traced = ask(&model, &deployment, &open, Mode::Replay);
    assert_eq!((traced.outcome.requests, traced.outcome.rejected), (50, 0));
}
