"""The allocation problem of one round or a batch of rounds: the paper's P1.

For the *full* model over the *whole* band, device k needs

    a_k seconds to push and pull    (comm_s)        b_k seconds to compute    (compute_s)
    c_k joules to upload            (upload_j)      d_k joules to compute     (compute_j)

A subnet of rate γ_k over a share ρ_k of the band costs (1-γ_k)(a_k/ρ_k + b_k) seconds and (1-γ_k)(c_k/ρ_k + d_k)
joules. With z_k = 1/(1-γ_k) the paper's P1 reads

    minimise    Σ w_k z_k
    subject to  C1  (a_k/ρ_k + b_k) / T0   <= z_k              deadline
                C2  (c_k/ρ_k + d_k) / E_k  <= z_k              energy; E_k is net of the circuit energy ξ_k
                C3  Σ ρ_k <= 1,  ρ_k >= 0                      band
                C4  1 <= z_k <= 1/(1-θ)                        rate

P1 is convex in (z, ρ). With multipliers λ_k, ν_k >= 0 on C1, C2, μ >= 0 on C3 and α_k, β_k >= 0 on the two sides of
C4, the KKT conditions are the constraints, complementary slackness and

    w_k - λ_k - ν_k - α_k + β_k = 0                            stationary in z_k
    λ_k a_k/(T0 ρ_k²) + ν_k c_k/(E_k ρ_k²) = μ                 stationary in ρ_k

Under *subband* noise, transmission time and energy are not inverse to the share but still convex in it
(:class:`~feddrop.allocation.subband.SubbandProblem`). The conditions are the same with their derivatives instead of
a_k/ρ_k² and c_k/ρ_k².
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feddrop.errors import ConfigError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

GUARD = 1.0 - 2.0**-47  # relative margin of deadlines and budgets, so that they also hold after rounding
TINY = 1e-300  # replaces budgets of 0 and below: any cost exceeds it, and it can be divided by


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundProblem:
    """The fields of every allocation problem of one round or a batch of rounds; :class:`Problem` describes them.

    Attributes:
        shape: ``(num_devices,)`` or ``(num_rounds, num_devices)``.
        numbers: names of the fields that hold numbers.
    """

    numbers: ClassVar[tuple[str, ...]] = ("weight", "deadline_s", "budget_j", "max_rate")

    weight: FloatArray
    deadline_s: FloatArray
    budget_j: FloatArray
    max_rate: FloatArray
    present: BoolArray | None = None
    shape: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        coerce(self)


class Side(NamedTuple):
    """The left side z of C1 or C2 at a share; ``fall`` = -dz / d log ρ and ``bend`` = d log(fall) / d log ρ."""

    z: FloatArray
    fall: FloatArray
    bend: FloatArray


class Curves(Protocol):
    """The left sides of C1 and C2 as functions of the share; one side, the larger, if power and clock are chosen."""

    def sides(self, share: FloatArray) -> tuple[Side, ...]:
        """Return the sides at these shares, ``[..., num_devices]``."""
        ...


class _Hyperbolas(NamedTuple):
    """α/ρ + β for both constraints."""

    on_air: FloatArray
    compute: FloatArray
    sent: FloatArray
    worked: FloatArray

    def sides(self, share: FloatArray) -> tuple[Side, Side]:
        on_air, sent = self.on_air / share, self.sent / share
        bend = np.full((), -1.0)
        return Side(on_air + self.compute, on_air, bend), Side(sent + self.worked, sent, bend)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(RoundProblem):
    """The paper's P1, for noise whose power does not depend on the share.

    Every number may be a scalar, ``[num_devices]`` or ``[num_rounds, num_devices]``; they are broadcast together.

    Attributes:
        weight: w, the device's part |D_k|/|D| of the samples.
        deadline_s: T0, seconds that a round may take.
        budget_j: E, joules a device may spend in the round, net of its circuit energy; inf for no budget.
        max_rate: θ, the highest rate allowed.
        present: which devices take part in the round; None for all. The others get share 0.
        comm_s: a, seconds to push and pull the full model over the whole band.
        compute_s: b, seconds to train the full model on the device's samples.
        upload_j: c, joules to upload the full model over the whole band.
        compute_j: d, joules to train the full model on the device's samples.

    Example:
        >>> import feddrop
        >>> cell = feddrop.Problem(weight=[0.5, 0.5], comm_s=[2.0, 8.0], compute_s=0.1, upload_j=0.0, compute_j=0.0,
        ...                        deadline_s=10.0, budget_j=float("inf"), max_rate=0.9)
        >>> cell.shape
        (2,)
    """

    numbers: ClassVar[tuple[str, ...]] = (*RoundProblem.numbers, "comm_s", "compute_s", "upload_j", "compute_j")

    comm_s: FloatArray
    compute_s: FloatArray
    upload_j: FloatArray
    compute_j: FloatArray

    def air(self, share: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return transmission time in s and energy in J of the full model at these shares."""
        return self.comm_s / share, self.upload_j / share

    def curves(self, block: slice = slice(None)) -> Curves:
        """Return the left sides of C1 and C2 of a block of devices, as functions of the share."""
        part = part_of(self, block)
        budget = positive(part.budget_j)
        return _Hyperbolas(
            part.comm_s / part.deadline_s, part.compute_s / part.deadline_s, part.upload_j / budget,
            part.compute_j / budget,
        )  # fmt: skip

    def least_share(self, z: FloatArray, stretch: FloatArray | float = 1.0) -> FloatArray:
        """Return the smallest share with which a device trains 1/z of the model in time and budget; inf if none is."""
        seconds = z * (self.deadline_s * stretch) * GUARD - self.compute_s
        joules = z * (positive(self.budget_j) * GUARD) - self.compute_j
        with np.errstate(all="ignore"):
            share = np.maximum(self.comm_s / seconds, self.upload_j / joules)
        return np.where((seconds > 0) & (joules > 0), share, np.inf)


