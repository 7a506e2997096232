"""Rates for real nodes: the lowest rate at which each meets the deadline, by its declared or measured speeds.

Every node has a separate link, so there is no shared band to divide. What remains of the paper's P1 is, for each
device, the smallest rate γ in [0, θ] with

    o + d·push(γ) + u·pull(γ) + s·flops(γ) <= T0      deadline, by the server's clock
    W_send·u·pull(γ) + W_compute·s·flops(γ) <= E      energy, if declared

o: seconds per message of any size (Flower starts a process for each, and a node polls every 3 s); d, u: seconds per
byte down and up; s: seconds per FLOP; push, pull, flops: bytes and FLOPs of a subnet of rate γ, none of which grows
with γ. The planner therefore takes the first rate of a fine grid that satisfies both.

Measured speeds are uncertain. The planner leaves a margin: as much as a round of the window overran its line, and at
least 5 %. A first high rate is a trial: if a node then cannot meet the deadline at θ and was hardly faster at the high
rate, dropout does not help it (its time is a constant delay), and it gets its first rate back until the next trial.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feddrop.errors import InfeasibleError
from feddrop.flower.fleet import Fleet
from feddrop.radio.plan import NO_STATE, ArrayState
from feddrop.simulation.covers import predicted
from feddrop.simulation.participation import Roster
from feddrop.simulation.round import DeviceRound
from feddrop.simulation.schemes import RoundPlan, Workload
from feddrop.subnets.parameters import Params

log = logging.getLogger("feddrop")

STEPS = 256
"""Steps of the grid of rates from 0 to θ."""
WINDOW = 5
"""Rounds over which a speed is measured: enough to be steady, few enough to follow a node that slows down."""
TRIAL = 25
"""Rounds after which a measurement at another rate is forgotten, so that a node on which dropout did not help is tried
again."""
MARGIN = 0.05
"""Smallest margin, as a fraction of the planned seconds."""
HELP = 0.5
"""Dropout helps a node if it saves more than this fraction of the seconds that the saved bytes and FLOPs would if the
time were proportional to them."""
_APART = 0.2
"""Smallest relative difference of two sizes that determines the slope."""
_ANCHOR = 0.05
"""Weight of the point known without measuring (no bytes, no FLOPs) relative to that of a round: it decides the slope
when all rounds have the same size."""

_UNPREDICTABLE = (
    'which planning needs. Use an exact count, no layer rates and a threshold per layer, or flower.planning = "given".'
)
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeeds:
    """Measurements of one device in one round."""

    round: int  # number of the round
    size: float  # bytes down and up
    link_s: float  # seconds from sending to receiving, without computation
    flops: float = 0.0  # FLOPs computed; 0 if unknown because the reply was late
    compute_s: float = 0.0  # seconds of computation

    def __post_init__(self) -> None:
        if not all(0 <= value < math.inf for value in astuple(self)):
            raise ValueError("measurements must be finite numbers of at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of a node: seconds per message (o), per byte down (d), per byte up (u) and per FLOP (s)."""

    message_s: float
    down_s: float
    up_s: float
    flop_s: float

    def seconds(self, push: Any, pull: Any, flops: Any) -> Any:
        """Return the duration of a round in seconds."""
        return self.message_s + self.down_s * push + self.up_s * pull + self.flop_s * flops


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The cost of a subnet by rate, arrays ``[STEPS + 1]``: bytes down and up, and FLOPs per sample."""

    rate: Floats
    push: Floats
    pull: Floats
    flops: Floats

    @classmethod
    def of(cls, work: Workload, max_rate: float) -> Costs:
        """Compute the costs from the method's subnet sizes."""
        size_at, rates = predicted(work, _UNPREDICTABLE), np.linspace(0.0, max_rate, STEPS + 1)
        push, pull, flops = np.array([size_at(rate) for rate in rates.tolist()]).T
        return cls(rate=rates, push=push, pull=pull, flops=flops)


def lowest(seconds: Floats, joules: Floats, deadline_s: float, budget_j: float) -> tuple[int, str]:
    """Return the first index of the grid that meets deadline and budget (its length if none), and what binds there."""
    late, over = seconds > deadline_s, joules > budget_j
    place = int(np.argmin(np.append(late | over, False)))
    if place == 0:
        return 0, "none"
    return place, "+".join(name for name, bad in (("deadline", late), ("energy", over)) if bad[place - 1])


