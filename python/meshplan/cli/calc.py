"""``planner calc``: the formulas that engineers quote, as calculators."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from meshplan import units
from meshplan.calc import Calculator, Outcome, calculate, calculator, groups
from meshplan.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(add_completion=False)

UNNAMED = "write name=value or --name value, such as ranks=8"


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: planner calc all-reduce ranks=8 bytes='1 GiB'",
)
def calc(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Calculator; without one, all are listed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compute a formula; arguments follow as name=value or --name value, with units."""
    if name is None or name.startswith("-"):
        if name is not None or context.args:
            raise InputError(
                "names no calculator", field="calculator", hint="planner calc lists all"
            )
        _list(as_json)
        return
    chosen = calculator(name)
    arguments = read_arguments(chosen, context.args)
    results = calculate(name, **arguments)
    if as_json:
        answer = {"calculator": name, "equation": chosen.equation, "results": results}
        print(json.dumps(answer, ensure_ascii=False, allow_nan=False))
        return
    print(chosen.equation)
    width = max(len(result.name) for result in chosen.results)
    for result in chosen.results:
        print(f"{result.name:<{width}}  {shown(result, results[result.name])}")


def shown(result: Outcome, value: float) -> str:
    """Value for people, followed by the exact SI number where the two differ."""
    text = units.FORMATTERS[result.unit](value)
    exact = f"{value:.15g}"
    if result.unit in {"bytes", "bytes/s", "s"}:
        return f"{text}  ({exact} {result.unit})"
    return text if text.replace(",", "") == exact else f"{text}  ({exact})"


def read_arguments(chosen: Calculator, words: list[str]) -> dict[str, str]:
    """Arguments as they were written: ``name=value``, ``--name=value``, ``--name value``.

    A switch may stand alone: ``--sequence-parallel``.

    Raises
    ------
    InputError
        With every word that names no argument, and every argument given twice.
    """
    arguments: dict[str, str] = {}
    problems: list[Problem] = []
    for name, value, word in _pairs(chosen, words):
        if not name:
            problems.append(Problem("names no argument", field=word[:60], hint=UNNAMED))
        elif name in arguments:
            problems.append(Problem("is given twice", field=name, hint="give it once"))
        else:
            arguments[name] = value
    if problems:
        raise InputError.all_of(problems)
    return arguments


def _pairs(chosen: Calculator, words: list[str]) -> Iterator[tuple[str, str, str]]:
    """Name, value and word of each argument; the name is empty where there is none."""
    switches = {p.name for p in chosen.parameters if p.unit == "switch"}
    rest = iter(words)
    for word in rest:
        flag = word.startswith("--")
        name, equals, value = word.removeprefix("--").partition("=")
        name = name.strip().replace("-", "_") if re.match(r"\w", name) else ""
        if not equals and not flag:
            name = ""
        elif not equals:
            value = "yes" if name in switches else next(rest, "")
        yield name, value.strip(), word


def _list(as_json: bool) -> None:
    if as_json:
        listed = {title: [asdict(c) for c in members] for title, members in groups().items()}
        print(json.dumps(listed, ensure_ascii=False, allow_nan=False))
        return
    columns = max(40, min(100, shutil.get_terminal_size((100, 24)).columns))
    for title, members in groups().items():
        print(title)
        for member in members:
            for text in (member.doc, member.equation, member.usage.removeprefix("planner calc ")):
                first = f"  {member.name}: " if text is member.doc else "      "
                print(
                    textwrap.fill(text, columns, initial_indent=first, subsequent_indent="      ")
                )
        print()
