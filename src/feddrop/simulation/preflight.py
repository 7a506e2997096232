"""Can this run work? Every check that a run passes before its first round, in four lists.

A check is a small function that yields a message per problem: what was given, what is allowed, what to do. The first
message is raised. Checks of a single setting are declared with the setting, in ``config/``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from feddrop.config import CustomMethod, RunConfig
from feddrop.config.execution import AUTO, ray_address
from feddrop.config.radio import GIVEN_RATES
from feddrop.data import Dataset
from feddrop.errors import ConfigError, RunError, shortened
from feddrop.learning.local import accuracy
from feddrop.learning.metrics import Accumulator
from feddrop.methods.sizes import NO_AT
from feddrop.simulation import clock_checks, early, mistakes
from feddrop.simulation.cell_rates import CellRates
from feddrop.simulation.custom import NAMES, RADIO_HOOKS, CustomObjects, takes
from feddrop.simulation.importance import objective_note
from feddrop.simulation.schemes import GivenRates, PlannedBy
from feddrop.simulation.trial import single_sample_notice, try_network, try_torch_device, unused_mean, uses_server_mean
from feddrop.storage import RoundRecord
from feddrop.storage.records import UNTRAINED, WORST

if TYPE_CHECKING:
    from feddrop.simulation.early import Known
    from feddrop.simulation.preparation import Prepared

log = logging.getLogger("feddrop")

# --- the configuration


def rate_has_an_effect(config: RunConfig) -> Iterator[str]:
    """The method uses rates, and no radio decides them."""
    if config.rate is not None and config.method.rateless:
        yield f"rate is {config.rate!r}, which has no effect on {config.method.name!r}. Remove it, or use 'feddrop'."
    if config.rate is not None and config.radio is not None and config.radio.scheme != "fixed":
        yield (
            f"rate is {config.rate!r}, which has no effect: [radio] decides the rates by its scheme "
            f'{config.radio.scheme!r}. Remove rate, set radio.scheme = "fixed", or remove [radio]. To drop more or '
            "less, change radio.deadline_s."
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


def one_mask_has_one_rate(config: RunConfig) -> Iterator[str]:
    """Methods with one mask for all devices have one rate throughout the run."""
    radio, method = config.radio, config.method
    if radio is None or not method.one_mask:
        return
    able = ("common",) if method.rateless else ("common", "fixed")
    if radio.scheme not in able:
        names = " or ".join(f'"{name}"' for name in able)
        yield (
            f"radio.scheme is {radio.scheme!r}, which sets one rate per device, but all devices of {method.name!r} "
            f"train the same network. Set radio.scheme to {names}."
        )
    if config.execution.dtype == AUTO:
        yield f'execution.dtype is "auto", but the rate of {method.name!r} is the same in all rounds. Name a dtype.'


def cpus_have_a_cluster(config: RunConfig) -> Iterator[str]:
    """CPUs per worker are those of a Ray cluster; which one it is depends on the environment."""
    execution = config.execution
    if execution.executor == "ray" and execution.cpus and ray_address(execution.address) == "local":
        yield (
            f"execution.cpus is {execution.cpus:g}, which has no effect on a local Ray: it is for a cluster. Remove "
            "it, or set execution.address."
        )


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
            yield f"{name} is {value:g}, but without a [radio] section none are counted. Add one, or use rounds."
    if config.clock.kind != "deadline":
        yield from clock_checks.check_clock(config)


CONFIG_CHECKS = (
    rate_has_an_effect,
    fixed_scheme_has_a_rate,
    auto_dtype_has_a_cell,
    cpus_have_a_cluster,
    one_mask_has_one_rate,
    fltrust_has_samples,
    clock_is_possible,
    early.files_exist,
)
"""Checks that need the configuration alone."""


def check_config(config: RunConfig, custom: CustomObjects | None = None) -> None:
    """Raise a ConfigError if settings of several sections contradict each other, or an object is wrong."""
    if not isinstance(config, RunConfig):
        raise ConfigError(
            f"config is {shortened(config)}; it must be a feddrop.RunConfig, as RunConfig.from_file reads."
        )
    _raise_first(problem for check in CONFIG_CHECKS for problem in check(config))
    if custom is None:
        return
    check_custom(custom)
    early.import_names(config, custom)
    if known := early.known_devices(config, custom):
        _raise_first(problem for check in DEVICE_CHECKS for problem in check(known))


def check_start(config: RunConfig, custom: CustomObjects) -> None:
    """Raise a ConfigError for everything that can be known on this machine before the data are read."""
    check_config(config, custom)
    if config.execution.executor != "ray" and config.execution.torch_device != "cpu":  # or the cluster checks it
        try_torch_device(config.execution.torch_device)


# --- the user's objects

_CALLED = {
    "method": ("a function of one argument, setup -> Method", 1, "method.name"),
    "executor": ("a function of one argument, task -> Executor", 1, "execution.executor"),
    "loss": ("a function (outputs, targets) -> mean loss", 2, "train.loss"),
    "outcome": ("a function (plan, truth, costs, state) -> (lost, state)", 4, "radio.outcome"),
}
"""Arguments that must be functions: what they are, their number of arguments, and the setting they replace."""


def functions_can_be_called(custom: CustomObjects) -> Iterator[str]:
    """Functions take the arguments that they are called with."""
    for name, (what, count, key) in _CALLED.items():
        given = getattr(custom, name)
        if given is not None and not takes(given, count):
            yield f"{name} is {shortened(given)}; it must be {what}. To use one of feddrop's by name, set {key}."


def dataset_is_a_dataset(custom: CustomObjects) -> Iterator[str]:
    """The data are a Dataset."""
    given: Any = custom.dataset
    if given is not None and not isinstance(given, Dataset):
        yield (
            f"dataset is {shortened(given)}; it must be a feddrop.Dataset, as feddrop.from_arrays and "
            "feddrop.from_dataset return. To use one of feddrop's by name, set data.name."
        )


def metrics_are_functions(custom: CustomObjects) -> Iterator[str]:
    """Metrics are functions by name, and the names are free."""
    metrics: Any = custom.metrics or {}

    def usable(metric: Any) -> bool:
        return callable(metric) or isinstance(metric, Accumulator)

    if not isinstance(metrics, Mapping) or not all(isinstance(name, str) and usable(metrics[name]) for name in metrics):
        yield (
            f"metrics is {shortened(metrics)}; it must map names to functions (outputs, targets) -> number, or to "
            "objects with update(outputs, targets), compute() and reset()."
        )
        return
    taken = {"loss", "mean_rate", WORST, *(item.name for item in fields(RoundRecord))}
    for name in metrics:
        if not name.strip():
            yield f"metrics has the name {name!r}; metric names must not be blank."
        if name in taken:
            yield f"metrics has {name!r}, which is a field of every record. Use another name."


def objects_go_together(custom: CustomObjects) -> Iterator[str]:
    """No argument makes another one useless."""
    if custom.samples is not None and (custom.parts is not None or custom.executor is None):
        yield (
            "samples is given, which is for devices that hold their own data: it needs an executor that reaches them, "
            "and no parts. For simulated devices, give parts only."
        )
    if custom.gains is not None and isinstance(custom.scheme, PlannedBy):
        yield "gains are given, which have no effect if a planner decides. Remove them."


def schemes_and_channels_fit(custom: CustomObjects) -> Iterator[str]:
    """A scheme is a function of what it sees or has ``solve``; a channel has ``draw`` or is a function to one."""
    scheme, channel = custom.scheme, custom.channel
    if scheme is not None and not (isinstance(scheme, PlannedBy) or hasattr(scheme, "solve") or takes(scheme, 1)):
        yield (
            f"scheme is {shortened(scheme)}; it must be a function seen -> Plan, or an allocation scheme such as "
            "feddrop.Exact(). To use one of feddrop's by name, set radio.scheme."
        )
    if channel is not None and not (hasattr(channel, "draw") or takes(channel, 1)):
        yield (
            f"channel is {shortened(channel)}; it must have draw(devices, round, seed) -> gains, or be a function from "
            "the cell's fading to such an object. To use one of feddrop's by name, set radio.channel."
        )


CUSTOM_CHECKS = (
    functions_can_be_called,
    dataset_is_a_dataset,
    metrics_are_functions,
    objects_go_together,
    schemes_and_channels_fit,
)
"""Checks that need the user's objects alone."""


