
"use strict";
// Nothing that comes from a run becomes markup: texts go through textContent, and the page's policy refuses all else.

const EVERY = 2000;      // milliseconds between two looks
const PATIENCE = 10000;  // milliseconds until a look counts as failed
const WAITS = ["data", "communication", "saves"];
const PARTS = ["data", "backward", "communication", "optimizer", "saves", "checks", "other lines"];
const OVER = {
  "not started": "The run has not begun yet. This page fills when it does.",
  "ended well": "The run is over, and ended well. This is its last state.",
  "broken off": "The run was broken off: it left no report. This is its last state.",
  "handed over": "This job has handed over to the next one of its chain. This is its last state.",
  "unknown": "This machine cannot see whether the run goes on. This is what its files say.",
};

let last = null;    // the newest state
let seen = 0;       // when it came, in milliseconds
let chosen = null;  // the name of the node whose ranks are shown
const tiles = new Map();

const at = (id) => document.getElementById(id);

function make(tag, text, ...names) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  element.classList.add(...names);
  return element;
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Numbers for people; null is unknown, and a loss may be the text "NaN" or "Infinity".
const known = (value) => typeof value === "number";
const percent = (value) => (known(value) ? Math.round(value * 100) + "%" : "–");
const amount = (value, digits) => (known(value) ? value.toLocaleString("en", { maximumFractionDigits: digits }) : "–");
const short = (value) => (known(value) ? String(Number(value.toPrecision(4))) : value === null ? "–" : String(value));
const unit = (value, name) => (known(value) ? amount(value, 0) + " " + name : "–");

function size(bytes) {
  if (!known(bytes)) return "–";
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return amount(bytes / 1024 ** power, 1) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][power];
}

function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (value) => String(value).padStart(2, "0");
  return two(Math.floor(whole / 3600)) + ":" + two(Math.floor(whole / 60) % 60) + ":" + two(whole % 60);
}

const plural = (number, word) => amount(number, 0) + " " + word + (number === 1 ? "" : "s");
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

function drawHead(state) {
  const failed = state.status.startsWith("failed") || state.status === "broken off";
  set(at("name"), state.name);
  set(at("status"), (failed ? "✗ " : state.status === "running" ? "● " : state.status === "ended well" ? "✓ " : "") + state.status);
  at("status").className = "status " + (failed ? "failed" : state.status === "running" ? "running" : "");
  const attempt = state.attempt ? " · attempt " + state.attempt : "";
  const nodes = plural(state.num_ranks, "rank") + " on " + plural(state.nodes.length, "node");
  set(at("line"), clock(state.now - state.began) + " · " + nodes + attempt + " · step " + amount(state.steps, 0));
  document.title = state.name + " · " + state.status + " · step " + amount(state.steps, 0);
}

function drawNumbers(state) {
  const ranks = state.nodes.flatMap((node) => node.ranks);
  const devices = state.nodes.flatMap((node) => node.devices).filter((device) => known(device.busy));
  const rows = [
    ["steps/s", amount(state.steps_per_second, 2)],
    ["samples/s", amount(state.samples_per_second, 1)],
    ["loss", short(state.loss)],
    ["computing", percent(mean(ranks.map((rank) => rank.busy).filter(known)))],
  ];
  if (devices.length) rows.push(["devices busy", percent(mean(devices.map((device) => device.busy / 100)))]);
  at("numbers").replaceChildren(...rows.map(([name, value]) => {
    const row = make("div");
    row.append(make("dt", name), make("dd", value));
    return row;
  }));
}

function shape(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

// A curve of the newest values; a value that is no number leaves a gap.
function drawCurve(figure, title, values, text) {
  const numbers = values.filter(known);
  figure.hidden = !numbers.length;
  if (figure.hidden) return;
  const low = Math.min(...numbers);
  const high = Math.max(...numbers);
  const x = (place) => (values.length > 1 ? place / (values.length - 1) * 100 : 50);
  const y = (value) => (high > low ? 96 - (value - low) / (high - low) * 92 : 50);
  const pieces = [[]];
  values.forEach((value, place) => {
    if (known(value)) pieces[pieces.length - 1].push([x(place).toFixed(2), y(value).toFixed(2)]);
    else pieces.push([]);
  });
  const drawn = pieces.filter((piece) => piece.length);
  const curve = drawn.map((piece) => "M" + piece.map((point) => point.join(" ")).join("L") + (piece.length < 2 ? "h.5" : "")).join("");
  const area = drawn.map((piece) => "M" + piece[0][0] + " 100L" + piece.map((point) => point.join(" ")).join("L") + "L" + piece[piece.length - 1][0] + " 100Z").join("");
  const hand = shape("line", { class: "hand", y1: 0, y2: 100, visibility: "hidden" });
  const svg = shape("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img" });
  svg.setAttribute("aria-label", title + ": from " + text(numbers[0]) + " to " + text(numbers[numbers.length - 1]) + ", least " + text(low) + ", most " + text(high));
  svg.append(shape("path", { class: "rule", d: "M0 4H100M0 50H100M0 96H100" }), shape("path", { class: "area", d: area }), shape("path", { class: "curve", d: curve }), hand);
  const caption = make("figcaption");
  const value = make("b", text(values[values.length - 1]));
  caption.append(make("h2", title), value);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const place = Math.min(values.length - 1, Math.max(0, Math.round((event.clientX - box.left) / box.width * (values.length - 1))));
    hand.setAttribute("x1", x(place));
    hand.setAttribute("x2", x(place));
    hand.setAttribute("visibility", "visible");
    value.textContent = text(values[place]);
  });
  svg.addEventListener("pointerleave", () => {
    hand.setAttribute("visibility", "hidden");
    value.textContent = text(values[values.length - 1]);
  });
  const plot = make("div", undefined, "plot");
  const scale = make("div");
  scale.append(make("span", text(high)), make("span", high > low ? text(low) : ""));
  plot.append(scale, svg);
  figure.replaceChildren(caption, plot);
}

