// Draws how a search came about as a tree: a column a level, the best nodes on top, pruned ones folded.

const ROW = 38, COLUMN = 220, LEFT = 16, ROOT = 34, TOP = 44, LETTERS = 24;
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

const x = (depth) => LEFT + (depth && ROOT) + Math.max(depth - 1, 0) * COLUMN;
const y = (row) => TOP + row * ROW;
const short = (text, most = LETTERS) => (text.length > most ? text.slice(0, most - 1).trimEnd() + "…" : text);
export const number = (value) => (value === null ? "–" : value.toFixed(2).replace("-", "−"));
export const documents = (count) => `${count.toLocaleString("en")} document${count === 1 ? "" : "s"}`;

/** The parts of a score, as a sum. */
export const sumOf = (parts, used) => used.map((part) => `${part} ${number(parts[part])}`).join(" + ");

/** Says what found a document, if that was not the walk. */
export function foundBy({ found_by }) {
  return found_by.length && !found_by.includes("walk") ? ` · found by ${found_by.join(" and ")}` : "";
}

/** What a node says: two lines, its look, and a sentence with everything. */
function described(node) {
  const name = node.digits.join(".");
  if (node.title !== null) {
    const sum = sumOf(node.parts, Object.keys(node.parts));
    const score = `score ${number(node.score)}${sum && ` = ${sum}`}${foundBy(node)}`;
    return {
      main: node.rank ? `#${node.rank} ${node.title}` : node.title, sub: `${name} · ${number(node.score)}${foundBy(node)}`,
      look: node.rank ? "answer" : "pruned",
      all: `${node.title} (${name}), ${node.rank ? `answer ${node.rank}` : "scored, not among the answers"}; ${score}`,
    };
  }
  const words = node.words.join(", ");
  const size = documents(node.documents);
  const score = node.score === null ? "not scored" : `${node.kept ? "kept" : "pruned"}; score ${number(node.score)}`;
  return {
    main: words || name, sub: [name, size, ...(node.score === null ? [] : [number(node.score)])].join(" · "),
    look: node.kept ? "kept" : "pruned", all: `${name}, ${size}, ${score}; ${words}`,
  };
}

/** The rows below a node: what was kept or leads to an answer, then the others, folded into one row until it is opened. */
function below(node, opened) {
  const children = node.children ?? [];
  const kept = children.filter((child) => child.rank || child.children || (child.kept && child.title === null));
  const others = children.filter((child) => !kept.includes(child));
  const unseen = node.pruned - children.filter((child) => !child.kept && !child.children).length;
  const count = others.length + unseen;
  if (!count) return kept;
  const key = `${node.digits.join(".")}|pruned`;
  const best = Math.max(...others.map((other) => other.score));
  const what = others[0].title === null ? "pruned" : "no answers";
  const folded = { key, digits: node.digits, fold: true, count, what, best, unseen, open: opened.has(key) };
  return folded.open ? [...kept, ...others, folded] : [...kept, folded];
}

const leads = (node) => Boolean(node.rank) || (node.children ?? []).some(leads);

/** Places every visible node: {node, depth, row, parent, children}, in the order of the arrow keys. */
function placed(picture, opened) {
  const nodes = [];
  let free = 0;
  function place(node, depth, parent) {
    const own = { node, depth, parent, children: [], way: !node.fold && (depth === 0 || leads(node)) };
    nodes.push(own);
    const inside = node.fold ? [] : below(node, opened);
    own.children = inside.map((child) => place(child, depth + 1, own));
    own.row = inside.length ? own.children[0].row : free++; // the best way is a straight line at the top
    return own;
  }
  place({ ...picture, digits: [], root: true }, 0, null);
  return { nodes, rows: free };
}

function labelOf(node, total) {
  if (node.root) return { main: "", sub: "", look: "kept", all: `The root, ${documents(total)}` };
  if (!node.fold) return described(node);
  const what = node.open ? (node.unseen ? `and ${node.unseen} more · fold` : "fold") : `${node.count} ${node.what}`;
  return {
    main: what, sub: node.open ? "" : `best ${number(node.best)}`, look: "pruned fold",
    all: node.open ? "Fold them" : `${node.count} ${node.what}, the best of them scores ${number(node.best)}`,
  };
}

