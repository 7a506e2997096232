"""Can this run work? Every check that a run passes before its first round, in named lists.

A check is a small function that yields a message per problem: what was given, what is allowed, what to do. The first
message is raised. Checks of a single setting are declared with the setting, in ``config/``; those of the user's objects
and of virtual clocks have their own files, ``custom_checks`` and ``clock_checks``.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feddrop.config import CustomMethod, RunConfig
from feddrop.config.execution import AUTO, Execution, ray_address
from feddrop.config.fields import waiting
from feddrop.config.radio import GIVEN_RATES, WITHOUT_DROPOUT
from feddrop.errors import ConfigError, named_object, shortened
from feddrop.learning.local import accuracy
from feddrop.methods.sizes import NO_AT
from feddrop.simulation import blocks, clock_checks, mistakes
from feddrop.simulation.cell_rates import CellRates
from feddrop.simulation.custom import NAMES, RADIO_HOOKS, CustomObjects
from feddrop.simulation.custom_checks import check_custom
from feddrop.simulation.importance import objective_note
from feddrop.simulation.participation import Roster
from feddrop.simulation.schemes import GivenRates, PlannedBy, RoundPlan, read_rates
from feddrop.simulation.trial import single_sample_notice, try_network, try_torch_device, unused_mean, uses_server_mean
from feddrop.storage.records import UNTRAINED

if TYPE_CHECKING:
    from feddrop.simulation.preparation import Prepared

log = logging.getLogger("feddrop")


@dataclass(frozen=True, slots=True)
class Known:
    """A run whose number of devices is known; as in :class:`~feddrop.simulation.preparation.Prepared`."""

    config: RunConfig
    custom: CustomObjects
    samples: Sequence[object]
    roster: Roster


# --- the configuration


def rate_has_an_effect(config: RunConfig) -> Iterator[str]:
    """The method uses rates, and no radio decides them."""
    given = shortened(list(config.rate) if isinstance(config.rate, tuple) else config.rate)
    if config.rate is not None and config.method.rateless:
        yield f"rate is {given}, which has no effect on {config.method.name!r}. Remove it, or use 'feddrop'."
    if config.rate is not None and config.radio is not None and config.radio.scheme != "fixed":
        yield (
            f"rate is {given}, which has no effect: [radio] decides the rates by its scheme {config.radio.scheme!r}. "
            'Remove rate, set radio.scheme = "fixed", or remove [radio]. To drop more or less, change radio.deadline_s.'
        )


def fixed_scheme_has_a_rate(config: RunConfig) -> Iterator[str]:
    """The scheme ``"fixed"`` takes its rates from the configuration."""
    if config.radio is not None and config.radio.scheme == "fixed" and config.rate is None:
        yield 'radio.scheme is "fixed", which takes its rates from the key rate. Add one, such as rate = 0.3.'


def auto_dtype_has_a_cell(config: RunConfig) -> Iterator[str]:
    """The dtype ``"auto"`` needs a cell whose rates depend on the size of frames."""
    radio, use = config.radio, 'Otherwise use "float32", "float16" or "int8".'
    if config.execution.dtype != AUTO:
        return
    if radio is None:
        yield f'execution.dtype is "auto", which lets the cell choose, but there is no [radio] section. Add one. {use}'
    elif radio.costs == "formula" or radio.scheme in GIVEN_RATES:
        why = f"radio.costs is {radio.costs!r}" if radio.costs == "formula" else f"radio.scheme is {radio.scheme!r}"
        yield f'execution.dtype is "auto", which has no effect: {why}, so rates ignore the size of frames. {use}'


def one_network_has_one_rate(config: RunConfig) -> Iterator[str]:
    """Methods with one mask for all devices have one rate throughout the run; those with the full network have none."""
    radio, method = config.radio, config.method
    if radio is None or not (method.one_mask or method.rateless):
        return
    able = (("common",) if method.rateless else ("common", "fixed")) if method.one_mask else WITHOUT_DROPOUT
    if radio.scheme not in able:
        names = " or ".join(f'"{name}"' for name in able)
        yield (
            f"radio.scheme is {radio.scheme!r}, which sets one rate per device, but all devices of {method.name!r} "
            f"train the same network. Set radio.scheme to {names}."
        )
    if method.one_mask and config.execution.dtype == AUTO:
        yield f'execution.dtype is "auto", but the rate of {method.name!r} is the same in all rounds. Name a dtype.'


def fltrust_has_samples(config: RunConfig) -> Iterator[str]:
    """FLTrust needs samples at the server."""
    if config.server.mean == "fltrust" and not config.data.validation:
        yield (
            'server.mean is "fltrust", which needs samples at the server, but data.validation is 0. Set it to the '
            "share that the server keeps, such as 0.05."
        )


def clock_is_possible(config: RunConfig) -> Iterator[str]:
    """Seconds and joules are counted in a cell, and a virtual clock fits the other sections."""
    for name in ("seconds", "joules"):
        value = getattr(config, name)
        if math.isfinite(value) and config.radio is None:
            yield f"{name} is {value:g}, but {name} are counted only in a cell. Add a [radio] section, or use rounds."
    if config.clock.kind != "deadline":
        yield from clock_checks.check_clock(config)


def files_exist(config: RunConfig) -> Iterator[str]:
    """The files that settings name exist; data sets say themselves where to get them."""
    for key, path in config.files().items():
        if key not in ("data.path", "rate") and not os.access(path, os.R_OK):
            why = "cannot be read" if path.exists() else "does not exist"
            yield f"{key} is {str(path)!r}, which {why}. Relative names start from the configuration's folder."


CONFIG_CHECKS = (
    rate_has_an_effect,
    fixed_scheme_has_a_rate,
    auto_dtype_has_a_cell,
    one_network_has_one_rate,
    fltrust_has_samples,
    clock_is_possible,
    files_exist,
)
"""Checks that need the configuration alone."""


def check_config(config: RunConfig, custom: CustomObjects | None = None) -> None:
    """Raise a ConfigError if settings of several sections contradict each other, or an object is wrong."""
    if not isinstance(config, RunConfig):
        raise ConfigError(
            f"config is {shortened(config)}; it must be a feddrop.RunConfig, such as RunConfig(rounds=30)."
        )
    _raise_first(problem for check in CONFIG_CHECKS for problem in check(config))
    if custom is None:
        return
    if any(getattr(custom, name) is not None for name in NAMES):
        check_custom(custom)
    _import_names(config, custom)
    if known := _known_devices(config, custom):
        _raise_first(problem for check in DEVICE_CHECKS for problem in check(known))


def _import_names(config: RunConfig, custom: CustomObjects) -> None:
    """Import what settings name as ``"package.module:object"``, unless an object replaces it."""
    if isinstance(config.method, CustomMethod) and custom.method is None:
        named_object(config.method.factory, "method.name")
    if ":" in config.train.loss and custom.loss is None:
        named_object(config.train.loss, "train.loss")
    for name in ("scheme", "channel", "outcome", "objective") if config.radio is not None else ():
        value = getattr(config.radio, name)
        if ":" in value and getattr(custom, "scheme" if name == "objective" else name) is None:
            named_object(value, f"radio.{name}")


def _known_devices(config: RunConfig, custom: CustomObjects) -> Known | None:
    """Return what is known of a run if its number of devices is: unless the owners of the samples decide it."""
    given = custom.samples if custom.samples is not None else custom.parts
    if given is None and config.data.partition == "owner":
        return None
    try:
        count = config.data.devices if given is None else len(given)
    except TypeError:  # the partition reports it
        return None
    return Known(config, custom, range(count), Roster(config.participation, count, config.seed))


def check_start(config: RunConfig, custom: CustomObjects) -> None:
    """Raise a ConfigError for everything that can be known on this machine before the data are read."""
    check_config(config, custom)
    if config.execution.executor != "ray" and config.execution.torch_device != "cpu":  # or the cluster checks it
        try_torch_device(config.execution.torch_device)


# --- everything that was built


def gains_have_a_radio(run: Prepared) -> Iterator[str]:
    """Gains, schemes, channels and outcomes are those of a radio."""
    if run.config.radio is not None or isinstance(run.custom.scheme, PlannedBy):
        return
    if run.custom.gains is not None:
        yield "gains are given, which have no effect without a radio. Add a [radio] section."
    for name in RADIO_HOOKS:
        if getattr(run.custom, name) is not None:
            yield f"{name}=... is given, which has no effect without a radio. Add a [radio] section."


def method_is_possible(run: Known | Prepared) -> Iterator[str]:
    """The method can work in so many rounds with so many devices."""
    if run.custom.method is None:
        yield from run.config.method.impossible(run.config.rounds, len(run.samples))


def lists_have_an_entry_per_device(run: Known | Prepared) -> Iterator[str]:
    """Lists of rates, path losses and distances have one entry per device; wrong rates are raised."""
    config, devices = run.config, len(run.samples)
    radio = config.radio if not isinstance(run.custom.scheme, PlannedBy) else None
    listed = config.rate if isinstance(config.rate, tuple | str) else None
    if listed is not None and run.custom.scheme is None and (radio is None or radio.scheme == "fixed"):
        read_rates(listed, devices)
    for name in ("path_loss", "distances_m") if radio is not None else ():
        values = getattr(radio, name)
        if isinstance(values, tuple) and values and len(values) != devices:
            yield f"radio.{name} has {len(values)} values for {devices} devices; give one per device."


def every_round_has_devices(run: Known | Prepared) -> Iterator[str]:
    """In every round, devices are available."""
    wanted, devices, rounds = run.config.participation.count, len(run.samples), run.config.rounds
    if wanted > devices:
        yield f"participation.count is {wanted}, but there are only {devices} devices."
    if run.config.participation.availability and (empty := run.roster.first_empty_round(rounds)):
        yield (
            f"no device is available in round {empty}, by participation.availability. Run fewer rounds, or add rows "
            "for it and start a new run."
        )


def cohorts_are_in_the_cell(run: Prepared) -> Iterator[str]:
    """In every round, devices are in the cell."""
    if isinstance(run.scheme, CellRates) and (empty := run.scheme.first_empty_round(run.config.rounds)):
        yield (
            f"none of the devices chosen for round {empty} is in the cell. Let more take part, or raise "
            "radio.min_devices."
        )


def rounds_have_enough_updates(run: Known | Prepared) -> Iterator[str]:
    """A round can have as many updates as the server needs."""
    server, clock = run.config.server, run.config.clock
    most, what = run.roster.most, "devices take part in a round"
    if clock.kind in ("first", "buffered"):
        key = "buffer" if clock.kind == "buffered" else "count"
        most, what = getattr(clock, key), f"updates are merged per step (clock.{key})"
    if server.min_devices > most:
        yield f"server.min_devices is {server.min_devices}, but at most {most} {what}."
    if server.krum and most < (needed := 2 * server.krum + 3):
        yield f"server.krum is {server.krum}, which needs at least {needed} updates, but at most {most} {what}."


def clock_fits_the_devices(run: Known | Prepared) -> Iterator[str]:
    """A virtual clock fits the number of devices."""
    if run.config.clock.kind != "deadline":
        yield from clock_checks.check_devices(run)


DEVICE_CHECKS = (
    lists_have_an_entry_per_device,
    method_is_possible,
    every_round_has_devices,
    rounds_have_enough_updates,
    clock_fits_the_devices,
)
"""Checks that need the number of devices; called before the data are read, unless these decide it."""


def clock_fits_the_run(run: Prepared) -> Iterator[str]:
    """A virtual clock fits the scheme and the method."""
    if run.config.clock.kind != "deadline":
        yield from clock_checks.check_run(run)


def network_fits_the_data(run: Prepared) -> Iterator[str]:
    """Outputs fit the targets, and the loss and metrics return numbers; raised by the trial."""
    descends = run.custom.method is None and not isinstance(run.config.method, CustomMethod)
    try_network(run.task.setup, run.dataset, run.task.metrics, descends=descends)
    yield from ()


def custom_objects_return_means(run: Prepared) -> Iterator[str]:
    """A custom loss is a mean, and a metric called accuracy a share."""
    if run.custom.loss is not None:
        yield from mistakes.loss_is_a_mean(run)
    if run.custom.metrics:
        yield from mistakes.accuracy_is_a_share(run)


def devices_have_an_accuracy(run: Prepared) -> Iterator[str]:
    """The accuracy of devices needs their classes, and class scores."""
    if run.config.eval_devices and (not run.task.class_shares.numel() or run.task.measures.get("accuracy") != accuracy):
        yield (
            "eval_devices is true, which needs devices whose samples are known, targets that are classes, and a "
            "network that returns class scores. Set it to false."
        )


def metrics_are_not_notes(run: Prepared) -> Iterator[str]:
    """No metric has the name of a number that the method or the run records."""
    taken = {*(run.method.notes(run.state) if run.method.notes and run.custom.metrics else ()), UNTRAINED}
    taken |= {f"{what}_at_{rate:g}" for rate in run.config.eval_rates for what in ("accuracy", "kept", "loss")}
    for name in run.custom.metrics or ():
        if name in taken:
            yield f"metrics has {name!r}, which the method or the run records itself. Use another name."


def sub_models_can_be_built(run: Prepared) -> Iterator[str]:
    """The method says which sub-model a device at a given rate holds."""
    if run.config.eval_rates and run.method.at is None:
        yield f"eval_rates is {list(run.config.eval_rates)}, but {NO_AT}"


def first_round_can_be_planned(run: Prepared) -> Iterator[str]:
    """The scheme can plan a round; an infeasible one is raised by the allocator."""
    if isinstance(run.scheme, GivenRates):
        return
    plan = _first_plan(run)
    if run.config.execution.dtype == AUTO and not plan.dtypes:
        yield 'execution.dtype is "auto", but the custom scheme chooses none. Use "float32", "float16" or "int8".'


def _first_plan(run: Prepared) -> RoundPlan:
    """Plan round 1; under a virtual clock, for the devices that it starts first, or as many."""
    busy, first = run.config.clock.concurrency, run.roster.chosen(1)
    started = range(busy) if 0 < busy < len(run.samples) else first
    with nullcontext() if run.config.clock.kind == "deadline" else run.roster.holding(started):
        return run.scheme.decide(1, params=run.params)


def method_uses_the_mean(run: Prepared) -> Iterator[str]:
    """A custom method averages with the helpers that apply ``server.mean``, if a setting asks for another mean."""
    custom = run.custom.method is not None or isinstance(run.config.method, CustomMethod)
    if custom and run.config.server.weighs:
        rates = dict(sorted(_first_plan(run).rates.items())[:2])
        if not uses_server_mean(run.task.setup, run.method, run.state, run.params, rates):
            yield unused_mean(run.config.server)


def blocks_can_be_merged(run: Prepared) -> Iterator[str]:
    """Updates can be added up where devices train."""
    if run.config.execution.merge_block:
        yield from blocks.problems(run)


RUN_CHECKS = (
    gains_have_a_radio,
    network_fits_the_data,
    devices_have_an_accuracy,
    custom_objects_return_means,
    cohorts_are_in_the_cell,
    clock_fits_the_run,
    metrics_are_not_notes,
    sub_models_can_be_built,
    first_round_can_be_planned,
    method_uses_the_mean,
    blocks_can_be_merged,
)
"""Checks that need network, data, method and scheme."""


def check(run: Prepared) -> list[str]:
    """Raise a ConfigError if a run cannot work, before anything is written; log and return what is not intended."""
    late = DEVICE_CHECKS if run.config.data.partition == "owner" else ()  # the data decided the number of devices
    _raise_first(problem for one in (*late, *RUN_CHECKS) for problem in one(run))
    for line in (lines := notices(run)):
        log.warning(line)
    return lines


def notices(run: Prepared) -> list[str]:
    """Return one line per thing that works but is probably not intended."""
    custom, setup = run.custom, run.task.setup
    lines = [
        *waiting(run.config),
        *run.config.method.notices(run.config.rounds),
        *run.method.notices,
        *custom.notices(run.config, getattr(run.scheme, "takes", ())),
    ]
    lines.append(setup.blueprint().note() if setup.blueprint().traced else "")  # the weight level does not trace
    lines.append(local_cpus(run.config.execution))
    if setup.train.batch_size == 1 or 1 in run.samples:
        lines.append(single_sample_notice(setup, run.samples))
    lines.append(run.gains.note(run.config.rounds) if run.gains else "")
    if run.config.radio:
        lines += [run.flops.note(), objective_note(run.config)]
    if custom.model or custom.dataset or custom.loss:
        lines += mistakes.notices(run)
    return [line for line in lines if line]


def local_cpus(execution: Execution) -> str:
    """Return a notice if CPUs per worker are set for a Ray on this machine; which it is depends on the environment."""
    local = execution.cpus and execution.executor == "ray" and ray_address(execution.address) == "local"
    return "execution.cpus has no effect on a local Ray: it is for a cluster. Set execution.address." if local else ""


def _raise_first(problems: Iterator[str]) -> None:
    for problem in problems:
        raise ConfigError(problem)