class NodeRates:
    """Chooses the rates of real nodes; devices of unknown speed have the rates ``first``."""

    takes = ("rate",)  # for devices of unknown speed

    def __init__(
        self, fleet: Fleet, work: Workload, participation: Roster, *, first: Sequence[float], epochs: int
    ) -> None:
        self._fleet, self._config, self._work, self._participation = fleet, fleet.config, work, participation
        self._first, self._epochs = first, epochs
        self.kept_settings = fleet.config.planning_settings()
        self._costs = Costs.of(work, fleet.config.max_rate)
        self.history: dict[int, deque[MeasuredSpeeds]] = {}
        self._round = 0
        self._helpless: set[int] = set()

    def decide(self, round_: int, state: ArrayState = NO_STATE, params: Params | None = None) -> RoundPlan:  # noqa: ARG002
        """Choose the rates of a round."""
        self._round = round_
        chosen = self._participation.chosen(round_).tolist()
        speeds = {device: speed for device in chosen if (speed := self.speed(device))}
        seconds = {
            k: v.seconds(self._costs.push, self._costs.pull, self._flops(k)) * (1.0 + self._margin(k, v))
            for k, v in speeds.items()
        }
        asked = deadline = self._config.deadline_s
        helpless = [k for k in speeds if float(seconds[k][-1]) > asked and not self._helps(k, seconds[k])]
        if self._config.policy == "stretch":
            own = {k: self._place(self._first[k]) if k in helpless else STEPS for k in seconds}
            deadline = max([deadline, *(float(seconds[k][place]) for k, place in own.items())])
        found = {k: lowest(seconds[k], *self._energy(k, speeds[k], deadline)) for k in speeds}
        if self._config.policy == "stretch":
            found |= {k: (max(self._place(self._first[k]), found[k][0]), "deadline") for k in helpless}
        self._tell(helpless)
        out = [device for device, (place, _) in found.items() if place > STEPS]
        if out and (self._config.policy != "leave-out" or len(out) == len(chosen)):
            why = "; ".join(f"{self._fleet.name(k)} ({found[k][1]}, {seconds[k][-1]:.3g} s)" for k in out[:5])
            raise InfeasibleError(
                f"{len(out)} devices cannot meet flower.deadline_s = {deadline:g} s or their energy budget even at "
                f"flower.max_rate = {self._config.max_rate:g}: {why}. Raise either, or change flower.policy."
            )
        rates = {
            device: float(self._costs.rate[found[device][0]]) if device in found else self._first[device]
            for device in chosen
            if device not in out
        }
        weights = {device: float(self._fleet.samples[device]) for device in rates}
        return RoundPlan(
            remark=_remark(asked, deadline, [device for device in helpless if device in rates]),
            rates=rates,
            binding={device: found[device][1] if device in found else "none" for device in rates},
            left_out=out,
            deadline_s=deadline,
            objective=sum(w / (1.0 - rates[d]) for d, w in weights.items()) / max(1.0, sum(weights.values())),
        )

    def _place(self, rate: float) -> int:
        """Return the place of a rate on the grid; that of θ for higher ones."""
        return min(int(np.searchsorted(self._costs.rate, rate)), STEPS)

    def _margin(self, device: int, speed: Speed) -> float:
        """Return the largest relative excess of the rounds in the window over their line."""
        seen = self.history.get(device)
        if self._config.planning != "measured" or not seen:
            return 0.0
        lines = [(one, speed.seconds(one.size / 2, one.size / 2, one.flops)) for one in seen if one.flops]
        return float(max([MARGIN, *((one.link_s + one.compute_s) / fit - 1.0 for one, fit in lines if fit > 0)]))

    def _helps(self, device: int, seconds: Floats) -> bool:
        """Return whether dropout makes a node faster, judged by rounds of two sizes; True if unknown."""
        sizes = [one.size for one in self.history.get(device, ()) if one.flops]
        if self._config.planning != "measured" or not sizes or min(sizes) > (1.0 - _APART) * max(sizes):
            return True
        costs = self._costs
        saved = max(
            1.0 - (costs.push[-1] + costs.pull[-1]) / (costs.push[0] + costs.pull[0]),
            1.0 - costs.flops[-1] / costs.flops[0] if costs.flops[0] else 0.0,
        )
        return bool(1.0 - seconds[-1] / seconds[0] > HELP * saved)

    def _tell(self, helpless: Sequence[int]) -> None:
        """Log once that dropout does not help a node, and when it is tried again."""
        for device in helpless:
            if device not in self._helpless:
                text = "%s is no faster with a smaller subnet: it keeps rate %.2f, and is tried again within %d rounds."
                log.warning(text, self._fleet.name(device), self._first[device], TRIAL)
        self._helpless = set(helpless)

    def speed(self, device: int) -> Speed | None:
        """Return a device's speed: measured if possible, else declared; None if unknown."""
        node, seen = self._fleet.nodes.get(device), list(self.history.get(device, ()))
        if self._config.planning == "measured" and seen:
            around = [(0.0, node.round_trip_s, _ANCHOR)] if node else []
            message_s, byte_s = line([(one.size, one.link_s, 1.0) for one in seen] + around)
            computed = [(one.flops, one.compute_s, 1.0) for one in seen if one.flops]
            think_s, flop_s = line([(0.0, 0.0, _ANCHOR), *computed])
            return Speed(message_s=message_s + think_s, down_s=byte_s, up_s=byte_s, flop_s=flop_s)
        about = node.introduction if node else None
        if node is None or about is None or not (about.flops_per_s and about.down_bps and about.up_bps):
            return None
        message_s = node.round_trip_s if self._config.planning == "measured" else 0.0
        down_s, up_s, flop_s = 8.0 / about.down_bps, 8.0 / about.up_bps, 1.0 / about.flops_per_s
        return Speed(message_s=message_s, down_s=down_s, up_s=up_s, flop_s=flop_s)

    def costs(self, plan: RoundPlan, devices: Sequence[DeviceRound]) -> dict[int, dict[str, Any]]:
        """Return measured seconds and those that were planned for, and add them to the history."""
        found: dict[int, dict[str, Any]] = {}
        for device in plan.left_out:  # drop its oldest measurement, so that it is eventually tried again
            if self.history.get(device):
                self.history[device].popleft()
        for entry in devices:
            if not entry.elapsed:
                continue
            pull = entry.pull_bytes or entry.push_bytes  # a late reply would have had this size
            per_sample = self._work.training_flops(entry.rate, entry.kept)
            flops = per_sample * self._fleet.samples[entry.device] * self._epochs
            cost: dict[str, Any] = {"latency_s": entry.elapsed, "energy_j": None}
            if planned := self.speed(entry.device):  # before this round enters the history
                cost["formula_latency_s"] = planned.seconds(entry.push_bytes, pull, flops)
                cost["energy_j"] = self._joules(entry, planned)
            found[entry.device] = cost
            known = entry.pull_bytes > 0
            row = MeasuredSpeeds(
                round=self._round,
                size=float(entry.push_bytes + pull),
                link_s=max(0.0, entry.elapsed - entry.seconds),
                flops=flops if known else 0.0,
                compute_s=entry.seconds if known else 0.0,
            )
            self.history[entry.device] = recent([*self.history.get(entry.device, ()), row])
        return found

    def budgets(self) -> list[float | None]:
        """Return the energy budget of every device in joules; None if unlimited."""
        nodes = [self._fleet.nodes.get(device) for device in range(len(self._fleet.samples))]
        return [(node.introduction.budget_j or None) if node else None for node in nodes]

    def to_json(self) -> dict[str, Any]:
        """Return the measurements, for :meth:`restore`."""
        return {str(device): [asdict(one) for one in rows] for device, rows in self.history.items()}

    def restore(self, measured: Mapping[str, Any], rounds: int) -> None:
        """Restore the measurements of the first ``rounds`` rounds; unreadable ones are skipped."""
        for device, rows in measured.items():
            try:
                kept = [MeasuredSpeeds(**row) for row in rows]
                self.history[int(device)] = recent([one for one in kept if one.round <= rounds])
            except (TypeError, ValueError):
                continue

    def _flops(self, device: int) -> Floats:
        return self._costs.flops * (self._fleet.samples[device] * self._epochs)

    def _energy(self, device: int, speed: Speed, deadline_s: float) -> tuple[Floats, float, float]:
        """Return joules by rate, the deadline and the budget; zeros and infinity if nothing is declared."""
        node = self._fleet.nodes.get(device)
        if node is None:
            return np.zeros(STEPS + 1), deadline_s, np.inf
        sending, computing = speed.up_s * self._costs.pull, speed.flop_s * self._flops(device)
        joules = node.introduction.send_w * sending + node.introduction.compute_w * computing
        return joules, deadline_s, node.introduction.budget_j or np.inf

    def _joules(self, entry: DeviceRound, speed: Speed) -> float | None:
        node = self._fleet.nodes.get(entry.device)
        if node is None or not (node.introduction.compute_w or node.introduction.send_w):
            return None
        return node.introduction.send_w * entry.pull_bytes * speed.up_s + node.introduction.compute_w * entry.seconds


