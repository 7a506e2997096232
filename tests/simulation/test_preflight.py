"""The checks before a run: each finds its problem, and every check of the lists is tried."""

from __future__ import annotations

import pytest

from feddrop import RunConfig
from feddrop.errors import ConfigError
from feddrop.simulation import custom_checks, preflight

CONTRADICTIONS = {
    "rate_has_an_effect": [
        (["method=fedavg", "rate=0.3"], "rate is 0.3, which has no effect on 'fedavg'"),
        (["rate=0.3", "radio.deadline_s=9"], r"rate is 0.3, which has no effect: \[radio\] decides the rates"),
    ],
    "fixed_scheme_has_a_rate": [
        (["radio.scheme=fixed"], 'radio.scheme is "fixed", which takes its rates from the key')
    ],
    "auto_dtype_has_a_cell": [
        (["execution.dtype=auto"], r'execution.dtype is "auto", which lets the cell choose, but there is no \[radio\]'),
        (["execution.dtype=auto", "radio.costs=formula"], "which has no effect: radio.costs is 'formula'"),
        (["execution.dtype=auto", "radio.scheme=fixed", "rate=0.3"], "has no effect: radio.scheme is 'fixed'"),
    ],
    "one_network_has_one_rate": [
        (["method=fedavg", "radio.deadline_s=9"], 'all devices of .fedavg. train the same network. .*"no-dropout"'),
        (["method=feddst", "radio.deadline_s=9"], "radio.scheme is 'exact', which sets one rate per device"),
        (["method=fedrts", "radio.scheme=common", "execution.dtype=auto"], "the rate of 'fedrts' is the same"),
    ],
    "fltrust_has_samples": [(["server.mean=fltrust"], "needs samples at the server, but data.validation is 0")],
    "clock_is_possible": [
        (["seconds=9"], r"seconds is 9, but seconds are counted only in a cell"),
        (["joules=9"], r"joules is 9, but joules are counted only in a cell"),
        (["clock.kind=window", "clock.window_s=1"], r"there is no \[radio\] section"),
        (["clock.kind=first", "clock.count=2", "radio.scheme=ideal"], "which ignores the band"),
        (
            [
                "clock.kind=buffered",
                "clock.buffer=2",
                "clock.concurrency=2",
                "radio.deadline_s=9",
                "participation.count=3",
            ],
            r"\[participation\] count and share have no effect",
        ),
    ],
    "files_exist": [
        (["clock.kind=buffered", "radio.gains_csv=/no.csv"], "radio.gains_csv is '/no.csv', which does not")
    ],
}


def test_every_check_of_the_configuration_is_tried():
    assert [check.__name__ for check in preflight.CONFIG_CHECKS] == list(CONTRADICTIONS)


@pytest.mark.parametrize(("settings", "message"), [case for cases in CONTRADICTIONS.values() for case in cases])
def test_settings_of_several_sections_that_contradict_each_other(settings, message):
    with pytest.raises(ConfigError, match=message):
        preflight.check_config(RunConfig.from_toml("", settings))


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["rate=0.3"],
        ["method=fedavg"],
        ["radio.deadline_s=9"],
        ["radio.scheme=fixed", "rate=0.3"],
        ["execution.dtype=auto", "radio.deadline_s=9"],
    ],
)
def test_settings_that_go_together(settings):
    preflight.check_config(RunConfig.from_toml("", settings))


@pytest.mark.parametrize(
    "checks", [preflight.CONFIG_CHECKS, custom_checks.CUSTOM_CHECKS, preflight.DEVICE_CHECKS, preflight.RUN_CHECKS]
)
def test_every_check_says_what_it_checks(checks):
    assert all(check.__doc__ and check.__name__.islower() for check in checks)


def test_only_a_configuration_is_checked():
    with pytest.raises(ConfigError, match=r"config is 'run.toml'; it must be a feddrop.RunConfig"):
        preflight.check_config("run.toml")
