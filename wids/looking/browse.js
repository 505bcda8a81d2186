// The page of `wids browse`. The address states after # what is shown, so that every view has a link:
// #start=240&field=.jpg is a page of samples, #sample=17 is one sample. Where shards have no index, each is
// shown by itself, and #shard=3 comes first: start and sample are then positions in that shard.
"use strict";

const element = (id) => document.getElementById(id);
const PAGE_SIZE = 48;
let numSamples = 0; // null as long as the samples of a shard are not counted
let numShards = null; // null for a dataset whose samples are all counted
let firstShard = 0;
let currentPage = ""; // shard, start and field of the page that is shown or being loaded
let currentShard = null;
let known = ""; // how many samples of the shard are known

async function request(path, options) {
  const response = await fetch(path, options);
  const answer = await response.json().catch(() => ({ error: `status ${response.status}` }));
  if (answer.error !== undefined) throw new Error(answer.error);
  return answer;
}

function state() {
  const query = new URLSearchParams(location.hash.slice(1));
  const start = Math.max(0, Number.parseInt(query.get("start"), 10) || 0);
  const sample = query.has("sample") ? Number.parseInt(query.get("sample"), 10) : null;
  const shard = numShards === null ? null : Number.parseInt(query.get("shard") ?? firstShard, 10) || 0;
  return { shard, start, field: query.get("field") || "", sample };
}

function hash({ shard, start, field, sample }) {
  const query = new URLSearchParams();
  if (shard !== null && shard !== undefined) query.set("shard", shard);
  if (start) query.set("start", start);
  if (field) query.set("field", field);
  if (sample !== null && sample !== undefined) query.set("sample", sample);
  return `#${query}`;
}

const prefix = (shard) => (shard === null ? "" : `shard/${shard}/`);
const isLast = (index) => numSamples !== null && index >= numSamples - 1;
const navigate = (changes) => { location.hash = hash({ ...state(), ...changes }); };
const number = (value) => value.toLocaleString("en");
const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const setStatus = (text) => { element("status").textContent = text; };

async function showPage(shard, start, field) {
  const wanted = `${shard} ${start} ${field}`;
  if (wanted === currentPage) return;
  currentPage = wanted;
  setStatus("…");
  const query = new URLSearchParams({ start, count: PAGE_SIZE, field });
  let answer;
  try {
    answer = await request(`${prefix(shard)}samples?${query}`);
  } catch (error) {
    if (currentPage === wanted) currentPage = "";
    throw error;
  }
  if (currentPage !== wanted) return; // the user has moved on to another page meanwhile
  element("grid").replaceChildren(...answer.cards.map(({ index, html }) => {
    const link = document.createElement("a");
    link.href = hash({ shard, start, field, sample: index });
    link.innerHTML = html; // the server has escaped all text of the dataset
    return link;
  }));
  if (shard !== null && "known" in answer) describeKnown(answer);
  element("shown-range").textContent = rangeText(answer.cards);
  setTarget("previous-page", answer.previous);
  setTarget("next-page", answer.next);
  setStatus(answer.cards.length ? "" : emptyText(field, answer.next !== null));
  scrollTo(0, 0);
}

function rangeText(cards) {
  if (!cards.length) return "";
  const [first, last] = [cards[0].index, cards[cards.length - 1].index];
  const shown = `${number(first)} to ${number(last)}`;
  return numSamples === null ? `${shown} · ${known}` : `${shown} of ${number(numSamples)}`;
}

function emptyText(field, canContinue) {
  if (!field) return `no samples here${canContinue ? " yet; next reads on" : ""}`;
  // The server searches a limited number of shards at a time.
  return `no samples with ${field} here${canContinue ? "; next continues the search" : ""}`;
}

function setTarget(id, start) {
  element(id).disabled = start === null;
  element(id).dataset.start = start === null ? "" : start;
}

async function showShard(shard) {
  if (shard === null || shard === currentShard) return;
  currentShard = shard;
  element("shard").value = shard;
  element("previous-shard").disabled = shard <= 0;
  element("next-shard").disabled = shard >= numShards - 1;
  for (const id of ["shard-url", "shard-known", "shard-remark"]) element(id).textContent = "";
  element("make-index").hidden = true;
  element("grid").replaceChildren(); // those of another shard
  setStatus("…");
  try {
    const answer = await request(`${prefix(shard)}about`);
    if (currentShard === shard) describeShard(answer);
  } catch (error) {
    if (currentShard === shard) currentShard = null;
    throw error;
  }
}

function describeKnown(answer) {
  [numSamples, known] = [answer.num_samples, answer.known];
  element("shard-known").textContent = known;
  element("shard-remark").textContent = answer.remark;
}

function describeShard(answer) {
  describeKnown(answer);
  element("shard-url").textContent = answer.url;
  element("make-index").hidden = answer.cost === "";
  element("make-index").textContent = `index this shard (${answer.cost})`;
  offerFields(answer.fields);
}

async function makeIndex() {
  const { shard } = state();
  element("make-index").disabled = true;
  setStatus(`indexing shard ${number(shard)} …`);
  try {
    const answer = await request(`${prefix(shard)}index`, { method: "POST" });
    if (state().shard !== shard) return; // the user has moved on meanwhile
    describeShard(answer);
    currentPage = "";
    await show();
    setStatus(`shard ${number(shard)} is indexed: ${answer.known}`);
    element("shard").focus();
  } catch (error) {
    setStatus(error.message);
  } finally {
    element("make-index").disabled = false;
  }
}

