"""Section IV: what the paper says of the optimum, checked on the problems of its own cells, with and without energy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from feddrop.allocation import Allocation, PrimalDual, Problem, allocate
from feddrop.comparison import Comparison
from feddrop.config import RunConfig
from feddrop.radio import build_cell
from feddrop.seeds import derive
from reproduction.experiments.cells import deadline_for, radio, samples_of, size_of
from reproduction.experiments.energy import BUDGET_J, FLOP_PER_CYCLE
from reproduction.framework.experiment import Experiment, Lookup, Page, markdown_table
from reproduction.framework.scales import DEVICES, Scale
from reproduction.framework.verdicts import verdict

ROUNDS = range(1, 21)
PAIRS = 50
"""Pairs of feasible points per round, for convexity."""
SLACK = 1e-9
"""Relative error of the solver that counts as none."""
BETTER = 0.5
"""Cost of a better channel relative to a worse one; also the change of the resource in the claim on resources."""
SPEEDS = np.linspace(0.5, 10.0, 39) * 1e9
COUNTS = (5, 10, 20, 40, 80, 160)
"""Numbers of devices for the claim on complexity."""
GAP = 1e-6
"""Duality gap at which Algorithm 1 stops there."""
FIELDS = ("weight", "comm_s", "compute_s", "upload_j", "compute_j", "budget_j")

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def problems(scale: Scale, *, energy: bool) -> Iterator[Problem]:
    """Yield LeNet's rounds in the cells of figure 3, without an energy limit or with one that binds."""
    setting = scale.settings["underfitting"]
    parameters, flops = size_of(setting)
    for target in scale.target_rates:
        config = radio(setting, deadline_s=deadline_for(setting, target))
        if energy:
            config = replace(config, flop_per_cycle=FLOP_PER_CYCLE, energy_budget_j=BUDGET_J)
        for seed in scale.seeds:
            cell = build_cell(config, DEVICES, samples_of(setting), derive(seed, "cell"))
            drawn = cell.draw(list(ROUNDS), derive(seed, "channels"))
            yield cell.problem(drawn, parameters=parameters, forward_flops=flops)


def _twins(p: Problem, names: tuple[str, ...], factor: float) -> Problem:
    """Make device 1 the same as device 0, except for the named values, which are ``factor`` times as large."""
    values = {name: np.array(np.broadcast_to(getattr(p, name), p.shape)) for name in FIELDS}
    for name, value in values.items():
        value[:, 1] = value[:, 0] * (factor if name in names else 1.0)
    return replace(p, **values)


def _solved(p: Problem) -> Allocation:
    return allocate(p, policy="leave-out")


def _both(p: Problem, kept: Callable[[Floats, Floats], Bools]) -> Bools:
    """Solve a problem with twins; ``kept`` is given the changes of rate and share from device 0 to device 1."""
    found = _solved(p)
    here = found.active[:, :2].all(axis=-1)
    rate, share = (value[here, 1] - value[here, 0] for value in (found.rate, found.share))
    return kept(rate, share / np.maximum(found.share[here, 0], SLACK))


def _before_after(old: Problem, new: Problem, kept: Callable[[Floats, Floats], Bools]) -> Bools:
    """Solve two problems; ``kept`` is given the changes of device 0's rate and share where the band has a price."""
    one, other = _solved(old), _solved(new)
    here = one.active[:, 0] & other.active[:, 0] & (one.price > 0)[:, 0] & (other.price > 0)[:, 0]
    rate, share = (getattr(other, name)[here, 0] - getattr(one, name)[here, 0] for name in ("rate", "share"))
    return kept(rate, share / np.maximum(one.share[here, 0], SLACK))


def _lower_and_smaller(rate: Floats, share: Floats) -> Bools:
    return (rate <= SLACK) & (share <= SLACK)


def _opposite(rate: Floats, share: Floats) -> Bools:
    return (np.abs(rate) <= SLACK) | (np.abs(share) <= SLACK) | (rate * share < 0)


def _scaled(p: Problem, factor: float, *, first: bool) -> Problem:
    """Scale the cost of sending, of the first device or of all others."""
    costs = np.where((np.arange(p.shape[-1]) == 0) == first, factor, 1.0)
    return replace(p, comm_s=p.comm_s * costs, upload_j=p.upload_j * costs)


def _convex(p: Problem, rng: np.random.Generator, power: float) -> Bools:
    """Check midpoints of pairs of feasible points in v = (1-γ)^power and ρ: constraints, and the objective's mean."""
    shape = (PAIRS, *p.shape)
    points = []
    for _ in range(2):
        share = rng.dirichlet(np.ones(p.shape[-1]), shape[:-1])
        most = np.minimum(_kept_most(p, share), 1.0)
        points.append(((most * rng.uniform(0.05, 1.0, shape)) ** power, share))
    middle, share = ((points[0][i] + points[1][i]) / 2 for i in range(2))
    kept = middle ** (1 / power)
    inside = kept <= np.minimum(_kept_most(p, share), 1.0) * (1 + SLACK)
    costs = [p.weight / value ** (1 / power) for value in (middle, points[0][0], points[1][0])]
    below = costs[0] <= (costs[1] + costs[2]) / 2 * (1 + SLACK)
    return (inside & below).all(axis=-1)


