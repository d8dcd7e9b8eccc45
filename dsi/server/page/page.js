// The page: a search and its answers, why a document is not among them, and the docid tree to browse.

import { ask, documents, make, number } from "./dom.js";
import { drawTree, foundBy, sumOf } from "./tree.js";

const $ = (id) => document.getElementById(id);
const SLIDERS = { beam_width: 0, candidates: 0, alpha: 2, lexical_weight: 3, token_weight: 2, memory_weight: 1 }; // decimals
const PAGE = 10; // answers, and as many again with "More answers"
let index, latest = 0, resting = 0, shown = null, k = PAGE;

// Settings.

const differs = (name) => Math.abs(Number($(name).value) - index.search_config[name]) > Number($(name).step) / 2;

function showValues() {
  for (const [name, decimals] of Object.entries(SLIDERS)) {
    document.querySelector(`output[for=${name}]`).value = Number($(name).value).toFixed(decimals);
  }
  for (const name of index?.generator ? ["beam_width"] : ["beam_width", "candidates"]) {
    $(name).disabled = $("method").value === "exact"; // which does not use it
  }
  if (!index) return;
  const { k: _, method, where, ...moved } = settings();
  const changed = [...(where ? ["filter"] : []), ...(method === index.search_config.method ? [] : ["method"]), ...Object.keys(moved)];
  $("changed").textContent = changed.length ? `· changed: ${changed.join(", ").replaceAll("_", " ")}` : "";
}

function resetSettings() {
  for (const name of ["method", ...Object.keys(SLIDERS)]) $(name).value = index.search_config[name];
  $("passages").value = 1;
  $("where").value = "";
  showValues();
}

function settings() {
  const options = { k: Math.min(k, index.limits.max_k), method: $("method").value };
  for (const name of Object.keys(SLIDERS)) {
    if (!$(name).disabled && differs(name)) options[name] = Number($(name).value); // the index's value is not rounded
  }
  if ($("where").value.trim()) options.where = $("where").value;
  if (Number($("passages").value) > 1) options.passages = Number($("passages").value);
  return options;
}

function limitSliders() {
  const { columns, lexical, generator, tokens, memory, limits, search_config: config } = index;
  $("columns").textContent = `a condition on ${Object.keys(columns).join(", ")}`;
  $("beam_width").max = Math.min(Math.max(50, config.beam_width), limits.max_beam_width);
  $("candidates").min = Math.min(10, config.candidates);
  $("candidates").max = Math.min(Math.max(500, config.candidates), limits.max_candidates);
  for (const [name, most] of Object.entries({ lexical_weight: 0.2, token_weight: 1, memory_weight: 40 })) {
    const heaviest = config[name] ? 4 * config[name] : most;
    $(name).max = heaviest;
    $(name).step = heaviest / 40;
  }
  $("lexical-name").textContent = lexical ?? "";
  const takesWords = lexical !== null && !generator;
  const taken = { candidates: !generator, alpha: generator, lexical_weight: takesWords, token_weight: tokens, memory_weight: memory > 0 };
  for (const name in taken) {
    $(name).closest(".setting").hidden = $(name).disabled = !taken[name];
  }
}

async function start() {
  index = await ask("index");
  $("name").textContent = index.name;
  $("about").textContent = documents(index.documents);
  limitSliders();
  resetSettings();
  const examples = index.examples.map((text) => make("li", {}, make("button", { type: "button", text })));
  $("examples").replaceChildren(...examples);
  const asked = new URLSearchParams(location.search);
  $("query").value = asked.get("q") ?? "";
  $("where").value = asked.get("where") ?? "";
  showValues();
  $("start").hidden = Boolean($("query").value);
  if ($("query").value) await search();
}

// Searching.

function say(text, error = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", error);
  $("found").classList.toggle("stale", error); // the answers below are those of an earlier search
}

