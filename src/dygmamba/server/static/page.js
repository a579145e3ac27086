// Text of users goes into the page as text only: textContent and attributes, never HTML.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const SPANS = [1, 5, 15, 60, 300, 900, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000, 7776000,
  15552000, 31557600, 157788000];  // seconds
const byId = (id) => document.getElementById(id);
const widthOf = (place) => Math.max(280, place.clientWidth || byId("answer").clientWidth);

function add(parent, name, text, attributes = {}) {
  const item = document.createElement(name);
  if (text !== undefined && text !== null) item.textContent = String(text);
  for (const [key, value] of Object.entries(attributes)) item.setAttribute(key, value);
  parent.appendChild(item);
  return item;
}

function draw(parent, name, attributes, text) {
  const item = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) item.setAttribute(key, value);
  if (text !== undefined) item.textContent = String(text);
  parent.appendChild(item);
  return item;
}

function newPicture(place, width, height, label) {
  place.replaceChildren();
  const picture = draw(place, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  return picture;
}

async function ask(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  const response = await fetch(path, options);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.detail || `the server answered ${response.status}`);
  return answer;
}

const formatCount = (value) => Math.round(value).toLocaleString("en");
const formatScore = (value) => value >= 0.9995 || value < 0.0005 ? value.toPrecision(3) : value.toFixed(3);
const formatSigned = (value) => (value < 0 ? "\u2212" : "+") + Math.abs(value).toFixed(3);