def _convex_functions(p: Problem, rng: np.random.Generator) -> Bools:
    """Check midpoints of pairs of points in γ and ρ: the latency of C1 and the energy of C2 are at most their means."""

    def spent(kept: Floats, share: Floats) -> Floats:
        return kept * np.stack([p.comm_s / share + p.compute_s, p.upload_j / share + p.compute_j])

    shape = (PAIRS, *p.shape)
    points = [(rng.uniform(0.1, 1.0, shape), rng.dirichlet(np.ones(p.shape[-1]), shape[:-1])) for _ in range(2)]
    middle = spent(*((points[0][i] + points[1][i]) / 2 for i in range(2)))
    return (middle <= sum(spent(*point) for point in points) / 2 * (1 + SLACK)).all(axis=(0, -1))


def _kept_most(p: Problem, share: Floats) -> Floats:
    """Return the largest 1-γ that C1 and C2 permit with these shares."""
    in_time = p.deadline_s / (p.comm_s / share + p.compute_s)
    return np.minimum(in_time, p.budget_j / (p.upload_j / share + p.compute_j))


def _more_resources(p: Problem, *, name: str) -> Bools:
    """Check that no device's rate rises with twice the deadline or twice the band, if all can take part."""
    more = replace(p, deadline_s=p.deadline_s / BETTER) if name == "deadline" else p
    if name == "band":
        more = replace(p, comm_s=p.comm_s * BETTER, upload_j=p.upload_j * BETTER)
    old, new = _solved(p), _solved(more)
    here = old.active.all(axis=-1)
    return new.rate[here] <= old.rate[here] + SLACK


def _by_speed(scale: Scale) -> list[float]:
    """Return the rate of one device by its CPU frequency, where energy binds."""
    setting = scale.settings["underfitting"]
    parameters, flops = size_of(setting)
    deadline = deadline_for(setting, scale.target_rates[-1])
    config = replace(radio(setting, deadline_s=deadline), flop_per_cycle=FLOP_PER_CYCLE, energy_budget_j=BUDGET_J)
    cell = build_cell(config, DEVICES, samples_of(setting), derive(0, "cell"))
    drawn = cell.draw(1, derive(0, "channels"))
    rates = []
    for hz in SPEEDS:
        here = replace(drawn, cpu_hz=np.where(np.arange(DEVICES) == 0, hz, drawn.cpu_hz))
        found = _solved(cell.problem(here, parameters=parameters, forward_flops=flops))
        rates.append(float(f"{found.rate[0] if found.active[0] else np.nan:.6g}"))
    return rates


