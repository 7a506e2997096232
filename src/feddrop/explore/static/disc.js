// The devices around the base station: drawn, chosen and dragged.
import { mark } from "./bars.js";
import { ticks } from "./chart.js";
import { $, digits, measure, set, svg } from "./dom.js";
import { page, scheme } from "./model.js";

const TURN = 2 * Math.PI * Math.SQRT2; // between neighbours; path losses follow the golden ratio, so both together fill the disc
let dragged = null;

function at(device, metres) {
  const angle = page.state.angles?.[device] ?? device * TURN, r = 100 * metres / page.seen.places.radius_m;
  return [r * Math.cos(angle), r * Math.sin(angle)];
}

export function disc() {
  const box = $("disc"), { m, radius_m: radius } = page.seen.places, { rate, lacks, binding } = scheme();
  if (box.dataset.radius !== String(radius)) {
    box.dataset.radius = radius;
    const rings = ticks(0, 0.95 * radius, 3).filter((metres) => metres > 0).map((metres) => [metres, measure(metres, "m")]);
    box.replaceChildren(...[...rings, [radius, ""]].flatMap(([metres, text]) => [svg("circle", { class: "ring", r: 100 * metres / radius }),
      svg("text", { y: 100 * metres / radius - 2 }, text)]), svg("path", { class: "base", d: "M0-6L5 4H-5Z" }));
  }
  const old = [...box.querySelectorAll(".device")], size = m.length > 150 ? 2.2 : m.length > 40 ? 3.6 : 6;
  old.slice(m.length).forEach((one) => one.remove());
  m.forEach((metres, k) => {
    const one = old[k] ?? box.appendChild(svg("g", { role: "slider", "aria-orientation": "vertical" },
      svg("circle", { class: "whole" }), svg("circle", { class: "kept" }), svg("title")));
    const [x, y] = at(k, metres), short = lacks?.devices.includes(k), kept = lacks || rate[k] === null ? 0 : 1 - rate[k];
    const out = !lacks && ["left out", "absent"].includes(binding[k]);
    const text = `Device ${k}`;
    set(one, { transform: `translate(${x.toFixed(2)} ${y.toFixed(2)})`, tabindex: k === page.chosen ? 0 : -1, "data-device": k, "aria-label": text,
      class: `device${short ? " short" : ""}${out ? " out" : ""}${k === page.chosen ? " chosen" : ""}`, "aria-valuenow": Math.round(metres),
      "aria-valuemin": Math.round(page.seen.places.least_m), "aria-valuemax": Math.round(radius), "aria-valuetext": k === page.chosen ? describe(k) : measure(metres, "m") });
    set(one.children[0], { r: size });
    set(one.children[1], { r: ((size - 0.5) * Math.sqrt(kept)).toFixed(2) });
    if (one.children[2].textContent !== text) one.children[2].textContent = text;
  });
  if (old.length < m.length) box.append(...box.querySelectorAll("text")); // distances stay readable above the devices
  tell();
}

/** Say what the chosen device does, below the disc and above the bars. */
function tell() {
  for (const id of ["device", "device-at-bars"]) $(id).textContent = describe(page.chosen);
}

function describe(k) {
  const found = scheme(), { m, moves, sight, indoor } = page.seen.places;
  const where = `Device ${k}, ${measure(m[k], "m")}${moves === "path_loss" ? ` (${digits(10 * Math.log10(page.seen.places.path_loss[k]))} dB)` : ""}`
    + `${sight?.[k] ? ", line of sight" : ""}${indoor?.[k] ? ", indoors" : ""}`;
  const lacking = found.lacks?.devices.indexOf(k);
  if (lacking >= 0) {
    const share = found.lacks.least_share[lacking];
    return `${where}: needs ${share === null ? "more than any share" : `${measure(share, "%")} of the band`} to meet its ${found.lacks.constraints[lacking]}.`;
  }
  if (found.lacks) return found.lacks.needs ? `${where}: needs ${measure(found.lacks.needs[k], "%")} of the band.` : `${where}.`;
  if (found.rate[k] === null) return `${where}: ${found.binding[k]}.`;
  const seconds = ["push_s", "compute_s", "pull_s"].map((key) => found[key][k]), sum = seconds.reduce((a, b) => a + b);
  const paced = found.tx_power_w ? ` Power ${measure(found.tx_power_w[k], "W")}, clock ${measure(found.cpu_hz[k], "Hz")}.` : "";
  return `${where}: rate ${digits(found.rate[k])}, share ${measure(found.share[k], "%")}. It takes ${measure(sum, "s", 4)} (push ${measure(seconds[0], "s")}, `
    + `compute ${measure(seconds[1], "s")}, pull ${measure(seconds[2], "s")}) and ${measure(found.energy_j[k], "J")}. Binds: ${found.binding[k]}.${paced}`;
}

export function choose(k, focus = false) {
  const all = [...$("disc").querySelectorAll(".device")];
  page.chosen = (k + all.length) % all.length;
  all.forEach((one, n) => { one.classList.toggle("chosen", n === page.chosen); one.setAttribute("tabindex", n === page.chosen ? 0 : -1); });
  all[page.chosen].setAttribute("aria-valuetext", describe(page.chosen));
  if (focus) all[page.chosen].focus();
  tell();
  mark();
}

function move(k, metres, angle) {
  const { moves, m, least_m: least, radius_m: radius } = page.seen.places, held = Math.min(Math.max(metres, least), radius);
  if (angle !== undefined) page.state.angles = { ...page.state.angles, [k]: Number(angle.toFixed(3)) };
  const list = Array.from(moves === "path_loss" ? page.seen.places.path_loss : m);
  list[k] = Number((moves === "path_loss" ? 1e-3 * (held / 100) ** -3 : held).toPrecision(4));
  page.state.radio = { ...page.state.radio, [moves]: list };
  if (moves === "path_loss") { const { spread_db: _, ...shape } = page.state.shape ?? {}; page.state.shape = shape; }
  else { delete page.state.radio.radius_m; delete page.state.radio.min_distance_m; }
  page.change();
}

export function drags() {
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
    move(dragged, Math.hypot(x, y) / 100 * page.seen.places.radius_m, Math.atan2(y, x));
  });
  for (const name of ["pointerup", "pointercancel"]) box.addEventListener(name, () => { dragged = null; });
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], way = { ArrowUp: 1.05, ArrowDown: 1 / 1.05 }[event.key];
    if (step) choose(page.chosen + step, true);
    if (way) move(page.chosen, page.seen.places.m[page.chosen] * way);
    if (step || way) event.preventDefault();
  });
}
