// The cell: sliders and draggable devices on one side, what every scheme makes of it on the other.
// A change asks the server; at most one request is under way.
import { bars, numbers } from "./bars.js";
import { lines, onWidth } from "./chart.js";
import { disc, drags } from "./disc.js";
import { $, ask, digits, el, keep, options, say } from "./dom.js";
import { page, put, valueOf } from "./model.js";
import { refuse, table, verdict } from "./schemes.js";

const WHEN = { // which sliders a cell has
  gains: (radio) => !radio.propagation && !radio.distances_m?.length,
  places: (radio) => Boolean(radio.propagation) && !radio.distances_m?.length,
};
const STEPS = 400, inputs = {};
let busy = false, wanted = false, changed = 0, timer, resting = null;

// ---- requests

function change() {
  changed = performance.now();
  $("cell").setAttribute("aria-busy", "true");
  resting?.abort();
  clearTimeout(timer);
  update();
}

async function update() {
  wanted = true;
  if (busy) return;
  busy = true;
  while (wanted) {
    wanted = false;
    const began = changed;
    try {
      page.seen = await ask("/api/cell", { state: page.state });
      render();
      if (performance.getEntriesByName("update").length > 500) performance.clearMeasures("update");
      performance.measure("update", { start: began, end: performance.now() });
    } catch (error) { refuse(error.message); }
  }
  busy = false;
  timer = setTimeout(settle, 250);
}

/** The ends of a curve: a factor of ten either way on a logarithmic scale, otherwise those of the slider. */
function span({ key, low, high, scale, log, whole }) {
  const now = Number(valueOf(key)), ends = [low * scale, high * scale];
  if (!log || whole || !(now > 0 && now < Infinity)) return ends;
  return [Math.max(now / 10, Math.min(now, ends[0])), Math.min(10 * now, Math.max(now, ends[1]))];
}

async function settle() {
  const slider = page.words.sliders.find(({ key }) => key === $("against").value);
  const count = 33, ends = span(slider);
  const values = [...new Set(Array.from({ length: count }, (_, n) => {
    const value = slider.log ? ends[0] * (ends[1] / ends[0]) ** (n / (count - 1)) : ends[0] + (ends[1] - ends[0]) * n / (count - 1);
    return slider.whole ? Math.round(value) : value;
  }))];
  resting = new AbortController();
  try {
    page.settled = await ask("/api/settle", { state: page.state, key: slider.key, values }, resting.signal);
    keep("cell", page.state);
    curve(slider);
    verdict();
  } catch (error) {
    if (error.name === "AbortError") return;
    say(error.message);
  }
  $("cell").setAttribute("aria-busy", "false");
}

function curve(slider = page.words.sliders.find(({ key }) => key === $("against").value)) {
  if (!page.settled) return;
  const scale = slider.scale, { values, lines: found } = page.settled.curve, x = values.map((value) => value / scale);
  lines($("curve"), Object.entries(found).map(([name, y], n) => ({ name: page.words.named[name] ?? name, x, y, colour: n, dash: Math.floor(n / 6), strong: name === page.state.scheme })), {
    xLabel: slider.label + (slider.unit ? ` (${slider.unit})` : ""), yLabel: "objective", xLog: slider.log, wide: 4, x: [x[0], x.at(-1)],
    now: Number(valueOf(slider.key)) / scale, label: `Objective of every scheme against ${slider.label}` });
}

// ---- the controls

function addSlider(slider) {
  const id = slider.key.replace(".", "-"), { low: min, high: max, log, whole } = slider;
  const toPosition = (value) => STEPS * (log ? Math.log(value / min) / Math.log(max / min) : (value - min) / (max - min));
  const toValue = (position) => {
    const value = log ? min * (max / min) ** (position / STEPS) : min + (max - min) * position / STEPS;
    return whole ? Math.round(value) : Number(value.toPrecision(3));
  };
  const scale = slider.scale;
  const range = el("input", { type: "range", id, min: 0, max: STEPS, step: 1, oninput: () => put(slider.key, toValue(range.value) * scale) });
  const exact = el("input", { type: "number", id: `${id}-number`, "aria-label": `${slider.label}, exactly`, step: "any",
    onchange: () => { if (Number.isFinite(exact.valueAsNumber)) put(slider.key, exact.valueAsNumber * scale); } });
  if (whole) range.addEventListener("keydown", (event) => { // one by one, also on a logarithmic scale
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (step) { event.preventDefault(); put(slider.key, Math.min(max, Math.max(min, Math.round(valueOf(slider.key)) + step))); }
  });
  const box = el("div", { class: "slider" }, el("label", { for: id }, slider.label), exact, el("span", { class: "unit" }, slider.unit), range);
  let free;
  if (slider.off) {
    free = el("input", { type: "checkbox", id: `${id}-off`, onchange: () => put(slider.key, free.checked ? "inf" : 300) });
    box.append(el("label", { class: "none", for: `${id}-off` }, free, ` ${slider.off}`));
  }
  $("sliders").append(box);
  inputs[slider.key] = (value) => {
    box.hidden = slider.when ? !WHEN[slider.when](page.seen.tables.radio) : false;
    const limited = Number.isFinite(value);
    range.disabled = exact.disabled = !limited;
    if (free) free.checked = !limited;
    if (document.activeElement !== exact) exact.value = limited ? Number((value / scale).toPrecision(4)) : "";
    range.value = limited ? toPosition(value / scale) : STEPS;
    range.setAttribute("aria-valuetext", limited ? `${digits(value / scale, 4)} ${slider.unit}`.trim() : slider.off || "none");
  };
}

