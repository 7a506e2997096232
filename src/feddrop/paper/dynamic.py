"""Figure 6: a cell that changes: 5 to 10 devices, CPU frequency and power drawn anew every round, IID and non-IID."""

from __future__ import annotations

from dataclasses import replace

from feddrop.config import RunConfig
from feddrop.paper.cells import deadline_for, radio
from feddrop.paper.drawing import legend, not_run, panels
from feddrop.paper.experiment import Experiment, Lookup, Page, Verdict, markdown_table, outcome
from feddrop.paper.scales import SCENARIOS, Scale

PARTITIONS = {"iid": "IID", "dirichlet": "non-IID"}


def points(scale: Scale, scenario: str) -> list[tuple[float, dict[str, RunConfig]]]:
    """Return, for every deadline, the run of each partition."""
    setting = scale.settings[scenario]
    found = []
    for target in scale.target_rates[:: max(1, len(scale.target_rates) - 1)]:
        deadline = deadline_for(setting, target)
        cell = replace(radio(setting, deadline_s=deadline), dynamic=True, min_devices=5)
        found.append((deadline, {p: setting.run(figure=True, radio=cell, partition=p) for p in PARTITIONS}))
    return found


def runs(scale: Scale) -> list[RunConfig]:
    """Both partitions at a tight and a loose deadline."""
    return [config for s in SCENARIOS for _, by in points(scale, s) for config in by.values()]


def make(scale: Scale, find: Lookup) -> Page:
    """Draw accuracy by round, and tabulate its end."""
    from feddrop.report.style import SERIES

    figure, axes = panels([f"{scenario}: test accuracy, %" for scenario in SCENARIOS])
    rows, above, notes = [], [], []
    for panel, scenario in zip(axes, SCENARIOS, strict=True):
        panel.set_xlabel("round")
        colours = iter(SERIES)
        for deadline, by_partition in points(scale, scenario):
            ends = {}
            for partition, config in by_partition.items():
                result, colour = find(config), next(colours)
                ends[partition] = None if result is None else 100.0 * result.accuracy
                if result is not None:
                    label = f"{PARTITIONS[partition]}, {deadline:g} s"
                    panel.plot(
                        range(1, config.rounds + 1), 100 * result.values("test_accuracy"), color=colour, label=label
                    )
            rows.append([scenario, f"{deadline:g}", *("" if v is None else f"{v:.2f}" for v in ends.values())])
            first, second = ends.values()
            above.append(None if first is None or second is None else first > second)
            if first is not None and second is not None:
                notes.append(f"{scenario}, {deadline:g} s: {first:.1f} against {second:.1f} %")
        if panel.has_data():
            legend(panel)
        else:
            not_run(panel)
    text = markdown_table(["scenario", "deadline, s", *PARTITIONS.values()], rows)
    text += "\n\n![Accuracy in a changing cell](dynamic.png)\n"
    verdict = Verdict("iid-above", "; ".join(notes), outcome(above))
    return Page(text=text, figures={"dynamic.png": figure}, verdicts=[verdict])


EXPERIMENT = Experiment("dynamic", "A cell that changes", "Fig. 6", runs, make)