async function search() {
  const query = $("query").value;
  if (!query.trim()) return;
  const turn = ++latest;
  const given = { query, syntax: true, ...settings() };
  const address = new URLSearchParams({ q: query, ...(given.where && { where: given.where }) });
  history.replaceState(null, "", `?${address}${location.hash}`);
  document.title = `${query} · ${index.name}`;
  $("found").setAttribute("aria-busy", "true");
  $("start").hidden = true;
  try {
    const [found, picture] = await Promise.all([ask("search", { ...given, parts: true, matches: true }), ask("explain", given)]);
    if (turn !== latest) return; // a newer search is under way
    shown = given;
    show(found, picture);
  } catch (error) {
    if (turn === latest) say(error.message, true);
  } finally {
    if (turn === latest) $("found").removeAttribute("aria-busy");
  }
}

/** Search for the first answers. */
function searchAnew() {
  k = PAGE;
  return search();
}

/** Search when a setting has come to rest: a slider changes at every key. */
function searchSoon() {
  clearTimeout(resting);
  resting = setTimeout(searchAnew, 200);
}

/** A sentence on the words of the query that no document has, and on those that no answer covers. */
function lacking({ nowhere = [], elsewhere = [] } = {}) {
  const none = nowhere.length ? ` No document mentions: ${nowhere.join(", ")}.` : "";
  return elsewhere.length ? `${none} None of these mentions: ${elsewhere.join(", ")}.` : none;
}

function show({ answers: [answer], milliseconds }, picture) {
  const { hits, exact, note, uncovered } = answer;
  const proven = exact ? " Proven: no other document scores higher." : "";
  const count = `${hits.length} answer${hits.length === 1 ? "" : "s"}`;
  say(hits.length ? `${count} in ${Math.round(milliseconds)} ms.${proven}${lacking(uncovered)}` : note ?? "No document may be returned.");
  $("found").hidden = false;
  const drawn = answersBelow(picture);
  $("answers").replaceChildren(...hits.map((hit) => answerOf(hit, drawn.get(hit.rank))));
  $("more").hidden = hits.length < shown.k || shown.k >= Math.min(index.limits.max_k, index.documents);
  $("reason").replaceChildren();
  $("how").textContent = howFound(picture);
  for (const item of document.querySelectorAll(".of-walk")) item.hidden = !picture.walked;
  drawTree($("tree"), picture, index.documents);
}

/** A sentence on how documents were found. */
function howFound({ config, walked, read, levels }) {
  const said = [config.method];
  if (index.generator) said.push(`alpha ${config.alpha}`);
  if (walked) said.push(`beam width ${config.beam_width}`);
  if (config.lexical_weight && !$("lexical_weight").disabled) said.push(`${index.lexical} ${Number(config.lexical_weight.toPrecision(3))}`);
  if (config.token_weight && index.tokens) said.push(`late interaction ${Number(config.token_weight.toPrecision(3))}`);
  if (config.memory_weight && index.memory) said.push(`memory ${Number(config.memory_weight.toPrecision(3))}`);
  const kept = walked ? levels.flatMap(({ scored, kept }, level) => (scored ? [`level ${level + 1}: ${kept} of ${scored} kept`] : [])) : [];
  return [said.join(", "), ...kept, `${read} ${index.generator ? "nodes scored" : "vectors read"}`].join("; ");
}

/** {rank: node} of the answers at and below a node. */
function answersBelow(node, found = new Map()) {
  if (node.rank) found.set(node.rank, node);
  for (const child of node.children ?? []) answersBelow(child, found);
  return found;
}

/** Characters start to end of a title or text, with marks around matched words. */
function marked(text, matches, field, start = 0, end = text.length) {
  const letters = [...text]; // by code points, as Python counts them
  const spans = matches.filter((match) => match.is_clear).flatMap((match) => match.spans)
    .filter((span) => span.field === field && span.start >= start && span.end <= end).sort((a, b) => a.start - b.start);
  const cut = [];
  let here = start;
  for (const span of spans) {
    if (span.start < here) continue;
    cut.push(letters.slice(here, span.start).join(""), make("mark", { text: letters.slice(span.start, span.end).join("") }));
    here = span.end;
  }
  return [...cut, letters.slice(here, end).join("")];
}

