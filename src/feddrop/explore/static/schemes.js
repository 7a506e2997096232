// What every scheme makes of the cell: a verdict in words, with remedies, and a table.
import { $, digits, el, measure } from "./dom.js";
import { page, put, scheme, valueOf } from "./model.js";

export function refuse(text) {
  $("verdict").classList.add("bad");
  $("verdict").replaceChildren(el("p", { class: "lead" }, text));
}

function up(value) { // four digits, rounded up, so that the shown number is enough
  const scale = 10 ** (3 - Math.floor(Math.log10(value)));
  return Math.ceil(value * scale * (1 - 1e-12)) / scale;
}

export function verdict() {
  const { lacks, binding, objective, charged, status, left_out: out, deadline_s: deadline } = scheme();
  const box = $("verdict"), notes = page.seen.notes.map((note) => el("p", {}, note));
  box.classList.toggle("bad", Boolean(lacks));
  if (!lacks) {
    const counts = {};
    for (const word of binding) counts[word] = (counts[word] ?? 0) + 1;
    const told = Object.entries(counts).map(([word, count]) => `${word === "none" ? "nothing" : word}: ${count}`).join(", ");
    const longer = deadline > 1.000001 * valueOf("radio.deadline_s") ? ` The deadline is stretched to ${measure(deadline, "s", 4)}.` : "";
    const unit = page.seen.tables.radio.objective === "inverse" ? "; 1 is no dropout" : "";
    box.replaceChildren(el("p", { class: "lead" }, `Objective ${digits(objective, 5)}${unit}. ${out ? `${out} left out: ${digits(charged, 5)} if each is charged the highest cost.` : ""}${longer}`),
      el("p", {}, `What binds: ${told}. Status: ${status}.`), ...notes);
    return;
  }
  const remedies = [];
  const offer = (text, act) => remedies.push(el("button", { type: "button", onclick: act }, text));
  if (lacks.deadline_s) offer(`Deadline ${up(lacks.deadline_s)} s`, () => put("radio.deadline_s", up(lacks.deadline_s)));
  const wide = page.state.scheme === "exact" && page.settled?.bandwidth_hz;
  if (wide) offer(`Bandwidth ${up(wide / 1e6)} MHz`, () => put("radio.bandwidth_hz", 1e6 * up(wide / 1e6)));
  if (lacks.budget_j) offer(`Energy budget ${up(lacks.budget_j + 0.1)} J`, () => put("radio.energy_budget_j", up(lacks.budget_j + 0.1)));
  for (const policy of lacks.policies ?? []) offer(policy === "stretch" ? "Stretch the deadline" : "Leave devices out", () => put("radio.policy", policy));
  if (wide > 1.0001 * lacks.load * valueOf("radio.bandwidth_hz"))
    notes.push(el("p", {}, "The bandwidth must grow by more than that factor: under density noise, a wider band has more noise."));
  const load = lacks.load ? ` ${page.state.scheme === "equal" ? "An equal split needs" : "Together, the devices need"} ${digits(100 * lacks.load)} % of the band.` : "";
  box.replaceChildren(el("p", { class: "lead" }, `Infeasible.${load}`), el("p", {}, lacks.text), el("div", { class: "row" }, ...remedies), ...notes);
}

export function table() {
  const body = $("schemes").querySelector("tbody"), most = Math.max(...page.seen.schemes.map(({ charged }) => charged ?? 0));
  if (body.children.length !== page.seen.schemes.length) body.replaceChildren(...page.seen.schemes.map(({ name }) => el("tr", {},
    el("td", {}, el("label", {}, el("input", { type: "radio", name: "scheme", value: name, onchange: () => { page.state.scheme = name; delete page.state.replaced; page.change(); } }), ` ${page.words.named[name] ?? name}`)),
    el("td", {}, el("span"), el("span", { class: "bar" })), el("td"), el("td"), el("td"), el("td"))));
  page.seen.schemes.forEach((one, n) => {
    const cells = body.children[n].children, lacks = Boolean(one.lacks);
    body.children[n].classList.toggle("chosen", one === scheme());
    cells[0].querySelector("input").checked = one === scheme();
    cells[1].firstChild.textContent = lacks ? "infeasible" : digits(one.charged, 4);
    cells[1].lastChild.hidden = lacks;
    cells[1].lastChild.style.width = `${100 * (one.charged ?? 0) / most}%`;
    const texts = lacks ? ["–", "–", "–", "–"] : [digits(one.mean_rate), measure(one.latest_s, "s"), measure(one.total_j, "J"), String(one.left_out)];
    texts.forEach((text, k) => { cells[2 + k].textContent = text; });
  });
}