def recent(rows: Sequence[MeasuredSpeeds]) -> deque[MeasuredSpeeds]:
    """Return the last rounds and, if all of them have about one size, the newest other one that is not too old."""
    last, before = list(rows[-WINDOW:]), rows[:-WINDOW]
    if last:
        size, newest = last[-1].size, last[-1].round
        if all(abs(one.size - size) <= _APART * size for one in last):
            others = [one for one in before if abs(one.size - size) > _APART * size and newest - one.round <= TRIAL]
            last = [*others[-1:], *last]
    return deque(last)


def _remark(asked: float, deadline: float, helpless: Sequence[int]) -> str | None:
    """Return what was unusual about a plan, for its record."""
    parts = [f"deadline stretched from {asked:g} to {deadline:.3g} s"] * (deadline > asked)
    if helpless:
        parts += [f"dropout does not speed up device {', '.join(map(str, helpless[:10]))}"]
    return "; ".join(parts) or None


def line(points: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return intercept and slope, both non-negative, of the least-squares line through points (x, y, weight)."""
    x, y, w = np.array(points, dtype=np.float64).T
    middle, height = float(w @ x / w.sum()), float(w @ y / w.sum())
    spread = float(w @ (x - middle) ** 2)
    slope = float(w @ ((x - middle) * (y - height))) / spread if spread else 0.0
    if slope <= 0.0:
        return height, 0.0
    if slope * middle > height:
        return 0.0, float(w @ (x * y) / (w @ (x * x)))
    return height - slope * middle, slope
