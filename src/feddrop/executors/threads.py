"""The torch threads of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Use this many torch threads in the body, then as many as before.

    The server merges with as many threads as a device has, ``execution.threads``, with every executor. Torch's default,
    one thread per core, is slower beside workers that are busy on the same cores: every operation waits for the thread
    that gets a core last. It also makes sums depend on the machine's cores.
    """
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)
