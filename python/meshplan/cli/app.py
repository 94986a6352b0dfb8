"""The ``planner`` command: a table of commands, each loaded from its own module when called."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from meshplan.errors import ExitStatus, PlannerError

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells expect it: 128 + SIGINT."""

COMMANDS: dict[str, tuple[str, str]] = {
    "sweep": ("meshplan.cli.sweep", "Find the best layouts of a training job."),
    "evaluate": ("meshplan.cli.evaluate", "Estimate one layout, every term."),
    "explain": ("meshplan.cli.explain", "Say why a layout costs what it costs."),
    "export": ("meshplan.cli.export", "Write launch arguments for a training framework."),
    "clusters": ("meshplan.cli.clusters", "Built-in clusters, and the facts of any cluster."),
    "columns": ("meshplan.cli.columns", "Columns of the table of layouts."),
    "calibrate": ("meshplan.cli.calibrate", "A cluster profile from your own measurements."),
    "calc": ("meshplan.cli.calc", "The formulas that engineers quote, as calculators."),
    "kv": ("meshplan.cli.kv", "KV cache: capacity, block size, prefix hits, scheduling, transfer."),
    "moe": ("meshplan.cli.moe", "MoE routing: loads, hot ranks, expert placement, dispatch."),
    "measure": ("meshplan.cli.measure", "Kernel and collective times of this machine."),
    "models": ("meshplan.cli.models", "Built-in models, and the facts of any model."),
    "validate": ("meshplan.cli.validate", "Predictions held against measurements."),
}
"""Command → (module with an ``app: typer.Typer``, one-line help for ``planner --help``)."""


class LazyGroup(TyperGroup):
    """A group whose help needs no command's module, and whose commands load only their own."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        for name, (_, summary) in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Load the module of the command that is called."""
        name, _, rest = super().resolve_command(ctx, args)
        command = typer.main.get_command(import_module(COMMANDS[name or ""][0]).app)
        command.name = name
        return name, command, rest


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from meshplan import __version__

        print(f"planner {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """How should a large model be laid out on a GPU cluster?"""


def main(argv: list[str] | None = None) -> None:
    """Run ``planner`` and leave with an :class:`~meshplan.errors.ExitStatus`."""
    try:
        status = app(argv, prog_name="planner", standalone_mode=False)
        sys.stdout.flush()
    except PlannerError as error:
        print_error(error)
        status = error.status
    except TyperException as error:
        status = _print_usage_error(error)
    except BrokenPipeError:
        status = _leave_quietly()
    except SystemExit as leaving:  # how Typer and Rich answer a closed pipe
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        status = _leave_quietly()
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        status = INTERRUPTED
    except (OSError, MemoryError) as error:
        print(f"error: {_reason(error)}", file=sys.stderr)
        status = ExitStatus.ERROR
    sys.exit(status if isinstance(status, int) else ExitStatus.FOUND)


def print_error(error: PlannerError) -> None:
    """Print each problem of an error as ``error:`` and, if there is one, ``hint:``."""
    for problem in error.problems:
        print(f"error: {problem}", file=sys.stderr)
        if problem.hint:
            print(f"hint: {problem.hint}", file=sys.stderr)


def _reason(error: OSError | MemoryError) -> str:
    """What the system refused, and of which file: of stdout unless one is named."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'stdout'}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    return str(error) or "out of memory"


def _print_usage_error(error: TyperException) -> int:
    """Print what is wrong with the command line, and where its help is."""
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if not message or type(error).__name__ == "NoArgsIsHelpError":
        print(message)
        return ExitStatus.ERROR
    print(f"error: {message}", file=sys.stderr)
    if context is not None:
        print(f"hint: see {context.command_path} --help", file=sys.stderr)
    return ExitStatus.ERROR


def _leave_quietly() -> int:
    """Leave as asked when the reader of stdout has gone (``| head``)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitStatus.FOUND


if __name__ == "__main__":
    main()
