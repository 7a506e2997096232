"""Rates for real nodes: the lowest with which each meets the deadline, by the speeds it declares, or by those measured.

Nodes do not share a band that the server could divide: each has its link. Of the paper's P1 there remain, for device k,

    minimise    z_k = 1/(1-γ_k)
    subject to  o_k + (1-γ_k) (l_k + c_k) <= T0      deadline, by the server's clock
                (1-γ_k) e_k <= E_k                   energy, where it is declared
                0 <= γ_k <= θ

with o_k seconds that a message takes whatever its size (Flower starts a process for each, and a node looks for messages
every 3 s), and l_k, c_k, e_k: seconds on the link, seconds of computing and joules of the full model. So
1-γ_k = min(1, (T0 - o_k)/(l_k + c_k), E_k/e_k).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from feddrop.errors import InfeasibleError
from feddrop.flower.fleet import Fleet, Node
from feddrop.participation import Participation
from feddrop.rates import Decision, Workload, covers
from feddrop.rounds import DeviceRound

WINDOW = 5
"""Rounds that a speed is measured over: old enough to be steady, young enough to follow a node that slows down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One round of one device.

    Attributes:
        round: its number.
        size: bytes, down and up.
        link_s: seconds from sending to receiving, less those of computing.
        flops: computed; 0 where the reply was late, and it is not known.
        compute_s: seconds of computing.
    """

    round: int
    size: float
    link_s: float
    flops: float = 0.0
    compute_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What is known of a node's speed: seconds a message, a byte down, a byte up, and a FLOP."""

    message_s: float
    down_s: float
    up_s: float
    flop_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the full model takes of one device: seconds whatever the rate, seconds and joules that fall with it."""

    fixed_s: float
    full_s: float
    full_j: float
    budget_j: float

    def keep(self, deadline_s: float) -> tuple[float, str]:
        """Return the largest 1-γ that deadline and energy allow, and which of them binds."""
        by_time = (deadline_s - self.fixed_s) / self.full_s if self.full_s else math.inf
        by_energy = self.budget_j / self.full_j if self.budget_j and self.full_j else math.inf
        part = min(1.0, by_time, by_energy)
        return part, "none" if part == 1.0 else "deadline" if by_time <= by_energy else "energy"


class NodeRates:
    """Decides the rates of real nodes.

    Args:
        fleet: the nodes.
        work: what is trained.
        participation: who takes part.
        first: rates of devices of whose speed nothing is known yet.
        epochs: passes over a device's samples in a round.
    """

    def __init__(
        self, fleet: Fleet, work: Workload, participation: Participation, *, first: Sequence[float], epochs: int
    ) -> None:
        self._fleet, self._config, self._work, self._participation = fleet, fleet.config, work, participation
        self._first, self._epochs = first, epochs
        self._full = covers(work, np.ones(1))
        self.history: dict[int, deque[Measured]] = {}
        self._round = 0

    def decide(self, round_: int) -> Decision:
        """Choose the rates of a round."""
        self._round = round_
        chosen = self._participation.chosen(round_).tolist()
        speeds = {device: self.speed(device) for device in chosen}
        top = self._config.max_rate
        while True:
            full = self._full(top)
            plans = {device: self._plan(device, speed, full) for device, speed in speeds.items() if speed}
            decision = self._decided(chosen, plans)
            known = [rate for device, rate in decision.rates.items() if device in plans]
            highest = math.ceil(100.0 * max(known, default=top)) / 100.0
            if highest >= top:
                return decision
            top = highest  # the less is dropped, the closer the figures that cover all rates

    def _decided(self, chosen: Sequence[int], plans: Mapping[int, Plan]) -> Decision:
        deadline, least = self._config.deadline_s, 1.0 - self._config.max_rate
        if self._config.policy == "stretch":
            deadline = max([deadline, *((p.fixed_s + least * p.full_s) * (1 + 1e-12) for p in plans.values())])
        kept = {device: plan.keep(deadline) for device, plan in plans.items()}
        out = [device for device, (keep, _) in kept.items() if keep < least * (1 - 1e-9)]
        if out and (self._config.policy != "leave-out" or len(out) == len(chosen)):
            told = "; ".join(
                f"{self._fleet.name(k)} by {kept[k][1]}: {plans[k].fixed_s:.3g} s a message, and {plans[k].full_s:.3g} "
                f"s and {plans[k].full_j:.3g} J for the full model"
                for k in out[:5]
            )
            raise InfeasibleError(
                f"{len(out)} devices cannot meet flower.deadline_s = {deadline:g} s or their budget even at "
                f"flower.max_rate = {self._config.max_rate:g}: {told}. Raise it, or set flower.policy."
            )
        rates = {
            device: min(max(0.0, 1.0 - kept[device][0]), self._config.max_rate)
            if device in kept
            else self._first[device]
            for device in chosen
            if device not in out
        }
        weights = {device: float(self._fleet.samples[device]) for device in rates}
        return Decision(
            rates=rates,
            binding={device: kept[device][1] if device in kept else "none" for device in rates},
            left_out=out,
            deadline_s=deadline,
            objective=sum(w / (1.0 - rates[d]) for d, w in weights.items()) / max(1.0, sum(weights.values())),
        )

    def speed(self, device: int) -> Speed | None:
        """Return what is known of a device's speed: measured, or else declared, or else nothing."""
        node, seen = self._fleet.nodes.get(device), list(self.history.get(device, ()))
        if self._config.planning == "measured" and seen:
            rows = [(one.size, one.link_s) for one in seen]
            if node:
                rows.append((0.0, node.round_trip_s))
            message_s, byte_s = line(rows)
            flops = sum(one.flops for one in seen)
            flop_s = sum(one.compute_s for one in seen) / flops if flops else 0.0
            return Speed(message_s=message_s, down_s=byte_s, up_s=byte_s, flop_s=flop_s)
        said = node.said if node else None
        if said is None or not (said.flops_per_s and said.down_bps and said.up_bps):
            return None
        message_s = node.round_trip_s if node and self._config.planning == "measured" else 0.0
        return Speed(
            message_s=message_s, down_s=8.0 / said.down_bps, up_s=8.0 / said.up_bps, flop_s=1.0 / said.flops_per_s
        )

    def _plan(self, device: int, speed: Speed, full: Mapping[str, Any]) -> Plan:
        node: Node | None = self._fleet.nodes.get(device)
        flops = float(full["flops"][0]) * self._fleet.samples[device] * self._epochs
        up_s, compute_s = full["pull_bits"] / 8.0 * speed.up_s, flops * speed.flop_s
        joules = node.said.send_w * up_s + node.said.compute_w * compute_s if node else 0.0
        return Plan(
            fixed_s=speed.message_s,
            full_s=full["push_bits"] / 8.0 * speed.down_s + up_s + compute_s,
            full_j=joules,
            budget_j=node.said.budget_j if node else 0.0,
        )

    def costs(self, decision: Decision, devices: Sequence[DeviceRound]) -> dict[int, dict[str, Any]]:  # noqa: ARG002
        """Return seconds by the clock and beside them those that were planned with; and remember them."""
        found: dict[int, dict[str, Any]] = {}
        for entry in devices:
            flops = self._work.flops(entry.kept)[1] * self._fleet.samples[entry.device] * self._epochs
            planned = self.speed(entry.device)  # before this round is remembered: what was planned with
            if not entry.elapsed:
                continue
            cost: dict[str, Any] = {"latency_s": entry.elapsed, "energy_j": None}
            up = entry.pull_bytes or entry.push_bytes  # late: as much would have come
            if planned:
                cost["formula_latency_s"] = (
                    planned.message_s + entry.push_bytes * planned.down_s + up * planned.up_s + flops * planned.flop_s
                )
                cost["energy_j"] = self._joules(entry, planned)
            found[entry.device] = cost
            good = entry.pull_bytes > 0
            row = Measured(
                round=self._round,
                size=float(entry.push_bytes + up),
                link_s=max(0.0, entry.elapsed - entry.seconds),
                flops=flops if good else 0.0,
                compute_s=entry.seconds if good else 0.0,
            )
            self.history.setdefault(entry.device, deque(maxlen=WINDOW)).append(row)
        return found

    def _joules(self, entry: DeviceRound, speed: Speed) -> float | None:
        node = self._fleet.nodes.get(entry.device)
        if node is None or not (node.said.compute_w or node.said.send_w):
            return None
        return node.said.send_w * entry.pull_bytes * speed.up_s + node.said.compute_w * entry.seconds

    def budgets(self) -> list[float | None]:
        """Return the energy budget of every device in joules; None for no budget."""
        said = [self._fleet.nodes[k].said if k in self._fleet.nodes else None for k in range(len(self._fleet.samples))]
        return [one.budget_j if one and one.budget_j else None for one in said]

    def to_json(self) -> dict[str, Any]:
        """Return what was measured, to go on from."""
        return {str(device): [asdict(one) for one in rows] for device, rows in self.history.items()}

    def restore(self, told: Mapping[str, Any], rounds: int) -> None:
        """Go on from what was measured in the first so many rounds; what cannot be read is measured anew."""
        for device, rows in told.items():
            try:
                kept = [Measured(**row) for row in rows]
            except TypeError:
                continue
            self.history[int(device)] = deque((one for one in kept if one.round <= rounds), maxlen=WINDOW)


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the height at 0 and the slope, both not negative, of the line that is nearest to points (x, y)."""
    x, y = np.array(points, dtype=np.float64).T
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread else 0.0
    height = float(y.mean()) - slope * float(x.mean())
    if slope < 0.0 or not spread:
        return float(y.mean()), 0.0
    if height < 0.0:
        return 0.0, float((x * y).sum() / (x * x).sum())
    return height, slope
