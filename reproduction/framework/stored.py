"""What the store holds: all runs, the versions that trained them, and the runs that no experiment lists."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import replace

from feddrop.comparison import LEAST_SEEDS
from feddrop.config import RunConfig, from_table
from reproduction.framework.experiment import markdown_table
from reproduction.framework.store import Result, Store, key_of


def describe(store: Store, listed: Collection[str]) -> str:
    """Describe all stored runs.

    Args:
        store: the stored runs.
        listed: keys of the runs that experiments list.
    """
    found = {key: (from_table(RunConfig, result.config), result) for key, result in store.all().items()}
    if not found:
        return ""
    versions: dict[str, list[Result]] = defaultdict(list)
    cells: dict[str, Counter[str]] = defaultdict(Counter)
    for config, result in found.values():
        versions[result.version].append(result)
        cells[key_of(replace(config, seed=0))][result.version] += 1
    full = [cell for cell in cells.values() if cell.total() >= LEAST_SEEDS]
    mixed = sum(len(cell) > 1 for cell in full)
    rows = [
        [version, str(len(results)), f"{sum(result.wall_s for result in results) / 3600:.1f}"]
        for version, results in sorted(versions.items())
    ]
    rest = {key: one for key, one in found.items() if key not in listed}
    text = (
        f"{len(found)} runs are stored; this page shows or lists all of them. They were trained by different versions "
        "of feddrop; unreleased code carries the number of the last release. Runs that differ only in their seed form "
        "a cell: of "
        f"{len(full)} cells with at least {LEAST_SEEDS} seeds, {mixed} mix versions.\n\n"
        + markdown_table(["version", "runs", "hours"], rows)
        + "\n\n"
    )
    if rest:
        lines = [[key, *words_of(config), f"{100 * result.accuracy:.2f}"] for key, (config, result) in rest.items()]
        text += (
            f"<details><summary>{len(rest)} stored runs that no experiment lists. They decide no claim, except that "
            "seeds beyond those listed enter the cells of the table.</summary>\n\n"
            + markdown_table(["file", "network", "seed", "method", "cell", "accuracy, %"], lines)
            + "\n\n</details>\n"
        )
    return text


def words_of(config: RunConfig) -> list[str]:
    """Describe a run in a few words: network, seed, method and cell."""
    rate = f", rate {config.rate}" if config.rate is not None else ""
    method = f"{config.method.name}{rate}, {config.data.partition}"
    cell = ""
    if config.radio is not None:
        radio = config.radio
        cell = f"{radio.scheme}, {radio.deadline_s:g} s, {radio.bandwidth_hz / 1e6:g} MHz, costs: {radio.costs}"
        cell += ", dynamic" * radio.dynamic
    return [config.model.name, str(config.seed), method, cell]