function textOf({ text, matches, excerpt: [start, end] }, place) {
  const length = [...text].length;
  const body = make("p", { class: "text", lang: "" });
  const fold = (open) => {
    const ends = open ? [0, length] : [start, end];
    body.replaceChildren(make("small", { class: "note", text: place }), ends[0] ? "… " : "", ...marked(text, matches, "text", ...ends));
    if (end - start === length) return;
    const button = make("button", { type: "button", class: "plain", text: open ? "less" : "more" });
    button.addEventListener("click", () => (fold(!open), body.querySelector("button").focus()));
    body.append(" ", make("span", { class: "whole" }, ends[1] < length ? "… " : "", button));
  };
  fold(false);
  return body;
}

/** A passage; where there are several, each after its place. */
function passageOf(hit, passage) {
  const place = passage.location?.address ?? `characters ${passage.start} to ${passage.end}`;
  return textOf({ ...hit, excerpt: passage.excerpt }, passage === hit ? "" : `${place}: `);
}

function answerOf(hit, node) {
  const title = hit.title.trim() ? marked(hit.title, hit.matches, "title") : [hit.label];
  const item = make("li", {}, make("span", { class: "rank", text: hit.rank }),
    make("div", { class: "title" }, make("b", { lang: "" }, ...title), make("span", { class: "score", text: number(hit.score) })));
  if (hit.text) item.append(...(hit.passages ?? [hit]).map((passage) => passageOf(hit, passage)));
  const place = [hit.location?.address, hit.location?.heading].filter(Boolean);
  const facts = [hit.doc_id, ...place, ...Object.entries(hit.metadata ?? {}).map(([name, value]) => `${name}: ${value}`)];
  const sum = sumOf(hit.parts), found = node && foundBy(node);
  const why = sum.includes(" + ") ? [sum] : [];
  item.append(make("div", { class: "meta" }, ...[...facts, ...why, ...(found ? [found] : [])].map((text) => make("span", { text }))));
  if (hit.matches.some((match) => match.is_clear)) item.append(wordsOf(hit.matches));
  return item;
}

function wordsOf(matches) {
  const clear = matches.filter((match) => match.is_clear).map((match) => match.word);
  return make("details", { class: "words" }, make("summary", { text: `matches ${clear.join(", ")}` }), listOf(matches));
}

function listOf(matches) {
  const items = [...matches].sort((a, b) => b.share - a.share).map(({ word, share, spans, is_clear }) => {
    const found = [...new Set(spans.map(({ text, field }) => (field === "title" ? `${text} (title)` : text)))].join(", ");
    return make("li", { class: is_clear ? "" : "weak" }, make("span", { class: "score", text: number(share) }), `${word} → ${found || "nothing"}`);
  });
  return make("ul", { class: "matches" }, ...items);
}

// Why is a document not here?

async function follow() {
  const doc_id = $("doc-id").value.trim();
  try {
    const { target } = await ask("explain", { ...shown, doc_id });
    const steps = target.path.map(({ digits, score, state, words }) => make("li", {},
      make("span", { class: state.replace(" ", "-"), text: state }),
      ` · ${digits.join(".")} · ${number(score)} · ${words.join(", ") || target.label}`));
    const sum = sumOf(target.parts);
    $("reason").replaceChildren(make("p", {}, make("b", { text: `${target.label}. ` }), target.reason),
      make("ol", { class: "path" }, ...steps), make("p", { class: "note", text: sum && `score ${number(target.score)} = ${sum}` }),
      ...(target.matches.length ? [listOf(target.matches)] : []));
  } catch (error) {
    $("reason").replaceChildren(make("p", { class: "error", text: error.message }));
  }
}

// Browsing.

function branch(node) {
  const name = make("code", { text: node.digits.join(".") });
  const size = make("span", { class: "note", text: node.title === undefined ? documents(node.documents) : node.doc_id });
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

$("search").addEventListener("submit", (event) => (event.preventDefault(), searchAnew()));
$("search").addEventListener("input", showValues);
$("search").addEventListener("change", ({ target }) => target.id !== "query" && searchSoon());
$("reset").addEventListener("click", () => (resetSettings(), searchAnew()));
$("more").addEventListener("click", () => ((k += PAGE), search()));
$("examples").addEventListener("click", ({ target }) => target.matches("button") && (($("query").value = target.textContent), searchAnew()));
$("why").addEventListener("submit", (event) => (event.preventDefault(), follow()));
window.addEventListener("hashchange", showView);
showView();
start().catch((error) => say(error.message, true));
