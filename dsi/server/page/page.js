// The page: a search and its answers, why a document is not among them, and the docid tree to browse.

import { documents, drawTree, foundBy, number, sumOf } from "./tree.js";

const $ = (id) => document.getElementById(id);
const SLIDERS = { alpha: 2, beam_width: 0, candidates: 0, lexical_weight: 3 }; // decimals
const LOOKS = { dense: "vectors", encoder: "vectors", generator: "learned", "query map": "learned" }; // others: words
let index, latest = 0, resting = 0, shown = null;

function make(name, { text, ...attributes } = {}, ...children) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** What the server answers; its message is thrown as an Error. */
async function ask(path, body) {
  const options = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer.");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// Settings.

function showValues() {
  for (const [name, decimals] of Object.entries(SLIDERS)) {
    document.querySelector(`output[for=${name}]`).value = Number($(name).value).toFixed(decimals);
  }
  for (const name of index?.tied ? ["alpha", "beam_width", "candidates"] : ["beam_width"]) {
    $(name).disabled = $("method").value === "exact"; // which does not use it
  }
}

function resetSettings() {
  for (const name of ["method", ...Object.keys(SLIDERS)]) $(name).value = index.search_config[name];
  $("where").value = "";
  showValues();
}

function settings() {
  const own = { k: Math.min(10, index.limits.max_k), method: $("method").value };
  for (const name of Object.keys(SLIDERS)) {
    const step = Number($(name).step) / 2;
    const value = Number($(name).value);
    const differs = Math.abs(value - index.search_config[name]) > step; // the index's own is not rounded
    if (differs && !$(name).disabled) own[name] = value;
  }
  if ($("where").value.trim()) own.where = $("where").value;
  return own;
}

async function start() {
  index = await ask("index");
  const { depth, columns, lexical, tied, limits, search_config: config } = index;
  $("about").textContent = `${documents(index.documents)}, docids of up to ${depth} digits`;
  $("columns").textContent = `a condition on ${Object.keys(columns).join(", ")}`;
  $("beam_width").max = Math.min(Math.max(50, config.beam_width), limits.max_beam_width);
  $("candidates").min = Math.min(10, config.candidates);
  $("candidates").max = Math.min(Math.max(500, config.candidates), limits.max_candidates);
  const heaviest = config.lexical_weight ? 4 * config.lexical_weight : 1;
  $("lexical_weight").max = heaviest;
  $("lexical_weight").step = heaviest / 40;
  $("lexical-name").textContent = lexical ?? "";
  const takesWords = lexical !== null && (tied || (config.fusion === "bound" && config.beta !== 0));
  for (const [name, taken] of [["candidates", tied], ["lexical_weight", takesWords]]) {
    $(name).closest(".setting").hidden = $(name).disabled = !taken;
  }
  resetSettings();
  const asked = new URLSearchParams(location.search);
  $("query").value = asked.get("q") ?? "";
  $("where").value = asked.get("where") ?? "";
  if ($("query").value) await search();
}

// Searching.

function say(text, error = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", error);
}

async function search() {
  const query = $("query").value;
  if (!query.trim()) return;
  const turn = ++latest;
  const given = { query, ...settings() };
  const address = new URLSearchParams({ q: query, ...(given.where && { where: given.where }) });
  history.replaceState(null, "", `?${address}${location.hash}`);
  document.title = `${query} · dsi`;
  $("found").setAttribute("aria-busy", "true");
  try {
    const [found, picture] = await Promise.all([ask("search", { ...given, parts: true }), ask("explain", given)]);
    if (turn !== latest) return; // a newer search is under way
    shown = given;
    show(found, picture);
  } catch (error) {
    if (turn === latest) say(error.message, true);
  } finally {
    if (turn === latest) $("found").removeAttribute("aria-busy");
  }
}

/** Search when a setting has come to rest: a slider changes at every key. */
function searchSoon() {
  clearTimeout(resting);
  resting = setTimeout(search, 200);
}

function show({ answers: [answer], milliseconds }, picture) {
  const { hits, exact } = answer;
  const certified = exact ? "certified: provably the best of all" : "not certified as the best of all";
  say(hits.length ? `${hits.length} answers in ${Math.round(milliseconds)} ms; ${certified}` : "No document may be returned.");
  $("found").hidden = false;
  const used = Object.keys(hits[0]?.parts ?? {}).filter((part) => hits.some((hit) => Math.abs(hit.parts[part]) > 1e-4));
  const legend = used.map((part) => make("span", {}, make("i", { class: `dot ${lookOf(part)}` }), part));
  $("parts-legend").replaceChildren(...legend);
  const longest = Math.max(...hits.map((hit) => used.reduce((sum, part) => sum + Math.abs(hit.parts[part]), 0)));
  const drawn = answersBelow(picture);
  $("answers").replaceChildren(...hits.map((hit) => answerOf(hit, used, longest, drawn.get(hit.rank))));
  $("reason").replaceChildren();
  $("how").textContent = howFound(picture);
  for (const item of document.querySelectorAll(".of-walk")) item.hidden = !picture.walked;
  $("detail").textContent = "";
  drawTree($("tree"), picture, index.documents, (text) => ($("detail").textContent = text));
}

const lookOf = (part) => LOOKS[part] ?? "words";

/** A sentence on how documents were found. */
function howFound({ config, walked, read }) {
  const said = [config.method];
  if (walked || !index.tied) said.push(`alpha ${config.alpha}`);
  if (walked) said.push(`beam width ${config.beam_width}`);
  if (config.lexical_weight && !$("lexical_weight").disabled) said.push(`${index.lexical} ${Number(config.lexical_weight.toPrecision(3))}`);
  return `${said.join(", ")}; ${read} ${index.tied ? "vectors read" : "nodes scored"}`;
}

/** {rank: node} of the answers at and below a node. */
function answersBelow(node, found = new Map()) {
  if (node.rank) found.set(node.rank, node);
  for (const child of node.children ?? []) answersBelow(child, found);
  return found;
}

function answerOf(hit, used, longest, node) {
  const bars = used.map((part) => {
    const bar = make("i", { class: `${lookOf(part)}${hit.parts[part] < 0 ? " minus" : ""}` });
    bar.style.width = `${(100 * Math.abs(hit.parts[part])) / longest}%`;
    return bar;
  });
  const sum = sumOf(hit.parts, used) + (node ? foundBy(node) : "");
  const item = make("li", {},
    make("div", { class: "title" }, make("span", { class: "rank", text: hit.rank }), make("b", { text: hit.title || hit.doc_id }),
      make("span", { class: "score", text: number(hit.score) })));
  if (hit.text) item.append(make("p", { class: "text", text: hit.text }));
  item.append(make("div", { class: "shares", "aria-hidden": "true" }, ...bars));
  item.append(make("div", { class: "meta pair" }, make("span", { text: sum }), " ",
    make("span", { text: `${hit.doc_id} · ${hit.digits.join(".")}` })));
  return item;
}

// Why is a document not here?

async function follow() {
  const doc_id = $("doc-id").value.trim();
  try {
    const { target } = await ask("explain", { ...shown, doc_id });
    const steps = target.path.map(({ digits, score, state, words }) => make("li", {},
      make("span", { class: state.replace(" ", "-"), text: state }),
      ` · ${digits.join(".")} · ${number(score)}${words.length ? ` · ${words.join(", ")}` : ` · ${target.title}`}`));
    $("reason").replaceChildren(make("p", { text: target.reason }), make("ol", { class: "path" }, ...steps));
  } catch (error) {
    $("reason").replaceChildren(make("p", { class: "error", text: error.message }));
  }
}

// Browsing.

function branch(node) {
  const name = make("code", { text: node.digits.join(".") });
  const size = make("span", { class: "meta", text: node.title === undefined ? documents(node.documents) : node.doc_id });
  const text = node.title ?? (node.words.join(", ") || "…");
  const details = make("details", {}, make("summary", {}, name, ` ${text} `, size));
  details.addEventListener("toggle", () => details.open && fill(details, node), { once: true });
  return make("li", {}, details);
}

async function fill(details, node) {
  try {
    details.append(node.title === undefined ? await branches(node.digits) : await story(node.doc_id));
  } catch (error) {
    details.append(make("p", { text: error.message }));
  }
}

async function branches(digits) {
  const { children, count } = await ask(`tree?digits=${digits.join(",")}`);
  const more = count > children.length ? [make("li", { text: `and ${count - children.length} more` })] : [];
  return make("ul", {}, ...children.map(branch), ...more);
}

async function story(doc_id) {
  const { text, metadata } = await ask(`documents/${encodeURIComponent(doc_id)}`);
  const fields = Object.entries(metadata).map(([name, value]) => `${name}: ${value}`);
  return make("p", { text: [text ?? "The index keeps no texts.", ...fields].join(" · ") });
}

async function showView() {
  const browsing = location.hash === "#browse";
  $("search-view").hidden = browsing;
  $("browse-view").hidden = !browsing;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === (browsing ? "#browse" : "#search")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (browsing && !$("branches").children.length) {
    $("branches").append(await branches([]).catch((error) => make("p", { text: error.message })));
  }
}

$("search").addEventListener("submit", (event) => (event.preventDefault(), search()));
$("search").addEventListener("input", showValues);
$("search").addEventListener("change", ({ target }) => target.id !== "query" && searchSoon());
$("reset").addEventListener("click", () => (resetSettings(), search()));
$("why").addEventListener("submit", (event) => (event.preventDefault(), follow()));
window.addEventListener("hashchange", showView);
showView();
start().catch((error) => say(error.message, true));
