// Lines with a band around them, on linear or logarithmic axes, as SVG.
import { digits, el, svg } from "./dom.js";

const LEFT = 52, RIGHT = 14, TOP = 10, BOTTOM = 40;
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];

export function ticks(low, high, count, log, whole) {
  if (log) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const step of Math.log10(high / low) > 2.2 ? [1] : [1, 2, 5]) found.push(step * 10 ** power);
    return found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  }
  const rough = Math.max((high - low) / count || 1, whole ? 1 : 0), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((size) => size * power).find((size) => size >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, n) => (first + n) * step);
}

const known = (values) => values.filter((value) => value !== null && Number.isFinite(value));

/** Draw lines into a box. Each has a name, x, y and perhaps deviation, colour and dash (numbers) and strong.
 *  The y-axis is logarithmic if the lines differ by more than the factor wide. */
export function lines(box, given, { xLabel, yLabel, label, xLog = false, wide = Infinity, xWhole = false, now = null, height = 230, x: ends }) {
  const width = Math.max(240, box.clientWidth), right = width - RIGHT, bottom = height - BOTTOM;
  const drawn = given.filter((line) => known(line.y).length);
  if (!drawn.length) { box.replaceChildren(el("p", {}, "There is nothing to draw yet.")); return; }
  const xs = ends ?? known(drawn.flatMap((line) => line.x));
  const low = drawn.flatMap((line) => line.y.map((y, n) => y === null ? null : y - (line.deviation?.[n] ?? 0)));
  const high = drawn.flatMap((line) => line.y.map((y, n) => y === null ? null : y + (line.deviation?.[n] ?? 0)));
  let [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = [Math.min(...known(low)), Math.max(...known(high))];
  const yLog = y0 > 0 && y1 > wide * y0;
  if (x1 === x0) x1 = x0 + 1;
  if (y1 - y0 < 1e-9 * Math.abs(y1)) [y0, y1] = [y0 - 0.5, y1 + 0.5];
  const xAt = xLog ? Math.log : (value) => value, yAt = yLog ? Math.log : (value) => value, pad = (yAt(y1) - yAt(y0)) * 0.04;
  const top = yAt(y1) + pad, foot = yAt(y0) - pad;
  const X = (value) => LEFT + (right - LEFT) * (xAt(value) - xAt(x0)) / (xAt(x1) - xAt(x0));
  const Y = (value) => bottom - (bottom - TOP) * (yAt(value) - foot) / (top - foot);
  const picture = svg("svg", { class: "chart", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const value of yLog ? ticks(y0, y1, 5, true) : ticks(foot, top, 5)) picture.append(
    svg("line", { class: "axis", x1: LEFT, x2: right, y1: Y(value), y2: Y(value) }),
    svg("text", { x: LEFT - 6, y: Y(value) + 4, "text-anchor": "end" }, digits(value)));
  for (const value of ticks(x0, x1, Math.max(2, width / 110), xLog, xWhole))
    picture.append(svg("text", { x: X(value), y: bottom + 16, "text-anchor": "middle" }, digits(value)));
  picture.append(svg("text", { x: (LEFT + right) / 2, y: height - 4, "text-anchor": "middle" }, xLabel),
    svg("text", { transform: `translate(11 ${(TOP + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, yLabel));
  if (now !== null && now >= x0 && now <= x1)
    picture.append(svg("line", { class: "now", x1: X(now), x2: X(now), y1: TOP, y2: bottom }));
  const order = [...drawn.entries()].sort(([, a], [, b]) => Boolean(b.strong) - Boolean(a.strong)); // a strong line stays visible below others
  for (const [n, line] of order) {
    const colour = `var(--series-${(line.colour ?? n) % 6})`;
    const points = line.x.map((x, k) => [x, line.y[k], line.deviation?.[k] ?? 0]).filter(([x, y]) => x !== null && y !== null);
    if (points.some(([, , spread]) => spread > 0)) {
      const edge = (sign) => points.map(([x, y, spread]) => `${X(x).toFixed(1)} ${Y(y + sign * spread).toFixed(1)}`);
      picture.append(svg("path", { d: `M${[...edge(1), ...edge(-1).reverse()].join("L")}Z`, fill: colour, opacity: 0.16 }));
    }
    let path = "", open = false;
    line.x.forEach((x, k) => {
      const y = line.y[k];
      if (x === null || y === null) { open = false; return; }
      path += `${open ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`;
      open = true;
    });
    picture.append(svg("path", { d: path, fill: "none", stroke: colour, "stroke-width": line.strong ? 5 : 2, "stroke-linejoin": "round",
      "stroke-dasharray": DASHES[(line.dash ?? 0) % 4] }));
    if (points.length === 1) picture.append(svg("circle", { cx: X(points[0][0]), cy: Y(points[0][1]), r: 3.5, fill: colour }));
  }
  box.replaceChildren(picture, legend(drawn.map((line, n) => [line.name, `var(--series-${(line.colour ?? n) % 6})`, (line.dash ?? 0) % 4])));
}

export function legend(entries) {
  return el("p", { class: "legend" }, ...entries.map(([name, colour, dash = 0]) => {
    const mark = el("i", { class: dash ? "dashed" : "" });
    mark.style.background = dash ? `repeating-linear-gradient(90deg, ${colour} 0 4px, transparent 4px 7px)` : colour;
    return el("span", {}, mark, name);
  }));
}

/** Draw again when the width of a box changes, and only then. */
export function onWidth(box, redraw) {
  let before = 0;
  new ResizeObserver(() => {
    if (box.clientWidth && box.clientWidth !== before) redraw();
    before = box.clientWidth;
  }).observe(box);
}
