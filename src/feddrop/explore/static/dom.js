// What all pages share: elements, requests and numbers. Text from data is never parsed as HTML.

export const $ = (id) => document.getElementById(id);

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

/** Set attributes that changed: an unchanged one would still be drawn again. */
export function set(node, attributes) {
  for (const [key, value] of Object.entries(attributes)) if (node.getAttribute(key) !== String(value)) node.setAttribute(key, value);
}

export async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const sent = body === undefined ? { signal } : { method: "POST", headers, body: JSON.stringify(body), signal };
  const response = await fetch(path, sent);
  const answer = await response.json();
  if (response.status === 401) $("door").hidden = false;
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

let silence;

/** Show a message in the header, for a while. */
export function say(text) {
  $("said").textContent = text;
  clearTimeout(silence);
  silence = setTimeout(() => { $("said").textContent = ""; }, 15_000);
}

/** Keep the state of a page in the address, unless a link to another page was just followed. */
export function keep(page, state) {
  if ((/^#\/(\w+)/.exec(location.hash)?.[1] ?? "cell") === page) history.replaceState(null, "", `#/${page}/${encodeURIComponent(JSON.stringify(state))}`);
}

const UNITS = {
  s: [[3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]],
  J: [[1e6, "MJ"], [1e3, "kJ"], [1, "J"], [1e-3, "mJ"], [1e-6, "µJ"]],
  W: [[1e3, "kW"], [1, "W"], [1e-3, "mW"], [1e-6, "µW"]],
  Hz: [[1e9, "GHz"], [1e6, "MHz"], [1e3, "kHz"], [1, "Hz"]],
  B: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]],
};

/** A number with a minus sign in place of its leading hyphen. */
export const minus = (text) => text.replace(/^-/, "\u2212");

export function digits(value, count = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return minus(value.toExponential(count - 1));
  const places = Math.max(0, Math.min(20, count - 1 - Math.floor(Math.log10(size || 1))));
  return minus(value.toLocaleString("en", { minimumFractionDigits: 0, maximumFractionDigits: places }));
}

export function measure(value, unit, count = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (unit === "%") return `${digits(100 * value, count)}\u00a0%`;
  if (!UNITS[unit]) return `${digits(value, count)}\u00a0${unit}`.trim();
  const [scale, name] = UNITS[unit].find(([size]) => Math.abs(value) >= 0.9995 * size) ?? UNITS[unit].find(([size]) => size === 1);
  return `${digits(value / scale, count)}\u00a0${name}`;
}

export const query = (entries) => new URLSearchParams(entries).toString();

/** Put names into a list of choices, and keep the chosen one. */
export function options(id, names, show = (name) => name) {
  const before = $(id).value;
  if ([...$(id).options].map((one) => one.value).join("\n") === names.join("\n")) return;
  $(id).replaceChildren(...names.map((name) => el("option", { value: name }, show(name))));
  if (names.includes(before)) $(id).value = before;
}
