// The runs: a list that follows the folder, curves laid over each other, and one number per device per round.
import { lines, onWidth } from "./chart.js";
import { $, ask, digits, el, measure, options, query, say } from "./dom.js";
import { look } from "./subnet.js";
import { timeline } from "./timeline.js";

export const AXES = { rounds: ["rounds", ""], bytes: ["sent", "B"], seconds: ["simulated time", "s"], joules: ["energy", "J"], "wall seconds": ["wall time", "s"] };
const EVERY = 1000, MOST = 200; // ms; runs that are chosen at once
/** How long to wait before asking again: long enough that large folders do not keep the server busy. */
export const pause = (began) => Math.max(EVERY, 3 * (performance.now() - began));
export const chosen = new Set();
const met = new Set();
let words, picked = null, rows = [], timer = null, drawn = "", listed = "", plotted = null, shown = false;

const link = (text, href, name) => el("a", { href, target: "_blank", rel: "noopener", "aria-label": `${text} of ${name}` }, text);

async function poll() {
  clearTimeout(timer);
  if (!shown) return;
  const began = performance.now();
  if (!document.hidden) try {
    const answer = await ask("/api/runs");
    rows = answer.runs;
    for (const { name, error } of rows) { // new runs are shown at once, unless there are many
      if (!error && !met.has(name) && chosen.size < 6) chosen.add(name);
      if (!error) met.add(name);
    }
    const now = JSON.stringify([rows, answer.pages, [...chosen], $("filter").value]);
    if (now !== listed) { listed = now; list(answer.pages); await draw(); }
  } catch (error) { say(error.message); }
  if (shown) timer = setTimeout(poll, pause(began));
}

/** The runs that the filter shows. */
function filtered() {
  const wanted = $("filter").value.toLowerCase();
  return rows.filter((row) => `${row.name} ${row.label ?? ""} ${row.what ?? ""}`.toLowerCase().includes(wanted));
}

/** The names of the runs that the filter shows and that can be drawn. */
const choosable = () => filtered().filter((row) => !row.error).slice(0, MOST).map((row) => row.name);

function allChosen() {
  const names = choosable();
  return names.length > 0 && names.length === chosen.size && names.every((name) => chosen.has(name));
}

/** Choose all runs that the filter shows, and no others; if they are chosen already, choose none. */
function chooseAll() {
  const names = allChosen() ? [] : choosable();
  chosen.clear();
  names.forEach((name) => chosen.add(name));
  poll();
}

function list(pages) {
  const held = document.activeElement?.id, visible = filtered();
  $("list").tBodies[0].replaceChildren(...visible.map((row, n) => {
    const box = el("input", { type: "checkbox", id: `run-${n}`, disabled: Boolean(row.error), onchange: () => {
      if (box.checked) chosen.add(row.name); else chosen.delete(row.name);
      poll();
    } });
    box.checked = chosen.has(row.name);
    const name = el("td", {}, el("label", { for: `run-${n}` }, box, ` ${row.label || row.name}`),
      el("small", {}, [row.label ? row.name : "", row.what, row.seed ? `seed ${row.seed}` : "", row.work].filter(Boolean).join(" · ")));
    if (row.error) return el("tr", {}, name, el("td", { class: "wrong", colspan: 7 }, row.error));
    const open = el("td", {}, link("Report", `/page?${query([["run", row.name]])}`, row.name), " ", link("CSV", `/table?${query([["run", row.name]])}`, row.name), " ",
      link("Devices", `/table?${query([["run", row.name], ["devices", "1"]])}`, row.name));
    if (words.parquet) open.append(" ", link("Parquet", `/table?${query([["run", row.name], ["as", "parquet"], ["devices", "1"]])}`, row.name));
    const act = (text, path, told) => open.append(" ", el("button", { type: "button", "aria-label": `${text} ${row.name}`, onclick: async () => {
      try { await ask(path, { run: row.name }); say(`${row.name} ${told}.`); poll(); } catch (error) { say(error.message); }
    } }, text));
    if (words.allow_run && row.work === "running") act("Stop after this round", "/api/stop", "stops after this round");
    if (words.allow_run && !["running", "stopping", "trained by another process"].includes(row.work) && row.round < row.of) act("Resume", "/api/resume", "continues");
    return el("tr", { class: chosen.has(row.name) ? "chosen" : "" }, name, el("td", {}, `${row.round} / ${row.of ?? "?"}`), el("td", {}, measure(row.accuracy, "%")),
      el("td", {}, digits(row.loss)), el("td", {}, measure(row.bytes, "B")), el("td", {}, measure(row.seconds, "s")), el("td", {}, measure(row.joules, "J")), open);
  }));
  if (!visible.length) $("list").tBodies[0].append(el("tr", {}, el("td", { colspan: 8 }, rows.length ? "No run matches the filter." : `There are no runs here yet. ${words.allow_run ? "Train a cell, start" : "Start"} one with feddrop run, or give another folder: feddrop explore FOLDER.`)));
  if (held?.startsWith("run-")) $(held)?.focus();
  const known = [...chosen].filter((name) => rows.some((row) => row.name === name && !row.error));
  $("choose-all").textContent = allChosen() ? "Choose none" : "Choose all";
  $("compare-runs").hidden = known.length < 2;
  $("compare-runs").textContent = `Compare ${known.length} runs`;
  $("compare-runs").href = `#/compare/${encodeURIComponent(JSON.stringify({ runs: known }))}`;
  $("pages").replaceChildren(pages.length ? "Written pages: " : "", ...pages.flatMap((page) => [link(page, `/page?${query([["page", page]])}`, page), " "]));
  const metrics = [...new Set(rows.flatMap((row) => row.metrics ?? []))].map((name) => `metrics.${name}`);
  options("quantity", [...words.quantities, ...metrics], plain);
  options("mapped-run", known);
}

