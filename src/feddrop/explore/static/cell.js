// The cell: sliders and draggable devices on one side, what every scheme makes of it on the other.
// The state is all that the page holds. A change asks the server; at most one request is under way.
import { $, ask, digits, el, measure, options, say, set, svg } from "./dom.js";
import { legend, lines, onWidth } from "./chart.js";

const BINDS = {
  deadline: "var(--series-4)", energy: "var(--series-5)", "deadline+energy": "var(--series-3)", "rate cap": "var(--bad)",
  none: "var(--line)", "left out": "var(--ink)", absent: "var(--edge)",
};
const WHEN = { // which sliders a cell has
  gains: (radio) => !radio.propagation && !radio.distances_m?.length,
  places: (radio) => Boolean(radio.propagation) && !radio.distances_m?.length,
};
const STEPS = 400, GOLDEN = Math.PI * (Math.sqrt(5) - 1);
let words, NAMES = {}, SLIDERS = [], state, seen = null, settled = null, chosen = 0, inputs = {};
let busy = false, wanted = false, changed = 0, timer, resting = null, dragged = null;

// ---- the state and its requests

const inside = (key, tables) => key.split(".").reduce((table, name) => table?.[name], tables);

function valueOf(key) {
  const value = inside(key, state) ?? inside(key, seen?.tables ?? {});
  if (key === "radio.energy_budget_j" && value === 0) return Math.min(...seen.devices.budget_j.map((joules) => joules ?? Infinity)); // of the kinds
  if (key === "cell.samples" && Array.isArray(value)) return value.reduce((sum, one) => sum + one, 0) / value.length;
  if (key === "shape.skew" && value === undefined) return spread(inside("cell.samples", seen?.tables), (ratio) => ratio);
  if (key === "shape.spread_db" && value === undefined) return spread(seen?.tables.radio.path_loss, (ratio) => 10 * Math.log10(ratio));
  return value;
}

const spread = (list, of) => of(Array.isArray(list) ? Math.max(...list) / Math.min(...list) : 1);

export function put(key, value) {
  const [table, name] = key.split(".");
  state[table] = { ...state[table], [name]: value };
  if (key === "shape.spread_db") delete state.radio.path_loss;
  if (key === "shape.skew") state.cell.samples = Math.round(valueOf("cell.samples"));
  if (key === "radio.radius_m") delete state.radio.distances_m;
  change();
}

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
      seen = await ask("/api/cell", { state });
      render();
      if (performance.getEntriesByName("update").length > 500) performance.clearMeasures("update");
      performance.measure("update", { start: began, end: performance.now() });
    } catch (error) { refuse(error.message); }
  }
  busy = false;
  timer = setTimeout(settle, 250);
}

async function settle() {
  const slider = SLIDERS.find(({ key }) => key === $("against").value);
  const count = 33, ends = [slider.low, slider.high].map((value) => value * (slider.scale));
  const values = [...new Set(Array.from({ length: count }, (_, n) => {
    const value = slider.log ? ends[0] * (ends[1] / ends[0]) ** (n / (count - 1)) : ends[0] + (ends[1] - ends[0]) * n / (count - 1);
    return slider.whole ? Math.round(value) : value;
  }))];
  resting = new AbortController();
  try {
    settled = await ask("/api/settle", { state, key: slider.key, values }, resting.signal);
    history.replaceState(null, "", `#/cell/${encodeURIComponent(JSON.stringify(state))}`);
    curve(slider);
    verdict();
  } catch (error) {
    if (error.name === "AbortError") return;
    say(error.message);
  }
  $("cell").setAttribute("aria-busy", "false");
}

