// A subnet looked at: which part of every tensor a device held in a round.
import { $, ask, digits, el, query } from "./dom.js";

let run = "", asked = 0;

function picture({ name, shape, kept, of, cells, on_device: small }) {
  const canvas = el("canvas", { width: cells[0].length, height: cells.length, role: "img",
    "aria-label": `${name}: ${digits(100 * kept / of)} % kept` });
  const pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--series-0");
  cells.forEach((row, r) => row.forEach((percent, k) => {
    pen.globalAlpha = 0.06 + 0.94 * percent / 100;
    pen.fillRect(k, r, 1, 1);
  }));
  const size = small.join() === shape.join() ? shape.join(" × ") : `${small.join(" × ")} of ${shape.join(" × ")}`;
  return el("figure", {}, canvas, el("figcaption", {}, el("b", {}, name), ` ${size}, ${digits(100 * kept / of)} % kept`));
}

async function show() {
  const number = ++asked;
  $("subnet-note").textContent = "Recomputing the subnet …";
  $("subnet-pictures").replaceChildren();
  try {
    const given = [["run", run], ["round", $("subnet-round").value], ["device", $("subnet-device").value]];
    const { kept, of, tensors } = await ask(`/api/subnet?${query(given)}`);
    if (number !== asked) return;
    $("subnet-note").textContent = `Device ${given[2][1]} held ${kept.toLocaleString("en")} of ${of.toLocaleString("en")} values in round ${given[1][1]}: ${digits(100 * kept / of)} %.`;
    $("subnet-pictures").replaceChildren(...tensors.map(picture));
  } catch (error) { if (number === asked) $("subnet-note").textContent = error.message; }
}

export const look = {
  /** Offer the subnets of a run; its old pictures are removed. */
  offer(name) {
    $("subnet").hidden = !name;
    if (name === run) return;
    run = name;
    asked++;
    $("subnet-round").value = "";
    $("subnet-note").textContent = "";
    $("subnet-pictures").replaceChildren();
  },
  within(rounds, devices, first) {
    $("subnet-round").max = rounds.at(-1);
    $("subnet-device").max = devices.at(-1);
    if (!$("subnet-round").value) { $("subnet-round").value = rounds.at(-1); $("subnet-device").value = first; }
  },
  at(round, device) {
    $("subnet-round").value = round;
    $("subnet-device").value = device;
    show();
  },
  /** Show what is entered, and tell the page its round. */
  start(entered) {
    $("subnet-form").addEventListener("submit", (event) => {
      event.preventDefault();
      entered($("subnet-round").valueAsNumber);
      show();
    });
  },
};
