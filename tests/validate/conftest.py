from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RUNS = HERE / "published_runs.csv"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a config.json for each model of the published runs."""
    folder = tmp_path_factory.mktemp("models")
    tables = tomllib.loads((HERE / "published_models.toml").read_text(encoding="utf-8"))
    for name, config in tables.items():
        (folder / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