function drawParts(state) {
  const parts = PARTS.filter((part) => part in state.shares).map((part) => [part, state.shares[part]]);
  at("parts").hidden = !parts.length;
  const bar = at("bar");
  bar.setAttribute("aria-label", parts.map(([part, share]) => part + " " + percent(share)).join(", "));
  bar.replaceChildren(...parts.map(([part, share]) => {
    const piece = make("span", share >= 0.12 ? percent(share) : "", "part-" + PARTS.indexOf(part));
    piece.style.flexGrow = String(share);
    return piece;
  }));
  at("legend").replaceChildren(...parts.map(([part, share]) => {
    const item = make("li");
    item.append(make("i", "", "part-" + PARTS.indexOf(part)), part + (WAITS.includes(part) ? " (not computing) " : " ") + percent(share));
    return item;
  }));
}

const KINDS = { "!": "wait", "x": "bad" };
const kind = (mark) => KINDS[mark] || (mark >= "0" && mark <= "9" ? "heat-" + mark : "quiet");
const markOfDevice = (device) => (known(device.busy) ? String(Math.min(9, Math.max(0, Math.floor(device.busy / 10)))) : "-");
const marksOf = (node) => (node.ranks.length ? node.ranks.map((rank) => rank.mark) : node.devices.map(markOfDevice));

function tileOf(node) {
  let tile = tiles.get(node.name);
  if (!tile) {
    const item = make("li");
    const button = make("button", undefined, "tile");
    button.type = "button";
    button.append(make("span", "", "of"), make("span", "", "cells"));
    button.addEventListener("click", () => choose(chosen === node.name ? null : node.name));
    item.append(button);
    tile = { item, button };
    tiles.set(node.name, tile);
  }
  return tile;
}

function drawTile(node) {
  const { button } = tileOf(node);
  const [name, cells] = button.children;
  set(name, node.name.length > 22 ? "…" + node.name.slice(-21) : node.name);
  button.title = node.name;
  button.classList.toggle("lost", node.is_lost);
  button.setAttribute("aria-expanded", String(chosen === node.name));
  const marks = marksOf(node);
  while (cells.children.length > marks.length) cells.lastChild.remove();
  while (cells.children.length < marks.length) cells.append(make("span"));
  marks.forEach((mark, place) => {
    const cell = cells.children[place];
    set(cell, mark);
    if (cell.className !== kind(mark)) cell.className = kind(mark);
  });
  const slow = marks.filter((mark) => mark === "!").length;
  const bad = marks.filter((mark) => mark === "x").length;
  const words = [node.name, plural(marks.length, node.ranks.length ? "rank" : "device"), "computing, in tenths: " + marks.join(" ")];
  if (slow) words.push("the others wait for " + slow);
  if (bad) words.push(bad + " failed or lost");
  button.setAttribute("aria-label", words.join("; "));
}

// The worst first; but nothing moves below a pointer or the keyboard.
function drawGrid(state) {
  const text = at("find").value.trim();
  const nodes = state.worst_first.map((place) => state.nodes[place]).filter((node) => node.name.includes(text));
  const names = new Set(state.nodes.map((node) => node.name));
  for (const [name, tile] of tiles) {
    if (!names.has(name)) {
      tile.item.remove();
      tiles.delete(name);
    }
  }
  nodes.forEach(drawTile);
  const grid = at("grid");
  const items = nodes.map((node) => tileOf(node).item);
  const shown = new Set(items);
  const rests = grid.matches(":hover, :focus-within") && items.length === grid.children.length && [...grid.children].every((item) => shown.has(item));
  if (!rests && items.some((item, place) => grid.children[place] !== item) || items.length !== grid.children.length) grid.replaceChildren(...items);
  const cells = Math.min(16, Math.max(1, ...nodes.map((node) => marksOf(node).length)));
  const letters = Math.min(22, Math.max(1, ...nodes.map((node) => node.name.length)));
  grid.style.setProperty("--tile", (cells * 1.065 + letters * 0.515 + 1.2).toFixed(1) + "rem");
  at("none").hidden = nodes.length > 0;
  set(at("none"), text && state.nodes.length ? "No node has “" + text + "” in its name." : "No node has come yet.");
}

