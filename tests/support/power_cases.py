"""Random problems of rate, share, power and clock, and references to hold the solvers against."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from feddrop.allocation import PowerProblem, SubbandPowerProblem

KINDS = ("full speed", "energy", "scarce", "cap", "loose", "mixed", "fixed clock", "fixed power", "bounded")
LN2 = np.log(2.0)


def power_problems(
    kind: str, devices: int, rounds: int, *, seed: int = 0, subband: bool = False, load: float | None = None
) -> PowerProblem:
    """A batch of random problems of one kind; all are feasible, unless ``load`` asks for more than the band.

    The upload of the largest load that full speed, or thrift, could still carry is scaled to fill a part of the band.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind), devices, subband])
    shape = (rounds, devices)

    def spread(low, high):
        return np.exp(rng.uniform(np.log(low), np.log(high), shape))

    budget = {"full speed": (5, 9), "energy": (0.2, 0.8), "scarce": (0.03, 0.2), "loose": (2, 4), "cap": (0.05, 0.5)}
    values = {
        "weight": rng.dirichlet(np.full(devices, 2.0), rounds),
        "download_s": spread(1e-3, 0.3) * rng.choice([0.0, 1.0], shape, p=[0.1, 0.9]),
        "cycles": spread(1e8, 1e9),
        "cpu_hz": spread(1e9, 2e9),
        "cpu_constant": spread(1e-28, 2e-27) * rng.choice([0.0, 1.0], shape, p=[0.05, 0.95]),
        "upload_bits": spread(1e6, 1e7),
        "bandwidth_hz": np.asarray(1e7),
        "gain_to_noise": spread(0.3, 1e4),
        "tx_power_w": spread(0.05, 1.0),
        "deadline_s": rng.uniform(1.0, 2.0, (rounds, 1)),
        "budget_j": np.asarray(1.0),
        "max_rate": rng.uniform(0.5, 0.97, (rounds, 1)),
    }
    if kind == "fixed clock":
        values["least_cpu_hz"] = values["cpu_hz"]
    if kind in ("fixed power", "bounded"):
        values["least_tx_power_w"] = values["tx_power_w"] * (1.0 if kind == "fixed power" else 0.3)
    if kind == "bounded":
        values["least_cpu_hz"] = values["cpu_hz"] * 0.4
    p = SubbandPowerProblem(**values, download_snr=spread(1.0, 1e5)) if subband else PowerProblem(**values)
    # Budgets as parts of what full speed would spend over an equal share.
    c = p.at(p.cpu_hz, p.tx_power_w)
    p = replace(
        p, budget_j=(c.compute_j + c.air(np.full(shape, 1.0 / devices))[1]) * spread(*budget.get(kind, (0.1, 3)))
    )
    if kind in ("fixed clock", "bounded"):  # a clock that cannot be lowered must not spend it all
        least = p.cpu_constant * p.cycles * p.least_cpu_hz**2 * (1.0 - p.max_rate)
        p = replace(p, budget_j=np.maximum(p.budget_j, 1.5 * least))
    slow = p.cycles / p.cpu_hz * (1.0 - p.max_rate)
    p = replace(p, deadline_s=np.maximum(p.deadline_s, 1.5 * slow.max(axis=-1, keepdims=True)))
    top = 1.0 / (1.0 - p.max_rate)
    thrifty = p.cpu_constant * p.cycles**3 / (0.6 * top * p.deadline_s) ** 2 / top
    p = replace(p, budget_j=np.maximum(p.budget_j, 1.5 * thrifty))
    want = {"cap": rng.uniform(0.9, 0.999, (rounds, 1)), "loose": rng.uniform(1e-4, 1e-2, (rounds, 1))}
    target = want.get(kind, rng.uniform(0.05, 0.8, (rounds, 1)))
    return _with_load(p, target if load is None else np.full((rounds, 1), load), fit=load is None)


def _with_load(p: PowerProblem, target: np.ndarray, *, fit: bool) -> PowerProblem:
    """The same with more or less to send, so that the least shares fill about this part of the band."""
    top = 1.0 / (1.0 - p.max_rate)
    names, factor = ("upload_bits", "download_s"), np.ones((p.shape[0], 1))
    for number in range(15):
        scaled = replace(p, **{name: getattr(p, name) * factor for name in names})
        load = scaled.least_share(top).sum(axis=-1, keepdims=True)
        if number >= 3 and (load <= 0.9999 if fit else load > 1.0).all():
            break
        # Under subband noise a share that is half as large hears half the noise: the load falls more slowly.
        growth = 3.0 if isinstance(p, SubbandPowerProblem) else 1e6
        factor = factor * np.where(np.isfinite(load), np.minimum(target / load, growth), 0.01)
    return scaled


def feasible(p: PowerProblem) -> PowerProblem:
    """Those of a batch that are feasible: under subband noise not all can be made so by sending less."""
    fits = p.least_share(1.0 / (1.0 - p.max_rate)).sum(axis=-1) <= 1.0
    return replace(p, **{name: np.broadcast_to(getattr(p, name), p.shape)[fits] for name in p.numbers})


def one_of_power(p: PowerProblem, row: int) -> PowerProblem:
    """One problem of a batch."""
    return replace(p, **{name: np.broadcast_to(getattr(p, name), p.shape)[row] for name in p.numbers})


