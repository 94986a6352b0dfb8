"""Types of the compiled core; ``make types`` holds them to it."""

from collections.abc import Callable
from typing import Any, final

VERSION: str

def calculators() -> str:
    """Every calculator by subject, as JSON."""

def calculate(name: str, arguments: dict[str, float]) -> str:
    """Call a calculator: JSON with ``results`` in declared order, or with ``problems``."""

@final
class Frame:
    """Columns of results; read it with ``polars.DataFrame(frame)``."""

    @property
    def column_names(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any: ...
    def __arrow_c_schema__(self) -> Any: ...
    def _buffer_addresses(self) -> dict[str, int]: ...

def explain(question: str) -> str: ...
def model_summary(spec: str, kv_dtype: str) -> str: ...
def training_columns() -> list[tuple[str, str, str]]: ...

@final
class Jobs:
    """A fixed list of runs, predicted under clusters and software that vary."""

    def __new__(cls, models: list[str], jobs: str) -> Jobs: ...
    def __len__(self) -> int: ...
    def predict(
        self, clusters: list[str], software: list[str], *, only: list[int] | None = None
    ) -> Frame: ...

def kv_replay(path: str, trace: str, options: str) -> str: ...
def kv_size(query: str) -> str: ...

def moe_balance(spec: str) -> str: ...
def chunk_sizes(layers: int, chunks: int) -> list[int]:
    """Layers of each of so many consecutive pipeline chunks."""
def sweep(
    request: str,
    *,
    top: int = 10,
    pareto: bool = True,
    exhaustive: bool = False,
    threads: int = 0,
    on_progress: Callable[[int, int], object] | None = None,
) -> tuple[str, Frame, Frame]:
    """Account of a sweep as JSON, the fastest layouts, and the Pareto front."""

@final
class SweepRows:
    """Every layout of a job, in layout order, as frames of some ten thousand rows."""

    def __new__(
        cls, request: str, *, fitting: bool = False, threads: int = 0
    ) -> SweepRows: ...
    def __iter__(self) -> SweepRows: ...
    def __next__(self) -> Frame: ...
    @property
    def feasible(self) -> int: ...
    @property
    def done(self) -> int: ...
def collective_times(cluster: str, requests: str) -> list[float]: ...
def kernel_times(device: str, requests: str) -> list[float]: ...
