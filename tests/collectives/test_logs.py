"""Reading nccl-tests output: every vintage of text, JSON, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from meshplan.collectives import logs, span, table
from meshplan.collectives.measurement import factor, ranks_of
from meshplan.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

HEADER = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 2097152 step: 2(factor)
#  Rank  0 Group  0 Pid   11 on alpha device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   12 on beta device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#                                               out-of-place            in-place
#   size   count  type  redop  root  time algbw busbw #wrong  time algbw busbw #wrong
#    (B) (elements)                  (us) (GB/s) (GB/s)       (us) (GB/s) (GB/s)
"""
ROW = "  1048576  262144 float  sum  -1  50.00 20.97 20.97 0  49.00 21.40 21.40 0\n"


def _write(folder: Path, text: str, name: str = "all_reduce.txt") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_new_header(tmp_path: Path) -> None:
    """Ranks, hosts and device come from the header; the out-of-place time is taken."""
    (m,) = logs.read(_write(tmp_path, HEADER + ROW))
    assert (m.operation, m.size_bytes, m.ranks, m.nodes) == ("all_reduce", 1048576.0, 2, 2)
    assert m.time_s == pytest.approx(50e-6)
    assert m.gpu == "NVIDIA H100 80GB HBM3"
    assert m.where.endswith("all_reduce.txt:7")


@pytest.mark.parametrize(
    "prefix", ["[1,0]<stdout>:", "0: ", "node-17: ", "[1,0]<stdout>: 0: ", "2025-01-02T03:04:05Z "]
)
def test_prefixes_of_launchers(tmp_path: Path, prefix: str) -> None:
    """Prefixes of mpirun, srun and log collectors are passed over."""
    text = "".join(prefix + line for line in (HEADER + ROW).splitlines(keepends=True))
    (m,) = logs.read(_write(tmp_path, text))
    assert m.time_s == pytest.approx(50e-6)


@pytest.mark.parametrize(
    ("name", "line", "ranks"),
    [
        # Before 2.11: no root column, an error column.
        (
            "allreduce",
            "268435456 67108864 float sum 2000 134.22 234.88 2e-07 2001 134.15 234.76 2e-07",
            8,
        ),
        # No reduction either.
        ("alltoall", "268435456 1048576 float 52093 5.15 5.07 0e+00 51956 5.17 5.09 1e+00", 64),
        # In-place is not measured.
        (
            "alltoall",
            "8589934592 268435456 float none -1 20837 412.23 360.71 0 20817 N/A N/A N/A",
            8,
        ),
        # Out-of-place is not measured.
        ("allreduce", "8589934592 268435456 float sum -1 N/A N/A N/A N/A 20837 412.23 721.40 0", 8),
        # A broadcast has a root and tells no ranks.
        ("broadcast", "8 2 float 0 45.82 0.00 0.00 N/A 38.17 0.00 0.00 N/A", 0),
    ],
)
def test_lines_without_a_header(tmp_path: Path, name: str, line: str, ranks: int) -> None:
    """A pasted line is read by its shape; its bandwidths tell the ranks."""
    (m,) = logs.read(_write(tmp_path, line + "\n", f"{name}.txt"))
    assert m.ranks == ranks
    assert m.time_s > 0


def test_table_cut_to_four_columns(tmp_path: Path) -> None:
    """Underscored sizes and four columns, the command line names the test."""
    text = (
        "$ ./build/all_reduce_perf -g 8\n[...]\n size time algbw busbw\n (B) (us) (GB/s) (GB/s)\n"
    )
    text += " 16_777_216 276.6 60.66 106.16\n 33_554_432 424.0 79.14 138.49\n"
    first, second = logs.read(_write(tmp_path, text, "log.txt"))
    assert (first.size_bytes, first.ranks, first.operation) == (16777216.0, 8, "all_reduce")
    assert second.time_s == pytest.approx(424e-6)


def test_column_added_by_hand(tmp_path: Path) -> None:
    """A first column of one's own, such as the number of nodes, is passed over."""
    text = " nodes size count type redop time algbw busbw error time algbw busbw error\n"
    text += "  2 1073741824 268435456 float sum 35215 30.49 57.17 4e-07 35198 30.51 57.20 4e-07\n"
    (m,) = logs.read(_write(tmp_path, text))
    assert (m.size_bytes, m.ranks) == (1073741824.0, 16)


