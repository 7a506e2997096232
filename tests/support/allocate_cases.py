"""Random allocation problems of every kind, and slow, obvious references to hold the solvers against."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feddrop.allocation import Problem, SubbandProblem

KINDS = ("loose", "tight", "energy", "latency", "cap", "mixed")
DEVICES = (1, 2, 3, 5, 10, 30, 100, 300)


def problems(kind: str, devices: int, rounds: int, *, seed: int = 0, load: float | None = None) -> Problem:
    """A batch of random problems of one kind.

    Their *load*, the least shares over the band, is below 1, close to 1 ("tight"), or as given: above 1 none is
    feasible.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind), devices])
    shape = (rounds, devices)
    spread = rng.uniform(0.0, 1.5, (rounds, 1))

    def lognormal(scale):
        return scale * np.exp(spread * rng.standard_normal(shape))

    values = {
        "weight": rng.dirichlet(np.full(devices, rng.choice([0.5, 5.0])), rounds),
        "comm_s": lognormal(1.0 / devices),
        "compute_s": rng.uniform(0.0, 1.2, shape),
        "upload_j": lognormal(1.0 / devices) * rng.choice([0.0, 1.0], (rounds, 1), p=[0.1, 0.9]),
        "compute_j": rng.uniform(0.0, 1.2, shape),
        "deadline_s": np.asarray(1.0),
        "budget_j": lognormal(1.0),
        "max_rate": rng.uniform(0.2, 0.95, (rounds, 1)),
    }
    if kind == "energy":
        values |= {"comm_s": values["comm_s"] * 0.05, "compute_s": values["compute_s"] * 0.5}
    if kind == "latency":
        values |= {"budget_j": np.asarray(np.inf)}
    if kind == "loose":
        values |= {"comm_s": values["comm_s"] * 1e-3, "upload_j": values["upload_j"] * 1e-3}
        values |= {"compute_s": values["compute_s"] * 0.8, "budget_j": np.asarray(1.5)}
    top = 1.0 / (1.0 - values["max_rate"])
    # Nobody's computing alone may break a constraint.
    room = 0.99 * top / np.maximum(1e-9, np.maximum(values["compute_s"], values["compute_j"] / values["budget_j"]))
    values["compute_s"] = values["compute_s"] * np.minimum(1.0, room)
    values["compute_j"] = values["compute_j"] * np.minimum(1.0, room)
    have = least_share(Problem(**values)).sum(axis=-1, keepdims=True)
    if load is not None:
        want = np.full((rounds, 1), load)
    elif kind in ("tight", "cap"):
        want = np.where(kind == "tight", 0.999, rng.uniform(0.8, 0.999, (rounds, 1)))
    else:
        want = np.minimum(have, rng.uniform(0.05, 0.9, (rounds, 1)))
    for name in ("comm_s", "upload_j"):
        values[name] = values[name] * want / have
    return Problem(**values)


def one(p: Problem, row: int) -> Problem:
    """One problem of a batch."""

    def pick(value):
        return value if value.ndim == 0 else value[row] if value.shape[-1] == p.shape[-1] > 1 else value[row, :1]

    names = ("weight", "comm_s", "compute_s", "upload_j", "compute_j", "deadline_s", "budget_j", "max_rate")
    return Problem(**{name: pick(getattr(p, name)) for name in names})


def subband(devices: int, rounds: int, *, seed: int = 0) -> SubbandProblem:
    """A batch of random problems under subband noise: weak to strong signals, loose to tight, energy or not."""
    rng = np.random.default_rng([seed, 99, devices])
    shape = (rounds, devices)
    spread = rng.uniform(0.0, 1.0, (rounds, 1))

    def lognormal(scale):
        return scale * np.exp(spread * rng.standard_normal(shape)) / devices

    p = SubbandProblem(
        weight=rng.dirichlet(np.full(devices, 2.0), rounds),
        push_s=lognormal(0.2),
        pull_s=lognormal(1.0),
        snr_down=10.0 ** rng.uniform(0, 5, shape),
        snr_up=10.0 ** rng.uniform(-2, 3, (rounds, 1)) * rng.uniform(0.3, 3.0, shape),
        tx_power_w=rng.uniform(0.3, 1.0, shape),
        compute_s=rng.uniform(0.2, 1.5, shape),
        compute_j=rng.uniform(0.0, 1.0, shape),
        deadline_s=np.asarray(1.0),
        budget_j=rng.uniform(0.3, 1.5, (rounds, 1)) * rng.uniform(0.7, 1.3, shape),
        max_rate=np.asarray(0.9),
    )
    # Hertz are what is needed: in a wider band the shares needed are smaller, and so is the signal-to-noise ratio.
    load = p.least_share(np.asarray(10.0)).sum(axis=-1, keepdims=True)
    wider = np.where(np.isfinite(load), load, 1.0) / 10.0 ** rng.uniform(-2.5, -0.02, (rounds, 1))
    scaled = {name: getattr(p, name) / wider for name in ("push_s", "pull_s", "snr_down", "snr_up")}
    # Where even an endless band would not save enough energy, there is no budget.
    return replace(p, **scaled, budget_j=np.where(np.isfinite(load), p.budget_j, np.inf))