function controls() {
  for (const { key } of page.words.sliders) inputs[key](Number(valueOf(key)));
  const radio = page.seen.tables.radio;
  for (const name of ["preset", "noise", "objective", "policy"]) $(name).value = radio[name] ?? "paper";
  for (const name of ["power", "cpu"]) $(name).checked = radio.control.includes(name);
  $("rounds").value = page.state.rounds;
  $("network").value = Object.entries(page.words.networks).find(([, one]) => one.parameters === page.seen.tables.model.parameters)?.[0] ?? "other";
}

function listen() {
  $("preset").addEventListener("change", () => {
    const preset = $("preset").value, paper = preset === "paper";
    page.state = { ...page.state, angles: {}, shape: paper ? page.words.start.shape : {}, cell: { ...page.state.cell, samples: valueOf("cell.samples") },
      radio: paper ? { ...page.words.start.radio } : { preset, bits_per_parameter: 32 } };
    change();
  });
  $("network").addEventListener("change", () => { page.state.model = page.words.networks[$("network").value] ?? page.state.model; change(); });
  for (const name of ["noise", "objective", "policy"]) $(name).addEventListener("change", () => put(`radio.${name}`, $(name).value));
  for (const name of ["power", "cpu"]) $(name).addEventListener("change", () => {
    const control = ["rate", "share", ...["power", "cpu"].filter((one) => $(one).checked)];
    put("radio.control", control);
  });
  $("against").addEventListener("change", settle);
  $("rounds").addEventListener("change", () => { page.state.rounds = Math.round($("rounds").valueAsNumber) || 20; change(); });
  $("load").addEventListener("change", async () => {
    const [file] = $("load").files;
    if (!file) return;
    try {
      page.state = (await ask("/api/load", { toml: await file.text() })).state;
      say(`Loaded ${file.name}.`);
      change();
    } catch (error) { say(error.message); }
    if ($("load").files[0] === file) $("load").value = ""; // so that the same file can be chosen again
  });
  const save = (name, text) => {
    const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "application/toml" })), download: name });
    link.click();
    URL.revokeObjectURL(link.href);
    say(`Saved ${name}.`);
  };
  const files = { save: () => save("cell.toml", page.settled.toml), "save-run": () => save("run.toml", page.settled.run), link: () => copy(location.href),
    python: () => copy(page.settled.python), command: () => copy(page.settled.command),
    train: async () => { const { name } = await ask("/api/train", { state: page.state }); say(`Started ${name}.`); location.hash = "#/runs"; } };
  for (const [id, act] of Object.entries(files)) $(id).addEventListener("click", async () => {
    clearTimeout(timer);
    try { await settle(); await act(); } catch (error) { say(error.message); }
  });
  onWidth($("columns"), () => { if (page.seen) bars(); });
  onWidth($("curve"), () => curve());
  $("numbers").addEventListener("toggle", numbers);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch { // no permission, or not a secure address
    $("text").querySelector("textarea").value = text;
    $("text").showModal();
    $("text").querySelector("textarea").select();
  }
}

// ---- the page

function render() {
  page.chosen = Math.min(page.chosen, page.seen.devices.samples.length - 1);
  controls(); verdict(); disc(); table(); bars(); numbers();
}

export function start(given) {
  page.words = given;
  page.change = change;
  page.state = structuredClone(page.words.start);
  options("preset", page.words.presets);
  options("network", [...Object.keys(page.words.networks), "other"]);
  options("noise", page.words.noises);
  options("objective", page.words.objectives, (name) => ({ inverse: "inverse: Σ w/(1-γ)", "inverse-squared": "inverse-squared: Σ w²/(1-γ)", linear: "linear: Σ w γ", "importance-normal": "importance: Σ w V(1-γ), normal weights" })[name] ?? name);
  options("policy", page.words.policies, (name) => ({ error: "say what is lacking", "leave-out": "leave devices out", stretch: "stretch the deadline" })[name] ?? name);
  options("against", page.words.sliders.map(({ key }) => key), (key) => page.words.sliders.find((one) => one.key === key).label);
  $("against").value = "radio.deadline_s";
  $("training").hidden = !page.words.allow_run;
  page.words.sliders.forEach(addSlider);
  listen();
  drags();
}

export function show(text) {
  if (text) try { page.state = { ...structuredClone(page.words.start), ...JSON.parse(text) }; } catch { say("The link is damaged."); }
  if (text || !page.seen) change();
}

export function leave() { resting?.abort(); clearTimeout(timer); }