function curve(slider = SLIDERS.find(({ key }) => key === $("against").value)) {
  if (!settled) return;
  const scale = slider.scale, { values, lines: found } = settled.curve, x = values.map((value) => value / scale);
  lines($("curve"), Object.entries(found).map(([name, y], n) => ({ name: NAMES[name] ?? name, x, y, colour: n })), {
    xLabel: slider.label + (slider.unit ? ` (${slider.unit})` : ""), yLabel: "objective", xLog: slider.log, x: [slider.low, slider.high],
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
    box.hidden = slider.when ? !WHEN[slider.when](seen.tables.radio) : false;
    const limited = Number.isFinite(value);
    range.disabled = exact.disabled = !limited;
    if (free) free.checked = !limited;
    if (document.activeElement !== exact) exact.value = limited ? Number((value / scale).toPrecision(4)) : "";
    range.value = limited ? toPosition(value / scale) : STEPS;
    range.setAttribute("aria-valuetext", limited ? `${digits(value / scale, 4)} ${slider.unit}`.trim() : slider.off || "none");
  };
}

function controls() {
  for (const { key } of SLIDERS) inputs[key](Number(valueOf(key)));
  const radio = seen.tables.radio;
  for (const name of ["preset", "noise", "objective", "policy"]) $(name).value = radio[name] ?? "paper";
  for (const name of ["power", "cpu"]) $(name).checked = radio.control.includes(name);
  $("rounds").value = state.rounds;
  $("network").value = Object.entries(words.networks).find(([, one]) => one.parameters === seen.tables.model.parameters)?.[0] ?? "other";
}

function listen() {
  $("preset").addEventListener("change", () => {
    const preset = $("preset").value, paper = preset === "paper";
    state = { ...state, angles: {}, shape: paper ? words.start.shape : {}, cell: { ...state.cell, samples: valueOf("cell.samples") },
      radio: paper ? { ...words.start.radio } : { preset, bits_per_parameter: 32 } };
    change();
  });
  $("network").addEventListener("change", () => { state.model = words.networks[$("network").value] ?? state.model; change(); });
  for (const name of ["noise", "objective", "policy"]) $(name).addEventListener("change", () => put(`radio.${name}`, $(name).value));
  for (const name of ["power", "cpu"]) $(name).addEventListener("change", () => {
    const control = ["rate", "share", ...["power", "cpu"].filter((one) => $(one).checked)];
    if (control.length > 2) delete state.radio.objective; // only the paper's objective can choose them
    put("radio.control", control);
  });
  $("against").addEventListener("change", settle);
  $("rounds").addEventListener("change", () => { state.rounds = Math.round($("rounds").valueAsNumber) || 20; change(); });
  $("load").addEventListener("change", async () => {
    try {
      state = (await ask("/api/load", { toml: await $("load").files[0].text() })).state;
      say(`Loaded ${$("load").files[0].name}.`);
      change();
    } catch (error) { say(error.message); }
    $("load").value = "";
  });
  const save = (name, text) => {
    const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "application/toml" })), download: name });
    link.click();
    URL.revokeObjectURL(link.href);
    say(`Saved ${name}.`);
  };
  const files = { save: () => save("cell.toml", settled.toml), "save-run": () => save("run.toml", settled.run), link: () => copy(location.href),
    python: () => copy(settled.python), command: () => copy(settled.command),
    train: async () => { const { name } = await ask("/api/train", { state }); say(`Started ${name}.`); location.hash = "#/runs"; } };
  for (const [id, act] of Object.entries(files)) $(id).addEventListener("click", async () => {
    clearTimeout(timer);
    try { await settle(); await act(); } catch (error) { say(error.message); }
  });
  onWidth($("columns"), () => { if (seen) bars(); });
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

// ---- the pictures

const scheme = () => seen.schemes.find(({ name }) => name === state.scheme) ?? seen.schemes[0];

function render() {
  chosen = Math.min(chosen, seen.devices.samples.length - 1);
  controls(); verdict(); disc(); table(); bars(); numbers();
}

function refuse(text) {
  $("verdict").classList.add("bad");
  $("verdict").replaceChildren(el("p", { class: "lead" }, text));
}

function up(value) { // four digits, rounded up, so that the shown number is enough
  const scale = 10 ** (3 - Math.floor(Math.log10(value)));
  return Math.ceil(value * scale * (1 - 1e-12)) / scale;
}

