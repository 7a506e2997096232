// Which page is shown, and the token.
import { $, ask, say } from "./dom.js";
import * as cell from "./cell.js";
import * as compare from "./compare.js";
import * as paper from "./paper.js";
import * as runs from "./runs.js";

const PAGES = { cell: [cell, "Cell"], runs: [runs, "Runs"], compare: [compare, "Compare"], paper: [paper, "The paper"] };

function route() {
  const [, wanted, rest] = /^#\/(\w+)(?:\/(.*))?$/.exec(location.hash) ?? [null, "cell", ""];
  const page = PAGES[wanted] ? wanted : "cell";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${page}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const name of Object.keys(PAGES)) $(name).hidden = name !== page;
  document.title = `${PAGES[page][1]} · feddrop`;
  for (const [name, [module]] of Object.entries(PAGES)) if (name !== page) module.leave();
  PAGES[page][0].show(rest ? decodeURIComponent(rest) : "");
}

async function start() {
  const token = /^#token=([\w-]+)$/.exec(location.hash)?.[1] ?? $("token").value;
  if (token) { // shown once, in a header; then kept as a cookie that scripts cannot read
    const headers = { "Content-Type": "application/json", "X-Feddrop-Token": token };
    await fetch("/api/login", { method: "POST", headers, body: "{}" });
    if (location.hash.startsWith("#token")) history.replaceState(null, "", "#/cell");
  }
  try {
    const words = await ask("/api/words");
    $("door").hidden = true;
    for (const [module] of Object.values(PAGES)) module.start(words);
    addEventListener("hashchange", route);
    route();
  } catch (error) { say(error.message); }
}

document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
$("door").addEventListener("submit", (event) => { event.preventDefault(); start(); });
start();
