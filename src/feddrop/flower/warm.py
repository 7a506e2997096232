"""A SuperExec that keeps torch loaded, so that a message costs a fork instead of the import of torch.

Flower starts a process for every message. With ``--isolation process``, a SuperNode leaves that to a SuperExec. This
SuperExec has imported torch and feddrop, and answers each message in a fork of itself, with the code and data of the
run's app as usual. It takes the options of ``flower-superexec``::

    flower-supernode ... --host 127.0.0.1 --port 9094 --isolation process
    python -m feddrop.flower.warm --runtime-api-address 127.0.0.1:9094 --insecure

It needs ``fork``, so it does not run on Windows. The Runtime API of a SuperNode gives tasks to any process that asks:
keep it on 127.0.0.1, or set the same ``--superexec-auth-secret-file`` on both sides.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime.run_clientapp import run_clientapp

import feddrop.flower.client  # noqa: F401  # imports all that a device uses


class ForkExecutor(SubprocessExecutor):
    """Answers messages in forks of this process; other tasks get a new process, as usual."""

    def __init__(self) -> None:
        self._children: set[int] = set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start a task."""
        if spec.task_type != TaskType.CLIENT_APP:
            return super().launch(spec)
        child = os.fork()
        if not child:
            _answer(spec)
        self._children.add(child)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Collect the forks that have ended; called between two polls."""
        for child in list(self._children):
            with suppress(ChildProcessError):
                if os.waitpid(child, os.WNOHANG)[0] == 0:
                    continue
            self._children.discard(child)


def _answer(spec: ExecutionSpec) -> NoReturn:
    """Run the ClientApp of a task in this fork, and exit without returning to the SuperExec's loop."""
    code = 1
    try:
        exit_handler.registered_exit_handlers.clear()  # they would close the SuperExec's connections
        run_clientapp(
            runtime_api_address=spec.runtime_api_address,
            token=spec.token,
            insecure=spec.insecure,
            certificates=validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
            parent_pid=spec.parent_pid,
            runtime_dependency_install=spec.runtime_dependency_install,
        )
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Run a SuperExec, with the options of ``flower-superexec``."""
    if not hasattr(os, "fork"):
        raise SystemExit("feddrop.flower.warm needs fork, which this system lacks. Use --isolation subprocess.")
    run_superexec.get_executor = lambda *_, **__: ForkExecutor()  # type: ignore[attr-defined]
    flower_superexec()


if __name__ == "__main__":
    main()