def check_custom(custom: CustomObjects) -> None:
    """Raise a ConfigError if an object is of the wrong type, or has no effect."""
    _raise_first(problem for check in CUSTOM_CHECKS for problem in check(custom))


def check_resumed(custom: CustomObjects, before: Mapping[str, Any]) -> None:
    """Raise a RunError unless the same kinds of objects are given as ``run.json`` lists; the executor may differ."""
    if not isinstance(names := before.get("custom"), list):
        raise RunError(
            "run.json does not list the custom objects of the run; feddrop before 0.3 wrote it. Start a new run."
        )
    given = custom.given()
    changed = [one for one in NAMES if one != "executor" and (one in given) != (NAMES[one] in names)]
    missing = [argument for argument in changed if argument not in given]
    if more := [argument for argument in changed if argument in given]:
        raise RunError(
            f"the run was started without a custom {' and '.join(more)}. Resume it without, or start a new one."
        )
    if missing:
        call = f"feddrop.resume(folder, {', '.join(f'{argument}=...' for argument in missing)})"
        raise RunError(f"the run was started with a custom {' and '.join(missing)}. Give the same again: {call}.")


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
    early.lists_have_an_entry_per_device,
    early.method_is_possible,
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
    """The method says which sub-model a device of some rate holds."""
    if run.config.eval_rates and run.method.at is None:
        yield f"eval_rates is {list(run.config.eval_rates)}, but {NO_AT}"


