"""Published training runs of `tests/validate`, and the models that they name."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

RUNS = Path(__file__).parent / "validate" / "published_runs.csv"


def write_models(folder: Path) -> Path:
    """Write a config.json for each model of the published runs into a folder."""
    text = RUNS.with_name("published_models.toml").read_text(encoding="utf-8")
    for name, config in tomllib.loads(text).items():
        (folder / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
