// A round as time: when every device receives, computes and sends, and how long it waits for the last one.
import { legend } from "./chart.js";
import { $, ask, el, measure, query, svg } from "./dom.js";

const PARTS = [["push_s", "receives", 0], ["compute_s", "computes", 1], ["pull_s", "sends", 2]], LEFT = 46, BOTTOM = 24;

function draw(found) {
  const box = $("timeline-bars"), count = found.devices.length, width = Math.max(260, box.clientWidth);
  const tall = Math.min(18, Math.max(3, 400 / count)), height = count * tall + BOTTOM;
  const ends = found.start_s.map((start, k) => start + PARTS.reduce((sum, [key]) => sum + (found[key][k] ?? 0), 0)), last = Math.max(...ends);
  const X = (seconds) => LEFT + (width - LEFT - 8) * seconds / last;
  const picture = svg("svg", { class: "chart", width, height, role: "img", "aria-label": `Timeline of ${count} devices, ${measure(last, "s")} long` });
  const bar = (from, to, k, fill) => svg("rect", { x: X(from).toFixed(1), y: k * tall, width: Math.max(0, X(to) - X(from)).toFixed(1), height: tall * 0.8, fill });
  found.devices.forEach((device, k) => {
    let at = found.start_s[k];
    for (const [key, , colour] of PARTS) {
      picture.append(bar(at, at + (found[key][k] ?? 0), k, `var(--series-${colour})`));
      at += found[key][k] ?? 0;
    }
    picture.append(bar(at, last, k, "var(--line)"));
    if (tall > 9 || k % 10 === 0) picture.append(svg("text", { x: LEFT - 6, y: k * tall + tall * 0.4 + 4, "text-anchor": "end" }, String(device)));
  });
  for (const part of [0, 0.5, 1]) picture.append(svg("text", { x: X(part * last), y: height - 6, "text-anchor": part === 1 ? "end" : "middle" }, measure(part * last, "s")));
  box.replaceChildren(picture, legend([...PARTS.map(([, word, colour]) => [word, `var(--series-${colour})`]), ["waits", "var(--line)"]]));
}

let shown = "";

/** Show a round of a run; the last one that was asked for wins. */
export async function timeline(run, round) {
  const wanted = shown = JSON.stringify([run, round]);
  $("timeline").hidden = !run;
  if (!run || !round) return;
  try {
    const found = await ask(`/api/timeline?${query([["run", run], ["round", round]])}`);
    if (wanted !== shown) return;
    $("timeline-title").textContent = `Timeline of round ${round}`;
    if (found.missing) $("timeline-bars").replaceChildren(el("p", {}, found.missing));
    else draw(found);
  } catch (error) { if (wanted === shown) $("timeline-bars").replaceChildren(el("p", {}, error.message)); }
}
