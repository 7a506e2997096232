"""Watch the updates of a round: mark outliers, refuse implausible ones, and defend the mean as ``[server]`` says.

The size of an update is the root mean square of its values, each divided by the scale of its piece, so that subnets of
different rates can be compared.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from feddrop.config import Server
from feddrop.config.server import BY_ENTRY
from feddrop.errors import RunError
from feddrop.learning import robust
from feddrop.learning.suspicion import A_FEW, Seen
from feddrop.subnets.parameters import Params

LARGEST = 1e6
"""The largest change of a weight that is accepted; larger ones would overflow the network."""
ABSURD, OF_NETWORK, AT_LEAST = 100.0, 10.0, 0.1
"""An update is refused if it is 100 times as large as the medians and 10 times as large as the network itself, whose
size counts as at least 0.1: merged, it would leave a network that cannot be trained any more."""

RECENT = 5
"""Updates of a device without a mark after which an earlier mark no longer counts."""

U = TypeVar("U", bound=Any)
Root = Callable[[Params, int], Params]
"""Returns the server's own update of a network in a round, for FLTrust."""


class Note(Protocol):
    """Records findings about a device's update."""

    def __call__(self, device: int, **found: Any) -> None:
        """Record ``size``, ``suspicious`` or ``status``."""


class Looked(NamedTuple):
    """What the guard has seen of a round's updates, and those that wait until all have arrived."""

    seen: Seen
    waiting: list[tuple[Any, Any]]


