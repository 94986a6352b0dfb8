"""Find the best layout of a model on a cluster, and see why it is the best.

Run it with ``python examples/quickstart.py``.
"""

import polars as pl

import meshplan as mp


def main() -> None:
    """Search, look at the answer, and ask about one layout."""
    job: mp.Job = {
        "model": "llama-3.1-8b",  # or the path of a config.json
        "cluster": "h100",  # or a TOML file of your own
        "gpus": 64,
        "workload": mp.Training(seq_len=8192, global_batch=256),
    }
    result = mp.sweep(**job)
    print(result)
    print("rejected:", result.rejections)

    # Every layout is a row of a Polars frame.
    fitting = result.frame.filter(pl.col("status") == "ok")
    print(fitting.group_by("tp").agg(pl.col("step_time_s").min()).sort("tp"))

    # One layout, every term.
    row = mp.evaluate(**job, tp=2, pp=1, micro_batch=1, recompute="selective")
    print(f"{row!r}\nGEMMs take {row.gemm_s / row.step_time_s:.0%} of the step")


if __name__ == "__main__":
    main()
