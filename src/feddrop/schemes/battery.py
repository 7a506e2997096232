"""A battery that must last for many rounds: virtual queues keep the energy of every device near its mean allowance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feddrop.allocation import allocate
from feddrop.errors import InfeasibleError
from feddrop.radio.plan import Plan, SeenRound


def battery(seen: SeenRound, *, total_j: float, rounds: int, tradeoff: float = 1.0, most: float = 2.0) -> Plan:
    """Spend ``total_j`` joules per device over ``rounds`` rounds, counted as recorded.

    A round may cost more than planned, by retransmissions or over a true channel worse than its estimate; later rounds
    then have less. Without such surprises, at most ``total_j`` is spent. Outside a run, the planned energy counts.

    A virtual queue q grows by what a round costs beyond the mean allowance, total/rounds. Shares are the optimum under
    the energy that is left; each device then keeps the share s of the network that minimises drift plus penalty,
    q E s + tradeoff w/s, where E is the energy of the full network. A device without the energy for rate θ is left out.

    Args:
        seen: the round.
        total_j: energy of a battery in joules, circuit included.
        rounds: number of rounds that it must last.
        tradeoff: weight of dropout against energy; a higher value lets queues grow longer.
        most: largest energy of a round, as a multiple of the mean energy left per round.
    """
    problem, circuit, devices = seen.problem, seen.cell.circuit_j, seen.cell.devices
    mean, last, none = total_j / rounds, float(seen.state.get("round", np.zeros(1))[0]), np.zeros(devices)
    before, planned, queue = (seen.state.get(name, none) for name in ("spent_j", "planned_j", "queue_j"))
    spent = before + planned if seen.spent_j is None else seen.spent_j
    queue = np.maximum(queue + spent - before - (seen.round - last) * mean, 0.0)
    state = {"round": np.array([seen.round]), "spent_j": spent, "planned_j": none, "queue_j": queue}
    cap = min(1.0, most / max(rounds - seen.round + 1, 1)) * np.maximum(total_j - spent, 0.0) - circuit
    try:
        tight = replace(problem, budget_j=np.minimum(problem.budget_j, cap))
        found = allocate(tight, policy="leave-out")
    except InfeasibleError:  # all batteries are empty: the round passes without training
        return Plan(none, state=state)
    active, share = found.active, np.where(found.active, found.share, 1.0)
    full_j = problem.air(share)[1] + problem.compute_j
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = mean * np.sqrt(tradeoff * devices * problem.weight / (queue * full_j))
    kept = np.where(active, np.clip(wanted, 1.0 - problem.max_rate, 1.0 - found.rate), 0.0)
    state["planned_j"] = np.where(active, kept * full_j + circuit, 0.0)
    return Plan(found.share, rate=1.0 - kept, state=state)
