"""``planner models``: the list, the facts, and what goes to which stream."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from small_models import LLAMA


def planner(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshplan.cli.app", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_list() -> None:
    done = planner("models")
    assert (done.returncode, done.stderr) == (0, "")
    assert "llama-3.1-70b" in done.stdout
    rows = json.loads(planner("models", "--json").stdout)["models"]
    assert len(rows) >= 25
    assert all(row["source"].startswith("http") for row in rows)


def test_show_json() -> None:
    done = planner("models", "show", "llama-3.1-8b", "--json")
    facts = json.loads(done.stdout)
    assert facts["total_params"] == facts["active_params"] == 8_030_261_248
    assert facts["kv_bytes_per_token"] == 131_072
    assert [(kind["name"], kind["count"]) for kind in facts["kinds"]] == [("gqa+dense", 32)]


def test_show_for_people() -> None:
    done = planner("models", "show", "deepseek-v3")
    assert done.returncode == 0
    assert "671,026,419,200" in done.stdout
    assert "mla+moe" in done.stdout


def test_assumptions_are_talk(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "model_type": "mystery"}))
    done = planner("models", "show", str(tmp_path), "--json")
    assert done.returncode == 0
    assert "assumed: model_type" in done.stderr
    assert json.loads(done.stdout)["assumptions"]


def test_every_problem_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, "hidden_size": -1, "vocab_size": "many"}))
    done = planner("models", "show", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("error: ") == 2
    assert "hint: " in done.stderr


def test_unknown_preset_and_format() -> None:
    done = planner("models", "show", "llama-3.1-9b")
    assert done.returncode == 2
    assert "hint: did you mean llama-3.1-8b" in done.stderr
    assert planner("models", "show", "gpt-2", "--kv-dtype", "fp3").returncode == 2