def least_share(p: Problem) -> np.ndarray:
    """Shares at which every device is at the highest rate."""
    top = 1.0 / (1.0 - p.max_rate)
    seconds, joules = top * p.deadline_s - p.compute_s, top * p.budget_j - p.compute_j
    with np.errstate(all="ignore"):
        share = np.maximum(p.comm_s / seconds, p.upload_j / joules)
    return np.where((seconds > 0) & (joules > 0), share, np.inf)


def smallest_z(p: Problem | SubbandProblem, share: np.ndarray) -> np.ndarray:
    """The smallest 1/(1-rate) that the constraints allow at these shares."""
    seconds, joules = p.air(share)
    return np.maximum(1.0, np.maximum((seconds + p.compute_s) / p.deadline_s, (joules + p.compute_j) / p.budget_j))


class PricedBand:
    """What devices would do if the band had a price, in extended precision; the obvious way.

    A device's best share is among a handful: both ends, the crossing of its constraints, the point where z reaches 1,
    and the stationary points of both pieces. All are tried.
    """

    def __init__(self, p: Problem) -> None:
        f = np.longdouble
        self.w, t, e = (np.asarray(x, f) for x in (p.weight, p.deadline_s, p.budget_j))
        self.a, self.b, self.c, self.d = p.comm_s / t, p.compute_s / t, p.upload_j / e, p.compute_j / e
        top = 1 / (1 - np.asarray(p.max_rate, f))
        a, b, c, d = self.a, self.b, self.c, self.d
        with np.errstate(all="ignore"):
            self.least = np.maximum(a / (top - b), c / (top - d))
            enough = np.where((b < 1) & (d < 1), np.maximum(a / (1 - b), c / (1 - d)), np.inf)
            self.ends = [self.least, enough, (a - c) / (d - b)]

    def z(self, share):
        return np.maximum(1, np.maximum(self.a / share + self.b, self.c / share + self.d))

    def best(self, price):
        """Smallest of the best shares, and what each device then loses and pays, at a price ``[rounds, 1]``."""
        with np.errstate(all="ignore"):
            points = [*self.ends, np.sqrt(self.w * self.a / price), np.sqrt(self.w * self.c / price)]
        points = np.stack([np.where(np.isfinite(x), np.maximum(x, self.least), self.least) for x in points])
        cost = self.w * self.z(points) + price * points
        best = cost.min(axis=0)
        tied = cost <= best * (1 + 4 * np.finfo(np.longdouble).eps)
        return np.min(np.where(tied, points, np.inf), axis=0), best


def reference(p: Problem) -> np.ndarray:
    """The optimum of every problem of a batch, by bisection on the price of the band, in extended precision."""
    band = PricedBand(p)
    low, high = (np.full((p.shape[0], 1), x, np.longdouble) for x in (1e-40, 1e40))
    loose = band.best(low)[0].sum(axis=-1, keepdims=True) <= 1
    for _ in range(90):
        middle = np.sqrt(low * high)
        over = band.best(middle)[0].sum(axis=-1, keepdims=True) > 1
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    share = band.best(np.where(loose, np.longdouble(1e-40), high))[0]
    return np.asarray((band.w * band.z(share)).sum(axis=-1), float)


def dual_bound(p: Problem, price: np.ndarray) -> np.ndarray:
    """Lower bounds of the optima of a batch, by weak duality: what all would lose and pay at best, less the price."""
    price = np.maximum(np.asarray(price, np.longdouble), 1e-40)
    return np.asarray(PricedBand(p).best(price)[1].sum(axis=-1) - price[:, 0], float)
