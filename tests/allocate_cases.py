"""Random allocation problems of every kind, and slow, obvious references to hold the solvers against."""

from __future__ import annotations

import numpy as np

from feddrop.allocate import Problem, SubbandProblem

KINDS = ("loose", "tight", "energy", "latency", "cap", "mixed", "infeasible")


def problem(seed: int, kind: str, devices: int) -> Problem:
    """A random problem. "tight", "cap" and "infeasible" are scaled to their load: the least shares over the band."""
    rng = np.random.default_rng([seed, KINDS.index(kind), devices])
    spread = rng.uniform(0.0, 1.5)

    def lognormal(scale: float) -> np.ndarray:
        return scale * np.exp(spread * rng.standard_normal(devices))

    budget = lognormal(1.0)
    values = {
        "weight": rng.dirichlet(np.full(devices, rng.choice([0.5, 5.0]))),
        "comm_s": lognormal(1.0 / devices),
        "compute_s": rng.uniform(0.0, 1.2, devices),
        "upload_j": lognormal(1.0 / devices) * rng.choice([0.0, 1.0], p=[0.1, 0.9]),
        "compute_j": rng.uniform(0.0, 1.2, devices),
        "deadline_s": 1.0,
        "budget_j": budget,
        "max_rate": rng.uniform(0.2, 0.95),
    }
    if kind == "energy":
        values |= {"comm_s": values["comm_s"] * 0.05, "compute_s": values["compute_s"] * 0.5}
    if kind == "latency":
        values |= {"budget_j": np.inf}
    if kind == "loose":
        values |= {"comm_s": values["comm_s"] * 1e-3, "upload_j": values["upload_j"] * 1e-3, "budget_j": 1.5}
        values |= {"compute_s": values["compute_s"] * 0.8}
    top = 1.0 / (1.0 - values["max_rate"])
    # Nobody's own compute may break a constraint; "infeasible" is so by the band.
    room = 0.99 * top / np.maximum(1e-9, np.maximum(values["compute_s"], values["compute_j"] / values["budget_j"]))
    values["compute_s"] = values["compute_s"] * np.minimum(1.0, room)
    values["compute_j"] = values["compute_j"] * np.minimum(1.0, room)
    load = least_share(Problem(**values), top).sum()
    want = {"tight": 0.999, "cap": rng.uniform(0.8, 1.0), "infeasible": rng.uniform(1.001, 5.0)}.get(kind)
    if want is None:
        want = min(load, rng.uniform(0.05, 0.9))
    scale = want / load
    return Problem(**(values | {"comm_s": values["comm_s"] * scale, "upload_j": values["upload_j"] * scale}))


def subband(seed: int, devices: int) -> SubbandProblem:
    """A random problem under subband noise."""
    rng = np.random.default_rng([seed, 99, devices])
    spread = rng.uniform(0.0, 1.0)
    return SubbandProblem(
        weight=rng.dirichlet(np.full(devices, 2.0)),
        push_s=rng.uniform(0.1, 1.0) * np.exp(spread * rng.standard_normal(devices)) / devices,
        pull_s=rng.uniform(0.5, 4.0) * np.exp(spread * rng.standard_normal(devices)) / devices,
        snr_down=10.0 ** rng.uniform(-1, 5, devices),
        snr_up=10.0 ** rng.uniform(-1, 3, devices),
        tx_power_w=rng.uniform(0.3, 1.0, devices) * rng.choice([1e-2, 1.0]),
        compute_s=rng.uniform(0.0, 1.0, devices),
        compute_j=rng.uniform(0.0, 1.0, devices),
        deadline_s=rng.uniform(0.5, 2.0),
        budget_j=rng.uniform(0.5, 2.0, devices),
        max_rate=0.9,
    )


def least_share(p: Problem, top: float) -> np.ndarray:
    seconds, joules = top * p.deadline_s - p.compute_s, top * p.budget_j - p.compute_j
    with np.errstate(all="ignore"):
        share = np.maximum(p.comm_s / seconds, p.upload_j / joules)
    return np.where((seconds > 0) & (joules > 0), share, np.inf)


def objective(p: Problem | SubbandProblem, share: np.ndarray) -> float:
    """Σ w z with the smallest z that the constraints allow at these shares."""
    seconds, joules = p.air(share)
    z = np.maximum(1.0, np.maximum((seconds + p.compute_s) / p.deadline_s, (joules + p.compute_j) / p.budget_j))
    return float(np.sum(p.weight * z))


def reference(p: Problem) -> float:
    """The optimum by bisection on the price, in extended precision.

    For a price, a device's best share is found among all that can be: both ends, the crossing of its constraints, the
    point where z reaches 1, and the stationary points of both pieces.
    """
    f = np.longdouble
    w, t, e = (np.asarray(x, f) for x in (p.weight, p.deadline_s, p.budget_j))
    a, b, c, d = p.comm_s / t, p.compute_s / t, p.upload_j / e, p.compute_j / e
    top = 1 / (1 - f(p.max_rate))

    def z(share):
        return np.maximum(1, np.maximum(a / share + b, c / share + d))

    with np.errstate(all="ignore"):
        least = np.maximum(a / (top - b), c / (top - d))
        enough = np.maximum(a / (1 - b), c / (1 - d))
        enough = np.where((b < 1) & (d < 1), enough, np.inf)
        cross = (a - c) / (d - b)

    def shares(price):
        with np.errstate(all="ignore"):
            points = [least, enough, cross, np.sqrt(w * a / price), np.sqrt(w * c / price)]
        points = np.stack([np.where(np.isfinite(x), np.clip(x, least, 1), least) for x in points])
        cost = w * z(points) + price * points
        best = cost.min(axis=0)
        # Of equally good shares the smallest: at no price, nobody asks for more than helps.
        return np.min(np.where(cost <= best * (1 + 4 * np.finfo(f).eps), points, np.inf), axis=0)

    low, high = f(1e-40), f(1e40)
    if shares(low).sum() <= 1:
        return float(np.sum(w * z(shares(low))))
    for _ in range(400):
        middle = np.sqrt(low * high)
        if middle in (low, high):
            break
        low, high = (middle, high) if shares(middle).sum() > 1 else (low, middle)
    return float(np.sum(w * z(shares(high))))


def dual_bound(p: Problem, price: float) -> float:
    """A lower bound of the optimum by weak duality: for any price, what every device would pay at best, less the band's."""
    w, t, e = p.weight, p.deadline_s, p.budget_j
    a, b, c, d = p.comm_s / t, p.compute_s / t, p.upload_j / e, p.compute_j / e
    least = least_share(p, 1.0 / (1.0 - float(p.max_rate)))
    with np.errstate(all="ignore"):
        enough = np.where((b < 1) & (d < 1), np.maximum(a / (1 - b), c / (1 - d)), np.inf)
        points = [least, enough, (a - c) / (d - b)]
        points += [np.sqrt(w * a / price), np.sqrt(w * c / price)] if price > 0 else [np.full_like(least, 1e9)]
    points = np.stack([np.where(np.isfinite(x), np.maximum(x, least), least) for x in points])
    z = np.maximum(1.0, np.maximum(a / points + b, c / points + d))
    return float(np.sum(np.min(w * z + price * points, axis=0)) - price)
