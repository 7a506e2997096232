"""Can a virtual clock work? Checks of ``[clock]``; ``preflight.py`` calls them if the clock is not ``"deadline"``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from feddrop.config import RunConfig
from feddrop.config.radio import IDEAL
from feddrop.simulation.availability import Availability

if TYPE_CHECKING:
    from feddrop.simulation.preflight import Known
    from feddrop.simulation.preparation import Prepared

_USE = 'Use clock.kind = "deadline"'


def clock_has_a_cell(config: RunConfig) -> Iterator[str]:
    """Virtual seconds come from a cell whose band is shared."""
    radio = config.radio
    if radio is None:
        begin = f'clock.kind is "{config.clock.kind}"'
        yield f"{begin}, which needs to know how long frames take, but there is no [radio] section. Add one."
        return
    yield from scheme_fits(config, radio.scheme)


def scheme_fits(config: RunConfig, scheme: str) -> Iterator[str]:
    """A virtual clock plans several times per step, for a band that is shared."""
    if scheme in ("primal-dual", IDEAL):
        why = "ignores the band" if scheme == IDEAL else "starts from the devices of the round before"
        yield (
            f'clock.kind is "{config.clock.kind}", but the scheme is "{scheme}", which {why}. Use radio.scheme = '
            f'"exact", or {_USE[4:]}.'
        )


def buffered_has_no_rounds(config: RunConfig) -> Iterator[str]:
    """A buffered clock draws devices one by one."""
    given = config.participation
    if given.count or given.share:
        yield (
            'clock.kind is "buffered", under which [participation] count and share have no effect: devices are drawn '
            "one by one. Set clock.concurrency instead."
        )
    if given.availability:
        yield (
            "participation.availability counts rounds, but a device has no rounds under a buffered clock. Give "
            "seconds in clock.trace instead."
        )


def one_mask_is_not_stale(config: RunConfig) -> Iterator[str]:
    """A network that is sparse itself has one mask, which may have moved before a stale update arrives."""
    if config.clock.stale:
        yield (
            f"method {config.method.name!r} moves the mask of the network, so an update that was cut with an older "
            "mask cannot be merged, but this clock merges stale updates. Use clock.kind = 'first' or "
            "'window' with clock.late = 'drop', or 'deadline'."
        )


def check_clock(config: RunConfig) -> Iterator[str]:
    """The checks that need the configuration alone."""
    yield from clock_has_a_cell(config)
    if config.method.one_mask:
        yield from one_mask_is_not_stale(config)
    if config.clock.kind == "buffered":
        yield from buffered_has_no_rounds(config)


def devices_are_simulated(run: Prepared) -> Iterator[str]:
    """Only simulated devices can wait in virtual seconds, and only a cell knows how long."""
    if run.custom.samples is not None or not hasattr(run.scheme, "cell"):
        yield (
            f'clock.kind is "{run.config.clock.kind}", which needs simulated devices in a cell; real devices and '
            f"custom planners have their own seconds. {_USE}."
        )


def clock_has_enough_devices(run: Known | Prepared) -> Iterator[str]:
    """There are as many devices as the clock waits for, and a buffer of all of them is never stale."""
    clock, devices, most = run.config.clock, len(run.samples), run.roster.most
    for key, value in (("buffer", clock.buffer), ("concurrency", clock.concurrency)):
        if value > devices and clock.kind == "buffered":
            yield f"clock.{key} is {value}, but there are only {devices} devices, each with one job at a time."
    if clock.kind == "first" and clock.count > most:
        yield f"clock.count is {clock.count}, but at most {most} devices take part in a round. Lower it."
    everyone = {"buffered": clock.buffer == devices, "first": clock.count == most}.get(clock.kind, False)
    for name in clock.of_stale if everyone else ():
        yield (
            f"clock.{name} is {getattr(clock, name)!r}, which has no effect: a step waits for all {most} devices, so "
            f"no update is stale. Remove it, or lower clock.{'buffer' if clock.kind == 'buffered' else 'count'}."
        )


def devices_come_online(run: Known | Prepared) -> Iterator[str]:
    """As many devices as a step waits for are online at some time."""
    config, devices = run.config, len(run.samples)
    known = Availability(config.clock, devices, config.seed)
    able = sum(known.next_available(device, 0.0) < math.inf for device in range(devices))
    if not able:
        yield "clock.trace has no row for any device, so no device is ever online. Add rows to the file."
    waits = {"buffered": ("clock.buffer", config.clock.buffer), "first": ("clock.count", config.clock.count)}
    needs = dict([waits.get(config.clock.kind, ("", 0)), ("server.min_devices", config.server.min_devices)])
    for key, value in needs.items() if able < devices else ():
        if value > able:
            yield f"{key} is {value}, but clock.trace has rows for only {able} of {devices} devices. Lower it."


def stale_updates_fit(run: Prepared) -> Iterator[str]:
    """A custom method of one sparse network refuses stale updates like those of the table."""
    if run.method.settle is not None:
        yield from one_mask_is_not_stale(run.config)


def check_devices(run: Known | Prepared) -> Iterator[str]:
    """The checks that need the number of devices."""
    yield from clock_has_enough_devices(run)
    yield from devices_come_online(run)


def check_run(run: Prepared) -> Iterator[str]:
    """The checks that need network, data, method and scheme."""
    yield from devices_are_simulated(run)
    yield from scheme_fits(run.config, getattr(run.custom.scheme, "name", ""))
    yield from stale_updates_fit(run)
