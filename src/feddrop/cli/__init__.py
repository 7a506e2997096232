"""The command line. Thin: each command reads its arguments, calls the package, and shows what came back.

Commands stand in one file a group and are plain functions; here they are hung up. Nothing heavy is imported before it
is needed, so that ``feddrop --help`` answers at once.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from cyclopts import App

from feddrop.cli.analysing import allocate, theory
from feddrop.cli.failures import guarded
from feddrop.cli.looking import data, export, report
from feddrop.cli.running import resume, run
from feddrop.cli.settings import config
from feddrop.cli.sweeping import sweep, with_address

app = App(
    name="feddrop",
    help="Federated dropout over wireless edge devices, with the radio in the loop.\n\n"
    "Start with `feddrop run`: it trains on embedded data in under a minute and writes a report. "
    "`feddrop config` lists every setting. With `--debug` an error shows its traceback.",
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,  # guarded() sees to it
)
for command in (run, resume, sweep, report, export, config, data, allocate, theory):
    app.command(command)


def main() -> None:
    """Run the command line: an error is one clear line and an exit code; a kill tidies up as an exit does."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.path.append(str(Path.cwd()))  # a method or a loss that is named may stand in a module here
    words = sys.argv[1:]
    debug = "--debug" in words
    words = with_address([word for word in words if word != "--debug"])
    raise SystemExit(guarded(lambda: app(words, print_error=False, exit_on_error=False), debug=debug))
