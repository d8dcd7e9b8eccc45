// Draws how a search came about as an indented tree: the ways to answers first, everything else folded.

import { documents, make, number } from "./dom.js";

/** The parts of a score that show, as a sum. */
export const sumOf = (parts) =>
  Object.entries(parts).filter(([, value]) => Math.abs(value) >= 0.005)
    .map(([name, value]) => `${name} ${number(value)}`).join(" + ");

/** Says what found a document, if that was not the walk. */
export function foundBy({ found_by }) {
  return found_by.length && !found_by.includes("walk") ? `found by ${found_by.join(" and ")}` : "";
}

/** What a node says: its line, its look, and a sentence with everything. */
function described(node, total) {
  if (node.root) return { main: documents(total), look: "kept", all: `The root, ${documents(total)}` };
  if (node.fold) {
    const { many, best, open } = node;
    if (open) return { main: "less", look: "fold", all: "Fold them" };
    return { main: many, sub: `best ${number(best)}`, look: "fold", all: `${many}, the best scores ${number(best)}` };
  }
  const name = node.digits.join(".");
  if (node.title !== null) {
    const place = node.rank ? `answer ${node.rank}` : "scored, not among the answers";
    const score = [`score ${number(node.score)}`, sumOf(node.parts)].filter(Boolean).join(" = ");
    const all = [`${node.title} (${name}), ${place}`, score, foundBy(node)].filter(Boolean).join("; ");
    const sub = [foundBy(node), number(node.score)].filter(Boolean).join(" · ");
    return { name, rank: node.rank, main: node.title, sub, look: node.rank ? "answer" : "pruned", all };
  }
  const words = node.words.join(", "), size = documents(node.documents);
  const state = node.score === null ? "not scored" : `${node.kept ? "kept" : "pruned"}; score ${number(node.score)}`;
  return {
    name, main: words || size, sub: node.score === null ? "" : number(node.score), look: node.kept ? "kept" : "pruned",
    all: `${name}, ${size}, ${state}; ${words}`,
  };
}

const leads = (node) => Boolean(node.rank) || (node.children ?? []).some(leads);

/** The children of a node that are shown: those that lead to answers, then the others, folded by kind until they are opened. */
function below(node, opened) {
  const children = node.children ?? [];
  const others = children.filter((child) => !leads(child));
  const unseen = (node.pruned ?? 0) - children.filter((child) => !child.kept && !child.children).length;
  const pruned = others.filter((child) => child.title === null && !child.kept);
  const kinds = [
    ["not returned", others.filter((child) => child.title !== null), pruned.length ? 0 : unseen],
    ["kept, without an answer", others.filter((child) => child.title === null && child.kept), 0],
    ["pruned", pruned, unseen],
  ];
  const folds = kinds.filter(([, list]) => list.length).flatMap(([kind, list, more]) => {
    const key = `${(node.digits ?? []).join(".")}|${kind}`, open = opened.has(key);
    const scores = list.map((child) => child.score).filter((score) => score !== null);
    const fold = { fold: true, key, open, many: `${list.length + more} ${kind}`, best: scores.length ? Math.max(...scores) : null };
    return open ? [...list, fold] : [fold];
  });
  return [...children.filter(leads), ...folds];
}

/** Draws a picture of /explain into a container, again whenever a fold is opened. */
export function drawTree(container, picture, total) {
  const opened = new Set();

  function item(node, level) {
    const { name, rank, main, sub, look, all } = described(node, total);
    const row = make("div", { class: "row", role: "treeitem", "aria-level": level, tabindex: -1, title: all });
    const show = (tag, look, text = "") => row.append(make(tag, { class: look, "aria-hidden": true, text }));
    show("i", `dot ${look === "fold" ? "" : look}`);
    if (rank) show("span", "rank", rank);
    show("span", "main", main);
    if (name) show("code", "", name);
    if (sub) show("span", "sub", sub);
    row.append(make("span", { class: "quiet", text: all }));
    const entry = make("li", { role: "none", class: look }, row);
    if (node.fold) {
      row.dataset.key = node.key;
      row.setAttribute("aria-expanded", node.open);
      row.addEventListener("click", () => toggle(node.key));
    }
    const children = node.fold ? [] : below(node, opened);
    if (children.length) entry.append(make("ul", { role: "group" }, ...children.map((child) => item(child, level + 1))));
    return entry;
  }

  function draw(focus) {
    const list = make("ul", { role: "tree", "aria-label": "The docid tree" }, item({ ...picture, root: true }, 1));
    list.addEventListener("keydown", (event) => move(event, [...list.querySelectorAll("[role=treeitem]")]));
    container.replaceChildren(list);
    const items = [...list.querySelectorAll("[role=treeitem]")];
    const first = items.find((row) => focus && row.dataset.key === focus) ?? items[0];
    first.tabIndex = 0;
    if (focus) first.focus();
  }

  function toggle(key) {
    opened.has(key) ? opened.delete(key) : opened.add(key);
    draw(key);
  }

  function move(event, items) {
    const here = event.target, at = items.indexOf(here);
    const to = {
      ArrowDown: items[at + 1], ArrowUp: items[at - 1], ArrowLeft: here.closest("ul").parentElement.querySelector("[role=treeitem]"),
      ArrowRight: here.nextElementSibling?.querySelector("[role=treeitem]"), Home: items[0], End: items.at(-1),
    };
    if (event.key === "Enter" || event.key === " ") here.dataset.key && toggle(here.dataset.key);
    else if (!(event.key in to)) return;
    event.preventDefault();
    const next = to[event.key];
    if (!next) return;
    here.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  draw();
}
