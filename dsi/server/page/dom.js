// What all parts of the page use: elements whose texts are never HTML, requests, and how numbers are written.

export function make(name, { text, ...attributes } = {}, ...children) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** What the server answers; its message is thrown as an Error. */
export async function ask(path, body) {
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

export const number = (value) => (value === null ? "–" : value.toFixed(2).replace("-", "−"));
export const documents = (count) => `${count.toLocaleString("en")} document${count === 1 ? "" : "s"}`;