def _passes(scale: Scale) -> list[float]:
    """Return the mean number of passes of Algorithm 1 by the number of devices; each has as much band and noise."""
    setting = scale.settings["underfitting"]
    parameters, flops = size_of(setting)
    usual = radio(setting, deadline_s=deadline_for(setting, scale.target_rates[len(scale.target_rates) // 2]))
    solver = PrimalDual(tolerance=GAP, check_every=1)
    found = []
    for count in COUNTS:
        times = count / DEVICES
        config = replace(usual, bandwidth_hz=usual.bandwidth_hz * times, noise_w_hz=usual.noise_w_hz / times)
        cell = build_cell(config, count, samples_of(setting), derive(0, "cell"))
        drawn = [cell.draw(round_, derive(0, "channels")) for round_ in ROUNDS]
        rounds = [cell.problem(one, parameters=parameters, forward_flops=flops) for one in drawn]
        found.append(float(np.mean([allocate(p, solver, policy="leave-out").iterations for p in rounds])))
    return found


def runs(_: Scale) -> list[RunConfig]:
    """Return no runs: nothing is trained."""
    return []


def measure(scale: Scale) -> dict[str, Any]:
    """Solve the problems, and count how often each statement was checked and how often it was broken."""
    rng, other = (np.random.default_rng(derive(0, label)) for label in ("allocator", "functions"))
    channel, weight = ("comm_s", "upload_j"), ("weight",)
    checks: dict[str, Callable[[Problem], Bools]] = {
        "convex": lambda p: _convex(p, rng, 0.5),
        "convex in γ": lambda p: _convex(p, rng, 1.0),
        "functions": lambda p: _convex_functions(p, other),
        "channel, two devices": lambda p: _both(_twins(p, channel, BETTER), _lower_and_smaller),
        "channel, one device": lambda p: _before_after(p, _scaled(p, BETTER, first=True), _lower_and_smaller),
        "opposite, one device": lambda p: _before_after(p, _scaled(p, BETTER, first=False), _opposite),
        "opposite, data": lambda p: _both(_twins(p, weight, 1 / BETTER), _opposite),
        "opposite, channel": lambda p: _both(_twins(p, channel, BETTER), _opposite),
        "deadline": lambda p: _more_resources(p, name="deadline"),
        "band": lambda p: _more_resources(p, name="band"),
    }
    counts: dict[str, list[list[int]]] = {name: [] for name in checks}
    for energy in (False, True):
        kept = {name: [] for name in checks}
        for p in problems(scale, energy=energy):
            for name, check in checks.items():
                kept[name].append(check(p).ravel())
        for name, rows in kept.items():
            every = np.concatenate(rows)
            counts[name].append([len(every), int(np.sum(~every))])
    return {
        "rounds": len(ROUNDS) * len(scale.seeds) * len(scale.target_rates),
        "checks": counts,
        "rates": _by_speed(scale),
        "devices": list(COUNTS),
        "passes": _passes(scale),
    }


STATEMENTS = {
    "convex": ("convex", "midpoints in x and ρ"),
    "convex in γ": ("not-convex", "midpoints in γ and ρ of points that meet C1 to C4"),
    "functions": ("not-convex", "midpoints in γ and ρ, C1 and C2 as functions"),
    "channel, two devices": ("channel-rate", "two devices of which one has the better channel"),
    "channel, one device": ("channel-rate", "one device whose channel improves"),
    "opposite, one device": ("share-opposite", "one device, while the channels of the others improve"),
    "opposite, data": ("share-opposite", "two devices of which one has more data"),
    "opposite, channel": ("share-opposite", "two devices of which one has the better channel"),
    "deadline": ("resources-rate", "twice the deadline"),
    "band": ("resources-rate", "twice the band"),
}
"""By check: its claim, and what was compared."""
LIMITS = ("no energy limit", "energy binds")
NOTES = {
    "not-convex": (
        "as the paper says, C1 and C2 are not convex as functions, so that P1 is not in the standard form of a convex "
        "problem; but C1 is 1-γ ≤ T₀ρ/(a+bρ), whose right side is concave in ρ, and C2 likewise: the points that meet "
        "them form a convex set, on which 1/(1-γ) is convex"
    ),
    "channel-rate": "if only the downlink improves, the share may grow: see [the allocator](allocate.md)",
    "share-opposite": "a worse channel means a larger share and a higher rate, as the previous claim says",
    "resources-rate": "where energy binds, a looser deadline may move band to others",
}


def make(_: Scale, __: Lookup, facts: dict[str, Any]) -> Page:
    """Tabulate how often each statement was broken, and judge the claims."""
    rows, points = [], {claim: [] for claim, _ in STATEMENTS.values()}
    for name, (claim, what) in STATEMENTS.items():
        for limit, (asked, broken) in zip(LIMITS, facts["checks"][name], strict=True):
            right = broken == 0 if claim != "not-convex" else broken > 0
            points[claim].append(Comparison(f"{what}, {limit}", certain=right))
            rows.append([what, limit, f"{asked:,}", f"{broken:,}"])
    rates = np.array(facts["rates"])
    lowest = int(np.nanargmin(rates))
    both_ways = bool(np.nanmax(rates[:lowest], initial=0.0) > rates[lowest] + SLACK < np.nanmax(rates[lowest:]))
    power = 1.0 + float(np.polyfit(np.log(facts["devices"]), np.log(facts["passes"]), 1)[0])
    listed = ", ".join(f"{p:.0f} with {k}" for k, p in zip(facts["devices"], facts["passes"], strict=True))
    ghz = SPEEDS / 1e9
    text = (
        f"LeNet in the cells of figure 3, {facts['rounds']} rounds without an energy limit and as many with one that "
        "binds; optima by the exact solver. A statement is broken where it is off by more than the solver's error. "
        f"Better means half the cost of sending.\n\n"
        + markdown_table(["compared", "", "checked", "broken"], rows)
        + f"\n\nRate of one device by its CPU frequency, where energy binds: {rates[0]:.2f} at {ghz[0]:g} GHz, "
        f"{rates[lowest]:.2f} at {ghz[lowest]:g} GHz and {rates[-1]:.2f} at {ghz[-1]:g} GHz. Passes of Algorithm 1 "
        f"to a gap of {GAP:g}: {listed} devices; a pass costs O(K), so that all of them cost O(K^{power:.2f}).\n"
    )
    verdicts = [verdict(claim, asked, NOTES.get(claim, "")) for claim, asked in points.items()]
    verdicts += [
        verdict("cpu-not-monotone", [Comparison("one device at 0.5 to 10 GHz, energy binds", certain=both_ways)]),
        verdict(
            "complexity",
            [Comparison(f"passes times devices, {COUNTS[0]} to {COUNTS[-1]} devices", certain=power <= 2.0)],
            "measured; neither the paper nor we bound the number of passes, and the exact solver needs O(K) in all",
            "with our step sizes and stopping rule",
        ),
    ]
    return Page(text=text, verdicts=verdicts)


EXPERIMENT = Experiment("allocator", "What the optimum looks like", "Sec. IV", runs, make, measure)
