"""Renew the outputs that README.md shows: ``make readme``.

A comment ``<!-- output of: COMMAND -->`` stands before each block that a command wrote.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
SHOWN = re.compile(r"(<!-- output of: (.+?) -->\n```text\n)(.*?)(```\n)", re.DOTALL)


def output(command: str) -> str:
    """Run a command as a reader with a wide, plain terminal would."""
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "110"}
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=env, check=True
    )
    return "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())


def main() -> None:
    """Rewrite the blocks in place."""
    text = README.read_text(encoding="utf-8")
    text = SHOWN.sub(lambda found: found[1] + output(found[2]) + found[4], text)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
