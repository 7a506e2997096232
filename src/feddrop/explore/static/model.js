// What the cell page holds: the state, and what the server answered. The state alone restores the page.

export const page = { words: null, state: null, seen: null, settled: null, chosen: 0, change: () => {} };

const inside = (key, tables) => key.split(".").reduce((table, name) => table?.[name], tables);

export function valueOf(key) {
  const value = inside(key, page.state) ?? inside(key, page.seen?.tables ?? {});
  if (key === "radio.energy_budget_j" && value === 0) return Math.min(...page.seen.devices.budget_j.map((joules) => joules ?? Infinity)); // of the kinds
  if (key === "cell.samples" && Array.isArray(value)) return value.reduce((sum, one) => sum + one, 0) / value.length;
  if (key === "shape.skew" && value === undefined) return spread(inside("cell.samples", page.seen?.tables), (ratio) => ratio);
  if (key === "shape.spread_db" && value === undefined) return spread(page.seen?.tables.radio.path_loss, (ratio) => 10 * Math.log10(ratio));
  return value;
}

const spread = (list, of) => of(Array.isArray(list) ? Math.max(...list) / Math.min(...list) : 1);

export function put(key, value) {
  const [table, name] = key.split(".");
  page.state[table] = { ...page.state[table], [name]: value };
  if (key === "shape.spread_db") delete page.state.radio.path_loss;
  if (key === "shape.skew") page.state.cell.samples = Math.round(valueOf("cell.samples"));
  if (key === "radio.radius_m") delete page.state.radio.distances_m;
  page.change();
}

/** What the chosen scheme makes of the cell. */
export const scheme = () => page.seen.schemes.find(({ name }) => name === page.state.scheme) ?? page.seen.schemes[0];