const plain = (name) => name.replace(/^metrics\./, "").replaceAll("_", " ");

async function draw() {
  const runs = [...chosen].filter((name) => rows.some((row) => row.name === name && !row.error));
  const [x, y] = [$("axis").value, $("quantity").value];
  const wanted = drawn = JSON.stringify([runs, x, y, Date.now()]);
  const { curves } = runs.length ? await ask("/api/curves", { runs, x, y }) : { curves: [] };
  if (wanted !== drawn) return;
  plotted = [curves, x, y];
  plot($("curves"), ...plotted);
  await grid();
}

/** Draw the curves of groups of runs: a quantity against what was spent. */
export function plot(box, curves, x, y) {
  const [label, unit] = AXES[x] ?? [x, ""], percent = y.includes("accuracy") ? 100 : 1;
  const top = Math.max(...curves.flatMap((one) => one.x.filter((value) => value !== null)), 0);
  const scale = unit === "B" && top >= 1e9 ? [1e9, "GB"] : unit === "B" ? [1e6, "MB"]
    : unit === "s" && top >= 7200 ? [3600, "h"] : unit === "J" && top >= 1e4 ? [1e3, "kJ"] : [1, unit];
  const over = (values, size) => values.map((value) => value === null ? null : value / size);
  const drawn = curves.map((one) => ({ name: one.name + (one.seeds > 1 ? ` (${one.seeds} seeds)` : ""), x: over(one.x, scale[0]), y: over(one.mean, 1 / percent),
    deviation: one.deviation.map((value) => percent * (value ?? 0)), colour: one.colour, dash: one.dash }));
  lines(box, drawn, { xLabel: label + (scale[1] ? ` (${scale[1]})` : ""), yLabel: plain(y) + (percent === 100 ? " (%)" : ""), height: 320,
    xWhole: x === "rounds", label: `${plain(y)} of ${curves.length} settings against ${label}` });
}

/** Show the timeline of a round of the run on the map, and keep to it while the run grows. */
function pick(round) {
  picked = { run: $("mapped-run").value, round };
  timeline(picked.run, round);
}

async function grid() {
  const run = $("mapped-run").value, field = $("mapped").value, canvas = $("grid");
  canvas.hidden = !run;
  look.offer(run);
  if (!run) timeline("", 0);
  $("grid-note").textContent = "";
  if (!run) return;
  const { rounds, devices, values } = await ask(`/api/map?${query([["run", run], ["field", field]])}`);
  const known = values.flat().filter((value) => value !== null), [low, high] = [Math.min(...known), Math.max(...known)];
  canvas.width = rounds.length;
  canvas.height = devices.length;
  canvas.style.height = `${Math.min(360, Math.max(80, 14 * devices.length))}px`;
  const style = getComputedStyle(document.documentElement), pen = canvas.getContext("2d");
  pen.fillStyle = style.getPropertyValue("--series-0");
  values.forEach((row, r) => row.forEach((value, k) => {
    pen.globalAlpha = value === null ? 0 : 0.12 + 0.88 * (high > low ? (value - low) / (high - low) : 0.5);
    pen.fillRect(r, k, 1, 1);
  }));
  canvas.onclick = (event) => { // the subnet of this device in this round
    const box = canvas.getBoundingClientRect(), at = (list, part) => list[Math.min(list.length - 1, Math.floor(part * list.length))];
    pick(at(rounds, (event.clientX - box.left) / box.width));
    look.at(picked.round, at(devices, (event.clientY - box.top) / box.height));
  };
  look.within(rounds, devices, devices[values.at(-1).findIndex((value) => value !== null)] ?? devices[0]);
  timeline(run, picked?.run === run ? picked.round : rounds.at(-1));
  const name = field.replaceAll("_", " ");
  canvas.setAttribute("aria-label", `${name} of every device in every round of ${run}`);
  $("grid-note").textContent = known.length ? `Rounds ${rounds[0]} to ${rounds.at(-1)} from left to right, devices ${devices[0]} to ${devices.at(-1)} from top to bottom; `
    + `${name} ${low === high ? `${digits(low)} throughout` : `from ${digits(low)} (faint) to ${digits(high)} (strong)`}. Blank: not in the round. Click to see the timeline of the round and the subnet of the device.` : `This run has no ${name}.`;
}

export function start(given) {
  words = given;
  look.start(pick);
  $("root").textContent = words.root || "/";
  options("quantity", words.quantities, plain);
  options("axis", words.axes);
  options("mapped", words.mapped, plain);
  for (const id of ["quantity", "axis"]) $(id).addEventListener("change", () => draw().catch((error) => say(error.message)));
  for (const id of ["mapped", "mapped-run"]) $(id).addEventListener("change", () => grid().catch((error) => say(error.message)));
  $("filter").addEventListener("input", poll);
  $("choose-all").addEventListener("click", chooseAll);
  onWidth($("curves"), () => { if (plotted) plot($("curves"), ...plotted); });
}

export function show() { shown = true; listed = ""; poll(); }

export function leave() { shown = false; clearTimeout(timer); }