function offerFields(fields) {
  const select = element("field");
  select.replaceChildren(select.options[0]);
  for (const { name, share, size } of fields) {
    const option = document.createElement("option");
    option.value = name;
    option.textContent = `with ${name} (${share}, ${size})`;
    select.append(option);
  }
}

async function showSample(shard, index) {
  const dialog = element("viewer");
  if (index === null) { if (dialog.open) dialog.close(); return; }
  try {
    const answer = await request(`${prefix(shard)}sample/${index}`);
    if (state().sample !== index || state().shard !== shard) return; // the user has moved on meanwhile
    element("key").textContent = `${number(answer.index)} · ${answer.key}`;
    element("sample").innerHTML = answer.html;
  } catch (error) {
    if (state().sample !== index) return;
    element("key").textContent = `${index}`;
    element("sample").textContent = error.message;
  }
  element("previous-sample").disabled = index <= 0;
  element("next-sample").disabled = isLast(index);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

async function show() {
  const { shard, start, field, sample } = state();
  try {
    await showShard(shard);
    element("field").value = field;
    await Promise.all([showPage(shard, start, field), showSample(shard, sample)]);
  } catch (error) {
    setStatus(error.message);
  }
}

function turn(isForward) {
  const { start } = element(isForward ? "next-page" : "previous-page").dataset;
  if (!start) return;
  if (Number(start) !== state().start) { navigate({ start: Number(start) }); return; }
  currentPage = ""; // nothing was found here yet: read on
  show();
}

const goToShard = (shard) => navigate({ shard, start: 0, field: "", sample: null });

function turnShard(distance) {
  if (numShards === null) return;
  const shard = state().shard + distance;
  if (shard >= 0 && shard < numShards) goToShard(shard);
}

async function copy(text, button, advice) {
  const label = button.textContent;
  const isCopied = await navigator.clipboard.writeText(text).then(() => true, () => false);
  button.textContent = isCopied ? "copied" : advice;
  setTimeout(() => { button.textContent = label; }, 1200);
}

function step(distance) {
  const index = state().sample + distance;
  if (index >= 0 && !isLast(index - 1)) navigate({ sample: index });
}

element("previous-page").onclick = () => turn(false);
element("next-page").onclick = () => turn(true);
element("previous-sample").onclick = () => step(-1);
element("next-sample").onclick = () => step(1);
element("previous-shard").onclick = () => turnShard(-1);
element("next-shard").onclick = () => turnShard(1);
element("shard").onchange = (event) => {
  goToShard(Math.min(Math.max(Number.parseInt(event.target.value, 10) || 0, 0), numShards - 1));
};
element("make-index").onclick = makeIndex;
element("copy-command").onclick = () =>
  copy(element("command").textContent, element("copy-command"), "select and copy it");
element("close").onclick = () => navigate({ sample: null });
element("viewer").addEventListener("cancel", (event) => { event.preventDefault(); navigate({ sample: null }); });
element("viewer").onclick = (event) => { if (event.target === element("viewer")) navigate({ sample: null }); };
element("field").onchange = (event) => { navigate({ start: 0, field: event.target.value }); };
element("copy-link").onclick = () => copy(location.href, element("copy-link"), "copy the address");
element("search").onsubmit = async (event) => {
  event.preventDefault();
  const text = element("jump").value.trim();
  if (!text) return;
  element("jump").blur();
  try {
    // Digits are an index, unless they start with a zero or exceed the last index: then they are a key.
    const { shard } = state();
    const isIndex = /^(0|[1-9][\d,]*)$/.test(text) && !isLast(Number(text.replaceAll(",", "")) - 1);
    const index = isIndex
      ? Number(text.replaceAll(",", ""))
      : (await request(`${prefix(shard)}find?${new URLSearchParams({ key: text })}`)).index;
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
  else if (event.key === "]" && !isOpen) turnShard(1);
  else if (event.key === "[" && !isOpen) turnShard(-1);
  else if (event.key === "/") { event.preventDefault(); element("jump").focus(); }
  else if (event.key === "Escape" && isOpen) navigate({ sample: null });
};
addEventListener("hashchange", show);

request("about").then((dataset) => {
  numSamples = dataset.num_samples;
  if (numSamples === null) {
    [numShards, firstShard] = [dataset.num_shards, dataset.shard];
    element("shards").hidden = false;
    element("shard").max = numShards - 1;
    element("shard-count").textContent = `of ${number(numShards)}, from 0`;
    element("command").textContent = dataset.command;
    element("jump").placeholder = "position or key";
    element("jump").ariaLabel = "go to position in the shard, or to key";
  }
  document.title = `${dataset.name} · wids`;
  element("name").textContent = dataset.name;
  const samples = numSamples === null ? "samples not counted yet" : counted(numSamples, "sample");
  const facts = [samples, counted(dataset.num_shards, "shard"), dataset.size];
  element("summary").textContent = facts.filter(Boolean).join(" · ");
  offerFields(dataset.fields);
  show();
}).catch((error) => setStatus(error.message));
