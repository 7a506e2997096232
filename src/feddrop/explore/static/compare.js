// The comparison of chosen runs: results, verdicts, curves and what differs. It follows runs under way.
import { onWidth } from "./chart.js";
import { $, ask, el, keep, options, query, say } from "./dom.js";
import { AXES, chosen, pause, plot } from "./runs.js";

const MEGA = 1e6;
const RESOURCES = { rounds: 1, bytes: MEGA, seconds: 1, joules: 1 };
const WAYS = { round: "rounds", bytes: "bytes", time: "seconds", energy: "joules" };
let state = { runs: [], budget: {} }, rows = [], found = null, curves = [], shown = false, timer = null, before = "", asked = 0;

async function poll() {
  clearTimeout(timer);
  if (!shown) return;
  const began = performance.now();
  if (!document.hidden) try {
    rows = (await ask("/api/runs")).runs.filter((row) => !row.error);
    if (!state.runs.length) state.runs = [...chosen].filter((name) => rows.some((row) => row.name === name));
    if (!state.runs.length) state.runs = rows.slice(0, 6).map((row) => row.name);
    const now = JSON.stringify([rows.map(({ name, round, accuracy, loss }) => [name, round, accuracy, loss]), state]);
    if (now !== before) { before = now; list(); await update(); }
  } catch (error) { say(error.message); }
  if (shown) timer = setTimeout(poll, pause(began));
}

function list() {
  const held = document.activeElement?.id;
  $("compare-list").replaceChildren(...rows.map((row, n) => {
    const box = el("input", { type: "checkbox", id: `compared-${n}`, onchange: () => {
      state.runs = box.checked ? [...state.runs, row.name] : state.runs.filter((name) => name !== row.name);
      poll();
    } });
    box.checked = state.runs.includes(row.name);
    return el("label", { for: `compared-${n}` }, box, ` ${row.label || row.name} `, el("small", {}, [row.what, row.seed ? `seed ${row.seed}` : "", `round ${row.round}`].filter(Boolean).join(" · ")));
  }));
  if (held?.startsWith("compared-")) $(held)?.focus();
}

async function update() {
  const number = ++asked, runs = state.runs.filter((name) => rows.some((row) => row.name === name));
  keep("compare", state);
  for (const id of ["figure-pdf", "compare-page"]) $(id).hidden = !runs.length;
  if (!runs.length) { $("compare-lead").textContent = rows.length ? "Choose at least one run." : "There are no runs here yet."; return; }
  const percent = found ? found.score.includes("accuracy") : true;
  const answer = await ask("/api/compare", { runs, budget: state.budget, reference: state.reference,
    targets: state.target ? [state.target / (percent ? 100 : 1)] : [] });
  if (number !== asked) return;
  found = answer;
  $("target-unit").textContent = found.score.includes("accuracy") ? "%" : "";
  options("compare-axis", found.ways.map((way) => WAYS[way]), (name) => AXES[name][0]);
  options("reference", ["", ...found.groups.map(({ name }) => name)], (name) => name || "no differences");
  $("reference").value = found.reference;
  results();
  const x = $("compare-axis").value;
  ({ curves } = await ask("/api/curves", { runs, x, y: found.score }));
  draw();
  links(runs);
}

function dot(group) {
  const mark = el("span", { class: "dot" });
  mark.style.background = `var(--series-${group.colour % 6})`;
  return el("span", {}, mark, group.name);
}

const table = (head, body) => el("table", {}, el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
  el("tbody", {}, ...body.map((row) => el("tr", {}, ...row.map((cell) => el("td", {}, cell ?? "–"))))));

function results() {
  const { groups, measures, judged, verdicts, differs, reference, lead } = found;
  $("compare-lead").textContent = lead;
  $("compare-results").replaceChildren(table(["Run", "Seeds", ...measures], groups.map((group, n) => [dot(group), String(group.seeds), ...found.results[n]])));
  const others = groups.filter(({ name }) => name !== reference), box = $("compare-verdicts");
  box.hidden = !reference || !others.length;
  box.querySelector("h2").textContent = `Better than ${reference}?`;
  if (!box.hidden) box.querySelector("div").replaceChildren(table(["Run", ...judged], others.map((group, n) => [dot(group), ...verdicts[n].map(({ text, says, why }) =>
    el("span", {}, ...(text ? [text, el("br")] : []), el("strong", { class: says.replaceAll(" ", "-") }, says), why ? ` (${why})` : ""))])));
  const settings = Object.entries(differs);
  $("compare-differs").replaceChildren(settings.length ? table(["Setting", ...groups.map(({ name }) => name)], settings.map(([key, values]) => [key, ...values]))
    : el("p", {}, "Nothing: all runs have the same configuration."));
}

function draw() { if (found && curves.length) plot($("compare-curves"), curves, $("compare-axis").value, found.score); }

function links(runs) {
  const names = runs.map((name) => ["run", name]), way = Object.keys(WAYS).find((one) => WAYS[one] === $("compare-axis").value);
  $("figure-pdf").href = `/figure?${query([...names, ["against", way], ["width", $("figure-width").value], ["as", "pdf"]])}`;
  $("compare-page").href = `/page?${query(names)}`;
}

export function start() {
  for (const [key, size] of Object.entries(RESOURCES)) $(`budget-${key}`).addEventListener("change", ({ target }) => {
    const { [key]: _, ...rest } = state.budget ?? {};
    state.budget = target.valueAsNumber > 0 ? { ...rest, [key]: target.valueAsNumber * size } : rest;
    poll();
  });
  $("target").addEventListener("change", ({ target }) => { state.target = target.valueAsNumber > 0 ? target.valueAsNumber : undefined; poll(); });
  $("reference").addEventListener("change", ({ target }) => { state.reference = target.value; poll(); });
  for (const id of ["compare-axis", "figure-width"]) $(id).addEventListener("change", () => { before = ""; poll(); });
  $("compare-form").addEventListener("submit", (event) => event.preventDefault());
  onWidth($("compare-curves"), draw);
}

export function show(text) {
  shown = true;
  before = "";
  if (text) try { state = { budget: {}, ...JSON.parse(text) }; } catch { say("The link is damaged."); }
  for (const [key, size] of Object.entries(RESOURCES)) $(`budget-${key}`).value = state.budget?.[key] ? state.budget[key] / size : "";
  $("target").value = state.target ?? "";
  poll();
}

export function leave() { shown = false; clearTimeout(timer); }
