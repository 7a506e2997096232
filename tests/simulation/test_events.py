"""The event loop alone: a cell worked out with pencil, the fast link against the slow one, ties, vanishing, saving."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from feddrop.simulation.events import Events
from feddrop.simulation.link import FixedLink, SharedLink, SubbandLink, Transfer

LINKS = [SharedLink, SubbandLink]


def run_out(events: Events, pulls: dict[int, Transfer]) -> list[tuple[float, int, str]]:
    """Let all events happen; uploads start as computations end."""
    found = []
    while events.next_s() < math.inf:
        event, _ = events.step()
        if event.what == "computed":
            events.upload(event.device, pulls[event.device])
        found.append(tuple(event))
    return found


PENCIL = [
    (3.0, 0, "downloaded"),
    (5.0, 0, "computed"),
    (5.0, 1, "downloaded"),
    (6.0, 1, "computed"),
    (6.0, 2, "downloaded"),
    (7.0, 0, "arrived"),
    (8.5, 1, "arrived"),
    (9.0, 2, "computed"),
    (12.0, 2, "arrived"),
]
"""The example of docs/clock.md: three devices on an equal split of the band."""


@pytest.mark.parametrize("link", LINKS)
def test_three_devices_with_pencil(link):
    """Downloads of 1, 2 and 3, computations of 2, 1 and 3 and uploads of 1.5, 2 and 3 full-band seconds."""
    events = Events(link)
    for device, (push, work) in enumerate([(1.0, 2.0), (2.0, 1.0), (3.0, 3.0)]):
        events.start(device, Transfer(push), work)
    found = run_out(events, {0: Transfer(1.5), 1: Transfer(2.0), 2: Transfer(3.0)})
    assert [event[1:] for event in found] == [event[1:] for event in PENCIL]
    assert [event[0] for event in found] == pytest.approx([event[0] for event in PENCIL], abs=1e-12)


def test_three_devices_with_pencil_and_weights():
    """Weights 1/2, 1/4, 1/4: device 0 sends twice as fast until it is done, then the others have half each."""
    events = Events(SharedLink)
    for device, weight in enumerate([0.5, 0.25, 0.25]):
        events.start(device, Transfer(1.0, weight), 100.0)
    events.step()
    assert events.now == pytest.approx(2.0, abs=1e-12)  # 1 second of work at half the band
    times = [events.step()[0].time for _ in range(2)]
    assert times == pytest.approx([3.0, 3.0], abs=1e-12)  # half done after 2 s; then half the band each


def test_fixed_shares_stay():
    events = Events(FixedLink)
    events.start(0, Transfer(1.0, 0.5), 1.0)
    events.start(1, Transfer(1.0, 0.25), 1.0)
    found = run_out(events, {0: Transfer(1.0, 0.5), 1: Transfer(1.0, 0.25)})
    assert [one for one in found if one[2] == "arrived"] == [(5.0, 0, "arrived"), (9.0, 1, "arrived")]


def test_noise_that_shrinks_with_the_share():
    """Two equal transfers over subbands: each has half the band, and more than half the speed."""
    events = Events(SubbandLink)
    for device in range(2):
        events.start(device, Transfer(1.0, 1.0, snr=3.0), 1.0)
    events.step()
    assert events.now == pytest.approx(1.0 / (0.5 * math.log2(1 + 3 / 0.5) / math.log2(4)), rel=1e-12)
    with pytest.raises(ValueError, match="SubbandLink"):
        SharedLink().add(0.0, 0, Transfer(1.0, 1.0, snr=3.0))


def random_events(link, seed: int, devices: int = 12, jobs: int = 60, saves: bool = False):
    """Jobs that start at random times on random devices, some of which vanish or are cancelled."""
    drawn, events, found, started = np.random.default_rng(seed), Events(link), [], 0
    while started < jobs or events.jobs:
        if saves:
            saved = json.loads(json.dumps(events.save()))
            events = Events(link)
            events.load(saved)
        idle = [device for device in range(devices) if device not in events.jobs]
        if started < jobs and idle and drawn.random() < 0.4:
            push, work, until, weight = drawn.exponential(size=4).tolist()
            until_s = events.now + 20 * until if drawn.random() < 0.3 else math.inf
            device = idle[int(drawn.integers(len(idle)))]
            events.start(device, Transfer(push, 0.1 + weight), work, until_s=until_s)
            started += 1
        elif events.jobs and drawn.random() < 0.05:
            job = events.cancel(sorted(events.jobs)[0])
            found.append((events.now, job.device, "cancelled", job.push_s, job.compute_s, job.pull_s, job.pull_share))
        elif events.jobs and drawn.random() < 0.1:
            events.advance(events.now + 0.5 * (events.next_s() - events.now))
        elif events.jobs:
            event, job = events.step()
            if event.what == "computed":
                events.upload(event.device, Transfer(float(drawn.exponential()), 0.5))
            found.append((*event, job.push_s, job.compute_s, job.pull_s, job.pull_share))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_fast_link_is_the_slow_one(seed):
    fast, slow = random_events(SharedLink, seed), random_events(SubbandLink, seed)
    assert [one[1:3] for one in fast] == [one[1:3] for one in slow]
    for a, b in zip(fast, slow, strict=True):
        assert (a[0], *a[3:]) == pytest.approx((b[0], *b[3:]), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("link", [SharedLink, SubbandLink, FixedLink])
def test_saving_at_every_event_changes_nothing(link):
    assert random_events(link, 3) == random_events(link, 3, saves=True)


@pytest.mark.parametrize("link", LINKS)
def test_ties_are_ordered_by_device(link):
    events = Events(link)
    for device in (4, 1, 3):
        events.start(device, Transfer(1.0), 1.0)
    order = [event[1] for event in run_out(events, dict.fromkeys((1, 3, 4), Transfer(1.0)))]
    assert order == [1, 3, 4] * 3
    assert events.now == pytest.approx(3.0 + 1.0 + 3.0, abs=1e-12)


def test_a_device_that_vanishes_frees_its_band_and_is_billed():
    events = Events(SharedLink)
    events.start(0, Transfer(0.0), 0.0)
    events.start(1, Transfer(0.0), 0.0, until_s=1.0)
    found, jobs = [], {}
    while events.next_s() < math.inf:
        event, job = events.step()
        if event.what == "computed":
            events.upload(event.device, Transfer(2.0))
        found.append(tuple(event))
        jobs[event.device] = job
    assert found[-2:] == [(1.0, 1, "vanished"), (2.5, 0, "arrived")]  # half the band for 1 s, then all of it
    assert (jobs[1].pull_s, jobs[1].pull_share) == pytest.approx((1.0, 0.25))


def test_an_upload_that_ends_as_its_device_vanishes_arrives():
    events = Events(SharedLink)
    events.start(0, Transfer(1.0), 1.0, until_s=3.0)
    assert run_out(events, {0: Transfer(1.0)})[-1] == (3.0, 0, "arrived")


def test_wrong_calls_are_refused():
    events = Events(SharedLink)
    with pytest.raises(ValueError, match="no event"):
        events.step()
    events.start(0, Transfer(1.0), 1.0)
    with pytest.raises(ValueError, match="already has a job"):
        events.start(0, Transfer(1.0), 1.0)
    with pytest.raises(ValueError, match="cannot upload during download"):
        events.upload(0, Transfer(1.0))
    with pytest.raises(ValueError, match="next event is at"):
        events.advance(5.0)