function verdict() {
  const { lacks, binding, objective, charged, status, left_out: out, deadline_s: deadline } = scheme();
  const box = $("verdict"), notes = seen.notes.map((note) => el("p", {}, note));
  box.classList.toggle("bad", Boolean(lacks));
  if (!lacks) {
    const counts = {};
    for (const word of binding) counts[word] = (counts[word] ?? 0) + 1;
    const told = Object.entries(counts).map(([word, count]) => `${word === "none" ? "nothing" : word}: ${count}`).join(", ");
    const longer = deadline > 1.000001 * valueOf("radio.deadline_s") ? ` The deadline is stretched to ${measure(deadline, "s", 4)}.` : "";
    const unit = seen.tables.radio.objective === "inverse" ? "; 1 is no dropout" : "";
    box.replaceChildren(el("p", { class: "lead" }, `Objective ${digits(objective, 5)}${unit}. ${out ? `${out} left out: ${digits(charged, 5)} if each is charged the highest cost.` : ""}${longer}`),
      el("p", {}, `What binds: ${told}. Status: ${status}.`), ...notes);
    return;
  }
  const remedies = [];
  const offer = (text, act) => remedies.push(el("button", { type: "button", onclick: act }, text));
  if (lacks.deadline_s) offer(`Deadline ${up(lacks.deadline_s)} s`, () => put("radio.deadline_s", up(lacks.deadline_s)));
  const wide = state.scheme === "exact" && settled?.bandwidth_hz;
  if (wide) offer(`Bandwidth ${up(wide / 1e6)} MHz`, () => put("radio.bandwidth_hz", 1e6 * up(wide / 1e6)));
  if (lacks.budget_j) offer(`Energy budget ${up(lacks.budget_j + 0.1)} J`, () => put("radio.energy_budget_j", up(lacks.budget_j + 0.1)));
  for (const policy of lacks.policies ?? []) offer(policy === "stretch" ? "Stretch the deadline" : "Leave devices out", () => put("radio.policy", policy));
  if (wide > 1.0001 * lacks.load * valueOf("radio.bandwidth_hz"))
    notes.push(el("p", {}, "The bandwidth must grow by more than that factor: under density noise, a wider band has more noise."));
  const load = lacks.load ? ` ${state.scheme === "equal" ? "An equal split needs" : "Together, the devices need"} ${digits(100 * lacks.load)} % of the band.` : "";
  box.replaceChildren(el("p", { class: "lead" }, `Infeasible.${load}`), el("p", {}, lacks.text), el("div", { class: "row" }, ...remedies), ...notes);
}

function at(device, metres) {
  const angle = state.angles?.[device] ?? device * GOLDEN, r = 100 * metres / seen.places.radius_m;
  return [r * Math.cos(angle), r * Math.sin(angle)];
}

function disc() {
  const box = $("disc"), { m, radius_m: radius } = seen.places, { rate, lacks, binding } = scheme();
  if (box.dataset.radius !== String(radius)) {
    box.dataset.radius = radius;
    box.replaceChildren(...[1 / 3, 2 / 3, 1].flatMap((part) => [svg("circle", { class: "ring", r: 100 * part }),
      svg("text", { y: 100 * part + 7 }, measure(part * radius, "m"))]), svg("path", { class: "base", d: "M0-6L5 4H-5Z" }));
  }
  const old = [...box.querySelectorAll(".device")], size = m.length > 150 ? 2.2 : m.length > 40 ? 3.6 : 6;
  old.slice(m.length).forEach((one) => one.remove());
  m.forEach((metres, k) => {
    const one = old[k] ?? box.appendChild(svg("g", { role: "slider", "aria-orientation": "vertical" },
      svg("circle", { class: "whole" }), svg("circle", { class: "kept" }), svg("title")));
    const [x, y] = at(k, metres), short = lacks?.devices.includes(k), kept = lacks || rate[k] === null ? 0 : 1 - rate[k];
    const out = !lacks && ["left out", "absent"].includes(binding[k]);
    const text = `Device ${k}`;
    set(one, { transform: `translate(${x.toFixed(2)} ${y.toFixed(2)})`, tabindex: k === chosen ? 0 : -1, "data-device": k, "aria-label": text,
      class: `device${short ? " short" : ""}${out ? " out" : ""}${k === chosen ? " chosen" : ""}`, "aria-valuenow": Math.round(metres),
      "aria-valuemin": Math.round(seen.places.least_m), "aria-valuemax": Math.round(radius), "aria-valuetext": k === chosen ? describe(k) : measure(metres, "m") });
    set(one.children[0], { r: size });
    set(one.children[1], { r: ((size - 0.5) * Math.sqrt(kept)).toFixed(2) });
    if (one.children[2].textContent !== text) one.children[2].textContent = text;
  });
  $("device").textContent = describe(chosen);
}