BLOCK = 1 << 13  # devices per block: its arrays fit into the processor's cache


def part_of(problem: Any, block: slice) -> Any:
    """Return the problem of a block of devices, as views and without validation."""
    part = object.__new__(type(problem))
    for name in problem.numbers:
        value = getattr(problem, name)
        object.__setattr__(part, name, value[..., block] if value.ndim and value.shape[-1] > 1 else value)
    return part


def positive(budget_j: FloatArray) -> FloatArray:
    """Return budgets that can be divided by."""
    return np.maximum(budget_j, TINY)


def total(values: npt.NDArray[Any]) -> FloatArray:
    """Sum over devices, ``[..., 1]``."""
    return np.add.reduce(values, axis=-1, keepdims=True, dtype=np.float64)


def coerce(problem: Any) -> None:
    """Convert the fields of a new problem to float64 arrays, set their common shape and validate them."""
    names = problem.numbers
    values = []
    for name in names:
        try:
            value = np.asarray(getattr(problem, name), dtype=np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"{name} must be a number or an array of numbers: {error}.") from error
        object.__setattr__(problem, name, value)
        values.append(value)
    if problem.present is not None:
        object.__setattr__(problem, "present", np.asarray(problem.present, dtype=np.bool_))
        values.append(problem.present)
    try:
        shape = np.broadcast(*values).shape
    except ValueError as error:
        given = ", ".join(f"{n} {list(v.shape)}" for n, v in zip(names, values, strict=False))
        raise ConfigError(f"The fields do not fit together: {given}. Give a scalar or one value per device.") from error
    if len(shape) not in (1, 2) or 0 in shape:
        raise ConfigError(f"A problem has values [K] or [rounds, K], K >= 1; these have shape {list(shape)}.")
    object.__setattr__(problem, "shape", shape)
    for name, value in zip(names, values, strict=False):
        _check(name, value, shape)


_MAY_BE_ZERO = (
    *("weight", "compute_s", "upload_j", "compute_j", "push_s", "download_s", "cycles", "cpu_constant"),
    *("tx_power_w", "least_cpu_hz", "least_tx_power_w"),
)


def _check(name: str, value: FloatArray, shape: tuple[int, ...]) -> None:
    # The usual case first, in one or two fast calls; min() of values with a NaN is NaN.
    if value.ndim == 0 and 0 < value.item() < (1 if name == "max_rate" else np.inf):
        return
    if value.ndim == 1 and name != "max_rate" and value.min() > 0 and value.max() < np.inf:
        return
    if name == "budget_j":
        refuse(name, value, value > -np.inf, "a number, or inf for no budget", shape)
    elif name == "max_rate":
        refuse(name, value, (value >= 0) & (value < 1), "at least 0 and below 1", shape)
    elif name in _MAY_BE_ZERO:
        refuse(name, value, (value >= 0) & (value < np.inf), "finite and not negative", shape)
    else:
        refuse(name, value, (value > 0) & (value < np.inf), "finite and positive", shape)


def refuse(
    name: str, value: FloatArray, good: BoolArray, rule: str, shape: tuple[int, ...], *, first_round: int = 0
) -> None:
    """Raise a ConfigError that names the first device whose value is not ``good``, if there is one.

    Values are broadcast to ``shape``, ``[num_devices]`` or ``[num_rounds, num_devices]``; ``rule`` says what is valid.
    """
    if not good.all():
        place = tuple(np.argwhere(~np.broadcast_to(good, shape))[0])
        given = np.broadcast_to(value, shape)[place]
        where = f"device {place[-1]}" + (f" in round {place[0] + first_round}" if len(place) == 2 else "")
        raise ConfigError(f"{name} of {where} is {given:g}; it must be {rule}.")