def conic(p: PowerProblem):
    """The problem for CVXPY: exponential cones, in units that suit a solver. Noise must not depend on the share."""
    import cvxpy as cp

    devices = p.shape[-1]
    b = {name: np.broadcast_to(getattr(p, name), p.shape) for name in p.numbers}
    nats = b["upload_bits"] * LN2 / b["bandwidth_hz"] * devices
    noise = 1.0 / b["gain_to_noise"]
    most = np.log1p(b["tx_power_w"] / noise)
    fastest = b["cycles"] / b["cpu_hz"]
    joules = b["cpu_constant"] * b["cycles"] * b["cpu_hz"] ** 2
    seconds, energy = b["deadline_s"], b["budget_j"]
    z, units, inverse, v, y, slow = (cp.Variable(devices) for _ in range(6))
    rules = [
        cp.multiply(b["download_s"] * devices / seconds, inverse)
        + cp.multiply(fastest / seconds, slow)
        + cp.multiply(nats / seconds, v)
        <= z,
        cp.multiply(joules / energy, cp.power(slow, -2))
        + cp.multiply(nats * noise * np.exp(most) / energy, y)
        - cp.multiply(nats * noise / energy, v)
        <= z,
        cp.constraints.ExpCone(inverse - cp.multiply(most, v), v, y),  # v exp(inverse / v) <= y exp(most)
        cp.inv_pos(units) <= inverse,
        cp.sum(units) <= devices,
        z >= 1,
        z <= 1.0 / (1.0 - b["max_rate"]),
        slow >= 1,
        cp.multiply(most, v) >= inverse,
    ]
    if b["least_cpu_hz"].any():
        rules += [cp.multiply(b["least_cpu_hz"] / b["cpu_hz"], slow) <= 1]
    if b["least_tx_power_w"].any():
        rules += [cp.multiply(np.log1p(b["least_tx_power_w"] / noise), v) <= inverse]
    return cp.Problem(cp.Minimize(b["weight"] @ z), rules)


def conic_optimum(p: PowerProblem, tolerance: float = 1e-10) -> float | None:
    """The optimum by Clarabel; inf where it finds the problem infeasible, None where it gives up."""
    import cvxpy as cp

    problem = conic(p)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            problem.solve(solver=cp.CLARABEL, tol_gap_abs=tolerance, tol_gap_rel=tolerance, tol_feas=tolerance)
        except cp.SolverError:
            return None
    if problem.status not in ("optimal", "infeasible"):
        return None
    return float(problem.value)


def worst_breach(found, p: PowerProblem) -> float:
    """By how much, at worst, the answer is outside deadline, budget, band or limits, relative to each."""
    keep = 1.0 - found.rate
    return float(
        max(
            np.max(found.latency_s / p.deadline_s - 1.0),
            np.max(found.energy_j / p.budget_j - 1.0),
            np.max(found.share.sum(axis=-1) - 1.0),
            np.max((1.0 - p.max_rate) / keep - 1.0),
            np.max(keep - 1.0),
            np.max(found.cpu_hz / p.cpu_hz - 1.0),
            np.max(found.tx_power_w / p.tx_power_w - 1.0),
            np.max(p.least_cpu_hz / found.cpu_hz - 1.0),
            np.max(p.least_tx_power_w / found.tx_power_w - 1.0),
            0.0 if (found.cpu_hz > 0).all() and (found.tx_power_w > 0).all() else 1.0,
        )
    )


def in_logs(p: SubbandPowerProblem, rng: np.random.Generator) -> float:
    """The least objective that a general solver finds in log variables, from a random start."""
    from scipy.optimize import minimize

    devices = p.shape[-1]
    b = {name: np.broadcast_to(getattr(p, name), p.shape) for name in p.numbers}

    def parts(v):
        return np.exp(v[:devices]), v[devices : 2 * devices], v[2 * devices : 3 * devices], v[3 * devices :]

    def loads(v):
        share, log_f, log_p, log_z = parts(v)
        f, power = b["cpu_hz"] * np.exp(log_f), b["tx_power_w"] * np.exp(log_p)
        c = p.at(f, power)
        seconds, joules = c.air(share)
        z = np.exp(log_z)
        return np.r_[
            np.log(z * c.deadline_s / (seconds + c.compute_s)),
            np.log(z * c.budget_j / (joules + c.compute_j)),
            -np.log(share.sum()),
        ]

    top = np.log(1.0 / (1.0 - b["max_rate"]))
    with np.errstate(divide="ignore"):
        lowest = [np.maximum(np.log(b[f"least_{name}"] / b[name]), -20.0) for name in ("cpu_hz", "tx_power_w")]
    limits = [(-30.0, 0.0)] * devices + [(low, 0.0) for row in lowest for low in row]
    limits += [(0.0, t) for t in top]
    start = np.r_[
        np.log(rng.dirichlet(np.full(devices, 5.0))),
        rng.uniform(-1, 0, 2 * devices),
        rng.uniform(0.3, 1, devices) * top,
    ]
    found = minimize(
        lambda v: b["weight"] @ np.exp(v[3 * devices :]),
        start,
        jac=lambda v: np.r_[np.zeros(3 * devices), b["weight"] * np.exp(v[3 * devices :])],
        constraints={"type": "ineq", "fun": loads},
        bounds=limits,
        method="SLSQP",
        options={"maxiter": 600, "ftol": 1e-13},
    )
    return found.fun if loads(found.x).min() > -1e-7 else np.inf
