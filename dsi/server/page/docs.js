// The HTTP interface as a page, from its OpenAPI schema.

import { ask, make } from "./dom.js";

const { paths, components } = await ask("openapi.json");
const resolve = (schema = {}) => (schema.$ref ? components.schemas[schema.$ref.split("/").at(-1)] : schema);

/** The type of a value, in a word or two. */
function typeOf(schema) {
  const { type, items, anyOf, enum: choices, title, additionalProperties } = resolve(schema);
  if (choices) return choices.join(" | ");
  if (anyOf) return anyOf.map(typeOf).filter((name) => name !== "null").join(" | ");
  if (type === "array") return `list of ${typeOf(items ?? {})}`;
  return schema.$ref || type !== "object" || !additionalProperties ? (schema.$ref ? title : (type ?? "any")) : "object";
}

function tableOf(schema) {
  const rows = Object.entries(resolve(schema).properties ?? {}).map(([name, field]) =>
    make("tr", {}, make("td", {}, make("code", { text: name })), make("td", { text: typeOf(field) }), make("td", { text: field.description ?? "" })));
  return make("table", {}, make("tbody", {}, ...rows));
}

function sectionOf(path, method, { summary, requestBody }) {
  const section = make("section", {}, make("h2", {}, make("code", { text: `${method.toUpperCase()} ${path}` })), make("p", { text: summary }));
  const body = requestBody?.content["application/json"].schema;
  if (body) {
    section.append(make("h3", { text: "Body" }), tableOf(body));
    const example = resolve(body).examples?.[0];
    if (example) section.append(make("pre", { tabindex: 0, text: `curl ${location.origin}${path} -d '${JSON.stringify(example)}'` }));
  }
  return section;
}

document.getElementById("paths").append(
  ...Object.entries(paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => sectionOf(path, method, operation))),
);
