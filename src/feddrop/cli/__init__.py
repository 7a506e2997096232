"""The command line: each command parses its arguments, calls the package and shows the result.

Commands are plain functions, registered here. They import torch and other large packages only when called, so that
``feddrop --help`` is fast.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from cyclopts import App

from feddrop.cli.allocation import allocate
from feddrop.cli.explore import explore
from feddrop.cli.failures import guarded
from feddrop.cli.output import log_to_stderr
from feddrop.cli.results import check, data, export, report
from feddrop.cli.runs import resume, run
from feddrop.cli.settings import config
from feddrop.cli.studies import theory
from feddrop.cli.sweeps import compare, sweep, with_address

app = App(
    name="feddrop",
    help="Federated dropout over wireless edge devices, with the radio in the loop.\n\n"
    "Start with `feddrop run`: it trains on built-in data in under a minute and writes a report. "
    "`feddrop config` lists every setting. `--debug` shows the traceback of an error.",
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,  # handled by guarded()
)
for command in (run, resume, sweep, compare, report, export, check, config, data, allocate, explore, theory):
    app.command(command)


def main() -> None:
    """Run the command line; an error is one line and an exit code, and SIGTERM exits cleanly."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if not sys.stderr.isatty():  # a service or a batch job: say when
        log_to_stderr()
    sys.path.append(str(Path.cwd()))  # for custom methods and losses in the current folder
    words = sys.argv[1:]
    debug = "--debug" in words
    words = with_address([word for word in words if word != "--debug"])
    raise SystemExit(guarded(lambda: app(words, print_error=False, exit_on_error=False), debug=debug))