function fill(table, heads, rows) {
  const head = make("tr");
  head.append(...heads.map((name) => {
    const cell = make("th", name, ...(name === "why" ? ["why"] : []));
    cell.scope = "col";
    return cell;
  }));
  const body = rows.map(([names, ...cells]) => {
    const row = make("tr", undefined, ...names);
    row.append(...cells.map((text, place) => {
      const cell = make(place ? "td" : "th", text, ...(heads[place] === "why" ? ["why"] : []));
      if (!place) cell.scope = "row";
      return cell;
    }));
    return row;
  });
  const parts = [make("thead"), make("tbody")];
  parts[0].append(head);
  parts[1].append(...body);
  table.replaceChildren(...parts);
}

function drawNode(state) {
  const node = state.nodes.find((each) => each.name === chosen);
  at("node").hidden = !node;
  if (!node) return;
  set(at("node-title"), node.name + (node.is_lost ? " is lost" : ""));
  const ranks = node.worst_first.map((place) => node.ranks[place]);
  at("ranks").hidden = !ranks.length;
  fill(at("ranks"), ["rank", "", "state", "step", "computing", "data", "communication", "loss", "memory", "line", "why"], ranks.map((rank) => [
    kind(rank.mark) in { wait: 1, bad: 1 } ? [kind(rank.mark)] : [],
    String(rank.rank), rank.mark, rank.status, amount(rank.steps, 0), percent(rank.busy), percent(rank.shares.data),
    percent(rank.shares.communication), short(rank.loss), size(rank.peak_bytes), rank.line || "–",
    rank.excess ? "the others wait for it, " + percent(rank.excess) + " of their own time: it " + rank.cause : "",
  ]));
  at("devices").hidden = !node.devices.length;
  fill(at("devices"), ["device", "busy", "memory", "power", "temperature", "clock", "throttled"], node.devices.map((device) => [
    device.throttled ? ["wait"] : [],
    String(device.number), percent(known(device.busy) ? device.busy / 100 : null), percent(device.memory),
    unit(device.watts, "W"), unit(device.celsius, "°C"), unit(device.megahertz, "MHz"), device.throttled || "–",
  ]));
}

function drawFacts(state) {
  const facts = [...state.facts].reverse();
  at("facts").replaceChildren(...(facts.length ? facts : ["Nothing so far."]).map((fact) => make("li", fact)));
}

function draw(state) {
  at("main").hidden = false;
  drawHead(state);
  drawNumbers(state);
  drawCurve(at("loss"), "loss", state.losses, short);
  drawCurve(at("speed"), "steps a second", state.rates, (value) => amount(value, 2));
  drawParts(state);
  drawGrid(state);
  drawNode(state);
  drawFacts(state);
}

function choose(name) {
  const before = chosen;
  chosen = name;
  if (!last) return;
  drawGrid(last);
  drawNode(last);
  if (name !== null) {
    at("node-title").focus();
    at("node").scrollIntoView({ block: "nearest" });
  } else if (tiles.has(before)) {
    tiles.get(before).button.focus();
  }
}

function say(text, isStale) {
  set(at("told"), text);
  document.body.classList.toggle("stale", isStale);
}

async function look() {
  try {
    const reply = await fetch("state.json", { signal: AbortSignal.timeout(PATIENCE) });
    const state = reply.ok ? await reply.json() : null;
    if (reply.status === 403) {
      say("The server does not know this browser: open the address that `echelon watch --web` has printed.", true);
    } else if (!state) {
      say((await reply.text()).trim(), true);
    } else if (state.format !== 1) {
      say("The server is newer than this page: load the page again.", true);
    } else {
      last = state;
      seen = Date.now();
      draw(state);
      const over = OVER[state.status] || (state.status.startsWith("failed") ? "The run has " + state.status + ". This is its last state." : "");
      say(over, false);
      set(at("foot"), "Looked at " + new Date(seen).toLocaleTimeString("en-GB") + ", every " + EVERY / 1000 + " s.");
    }
  } catch (error) {
    const since = seen ? " for " + clock((Date.now() - seen) / 1000) : "";
    say("The server does not answer" + since + ": `echelon watch --web` has ended, or the ssh connection to it. The run itself may go on.", true);
  }
  setTimeout(look, EVERY);
}

function move(event) {
  const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  const item = event.target.closest("li");
  const next = step && item && (step > 0 ? item.nextElementSibling : item.previousElementSibling);
  if (next) {
    event.preventDefault();
    next.firstElementChild.focus();
  }
}

at("find").addEventListener("input", () => last && drawGrid(last));
at("grid").addEventListener("keydown", move);
at("close").addEventListener("click", () => choose(null));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chosen !== null) choose(null);
});
look();