class Guard:
    """Watches the updates of a round as they arrive.

    Args:
        server: the settings.
        seed: the run's root seed.
        root: computes the server's own update, if ``server.mean`` is ``"fltrust"``.
        median: median size of the last round's updates; NaN before the first. Saved with the run.

    Attributes:
        known: devices that were marked, and for how many more of their updates that counts: their limits are lower,
            and the others are not compared with them. Saved with the run.
    """

    def __init__(
        self, server: Server | None = None, *, seed: int = 0, root: Root | None = None, median: float = math.nan
    ) -> None:
        self.median, self.known = median, dict[int, int]()
        self._server, self._seed, self._root = server or Server(), seed, root
        self._whole = self._server.mean not in ("mean", *BY_ENTRY)
        self._holds = bool(self._server.krum or self._server.filter or self._whole)

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint saves: the median, and the marked devices with their counts, ``[2, marked]``."""
        known = [sorted(self.known), [self.known[device] for device in sorted(self.known)]]
        return {"median": torch.tensor([self.median], dtype=torch.float64), "known": torch.tensor(known).long()}

    def returned_to(self, saved: Mapping[str, Tensor]) -> Guard:
        """Return a guard in the state that a checkpoint saved."""
        like, found = self.tensors(), copy.copy(self)
        fits = saved.keys() == like.keys() and all(saved[name].dtype == like[name].dtype for name in like)
        if not fits or saved["median"].shape != (1,) or saved["known"].ndim != 2 or len(saved["known"]) != 2:
            raise RunError("the state of the guard in the checkpoint is unreadable. Start a new run.")
        found.median, found.known = float(saved["median"]), dict(zip(*saved["known"].tolist(), strict=True))
        return found

    def watch(
        self,
        updates: Iterable[tuple[Any, U]],
        before: Params,
        round_: int,
        note: Note,
        looked: Looked | None = None,
    ) -> Iterator[tuple[Any, U]]:
        """Pass jobs and updates on, and note what was found about them.

        Sizes are compared with the larger of two medians, that of the last round and that of this one: if all devices
        move far at once, as when FedDST moves its masks, none stands out. Updates that may have to be clipped or
        refused wait until all have arrived; with multi-Krum, the filter and means of whole updates, all do.

        Args:
            updates: jobs and updates.
            before: the network before the round.
            round_: the round.
            note: called with the device and the ``size`` of its update, why it is ``suspicious``, or the ``status`` of
                one that is refused.
            looked: what was seen of updates of this round that are merged already.
        """
        last, looked = self.median, looked or self.looks(round_)
        yield from self.passing(updates, looked, before, note)
        seen, waiting = looked
        sizes = seen.sizes
        self.median = median(sizes[device] for device in seen.trusted(self.known)) if sizes else self.median
        usual, whose = self.median, "the round's"
        if last >= (usual if len(sizes) >= A_FEW else 0.0):
            usual, whose = last, "the last round's"
        marks = seen.suspicious(usual, whose, self.known)
        self.known = {  # a new object: copies of this guard keep theirs
            device: RECENT if device in marks else left - (device in sizes)
            for device, left in (self.known | dict.fromkeys(marks, RECENT)).items()
            if device in marks or left > (device in sizes)
        }
        times = {device: size / usual if usual > 0 else 1.0 for device, size in sizes.items()}
        sane = []
        for job, update in waiting:
            device = update.device
            if times[device] > ABSURD and sizes[device] > largest_sane(before, sizes[device]):
                note(device, status=f"the update is {times[device]:.3g} × as large as {whose} median: implausible")
                marks.pop(device, None)
            else:
                sane.append((job, update))
        yield from self._defended(sane, before, round_, marks, times, refused=len(waiting) - len(sane))
        for device, reason in marks.items():
            note(device, suspicious=reason)

    def looks(self, round_: int) -> Looked:
        """Return what is seen before the first update of a round."""
        return Looked(Seen(self._seed, round_), [])

    def passing(
        self, updates: Iterable[tuple[Any, U]], looked: Looked, before: Params, note: Note
    ) -> Iterator[tuple[Any, U]]:
        """Look at updates as they arrive, and pass on those that need not wait for the others."""
        last = self.median
        for job, update in updates:
            size = looked.seen.add(update)
            note(update.device, size=size)
            update = self._weighed(update)
            if (
                self._holds
                or (self._server.clip and not size <= self._server.clip * last)
                or (not size <= ABSURD * last and size > largest_sane(before, size))
            ):
                looked.waiting.append((job, update))
            else:
                yield job, update

    def _weighed(self, update: U) -> U:
        """Return an update that counts for at most ``server.max_samples`` samples."""
        most = self._server.max_samples
        return replace(update, weight=min(update.weight, float(most))) if most else update

    def _defended(
        self,
        waiting: list[tuple[Any, U]],
        before: Params,
        round_: int,
        marks: dict[int, str],
        times: dict[int, float],
        *,
        refused: int,
    ) -> Iterator[tuple[Any, U]]:
        """Yield what the server's defences leave of the updates that waited, and add to the marks."""
        server, kept = self._server, waiting
        if server.filter:
            kept = [(job, update) for job, update in kept if update.device not in marks]
            for _, update in waiting:
                if update.device in marks:
                    marks[update.device] += "; left out"
        hostile = max(0, server.krum - refused - (len(waiting) - len(kept)))
        if hostile:
            closest = robust.krum(kept, hostile)
            for at, (_, update) in enumerate(kept):
                if at not in closest:
                    why = marks.get(update.device, "far from the other updates")
                    marks[update.device] = f"{why}; left out by multi-Krum"
            kept = [one for at, one in enumerate(kept) if at in closest]
        if server.clip:
            kept = [(job, self._clipped(update, times[update.device], marks)) for job, update in kept]
        if self._whole and kept:
            kept = self._averaged(kept, before, round_)
        yield from kept

    def _clipped(self, update: U, times: float, marks: dict[int, str]) -> U:
        if not times > self._server.clip:
            return update
        why = marks.get(update.device, f"{times:.3g} × as large as the median")
        marks[update.device] = f"{why}; clipped to {self._server.clip:g} ×"
        factor = self._server.clip / times
        return replace(update, values={name: value * factor for name, value in update.values.items()})

    def _averaged(self, kept: list[tuple[Any, U]], before: Params, round_: int) -> list[tuple[Any, U]]:
        """Weigh or change the updates as the mean of whole updates does."""
        if self._server.mean == "fltrust":
            if self._root is None:
                raise RunError('server.mean is "fltrust", but the guard was given no root.')
            return robust.fltrust(kept, self._root(before, round_))
        return robust.geometric(kept, before) if self._server.mean == "geometric" else robust.centered(kept, before)


def largest_sane(before: Params, size: float) -> float:
    """Return the size that an update of this network may have; infinite if this size is small anyway."""
    if size <= OF_NETWORK * AT_LEAST:
        return math.inf
    count = sum(value.numel() for value in before.values())
    return OF_NETWORK * max(AT_LEAST, robust.norm(before.values()) / math.sqrt(max(1, count)))
