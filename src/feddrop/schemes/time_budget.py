"""A budget of seconds for the whole training: rounds with good channels may take longer, bad ones are kept short."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feddrop.allocation import allocate
from feddrop.allocation.feasible import settle
from feddrop.radio.plan import Plan, SeenRound


def time_budget(seen: SeenRound, *, total_s: float, rounds: int, tradeoff: float = 1.0, most: float = 2.0) -> Plan:
    """Spend ``total_s`` seconds over ``rounds`` rounds, counted as recorded; each has its own deadline.

    A round lasts at most as long as the cell's deadline. If it takes longer than planned, by retransmissions or over a
    true channel worse than its estimate, later rounds have less. Outside a run, the planned seconds count.

    A virtual queue q grows by what a round takes beyond the mean allowance m = total/rounds. Of 24 deadlines T between
    the shortest feasible one and the longest allowed, the round takes the one that minimises drift plus penalty,
    (q/m) (T/m) + tradeoff Σ w/(1-γ). Once the seconds are spent, rounds pass without training.

    Args:
        seen: the round.
        total_s: seconds of all rounds in total.
        rounds: rounds that share them.
        tradeoff: weight of dropout against time; a higher value lets the queue grow longer.
        most: longest round, as a multiple of the mean time left per round, unless its shortest deadline is longer.
    """
    problem, mean = seen.problem, total_s / rounds
    last, before, planned, queue = seen.state.get("seconds", np.zeros(4))
    spent = before + planned if seen.elapsed_s is None else seen.elapsed_s
    queue = max(queue + spent - before - (seen.round - last) * mean, 0.0)
    left = total_s - spent
    longest = min(float(np.max(problem.deadline_s)), left)
    shortest = float(np.max(settle(replace(problem, deadline_s=np.asarray(1e-9)), "stretch")[0].deadline_s))
    if shortest > longest:
        return Plan(np.zeros(seen.cell.devices), state={"seconds": np.array([seen.round, spent, 0.0, queue])})
    usual = max(shortest, min(longest, most * left / max(rounds - seen.round + 1, 1)))
    grid = np.geomspace(shortest, usual, 24)
    found = allocate(replace(problem, deadline_s=grid[:, None]))
    at = int(np.argmin(queue / mean * grid / mean + tradeoff * np.asarray(found.objective)))
    now = np.array([seen.round, spent, found.latency_s[at].max(), queue])
    return Plan(found.share[at], rate=found.rate[at], state={"seconds": now})
