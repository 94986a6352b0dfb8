"""Every setting that a training export may write is its framework's, with a legal value."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from export_jobs import job, moe_model, training
from export_legal import TABLE, faults_of_flags, faults_of_options, pairs, words
from export_training import written
from meshplan.export import NotExpressible, export
from meshplan.export.deepspeed import config
from meshplan.export.torchtitan import batch, parallelism


def leaves(tree: dict[str, Any], at: str = "") -> set[str]:
    """Names of all settings of a tree, or of its declaration in the table."""
    found: set[str] = set()
    for name, value in tree.items():
        below = (
            value.get("fields", None if "type" in value else value)
            if isinstance(value, dict)
            else None
        )
        found |= leaves(below, f"{at}{name}.") if below else {at + name}
    return found


def test_megatron_flags_are_its_own() -> None:
    seen: set[str] = set()
    for _, files in written("megatron"):
        block = files["launch.sh"].split("LAYOUT=(\n")[1].split("\n)\n")[0]
        arguments = words(f"layout {block}".replace("\n", " "), "layout")
        assert list(faults_of_flags("megatron", arguments)) == []
        seen |= {flag for flag, _ in pairs(arguments)}
    assert seen == set(TABLE["megatron"]["flags"])


def test_megatron_bridge_fields_are_its_own() -> None:
    seen: set[str] = set()
    for _, files in written("megatron-bridge"):
        tree: dict[str, Any] = {}
        for node in ast.walk(ast.parse(files["plan.py"])):
            if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call):
                section, field = ast.unparse(node.targets[0]).removeprefix("cfg.").split(".")
                tree.setdefault(section, {})[field] = ast.literal_eval(node.value)
        assert faults_of_options("megatron-bridge", tree) == []
        seen |= leaves(tree)
    assert seen == leaves(TABLE["megatron-bridge"]["options"])


def test_torchtitan_fields_are_its_own() -> None:
    seen: set[str] = set()
    for of, _ in written("torchtitan"):
        tree = {"parallelism": parallelism(of), "training": batch(of)}
        assert faults_of_options("torchtitan", tree) == []
        seen |= leaves(tree)
    assert seen == leaves(TABLE["torchtitan"]["options"])


def test_deepspeed_settings_are_its_own() -> None:
    seen: set[str] = set()
    for of, _ in written("deepspeed", ulysses=True):
        tree = config(of)
        assert faults_of_options("deepspeed", tree) == []
        seen |= leaves(tree)
    assert seen == leaves(TABLE["deepspeed"]["options"])


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"vpp": 1, "schedule": "1f1b"}, "vpp > 1"), ({"recompute": "full"}, "full recomputation")],
)
def test_megatron_hides_dispatch_under_conditions(changes: dict[str, Any], word: str) -> None:
    at = {"tp": 1, "pp": 4, "dp": 32, "ep": 8, "vpp": 5, "schedule": "interleaved"}
    work = training(overlap={"ep": True})
    sound = job(of=moe_model(layers=[1] * 60), work=work, sequence_parallel=False, **at)
    assert "--overlap-moe-expert-parallel-comm" in export(sound, "megatron").files["launch.sh"]
    wrong = job(of=moe_model(layers=[1] * 60), work=work, sequence_parallel=False, **at | changes)
    with pytest.raises(NotExpressible, match=word):
        export(wrong, "megatron")


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "deepspeed"])
def test_the_table_is_of_the_release_that_is_named(target: str) -> None:
    at = {"tp": 1, "pp": 1, "dp": 256, "sequence_parallel": False, "sharding": "zero3"}
    assert export(job(**at), target).tested_with == TABLE[target]["release"]