def test_sizes_of_zero_and_markers_are_no_measurements(tmp_path: Path) -> None:
    """Zero bytes, cut-out markers, warnings and footers are not data."""
    text = HEADER + "           0 0 float sum -1 5.70 0.00 0.00 0 5.54 0.00 0.00 0\n...\n"
    text += "alpha:1:1 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so\n```\n"
    text += ROW + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 21.0\n"
    assert len(logs.read(_write(tmp_path, text))) == 1


def test_a_line_cut_short_is_an_error_with_its_place(tmp_path: Path) -> None:
    """Every bad line is named at once: file, line, what was expected."""
    cut = " ".join(ROW.split()[:9]) + "\n"
    path = _write(tmp_path, HEADER + cut + ROW + cut)
    with pytest.raises(InputError) as caught:
        logs.read(path)
    places = [p.where for p in caught.value.problems]
    assert places == [f"{path}:7", f"{path}:9"]
    assert "8 numbers after the type" in str(caught.value)


def test_json(tmp_path: Path) -> None:
    """What ``-J`` writes: devices, results, and a missing out-of-place body."""
    body = {"time": 100.0, "alg_bw": 10.49, "bus_bw": 18.35, "nwrong": 0}
    result = {"size": 1048576, "count": 262144, "type": "float", "redop": "sum", "root": "-1"}
    devices = [
        {"rank": r, "hostname": f"h{r // 4}", "device_info": "NVIDIA H200"} for r in range(8)
    ]
    report = {
        "version": 1,
        "args": ["./build/all_reduce_perf", "-J", "x.json"],
        "config": {"nthreads": 1, "devices": devices},
        "results": [
            {**result, "out_of_place": body, "in_place": None},
            {**result, "out_of_place": None, "in_place": {**body, "time": 90.0}},
        ],
    }
    found = logs.read(_write(tmp_path, json.dumps(report), "x.json"))
    assert [m.time_s for m in found] == pytest.approx([100e-6, 90e-6])
    assert {(m.ranks, m.nodes, m.gpu, m.operation) for m in found} == {
        (8, 2, "NVIDIA H200", "all_reduce")
    }


@pytest.mark.parametrize("text", ["{", '{"results": 3}', '{"results": [{"size": 1}]}', "{}"])
def test_json_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    """Broken or foreign JSON is one clear error."""
    with pytest.raises(InputError):
        logs.read(_write(tmp_path, text, "all_reduce.json"))


def test_missing_file() -> None:
    """A file that is not there is an input error."""
    with pytest.raises(InputError, match="no such file"):
        logs.read("/nowhere/all_reduce.txt")


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "all_to_all"])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 64, 256])
def test_ranks_follow_from_the_two_bandwidths(operation: str, ranks: int) -> None:
    """The ratio of bus to algorithm bandwidth tells the ranks, rounded as in print."""
    algorithm = 217.34
    bus = round(algorithm * factor(operation, ranks), 2)
    assert ranks_of(operation, bus, algorithm) == ranks


def test_bandwidth_table(tmp_path: Path) -> None:
    """Time from algbw, or from busbw and the number of GPUs; bad lines with their place."""
    text = "op,size_bytes,gpus,nodes,gpu,busbw,algbw\n"
    text += "all_reduce,1000000000,8,1,H100,175.0,100.0\nalltoall,1000000000,8,1,H100,87.5,\n"
    first, second = table.read(_write(tmp_path, text, "t.csv"))
    assert first.time_s == second.time_s == pytest.approx(10e-3)
    bad = _write(tmp_path, text + "shuffle,1,8,1,H100,1,1\nreduce,x,8,1,H100,1,1\n", "bad.csv")
    with pytest.raises(InputError) as caught:
        table.read(bad)
    assert [p.where for p in caught.value.problems] == [f"{bad}:4", f"{bad}:5"]


@pytest.mark.parametrize(
    ("name", "cluster"),
    [
        ("allreduce_2x8_h100_p5_efa", "aws-p5"),
        ("allgather_a3mega_tcpxo", "gcp-a3-mega"),
        ("allgather_a3high_tcpx", "gcp-a3-high"),
        ("alltoall_h200_ndr", "h200"),
        ("allreduce_2x8_h100", "h100"),
        ("allreduce_unknown_machine", ""),
    ],
)
def test_a_name_tells_the_cluster(tmp_path: Path, name: str, cluster: str) -> None:
    """The file name or the device name chooses the preset; a rule of the user goes first."""
    (m,) = logs.read(_write(tmp_path, ROW, f"{name}.txt"))
    assert span.place(m, []).cluster == cluster
    assert span.place(m, span.rules_of(["b200"], ["b200"])).cluster == "b200"
