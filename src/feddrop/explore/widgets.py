"""``feddrop.explore_cell``: the sliders of the cell page in a notebook, with a picture of every device."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from feddrop.allocation import OBJECTIVES
from feddrop.config.parsing import read_text
from feddrop.errors import ConfigError, FeddropError
from feddrop.explore.cell import SHOWN, START, notes_on, solve
from feddrop.explore.settle import from_toml
from feddrop.explore.sliders import NAMES, SLIDERS, Slider

MOVED = ("cell.devices", "radio.bandwidth_hz", "radio.deadline_s", "radio.energy_budget_j", "radio.max_rate")
"""The sliders in a notebook; ``feddrop explore`` has all of them."""
PARTS = (("push_s", "push", "#2a5fc4"), ("compute_s", "compute", "#d9740c"), ("pull_s", "pull", "#159c92"))
WIDTH, HEIGHT, LEFT = 720, 220, 56


def explore_cell(file: str | Path | None = None) -> Any:
    """Return widgets that allocate a cell again whenever a slider moves.

    The cell in ``feddrop explore`` has more: draggable devices, all schemes side by side, files and links.

    Args:
        file: a TOML file, as ``feddrop allocate`` takes it; by default, the paper's cell with ten devices.

    Returns:
        A widget; a notebook displays it if it is the last value of a cell.

    Raises:
        ConfigError: ipywidgets is not installed, or the file does not describe a cell.
    """
    try:
        widgets: Any = import_module("ipywidgets")
    except ImportError:
        raise ConfigError(
            "explore_cell needs ipywidgets: pip install 'feddrop[notebook]'. Without it, run `feddrop explore` in a "
            "terminal."
        ) from None
    state = deepcopy(START) if file is None else from_toml(read_text(Path(file), "the cell"))
    known = solve(state)["tables"]
    picture, controls = widgets.HTML(picture_of(state)), []

    def follow(control: Any, key: str, read: Callable[[Any], Any]) -> None:
        section, _, name = key.rpartition(".")

        def moved(change: Mapping[str, Any]) -> None:
            value = read(change["new"])
            if key == "scheme":
                state.pop("replaced", None)
            state.update({section: {**state.get(section, {}), name: value}} if section else {name: value})
            picture.value = picture_of(state)

        control.observe(moved, names="value")
        controls.append(control)

    for slider in (one for one in SLIDERS if one.key in MOVED):
        section, _, name = slider.key.partition(".")
        follow(_control(widgets, slider, known[section].get(name)), slider.key, partial(_value, slider))
    words = {"scheme": (state["scheme"], SHOWN), "radio.objective": (known["radio"]["objective"], OBJECTIVES)}
    for key, (now, names) in words.items():
        shown = [(NAMES.get(one, one), one) for one in names]
        title = key.rpartition(".")[2].capitalize()
        follow(widgets.Dropdown(options=shown, value=now, description=title), key, str)
    return widgets.HBox([widgets.VBox(controls), picture])


def _control(widgets: Any, slider: Slider, value: Any) -> Any:
    named = f"{slider.label}{f' ({slider.unit})' if slider.unit else ''}"
    look = {"description": named, "style": {"description_width": "130px"}, "layout": {"width": "360px"}}
    if slider.whole:
        return widgets.IntSlider(value=int(value), min=int(slider.low), max=int(slider.high), **look)
    now = slider.high if value in (None, "inf") else float(value) / slider.scale
    if slider.log:
        low, high = math.log10(slider.low), math.log10(slider.high)
        return widgets.FloatLogSlider(value=now, min=low, max=high, step=(high - low) / 400, **look)
    return widgets.FloatSlider(value=now, min=slider.low, max=slider.high, step=0.01, **look)


def _value(slider: Slider, shown: float) -> Any:
    if slider.off and shown >= slider.high * (1 - 1e-9):
        return "inf"
    return int(shown) if slider.whole else float(f"{shown * slider.scale:.4g}")


def picture_of(state: Mapping[str, Any]) -> str:
    """Return the chosen scheme of a cell as HTML: its objective, and every device's latency against the deadline."""
    try:
        found = solve(state)
    except FeddropError as error:
        return f"<p>{html.escape(str(error))}</p>"
    notes = "".join(f"<p>{html.escape(one)}</p>" for one in notes_on(state))
    scheme = next(one for one in found["schemes"] if one["name"] == state["scheme"])
    if "lacks" in scheme:
        return f"{notes}<p><b>Infeasible.</b> {html.escape(scheme['lacks']['text'])}</p>"
    told = (
        f"Objective {scheme['charged']:.5g}, mean rate {scheme['mean_rate']:.3g}, "
        f"{scheme['total_j']:.4g} J together, {scheme['left_out']} left out."
    )
    return f"{notes}<p>{told}</p>{_bars(scheme)}<p>{_legend()}</p>"


def _legend() -> str:
    return " ".join(f'<span style="color: {colour}">■</span> {word}' for _, word, colour in PARTS)


def _bars(scheme: Mapping[str, Any]) -> str:
    """Draw one stacked bar per device, and the deadline."""
    count, deadline = len(scheme["push_s"]), scheme["deadline_s"]
    latest = float((scheme["push_s"] + scheme["compute_s"] + scheme["pull_s"]).max())
    most, step = 1.1 * max(latest, deadline if deadline < 2.5 * latest else 0.0, 1e-12), (WIDTH - LEFT) / count

    def height(seconds: float) -> float:
        return (HEIGHT - 30) * seconds / most

    drawn = []
    for k in range(count):
        below, title = 0.0, f"device {k}: rate {scheme['rate'][k]:.3g}, binds: {scheme['binding'][k]}"
        for key, _, colour in PARTS:
            tall = height(float(scheme[key][k]))
            drawn.append(
                f'<rect x="{LEFT + k * step:.1f}" y="{HEIGHT - 20 - below - tall:.1f}" width="{0.8 * step:.2f}" '
                f'height="{tall:.1f}" fill="{colour}"><title>{html.escape(title)}</title></rect>'
            )
            below += tall
    if deadline <= most:
        y = HEIGHT - 20 - height(deadline)
        drawn.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH}" stroke="#b3261e" stroke-dasharray="5 4"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{deadline:.4g} s</text>')
    drawn.append(f'<text x="{LEFT}" y="{HEIGHT - 4}">{count} devices, latency against the deadline</text>')
    look = 'role="img" aria-label="Latency of every device" font-family="system-ui, sans-serif" font-size="12"'
    return f'<svg {look} fill="currentColor" width="{WIDTH}" height="{HEIGHT}">{"".join(drawn)}</svg>'