def first_round_can_be_planned(run: Prepared) -> Iterator[str]:
    """The scheme can plan a round; an infeasible one is raised by the allocator."""
    if isinstance(run.scheme, GivenRates):
        return
    busy = run.config.clock.concurrency  # devices with a job at a time, if the clock limits them
    with run.roster.holding(range(busy)) if 0 < busy < len(run.samples) else nullcontext():
        plan = run.scheme.decide(1, params=run.params)
    if run.config.execution.dtype == AUTO and not plan.dtypes:
        yield 'execution.dtype is "auto", but the custom scheme chooses none. Use "float32", "float16" or "int8".'


def method_uses_the_mean(run: Prepared) -> Iterator[str]:
    """A custom method averages with the helpers that apply ``server.mean``, if a setting asks for another mean."""
    custom = run.custom.method is not None or isinstance(run.config.method, CustomMethod)
    if custom and run.config.server.weighs:
        rates = dict(sorted(run.scheme.decide(1, params=run.params).rates.items())[:2])
        if not uses_server_mean(run.task.setup, run.method, run.state, run.params, rates):
            yield unused_mean(run.config.server)


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
)
"""Checks that need network, data, method and scheme."""


def check(run: Prepared) -> None:
    """Raise a ConfigError if a run cannot work, before anything is written; log what is probably not intended."""
    late = DEVICE_CHECKS if not early.known_devices(run.config, run.custom) else ()
    _raise_first(problem for one in (*late, *RUN_CHECKS) for problem in one(run))
    for line in notices(run):
        log.warning(line)


def notices(run: Prepared) -> list[str]:
    """Return one line per thing that works but is probably not intended."""
    custom, setup = run.custom, run.task.setup
    lines = [
        *run.config.method.notices(run.config.rounds),
        *custom.notices(run.config, getattr(run.scheme, "takes", ())),
    ]
    lines.append(setup.blueprint().note())
    if setup.train.batch_size == 1 or 1 in run.samples:
        lines.append(single_sample_notice(setup, run.samples))
    if run.gains:
        lines.append(run.gains.note(run.config.rounds))
    if run.config.radio:
        lines += [run.flops.note(), objective_note(run.config)]
    if custom.model or custom.dataset or custom.loss:
        lines += mistakes.notices(run)
    return [line for line in lines if line]


def _raise_first(problems: Iterator[str]) -> None:
    for problem in problems:
        raise ConfigError(problem)
