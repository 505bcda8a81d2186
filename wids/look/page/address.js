// The address ↔ what is shown, and requests to the server. The address states everything after #, so that
// every view has a link: #start=96&q=dog is a page of what a search found, #sample=17 is one sample.
// Where shards have no index each is shown by itself, and #shard=3 comes first.

export const element = (id) => document.getElementById(id);
export const PAGE_SIZE = 48;

// What is known of the dataset. `numSamples` is null as long as the samples of a shard are not counted;
// `numShards` is null for a dataset whose samples are all counted.
export const dataset = { numSamples: 0, numShards: null, firstShard: 0, python: "", pictures: [] };

const integer = (text, other) => {
  const value = Number.parseInt(text, 10);
  return Number.isSafeInteger(value) ? value : other;
};

function filters(text) {
  try {
    const found = JSON.parse(text || "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

export function state() {
  const query = new URLSearchParams(location.hash.slice(1));
  return {
    shard: dataset.numShards === null ? null : integer(query.get("shard"), dataset.firstShard),
    start: Math.max(0, integer(query.get("start"), 0)),
    q: query.get("q") || "",
    field: query.get("field") || "",
    where: filters(query.get("where")),
    seed: query.has("seed") ? integer(query.get("seed"), 0) : null,
    step: query.has("step") ? integer(query.get("step"), null) : null,
    picture: query.get("picture") || "",
    sample: query.has("sample") ? integer(query.get("sample"), null) : null,
  };
}

// The part of the address that says which samples are shown, and in which order.
export function selection({ q, field, where, seed, step }) {
  const query = new URLSearchParams();
  if (q) query.set("q", q);
  if (field) query.set("field", field);
  if (where.length) query.set("where", JSON.stringify(where));
  if (seed !== null) query.set("seed", seed);
  if (step !== null) query.set("step", step);
  return query;
}

export const isSelective = ({ q, field, where }) => Boolean(q.trim() || field || where.length);

export function hash(view) {
  const query = new URLSearchParams();
  if (view.shard !== null) query.set("shard", view.shard);
  for (const [name, value] of selection(view)) query.set(name, value);
  if (view.picture) query.set("picture", view.picture);
  if (view.start) query.set("start", view.start);
  if (view.sample !== null) query.set("sample", view.sample);
  return `#${query}`;
}

export const navigate = (changes) => { location.hash = hash({ ...state(), ...changes }); };

export const prefix = (shard) => (shard === null ? "" : `shard/${shard}/`);

export async function request(path, method = "GET") {
  let response;
  try {
    response = await fetch(path, { method });
  } catch {
    throw new Error("`wids browse` does not answer: it was stopped. Start it again, and open the address that it prints.");
  }
  const answer = await response.json().catch(() => ({ error: response.status === 404
    ? "`wids browse` was started again, with another address: open the one that it printed." : `status ${response.status}` }));
  if (answer.error !== undefined) throw new Error(answer.error);
  return answer;
}

export const number = (value) => value.toLocaleString("en");
export const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

// A new element; text is never read as HTML.
export function made(tag, text = "", attributes = {}) {
  const node = document.createElement(tag);
  node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// An item of a list.
export const listed = (node) => { const item = made("li"); item.append(node); return item; };

export const setStatus = (text) => { element("status").textContent = text; };

const problems = new Map();

// An error of a part of the page, which is shown once above the samples; "" when there is none any more.
export function setBanner(text, part = "last") {
  problems.set(part, text);
  const texts = [...new Set(problems.values())].filter(Boolean).join("\n");
  element("banner-text").textContent = texts;
  element("banner").hidden = !texts;
}

export function dismiss() {
  problems.clear();
  setBanner("");
}

export async function copy(text, button, advice = "select and copy it") {
  const label = button.textContent;
  const isCopied = await navigator.clipboard.writeText(text).then(() => true, () => false);
  button.textContent = isCopied ? "copied" : advice;
  setTimeout(() => { button.textContent = label; }, 1200);
}
