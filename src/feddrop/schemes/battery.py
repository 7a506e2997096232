"""A battery that must last for many rounds: virtual queues keep the energy of every device near its mean allowance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feddrop.allocation import allocate
from feddrop.errors import InfeasibleError
from feddrop.radio.plan import Plan, SeenRound


def battery(seen: SeenRound, *, total_j: float, rounds: int, tradeoff: float = 1.0, most: float = 2.0) -> Plan:
    """Spend at most ``total_j`` joules per device over ``rounds`` rounds.

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
    left = seen.state.get("left_j", np.full(devices, float(total_j)))
    queue, mean = seen.state.get("queue_j", np.zeros(devices)), total_j / rounds
    cap = np.minimum(1.0, most / max(rounds - seen.round + 1, 1)) * left - circuit
    try:
        tight = replace(problem, budget_j=np.minimum(problem.budget_j, cap))
        found = allocate(tight, policy="leave-out")
    except InfeasibleError:  # all batteries are empty: the round passes without training
        return Plan(np.zeros(devices), state={"left_j": left, "queue_j": np.maximum(queue - mean, 0.0)})
    active, share = found.active, np.where(found.active, found.share, 1.0)
    full_j = problem.air(share)[1] + problem.compute_j
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = mean * np.sqrt(tradeoff * devices * problem.weight / (queue * full_j))
    kept = np.where(active, np.clip(wanted, 1.0 - problem.max_rate, 1.0 - found.rate), 0.0)
    used = np.where(active, kept * full_j + circuit, 0.0)
    state = {"left_j": left - used, "queue_j": np.maximum(queue + used - mean, 0.0)}
    return Plan(found.share, rate=1.0 - kept, state=state)
