// The paper: its claims with their verdicts, the points of every claim, and the runs of every point.
import { lines } from "./chart.js";
import { $, ask, digits, el, minus, query, say, svg } from "./dom.js";

const MARKS = { holds: "holds", "holds in part": "partly", "does not hold": "fails", undecided: "undecided" };
let known = null;

async function load() {
  const found = await ask("/api/paper");
  if (found.missing) { $("paper-claims").replaceChildren(el("p", {}, found.missing)); return; }
  known = found;
  const counts = (title, claims) => el("span", {}, `${claims.length} ${title}: `, ...Object.entries(MARKS).map(([word, look]) =>
    el("span", { class: `mark ${look}` }, `${word} ${claims.filter(({ outcome }) => outcome === word).length}`)));
  const ours = known.claims.filter((claim) => claim.ours), theirs = known.claims.filter((claim) => !claim.ours);
  $("paper-counts").replaceChildren(counts("claims of the paper", theirs), counts("questions of ours", ours));
  $("paper-claims").replaceChildren(...[...theirs, ...ours].map(claim));
  filter();
}

function claim(one) {
  const box = el("details", { "data-name": one.name, ontoggle: () => { if (box.open && box.children.length === 1) box.append(...points(one)); } },
    el("summary", {}, el("span", { class: `mark ${MARKS[one.outcome] ?? "undecided"}` }, one.outcome), ` ${one.text} `,
      el("small", {}, `${one.ours ? "our question, " : ""}${one.where}`)));
  return box;
}

function points(one) {
  const place = el("div", { class: "behind" });
  const body = one.answers.map((answer) => {
    const chips = answer.points.map((point, n) => {
      const text = `${point.bound ? (point.value > 0 ? "≥ " : "≤ ") : ""}${point.value > 0 ? "+" : ""}${digits(point.value)}`;
      return el("button", { type: "button", "aria-label": `${answer.label}, number ${n + 1}: ${text} ${answer.unit}; show its runs`,
        onclick: () => behind(place, one, answer, point).catch((error) => say(error.message)) }, text);
    });
    const mean = answer.mean === null ? "" : `${within(answer.mean, answer.error)} ${answer.unit}`;
    return el("tr", {}, el("td", {}, answer.label), el("td", {}, strip(answer)), el("td", {}, mean), el("td", {}, el("strong", {}, answer.says), answer.why ? ` (${answer.why})` : ""),
      el("td", { class: "chips" }, ...chips));
  });
  const heads = ["Comparison", "Margin", "Difference", "Says", "One number per seed"];
  const sentence = (text) => text ? `${text[0].toUpperCase()}${text.slice(1)}. ` : "";
  return [el("p", {}, sentence(one.shown) + sentence(one.note)),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Comparisons" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, ...body))),
    place];
}

/** A mean and its error, both with the decimals of two digits of the error. */
function within(mean, error) {
  if (!error) return digits(mean);
  const places = Math.max(0, Math.min(20, 1 - Math.floor(Math.log10(error))));
  return [mean, error].map((value) => minus(value.toFixed(places))).join(" ± ");
}

/** The points of a comparison over its margin: beyond the bars they count. */
function strip({ points: some, margin, mean }) {
  if (!some.length || !margin) return "–";
  const at = (value) => 60 + 50 * Math.max(-1.1, Math.min(1.1, value / margin / 3));
  return svg("svg", { width: 120, height: 18, "aria-hidden": "true" }, svg("line", { x1: 60, x2: 60, y1: 0, y2: 18, stroke: "var(--edge)" }),
    svg("rect", { x: at(-margin), y: 4, width: at(margin) - at(-margin), height: 10, fill: "var(--line)" }),
    ...some.map(({ value }) => svg("circle", { cx: at(value), cy: 9, r: 3, fill: "var(--series-0)", opacity: 0.7 })),
    svg("line", { x1: at(mean), x2: at(mean), y1: 2, y2: 16, stroke: "var(--ink)", "stroke-width": 2 }));
}

async function behind(place, one, answer, point) {
  const exact = point.runs.length > 0;
  const keys = exact ? point.runs : one.by.flatMap((name) => known.experiments[name]?.runs ?? []);
  if (!keys.length) { place.replaceChildren(el("p", {}, "This number was measured without a stored run; the page “The paper, reproduced” says how.")); return; }
  const runs = await Promise.all(keys.slice(0, 6).map((key) => ask(`/api/paper/run?${query([["key", key]])}`)));
  const chart = el("div", {});
  place.replaceChildren(el("h3", {}, `${answer.label}, ${exact ? "the runs behind this number" : "some runs of its experiment"}`), chart,
    ...runs.map((run) => el("details", {}, el("summary", {}, `${run.key}: ${known.runs[run.key] ?? ""} (feddrop ${run.version})`), settings(run.config))));
  lines(chart, runs.map((run) => ({ name: known.runs[run.key] ?? run.key, x: run.series.test_accuracy.map((_, k) => k + 1),
    y: run.series.test_accuracy.map((value) => value === null ? null : 100 * value) })),
  { xLabel: "rounds", yLabel: "test accuracy (%)", xWhole: true, height: 260, label: `Test accuracy by round of ${runs.length} runs` });
  place.scrollIntoView({ block: "nearest" });
}

const settings = (config) => el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Settings" },
  el("table", {}, el("tbody", {}, ...Object.entries(config).map(([key, value]) => el("tr", {}, el("td", {}, key), el("td", {}, JSON.stringify(value)))))));

function filter() {
  const wanted = $("paper-filter").value.toLowerCase();
  for (const box of $("paper-claims").querySelectorAll(":scope > details")) box.hidden = !box.firstChild.textContent.toLowerCase().includes(wanted);
}

export function start() { $("paper-filter").addEventListener("input", filter); }

export async function show(name) {
  if (!known) try { await load(); } catch (error) { say(error.message); }
  const box = name && [...$("paper-claims").querySelectorAll("details")].find((one) => one.dataset.name === name);
  if (box) { box.open = true; box.scrollIntoView({ block: "start" }); }
}

export function leave() {}