function formatSpan(value, isSeconds) {
  if (!isSeconds) return String(Number(value.toPrecision(4)));
  const units = [[31557600, "y"], [86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const [size, unit] = units.find(([size]) => value >= size) || [1, "s"];
  return `${Number((value / size).toPrecision(2))} ${unit}`;
}

// --- status -------------------------------------------------------------------------------------------------

function showFacts(facts) {
  const rows = [
    ["Model", facts.model], ["Dataset", facts.dataset], ["Task", facts.task],
    ["Events", formatCount(facts.events)], ["Nodes", formatCount(facts.nodes)],
    ["Latest event", facts.latest_shown],
    ["Since training, on disk", formatCount(facts.sequence)], ["of these visible", formatCount(facts.applied)],
    ["Late events", `${formatSpan(facts.late, facts.dated)} allowed, then ${facts.on_late}`],
    ["Events dated ahead", facts.max_ahead === null ? "accepted"
      : `${formatSpan(facts.max_ahead, facts.dated)} allowed, then set-aside`],
    ["Set aside", formatCount(facts.set_aside)],
  ];
  if (facts.columns.length) rows.push(["Columns", facts.columns.join(", ")]);
  const list = byId("facts");
  list.replaceChildren();
  for (const [name, value] of rows) { add(list, "dt", name); add(list, "dd", value); }
  byId("title").textContent = `${facts.dataset}: ${facts.model}`;
  document.title = `${facts.dataset} - dygmamba live`;
}

function showRates(rates) {
  const recent = rates.slice(-10), top = Math.max(1, ...rates), width = widthOf(byId("rates")), height = 90;
  const mean = recent.reduce((sum, count) => sum + count, 0) / recent.length;
  byId("rate").textContent = mean < 10 ? mean.toFixed(1) : formatCount(mean);
  const picture = newPicture(byId("rates"), width, height, `Events per second, at most ${top}`);
  rates.forEach((count, place) => {
    const tall = (height - 16) * count / top;
    draw(picture, "rect", {
      class: "bar", x: place * width / rates.length, y: height - tall, width: width / rates.length - 0.5, height: tall,
    });
  });
  draw(picture, "line", { class: "axis", x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5 });
  draw(picture, "text", { x: 0, y: 12 }, `${formatCount(top)} / s`);
}

function showCurve(place, points, label, limit) {
  const width = widthOf(place), height = 120, known = points.filter((point) => point.value !== null);
  if (!known.length) {
    place.replaceChildren();
    add(place, "p", "Too few events have been scored yet.", { class: "note" });
    return;
  }
  const top = Math.max(limit * 1.2, ...known.map((point) => point.value));
  const first = known[0].time, span = Math.max(1, known[known.length - 1].time - first);
  const x = (time) => 4 + (width - 8) * (known.length === 1 ? 1 : (time - first) / span);
  const y = (value) => height - 18 - (height - 32) * value / top;
  const picture = newPicture(place, width, height, `${label}, from ${known[0].value.toFixed(3)} to ${known[known.length - 1].value.toFixed(3)}, limit ${limit}`);
  draw(picture, "line", { class: "axis", x1: 0, x2: width, y1: y(0), y2: y(0) });
  draw(picture, "line", { class: "limit", x1: 0, x2: width, y1: y(limit), y2: y(limit) });
  draw(picture, "text", { x: 0, y: y(limit) - 4 }, `limit ${limit}`);
  draw(picture, "polyline", { class: "curve", points: known.map((point) => `${x(point.time)},${y(point.value)}`).join(" ") });
  for (const point of known.slice(-1)) draw(picture, "circle", { class: "bar", cx: x(point.time), cy: y(point.value), r: 4 });
  draw(picture, "text", { x: 0, y: height - 4 }, new Date(first * 1000).toLocaleTimeString());
  draw(picture, "text", { x: width, y: height - 4, "text-anchor": "end" }, "now");
}

function showQuality(status) {
  const quality = status.quality, shown = (value) => value === null ? "-" : value.toFixed(3);
  byId("drift").textContent = shown(quality.drift);
  byId("error").textContent = shown(quality.calibration_error);
  const points = (name) => status.history.map((point) => ({ time: point.time, value: point[name] }));
  showCurve(byId("drifts"), points("drift"), "Drift", status.limits.drift);
  showCurve(byId("errors"), points("calibration_error"), "Calibration error", status.limits.calibration);
  if (status.reference && status.reference.auc !== null && quality.auc !== null) {
    byId("quality-note").textContent = `Of the last ${formatCount(quality.events)} scored events, `
      + `${(100 * quality.auc).toFixed(1)} % scored higher than a random destination of the same source and time; `
      + `in validation it was ${(100 * status.reference.auc).toFixed(1)} %.`;
  }
}

function showAlerts(alerts) {
  const texts = alerts.map((alert) => alert.message), place = byId("alerts");
  if (place.dataset.texts === JSON.stringify(texts)) return;
  place.dataset.texts = JSON.stringify(texts);
  place.replaceChildren();
  for (const text of texts) add(place, "p", text);
}

function showState(text) {
  if (byId("state").textContent !== text) byId("state").textContent = text;  // else it would be read aloud again
}

async function refresh() {
  if (!document.hidden) {
    try {
      const status = await ask("v1/status");
      showFacts(status.facts);
      showRates(status.rates);
      showQuality(status);
      showAlerts(status.alerts);
      showState("ready");
    } catch (error) {
      showState(error.message);
    }
  }
  setTimeout(refresh, 2000);
}

// --- queries ------------------------------------------------------------------------------------------------

function addTable(parent, columns, rows) {
  const table = add(add(parent, "div", null, { class: "scroll" }), "table");
  const head = add(add(table, "thead"), "tr"), body = add(table, "tbody");
  for (const [name, , kind] of columns) add(head, "th", name, { class: kind || "", scope: "col" });
  for (const row of rows) {
    const line = add(body, "tr");
    for (const [, show, kind] of columns) add(line, "td", show(row), { class: kind || "" });
  }
}

function drawTimeLine(place, explanation) {
  const reasons = explanation.reasons.filter((reason) => reason.age > 0);
  if (!reasons.length) return;
  const width = widthOf(place), height = 220, middle = 104, isSeconds = explanation.seconds;
  const logs = reasons.map((reason) => Math.log10(reason.age));
  const low = Math.min(...logs), high = Math.max(...logs), span = Math.max(high - low, 0.1);
  const x = (log) => width - 50 - (width - 70) * (log - low) / span;
  const top = Math.max(...reasons.map((reason) => Math.abs(reason.contribution)), 1e-9);
  const picture = newPicture(place, width, height, "Past events by age and contribution to the score");
  draw(picture, "line", { class: "axis", x1: 0, x2: width - 32, y1: middle, y2: middle });
  draw(picture, "text", { x: width, y: middle + 4, "text-anchor": "end" }, "now");
  draw(picture, "text", { x: 0, y: 12 }, "raises the score");
  draw(picture, "text", { x: 0, y: height - 24 }, "lowers the score");
  const ticks = isSeconds ? SPANS : Array.from({ length: 24 }, (_, power) => 10 ** (power - 6));
  let last = Infinity;
  for (const tick of ticks) {
    const log = Math.log10(tick);
    if (log < low - 0.01 || log > high + 0.01 || last - x(log) < 76 || x(log) < 30) continue;
    last = x(log);
    draw(picture, "line", { class: "axis", x1: last, x2: last, y1: middle - 5, y2: middle + 5 });
    draw(picture, "text", { x: last, y: height - 6, "text-anchor": "middle" }, `${formatSpan(tick, isSeconds)} ago`);
  }
  for (const reason of reasons) {
    const kind = reason.contribution < 0 ? "down" : "up", place = x(Math.log10(reason.age));
    const end = middle - 74 * reason.contribution / top;
    const group = draw(picture, "g", { class: kind });
    draw(group, "line", { x1: place, x2: place, y1: middle, y2: end, "stroke-width": 2 });
    draw(group, "circle", { cx: place, cy: end, r: reason.count > 1 ? 6 : 4 });
    draw(group, "title", {}, `${reason.src} \u2192 ${reason.dst}, ${reason.time}: ${formatSigned(reason.contribution)}`);
  }
}

function showExplanation(place, explanation) {
  const count = explanation.reasons.length;
  add(place, "h3", count ? "Why: the past events that moved it" : "No past event moved it.");
  if (!count) return;
  drawTimeLine(add(place, "div", null, { class: "chart scroll", id: "timeline" }), explanation);
  addTable(place, [
    ["Event", (reason) => `${reason.src} \u2192 ${reason.dst}` + (reason.count > 1 ? ` and ${reason.count - 1} older` : "")],
    ["Time", (reason) => reason.time],
    ["To the logit", (reason) => formatSigned(reason.contribution), "number"],
  ], explanation.reasons.slice(0, 10));
  for (const note of explanation.notes) add(place, "p", note, { class: "note" });
}

function readForm() {
  const value = (id) => byId(id).value.trim(), at = value("at");
  const isNumber = at !== "" && Number.isFinite(Number(at));
  return { src: value("src"), dst: value("dst"), at: at === "" ? null : isNumber ? Number(at) : at };
}

// Buttons stay focusable while a question is answered: a disabled one would lose the focus of the keyboard.
async function answerForm(action) {
  const place = byId("answer"), buttons = document.querySelectorAll("button");
  if (place.getAttribute("aria-busy") === "true") return;
  const setBusy = (value) => {
    place.setAttribute("aria-busy", value);
    buttons.forEach((button) => button.setAttribute("aria-disabled", value));
  };
  byId("problem").textContent = "";
  setBusy("true");
  try {
    const found = document.createElement("div");
    await action(readForm(), found);
    place.replaceChildren(found);
  } catch (error) {
    place.replaceChildren();
    byId("problem").textContent = error.message.replace(/^pair 0: /, "");  // the form asks for one pair
  } finally {
    setBusy("false");
  }
}

async function scoreAndExplain({ src, dst, at }, place) {
  if (!dst) throw new Error("Name a destination to score a pair, or rank destinations.");
  const { scores: [row] } = await ask("v1/score", { pairs: [{ src, dst }], at });
  const score = row.score ?? row.uncalibrated_score;
  const line = add(place, "p", null, { class: "figure" });
  add(line, "span", formatScore(score), { class: "big", id: "result" });
  add(line, "span", row.score === undefined ? " (uncalibrated)" : " probability of a real event and not a random one");
  add(place, "p", `${row.src} \u2192 ${row.dst}, ${row.time}`, { class: "note" });
  const { explanation } = await ask("v1/explain", { src, dst, at, top: 50 });
  showExplanation(place, explanation);
}

async function rankDestinations({ src, at }, place) {
  if (!src) throw new Error("Name a source.");
  const { ranking, notes } = await ask("v1/rank", { sources: [src], k: 10, at });
  add(place, "h3", ranking.length ? `Likeliest destinations of ${src}` : `${src} has no destination left.`);
  addTable(place, [
    ["Rank", (row) => row.rank, "number"],
    ["Destination", (row) => row.dst],
    ["Score", (row) => formatScore(row.score ?? row.uncalibrated_score), "number"],
    ["Probability", (row) => row.probability === undefined ? "" : `${(100 * row.probability).toFixed(1)} %`, "number"],
  ], ranking);
  for (const note of notes) add(place, "p", note, { class: "note" });
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  answerForm(scoreAndExplain);
});
byId("rank").addEventListener("click", () => answerForm(rankDestinations));

// A link may hold a question: /#src=alice&dst=bob&at=2024-03-01 or /#src=alice&rank
function readLink() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const id of ["src", "dst", "at"]) if (given.has(id)) byId(id).value = given.get(id);
  if (given.has("rank")) answerForm(rankDestinations);
  else if (given.has("dst")) answerForm(scoreAndExplain);
}

readLink();
refresh();
