// Latency, energy, rate and share of every device: bars and a table of numbers.
import { legend } from "./chart.js";
import { choose } from "./disc.js";
import { $, digits, el, measure, svg } from "./dom.js";
import { page, scheme, valueOf } from "./model.js";

const BINDS = {
  deadline: "var(--series-4)", energy: "var(--series-5)", "deadline+energy": "var(--series-3)", "rate cap": "var(--bad)",
  none: "var(--line)", "left out": "var(--ink)", absent: "var(--edge)",
};

const LEFT = 54, FOOT = 18, ROWS = [["Latency", 150, "s"], ["Energy", 84, "J"], ["Rate", 58, ""], ["Share of the band", 58, "%"]], GAP = 30;

export function bars() {
  const found = scheme(), box = $("columns"), width = Math.max(260, box.clientWidth), count = page.seen.devices.samples.length;
  $("bars-title").textContent = `Every device, ${page.words.named[found.name] ?? found.name}`;
  const lacks = found.lacks, rows = lacks ? [[`Share of the band needed ${found.name === "no-dropout" ? "without dropout" : "at rate θ"}`, 150, "%"]] : ROWS;
  const step = (width - LEFT - 4) / count, thick = step > 5 ? step * 0.78 : step;
  const height = rows.reduce((sum, [, tall]) => sum + tall + GAP, 0) + (lacks ? 0 : 16) + FOOT;
  const picture = svg("svg", { class: "chart", width, height, role: "img", "aria-label": "Latency, energy, rate and share of every device; the numbers are in the table below" });
  const limits = lacks ? [null] : [found.deadline_s, page.seen.devices.budget_j, valueOf("radio.max_rate"), null];
  const stacks = lacks ? [[["needs", "plain"]]] : [[["push_s", 0], ["compute_s", 1], ["pull_s", 2]], [["energy_j", 5]], [["rate", "plain"]], [["share", "plain"]]];
  let y = 0;
  rows.forEach(([title, tall, unit], row) => {
    const bottom = y + GAP + tall - 8, parts = stacks[row].map(([key]) => (lacks ?? found)[key]);
    const totals = parts[0].map((_, k) => parts.reduce((sum, part) => sum + (part[k] ?? 0), 0)), top = Math.max(...totals, 1e-12);
    const limit = Array.isArray(limits[row]) ? limits[row] : Array(count).fill(limits[row]);
    const near = limit.filter((value) => value && value < 2.5 * top), most = 1.05 * Math.max(top, ...near);
    const Y = (value) => bottom - (tall - 8) * value / most, said = limit[0] && limit.every((value) => value === limit[0]);
    const names = ["deadline", "budget", "θ"], told = said ? `, ${names[row]} ${measure(limit[0], unit, 4)}` : "";
    picture.append(svg("text", { class: "title", x: LEFT, y: y + 16 }, title + (limit[0] ? told : "")),
      svg("text", { x: LEFT - 6, y: Y(top) + 4, "text-anchor": "end" }, measure(top, unit)),
      svg("line", { class: "axis", x1: LEFT, x2: width, y1: bottom, y2: bottom }));
    const base = Array(count).fill(0);
    stacks[row].forEach(([key, colour]) => { // one path for all devices
      let path = "";
      (lacks ?? found)[key].forEach((value, k) => {
        if (!value) return;
        path += `M${(LEFT + k * step).toFixed(1)} ${Y(base[k]).toFixed(1)}h${thick.toFixed(1)}V${Y(base[k] + value).toFixed(1)}h-${thick.toFixed(1)}Z`;
        base[k] += value;
      });
      picture.append(svg("path", { d: path, fill: `var(--series-${colour})`, "data-key": key }));
    });
    if (near.length) picture.append(svg("path", { class: "limit", fill: "none",
      d: limit.map((value, k) => value && value <= most ? `M${(LEFT + k * step).toFixed(1)} ${Y(value).toFixed(1)}h${step.toFixed(1)}` : "").join("") }));
    y += tall + GAP;
  });
  found.binding?.forEach((word, k) => picture.append(svg("rect", { x: LEFT + k * step, y, width: thick, height: 9, rx: Math.min(2, thick / 3), fill: BINDS[word] ?? "var(--edge)" })));
  if (!lacks) picture.append(svg("text", { x: LEFT - 6, y: y + 9, "text-anchor": "end" }, "binds"));
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((some) => some * step >= 24) ?? 1000; // devices per number
  for (let k = 0; k < count; k += every)
    picture.append(svg("text", { x: LEFT + k * step + thick / 2, y: height - 5, "text-anchor": "middle" }, String(k)));
  picture.append(svg("text", { x: LEFT - 6, y: height - 5, "text-anchor": "end" }, "device"), svg("rect", { class: "here", y: 0, width: step, height, rx: 3 }));
  picture.addEventListener("pointermove", (event) => {
    const k = Math.floor((event.clientX - picture.getBoundingClientRect().left - LEFT) / step);
    if (k >= 0 && k < count && k !== page.chosen) choose(k);
  });
  box.replaceChildren(picture);
  mark();
  $("keys").replaceChildren();
  if (lacks) return;
  const used = [...new Set(found.binding)].map((word) => [`binds: ${word}`, BINDS[word] ?? "var(--edge)"]);
  $("keys").replaceChildren(...legend([["push", "var(--series-0)"], ["compute", "var(--series-1)"], ["pull", "var(--series-2)"], ...used]).childNodes);
}

export function mark() {
  const here = $("columns").querySelector(".here");
  if (here) here.setAttribute("x", LEFT + page.chosen * here.width.baseVal.value - 1);
}

export function numbers() {
  const found = scheme(), box = $("numbers").querySelector("div");
  $("numbers").hidden = Boolean(found.lacks);
  if (!$("numbers").open || found.lacks) { box.replaceChildren(); return; }
  const heads = ["Device", "Rate", "Share", "Push (s)", "Compute (s)", "Pull (s)", "Energy (J)", "Binds"];
  const keys = ["rate", "share", "push_s", "compute_s", "pull_s", "energy_j"];
  box.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, ...found.binding.map((word, k) => el("tr", {}, el("td", {}, String(k)), ...keys.map((key) => el("td", {}, digits(found[key][k], 5))), el("td", {}, word))))));
}
