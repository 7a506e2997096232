"""Draw a run over a cell as an animated SVG: who gets how much of the band, how large each subnet is, and the accuracy.

    feddrop run examples/digits.toml --out runs/first
    python examples/animate_run.py runs/first --out cell.svg

The weaker a device's channel is in a round, the farther the device stands from the server. The filled part of its
circle is the part of the network that it trains; the line to the server is as wide as its share of the band.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import feddrop

WIDTH, HEIGHT, CENTER, RADIUS = 760, 372, (190, 196), 125
LEFT, RIGHT, TOP, BOTTOM = 440, 735, 92, 318  # of the curve
FULL, SECONDS = 15.0, 0.6  # radius of the full network in pixels; seconds per round
MEGA = 1e6
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #3a4252 } .big { font-size: 17px; font-weight: 600; fill: #1b2434 }
.cell { fill: #eef3fb; stroke: #c9d6ea } .full { fill: #ffffff; stroke: #2a5fc4 }
.subnet { fill: none; stroke: #2a5fc4 }
.link { stroke: #8fb0e6; stroke-linecap: round } .server { fill: #1b3a7a } .axis { stroke: #9aa5b5; fill: none }
.curve { stroke: #d1495b; fill: none; stroke-width: 2.5 } .head { fill: #d1495b } .paper { fill: #ffffff }
@media (prefers-color-scheme: dark) { text { fill: #c3cad6 } .paper { fill: #161d2b } .big { fill: #eceef1 }
.cell { fill: #1c2536; stroke: #33415c } .full { fill: #111827 } .server { fill: #8ab6fa } .link { stroke: #47689e } }
"""


def animate(attribute: str, values: list[str], seconds: float) -> str:
    """Return an endless animation of an attribute through one value per round."""
    return (
        f'<animate attributeName="{attribute}" values="{";".join(values)}" dur="{seconds}s" repeatCount="indefinite"/>'
    )


def place(device: int, devices: int, gain: float, lowest: float, highest: float) -> tuple[float, float]:
    """Return where a device stands: at an angle of its own, farther out with a weaker gain (in dB)."""
    far = 0.35 + 0.6 * min(1.0, max(0.0, (highest - gain) / max(highest - lowest, 1e-9)))
    angle = 2.0 * math.pi * device / devices - math.pi / 2.0
    return CENTER[0] + far * RADIUS * math.cos(angle), CENTER[1] + far * RADIUS * math.sin(angle)


def draw_device(rows: list[feddrop.DeviceRecord], device: int, devices: int, span: tuple[float, float]) -> str:
    """Return the link and the circle of one device, from its record in every round."""
    seconds = len(rows) * SECONDS
    spots = [place(device, devices, 10 * math.log10(row.uplink_gain), *span) for row in rows]
    xs, ys = ([f"{spot[axis]:.1f}" for spot in spots] for axis in (0, 1))
    kept = [f"{100.0 * (1.0 - row.rate):.1f} 100" for row in rows]
    widths = [f"{max(1.0, 60.0 * row.share):.1f}" for row in rows]
    places = ";".join(f"{x} {y}" for x, y in zip(xs, ys, strict=True))
    return (
        f'<line class="link" x1="{CENTER[0]}" y1="{CENTER[1]}" x2="{xs[0]}" y2="{ys[0]}" stroke-width="{widths[0]}">'
        f"{animate('x2', xs, seconds)}{animate('y2', ys, seconds)}{animate('stroke-width', widths, seconds)}</line>"
        f'<g transform="translate({xs[0]} {ys[0]})"><animateTransform attributeName="transform" type="translate" '
        f'values="{places}" dur="{seconds}s" repeatCount="indefinite"/><circle class="full" r="{FULL}"/>'
        f'<circle class="subnet" r="{FULL / 2}" stroke-width="{FULL}" pathLength="100" transform="rotate(-90)" '
        f'stroke-dasharray="{kept[0]}">{animate("stroke-dasharray", kept, seconds)}</circle></g>'
    )


def draw_curve(rounds: list[feddrop.RoundRecord]) -> str:
    """Return the accuracy against simulated seconds, with a point that moves along it and its value."""
    time, points = 0.0, list[tuple[float, float]]()
    total = sum(record.latency_s for record in rounds)
    for record in rounds:
        time += record.latency_s
        points.append((LEFT + (RIGHT - LEFT) * time / total, BOTTOM - (BOTTOM - TOP) * record.test_accuracy))
    seconds = len(rounds) * SECONDS
    path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    at = animate("cx", [f"{x:.1f}" for x, _ in points], seconds) + animate(
        "cy", [f"{y:.1f}" for _, y in points], seconds
    )
    labels, sent = "", 0
    for shown, record in enumerate(rounds):
        visible = ";".join("1" if round_ == shown else "0" for round_ in range(len(rounds)))
        sent += record.push_bytes + record.pull_bytes
        labels += (
            f'<g opacity="0"><text class="big" x="{LEFT}" y="36">round {record.round}: '
            f'{100 * record.test_accuracy:.1f} % accuracy</text><text x="{LEFT}" y="57">'
            f"{100 * record.mean_rate:.0f} % dropped on average, {sent / MEGA:.0f} MB sent</text><animate "
            f'attributeName="opacity" calcMode="discrete" values="{visible}" dur="{seconds}s" '
            'repeatCount="indefinite"/></g>'
        )
    ticks = "".join(
        f'<text x="{LEFT - 8}" y="{BOTTOM - (BOTTOM - TOP) * share / 100 + 4:.0f}" text-anchor="end">{share} %</text>'
        for share in (0, 50, 100)
    )
    return (
        f'<path class="axis" d="M{LEFT} {TOP} V{BOTTOM} H{RIGHT}"/>{ticks}<path class="curve" d="{path}"/>'
        f'<circle class="head" cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="5">{at}</circle>{labels}'
        f'<text x="{RIGHT}" y="{BOTTOM + 20}" text-anchor="end">{total:.1f} simulated seconds</text>'
    )


def draw(run: feddrop.LoadedRun) -> str:
    """Return the picture of a run in which every device took part in every round of a cell."""
    rounds = list(run.rounds)
    devices = len(rounds[0].devices)
    if any(len(record.devices) != devices or record.devices[0].uplink_gain is None for record in rounds):
        raise SystemExit("The picture needs a run with [radio] in which every device takes part in every round.")
    gains = sorted(10 * math.log10(row.uplink_gain) for record in rounds for row in record.devices)
    span = (gains[len(gains) // 20], gains[-1 - len(gains) // 20])  # without the deepest fades
    rows = [draw_device([record.devices[i] for record in rounds], i, devices, span) for i in range(devices)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{devices} devices train subnets over a cell while the accuracy rises"><style>{STYLE}</style>'
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
        f'<circle class="cell" cx="{CENTER[0]}" cy="{CENTER[1]}" r="{RADIUS + 18}"/>{"".join(rows)}'
        f'<circle class="server" cx="{CENTER[0]}" cy="{CENTER[1]}" r="9"/>{draw_curve(rounds)}'
        f'<text class="big" x="{CENTER[0]}" y="36" text-anchor="middle">{devices} devices share a radio cell</text>'
        f'<text x="{CENTER[0]}" y="{HEIGHT - 10}" text-anchor="middle">filled: part of the network it trains; '
        "line: bandwidth</text></svg>\n"
    )


def main() -> None:
    """Read the run folder and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--out", type=Path, default=Path("cell.svg"), help="file to write")
    given = parser.parse_args()
    given.out.write_text(draw(feddrop.load_run(given.run)), encoding="utf-8")
    print(f"wrote {given.out}, {given.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