function describe(k) {
  const found = scheme(), { m, moves, sight, indoor } = seen.places;
  const where = `Device ${k}, ${measure(m[k], "m")}${moves === "path_loss" ? ` (${digits(10 * Math.log10(seen.places.path_loss[k]))} dB)` : ""}`
    + `${sight?.[k] ? ", line of sight" : ""}${indoor?.[k] ? ", indoors" : ""}`;
  const lacking = found.lacks?.devices.indexOf(k);
  if (lacking >= 0) {
    const share = found.lacks.least_share[lacking];
    return `${where}: needs ${share === null ? "more than any share" : `${measure(share, "%")} of the band`} to meet its ${found.lacks.constraints[lacking]}.`;
  }
  if (found.lacks) return `${where}.`;
  if (found.rate[k] === null) return `${where}: ${found.binding[k]}.`;
  const seconds = ["push_s", "compute_s", "pull_s"].map((key) => found[key][k]), sum = seconds.reduce((a, b) => a + b);
  const paced = found.tx_power_w ? ` Power ${measure(found.tx_power_w[k], "W")}, clock ${measure(found.cpu_hz[k], "Hz")}.` : "";
  return `${where}: rate ${digits(found.rate[k])}, share ${measure(found.share[k], "%")}. ${measure(sum, "s", 4)} (push ${measure(seconds[0], "s")}, `
    + `compute ${measure(seconds[1], "s")}, pull ${measure(seconds[2], "s")}), ${measure(found.energy_j[k], "J")}. Binds: ${found.binding[k]}.${paced}`;
}

function choose(k, focus = false) {
  const all = [...$("disc").querySelectorAll(".device")];
  chosen = (k + all.length) % all.length;
  all.forEach((one, n) => { one.classList.toggle("chosen", n === chosen); one.setAttribute("tabindex", n === chosen ? 0 : -1); });
  all[chosen].setAttribute("aria-valuetext", describe(chosen));
  if (focus) all[chosen].focus();
  $("device").textContent = describe(chosen);
  mark();
}

function move(k, metres, angle) {
  const { moves, m, least_m: least, radius_m: radius } = seen.places, held = Math.min(Math.max(metres, least), radius);
  if (angle !== undefined) state.angles = { ...state.angles, [k]: Number(angle.toFixed(3)) };
  const list = Array.from(moves === "path_loss" ? seen.places.path_loss : m);
  list[k] = Number((moves === "path_loss" ? 1e-3 * (held / 100) ** -3 : held).toPrecision(4));
  state.radio = { ...state.radio, [moves]: list };
  if (moves === "path_loss") { const { spread_db: _, ...shape } = state.shape ?? {}; state.shape = shape; }
  else { delete state.radio.radius_m; delete state.radio.min_distance_m; }
  change();
}

function drags() {
  const box = $("disc");
  box.addEventListener("pointerdown", (event) => {
    const one = event.target.closest(".device");
    if (!one) return;
    dragged = Number(one.dataset.device);
    choose(dragged, true);
    box.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  box.addEventListener("pointermove", (event) => {
    if (dragged === null) return;
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(box.getScreenCTM().inverse());
    move(dragged, Math.hypot(x, y) / 100 * seen.places.radius_m, Math.atan2(y, x));
  });
  for (const name of ["pointerup", "pointercancel"]) box.addEventListener(name, () => { dragged = null; });
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], way = { ArrowUp: 1.05, ArrowDown: 1 / 1.05 }[event.key];
    if (step) choose(chosen + step, true);
    if (way) move(chosen, seen.places.m[chosen] * way);
    if (step || way) event.preventDefault();
  });
}

function table() {
  const body = $("schemes").querySelector("tbody"), most = Math.max(...seen.schemes.map(({ charged }) => charged ?? 0));
  if (body.children.length !== seen.schemes.length) body.replaceChildren(...seen.schemes.map(({ name }) => el("tr", {},
    el("td", {}, el("label", {}, el("input", { type: "radio", name: "scheme", value: name, onchange: () => { state.scheme = name; change(); } }), ` ${NAMES[name] ?? name}`)),
    el("td", {}, el("span"), el("span", { class: "bar" })), el("td"), el("td"), el("td"), el("td"))));
  seen.schemes.forEach((one, n) => {
    const cells = body.children[n].children, lacks = Boolean(one.lacks);
    body.children[n].classList.toggle("chosen", one === scheme());
    cells[0].querySelector("input").checked = one === scheme();
    cells[1].firstChild.textContent = lacks ? "infeasible" : digits(one.charged, 4);
    cells[1].lastChild.style.width = lacks ? "0" : `${100 * one.charged / most}%`;
    const texts = lacks ? ["–", "–", "–", "–"] : [digits(one.mean_rate), measure(one.latest_s, "s"), measure(one.total_j, "J"), String(one.left_out)];
    texts.forEach((text, k) => { cells[2 + k].textContent = text; });
  });
}