function drawNode(place, total) {
  const { node, depth, row } = place;
  const label = labelOf(node, total);
  const group = element("g", {
    class: `node ${label.look}${node.fold ? " opens" : ""}`, transform: `translate(${x(depth)} ${y(row)})`,
    role: "treeitem", tabindex: "-1", "aria-level": depth + 1, "aria-label": label.all,
  });
  if (place.children.length || node.fold) group.setAttribute("aria-expanded", String(!node.fold || node.open));
  group.append(
    element("rect", { class: "back", x: -9, y: -17, width: depth ? COLUMN - 24 : 18, height: 34 }),
    element("circle", { r: node.fold ? 3 : 4.5 }),
    element("text", { class: "main", x: 11, y: label.sub ? -1 : 4 }, short(label.main)),
    element("text", { class: "sub", x: 11, y: 13 }, label.sub),
  );
  group.append(element("title", {}, label.all));
  return group;
}

function drawLink({ depth, row, parent, way, node }) {
  const [start, top] = [parent.depth ? x(parent.depth) + COLUMN - 32 : x(0), y(parent.row)];
  const [end, bottom] = [x(depth) - 8, y(row)];
  const bend = (start + end) / 2;
  const look = way ? "way" : node.kept ? "kept" : "";
  return element("path", { class: `link ${look}`, d: `M${start} ${top} C${bend} ${top} ${bend} ${bottom} ${end} ${bottom}` });
}

/**
 * Draw a picture of /explain into a container, again whenever a fold is opened.
 * `tell` gets the sentence of the node that has the focus, or is pointed at.
 */
export function drawTree(container, picture, total, tell) {
  const opened = new Set();

  function draw(focus) {
    const { nodes, rows } = placed(picture, opened);
    const depth = Math.max(...nodes.map((place) => place.depth));
    const [width, height] = [x(depth + 1), y(rows)];
    const svg = element("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "tree", "aria-label": "The docid tree" });
    picture.levels.forEach(({ scored, kept, answers }, level) => {
      const counts = [scored && `${kept} of ${scored} kept`, answers && `${answers} answer${answers === 1 ? "" : "s"}`];
      const head = [`level ${level + 1}`, counts.filter(Boolean).join(", ")].filter(Boolean).join(": ");
      svg.append(element("text", { class: "head", x: x(level + 1) - 5, y: 17, "aria-hidden": "true" }, head));
    });
    const links = nodes.filter((place) => place.parent).sort((a, b) => a.way - b.way).map(drawLink);
    svg.append(...links);
    nodes.forEach((place) => (place.group = svg.appendChild(drawNode(place, total))));
    listen(svg, nodes);
    container.replaceChildren(svg);
    const first = nodes.find((place) => place.node.key === focus) ?? nodes[0];
    first.group.setAttribute("tabindex", "0");
    if (focus) first.group.focus();
  }

  function toggle(node) {
    if (!node.fold) return;
    opened.has(node.key) ? opened.delete(node.key) : opened.add(node.key);
    draw(node.key);
  }

  function listen(svg, nodes) {
    const at = (target) => nodes.findIndex((place) => place.group === target.closest("g.node"));
    svg.addEventListener("click", ({ target }) => at(target) >= 0 && toggle(nodes[at(target)].node));
    for (const kind of ["focusin", "mouseover"]) {
      svg.addEventListener(kind, ({ target }) => at(target) >= 0 && tell(nodes[at(target)].group.getAttribute("aria-label")));
    }
    svg.addEventListener("keydown", (event) => {
      const here = nodes[at(event.target)];
      const to = {
        ArrowDown: nodes[at(event.target) + 1], ArrowUp: nodes[at(event.target) - 1], ArrowLeft: here.parent,
        ArrowRight: here.children[0], Home: nodes[0], End: nodes.at(-1),
      };
      if (event.key === "Enter" || event.key === " ") toggle(here.node);
      else if (!(event.key in to)) return;
      event.preventDefault();
      const next = to[event.key];
      if (!next) return;
      here.group.setAttribute("tabindex", "-1");
      next.group.setAttribute("tabindex", "0");
      next.group.focus();
    });
  }

  draw();
}
