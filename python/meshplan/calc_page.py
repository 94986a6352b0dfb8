"""The page of formulas, written from the registry: ``python -m meshplan.calc_page``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshplan import units
from meshplan.calc import Calculator, Parameter, calculate, groups

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = """\
# Formulas

Each formula is one Rust function, and a calculator on the command line and in Python. This page
is written from the registry (`python -m meshplan.calc_page > docs/formulas.md`), and a test holds
it to it. Units inside are SI; arguments take units such as `1 GiB`, `400 Gb/s`, `30 us` or `70B`.

```console
$ planner calc                                    # every calculator with its equation
$ planner calc all-reduce ranks=8 bytes='1 GiB'
$ planner calc all-reduce --ranks 8 --bytes 1GiB --json
```

```python
import meshplan.calc as calc

assert calc.calculate("all-reduce", ranks=8, bytes="1 GiB")["sent_bytes"] == 1.75 * 2**30
```
"""


def page() -> str:
    """Write the whole page."""
    parts = [HEAD]
    for title, members in groups().items():
        parts.append(f"\n## {title}\n")
        parts.extend("\n" + "\n".join(_section(member)) + "\n" for member in members)
    return "".join(parts)


def _section(chosen: Calculator) -> Iterator[str]:
    arguments = dict(zip([p.name for p in chosen.parameters], chosen.example, strict=True))
    results = calculate(chosen.name, **arguments)
    yield f"### `{chosen.name}`"
    yield ""
    yield f"{chosen.doc}."
    yield ""
    yield f"**{chosen.equation}**"
    yield ""
    yield "| argument | symbol | unit | meaning | default |"
    yield "|---|---|---|---|---|"
    for p in chosen.parameters:
        default = "" if p.default is None else f"{p.default:g}"
        yield f"| `{p.name}` | {p.symbol} | {_unit(p)} | {p.doc} | {default} |"
    yield ""
    given = " ".join(f"{name}={value:.15g}" for name, value in arguments.items())
    yield f"Worked: `planner calc {chosen.name} {given}`"
    yield ""
    for r in chosen.results:
        text = units.FORMATTERS[r.unit](results[r.name])
        yield f"* `{r.name}` = {results[r.name]:.10g} ({text}): {r.doc}"
    yield ""
    yield f"Source: {chosen.source}. Code: `planner_core::{chosen.code}`."


def _unit(parameter: Parameter) -> str:
    names = {"1": "ratio", "switch": "yes or no"}
    return names.get(parameter.unit, parameter.unit)


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
