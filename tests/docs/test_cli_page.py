"""The page about the commands says what the commands say."""

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
GENERATE = ["-m", "typer", "memfit.cli.main", "utils", "docs", "--name", "memfit"]


def test_the_page_about_the_commands_is_what_their_help_generates() -> None:
    said = subprocess.check_output([sys.executable, *GENERATE], text=True)

    refresh = f"to refresh it: python {' '.join(GENERATE)} --output docs/cli.md"
    assert PAGE.read_text("utf-8").split() == said.split(), refresh
