// The page of `wids browse`. The address states after # what is shown, so that every view has a link:
// #start=240&field=.jpg is a page of samples, #sample=17 is one sample.
"use strict";

const element = (id) => document.getElementById(id);
const PAGE_SIZE = 48;
let numSamples = 0;
let currentPage = ""; // start and field of the page that is shown or being loaded

async function request(path) {
  const response = await fetch(path);
  const answer = await response.json().catch(() => ({ error: `status ${response.status}` }));
  if (answer.error !== undefined) throw new Error(answer.error);
  return answer;
}

function state() {
  const query = new URLSearchParams(location.hash.slice(1));
  const start = Math.max(0, Number.parseInt(query.get("start"), 10) || 0);
  const sample = query.has("sample") ? Number.parseInt(query.get("sample"), 10) : null;
  return { start, field: query.get("field") || "", sample };
}

function hash({ start, field, sample }) {
  const query = new URLSearchParams();
  if (start) query.set("start", start);
  if (field) query.set("field", field);
  if (sample !== null && sample !== undefined) query.set("sample", sample);
  return `#${query}`;
}

const navigate = (changes) => { location.hash = hash({ ...state(), ...changes }); };
const number = (value) => value.toLocaleString("en");
const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const setStatus = (text) => { element("status").textContent = text; };

async function showPage(start, field) {
  const wanted = `${start} ${field}`;
  if (wanted === currentPage) return;
  currentPage = wanted;
  setStatus("…");
  const query = new URLSearchParams({ start, count: PAGE_SIZE, field });
  let answer;
  try {
    answer = await request(`samples?${query}`);
  } catch (error) {
    if (currentPage === wanted) currentPage = "";
    throw error;
  }
  if (currentPage !== wanted) return; // the user has moved on to another page meanwhile
  element("grid").replaceChildren(...answer.cards.map(({ index, html }) => {
    const link = document.createElement("a");
    link.href = hash({ start, field, sample: index });
    link.innerHTML = html; // the server has escaped all text of the dataset
    return link;
  }));
  element("shown-range").textContent = rangeText(answer.cards);
  setTarget("previous-page", answer.previous);
  setTarget("next-page", answer.next);
  setStatus(answer.cards.length ? "" : emptyText(field, answer.next !== null));
  scrollTo(0, 0);
}

function rangeText(cards) {
  if (!cards.length) return "";
  const [first, last] = [cards[0].index, cards[cards.length - 1].index];
  return `${number(first)} to ${number(last)} of ${number(numSamples)}`;
}

function emptyText(field, canContinue) {
  if (!field) return "no samples here";
  // The server searches a limited number of shards at a time.
  return `no samples with ${field} here${canContinue ? "; next continues the search" : ""}`;
}

function setTarget(id, start) {
  element(id).disabled = start === null;
  element(id).dataset.start = start === null ? "" : start;
}

async function showSample(index) {
  const dialog = element("viewer");
  if (index === null) { if (dialog.open) dialog.close(); return; }
  try {
    const answer = await request(`sample/${index}`);
    if (state().sample !== index) return; // the user has moved on meanwhile
    element("key").textContent = `${number(answer.index)} · ${answer.key}`;
    element("sample").innerHTML = answer.html;
  } catch (error) {
    if (state().sample !== index) return;
    element("key").textContent = `${index}`;
    element("sample").textContent = error.message;
  }
  element("previous-sample").disabled = index <= 0;
  element("next-sample").disabled = index >= numSamples - 1;
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

async function show() {
  const { start, field, sample } = state();
  element("field").value = field;
  try {
    await Promise.all([showPage(start, field), showSample(sample)]);
  } catch (error) {
    setStatus(error.message);
  }
}

function turn(isForward) {
  const { start } = element(isForward ? "next-page" : "previous-page").dataset;
  if (start) navigate({ start: Number(start) });
}

function step(distance) {
  const index = state().sample + distance;
  if (index >= 0 && index < numSamples) navigate({ sample: index });
}

element("previous-page").onclick = () => turn(false);
element("next-page").onclick = () => turn(true);
element("previous-sample").onclick = () => step(-1);
element("next-sample").onclick = () => step(1);
element("close").onclick = () => navigate({ sample: null });
element("viewer").addEventListener("cancel", (event) => { event.preventDefault(); navigate({ sample: null }); });
element("viewer").onclick = (event) => { if (event.target === element("viewer")) navigate({ sample: null }); };
element("field").onchange = (event) => { navigate({ start: 0, field: event.target.value }); };
element("copy-link").onclick = async () => {
  const isCopied = await navigator.clipboard.writeText(location.href).then(() => true, () => false);
  element("copy-link").textContent = isCopied ? "copied" : "copy the address";
  setTimeout(() => { element("copy-link").textContent = "copy link"; }, 1200);
};
element("search").onsubmit = async (event) => {
  event.preventDefault();
  const text = element("jump").value.trim();
  if (!text) return;
  element("jump").blur();
  try {
    // Digits are an index, unless they start with a zero or exceed the last index: then they are a key.
    const isIndex = /^(0|[1-9][\d,]*)$/.test(text) && Number(text.replaceAll(",", "")) < numSamples;
    const index = isIndex
      ? Number(text.replaceAll(",", ""))
      : (await request(`find?${new URLSearchParams({ key: text })}`)).index;
    navigate({ start: Math.floor(index / PAGE_SIZE) * PAGE_SIZE, field: "", sample: index });
  } catch (error) {
    setStatus(error.message);
  }
};
document.onkeydown = (event) => {
  if (event.target.matches("input, select, video, audio") || event.ctrlKey || event.metaKey || event.altKey) return;
  const isOpen = element("viewer").open;
  if (event.key === "ArrowRight") isOpen ? step(1) : turn(true);
  else if (event.key === "ArrowLeft") isOpen ? step(-1) : turn(false);
  else if (event.key === "/") { event.preventDefault(); element("jump").focus(); }
  else if (event.key === "Escape" && isOpen) navigate({ sample: null });
};
addEventListener("hashchange", show);

request("about").then((dataset) => {
  numSamples = dataset.num_samples;
  document.title = `${dataset.name} · wids`;
  element("name").textContent = dataset.name;
  const facts = [counted(numSamples, "sample"), counted(dataset.num_shards, "shard"), dataset.size];
  element("summary").textContent = facts.filter(Boolean).join(" · ");
  for (const { name, share, size } of dataset.fields) {
    const option = document.createElement("option");
    option.value = name;
    option.textContent = `with ${name} (${share}, ${size})`;
    element("field").append(option);
  }
  show();
}).catch((error) => setStatus(error.message));