const LEFT = 54, ROWS = [["Latency", 150, "s"], ["Energy", 84, "J"], ["Rate", 58, ""], ["Share of the band", 58, "%"]], GAP = 30;

function bars() {
  const found = scheme(), box = $("columns"), width = Math.max(260, box.clientWidth), count = seen.devices.samples.length;
  $("bars-title").textContent = `Every device, ${NAMES[found.name] ?? found.name}`;
  const lacks = found.lacks, rows = lacks ? [[`Share of the band needed ${found.name === "no-dropout" ? "without dropout" : "at rate θ"}`, 150, "%"]] : ROWS;
  const step = (width - LEFT - 4) / count, thick = step > 5 ? step * 0.78 : step;
  const height = rows.reduce((sum, [, tall]) => sum + tall + GAP, 0) + 16;
  const picture = svg("svg", { class: "chart", width, height, role: "img", "aria-label": "Latency, energy, rate and share of every device; the numbers are in the table below" });
  const limits = lacks ? [null] : [found.deadline_s, seen.devices.budget_j, valueOf("radio.max_rate"), null];
  const stacks = lacks ? [[["needs", 3]]] : [[["push_s", 0], ["compute_s", 1], ["pull_s", 2]], [["energy_j", 5]], [["rate", 0]], [["share", 2]]];
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
  picture.append(svg("rect", { class: "here", y: 0, width: step, height: height - 6, rx: 3 }));
  picture.addEventListener("pointermove", (event) => {
    const k = Math.floor((event.clientX - picture.getBoundingClientRect().left - LEFT) / step);
    if (k >= 0 && k < count && k !== chosen) choose(k);
  });
  box.replaceChildren(picture);
  mark();
  $("keys").replaceChildren();
  if (lacks) return;
  const used = [...new Set(found.binding)].map((word) => [`binds: ${word}`, BINDS[word] ?? "var(--edge)"]);
  $("keys").replaceChildren(...legend([["push", "var(--series-0)"], ["compute", "var(--series-1)"], ["pull", "var(--series-2)"], ...used]).childNodes);
}

function mark() {
  const here = $("columns").querySelector(".here");
  if (here) here.setAttribute("x", LEFT + chosen * here.width.baseVal.value - 1);
}

function numbers() {
  const found = scheme(), box = $("numbers").querySelector("div");
  if (!$("numbers").open || found.lacks) { box.replaceChildren(); return; }
  const heads = ["Device", "Rate", "Share", "Push (s)", "Compute (s)", "Pull (s)", "Energy (J)", "Binds"];
  const keys = ["rate", "share", "push_s", "compute_s", "pull_s", "energy_j"];
  box.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, ...found.binding.map((word, k) => el("tr", {}, el("td", {}, String(k)), ...keys.map((key) => el("td", {}, digits(found[key][k], 5))), el("td", {}, word))))));
}

// ---- the page

export function start(given) {
  words = given;
  NAMES = words.named;
  SLIDERS = words.sliders;
  state = structuredClone(words.start);
  options("preset", words.presets);
  options("network", [...Object.keys(words.networks), "other"]);
  options("noise", words.noises);
  options("objective", words.objectives, (name) => ({ inverse: "inverse: Σ w/(1-γ)", "inverse-squared": "inverse-squared: Σ w²/(1-γ)", linear: "linear: Σ w γ" })[name] ?? name);
  options("policy", words.policies, (name) => ({ error: "say what is lacking", "leave-out": "leave devices out", stretch: "stretch the deadline" })[name] ?? name);
  options("against", SLIDERS.map(({ key }) => key), (key) => SLIDERS.find((one) => one.key === key).label);
  $("against").value = "radio.deadline_s";
  $("training").hidden = !words.allow_run;
  SLIDERS.forEach(addSlider);
  listen();
  drags();
}

export function show(text) {
  if (text) try { state = { ...structuredClone(words.start), ...JSON.parse(text) }; } catch { say("The link is damaged."); }
  if (text || !seen) change();
}

export function leave() { resting?.abort(); clearTimeout(timer); }
