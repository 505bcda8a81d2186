// The page of `wids browse`. What it shows is in the address behind #, so that any of it is a link:
// #start=240&field=.jpg is a page of samples, and #sample=17 a sample.
"use strict";

const element = (id) => document.getElementById(id);
const PAGE = 48;
let total = 0;
let shown = "";

async function ask(path) {
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

const go = (changes) => { location.hash = hash({ ...state(), ...changes }); };
const say = (text) => { element("said").textContent = text; };

async function showPage(start, field) {
  const wanted = `${start} ${field}`;
  if (wanted === shown) return;
  shown = wanted;
  say("…");
  const query = new URLSearchParams({ start, count: PAGE, field });
  let answer;
  try {
    answer = await ask(`samples?${query}`);
  } catch (error) {
    if (shown === wanted) shown = "";
    throw error;
  }
  if (shown !== wanted) return; // another page was asked for meanwhile
  const grid = element("grid");
  grid.replaceChildren(...answer.cards.map(({ index, html }) => {
    const link = document.createElement("a");
    link.href = hash({ start, field, sample: index });
    link.innerHTML = html;
    return link;
  }));
  const last = answer.cards.length ? answer.cards[answer.cards.length - 1].index : start;
  const first = answer.cards.length ? answer.cards[0].index : start;
  element("where").textContent = answer.cards.length
    ? `${first.toLocaleString("en")} to ${last.toLocaleString("en")} of ${total.toLocaleString("en")}` : "";
  element("before").disabled = answer.previous === null;
  element("before").dataset.start = answer.previous === null ? "" : answer.previous;
  element("after").disabled = answer.next === null;
  element("after").dataset.start = answer.next === null ? "" : answer.next;
  const more = answer.next !== null && field ? "; next looks on" : "";
  say(answer.cards.length ? "" : `no samples with ${field || "anything"} here${more}`);
  scrollTo(0, 0);
}

async function showSample(index) {
  const dialog = element("shown");
  if (index === null) { if (dialog.open) dialog.close(); return; }
  try {
    const answer = await ask(`sample/${index}`);
    if (state().sample !== index) return;
    element("key").textContent = `${answer.index.toLocaleString("en")} · ${answer.key}`;
    element("sample").innerHTML = answer.html;
  } catch (error) {
    if (state().sample !== index) return;
    element("key").textContent = `${index}`;
    element("sample").textContent = error.message;
  }
  element("previous").disabled = index <= 0;
  element("following").disabled = index >= total - 1;
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

async function show() {
  const { start, field, sample } = state();
  element("field").value = field;
  try {
    await Promise.all([showPage(start, field), showSample(sample)]);
  } catch (error) {
    say(error.message);
  }
}

function turn(isForward) {
  const { start } = element(isForward ? "after" : "before").dataset;
  if (start) go({ start: Number(start) });
}

function step(by) {
  const index = state().sample + by;
  if (index >= 0 && index < total) go({ sample: index });
}

element("before").onclick = () => turn(false);
element("after").onclick = () => turn(true);
element("previous").onclick = () => step(-1);
element("following").onclick = () => step(1);
element("close").onclick = () => go({ sample: null });
element("shown").addEventListener("cancel", (event) => { event.preventDefault(); go({ sample: null }); });
element("shown").onclick = (event) => { if (event.target === element("shown")) go({ sample: null }); };
element("field").onchange = (event) => { go({ start: 0, field: event.target.value }); };
element("link").onclick = async () => {
  const isCopied = await navigator.clipboard.writeText(location.href).then(() => true, () => false);
  element("link").textContent = isCopied ? "copied" : "see the address";
  setTimeout(() => { element("link").textContent = "link"; }, 1200);
};
element("search").onsubmit = async (event) => {
  event.preventDefault();
  const text = element("jump").value.trim();
  if (!text) return;
  element("jump").blur();
  try {
    // Digits are an index, unless they begin with a zero or lead too far: then they are a key.
    const isIndex = /^(0|[1-9][\d,]*)$/.test(text) && Number(text.replaceAll(",", "")) < total;
    const index = isIndex
      ? Number(text.replaceAll(",", ""))
      : (await ask(`find?${new URLSearchParams({ key: text })}`)).index;
    if (index < 0 || index >= total) throw new Error(`there are samples 0 to ${total - 1}`);
    go({ start: Math.floor(index / PAGE) * PAGE, field: "", sample: index });
  } catch (error) {
    say(error.message);
  }
};
document.onkeydown = (event) => {
  if (event.target.matches("input, select, video, audio") || event.ctrlKey || event.metaKey || event.altKey) return;
  const isOpen = element("shown").open;
  if (event.key === "ArrowRight") isOpen ? step(1) : turn(true);
  else if (event.key === "ArrowLeft") isOpen ? step(-1) : turn(false);
  else if (event.key === "/") { event.preventDefault(); element("jump").focus(); }
  else if (event.key === "Escape" && isOpen) go({ sample: null });
};
addEventListener("hashchange", show);

ask("about").then((about) => {
  total = about.num_samples;
  document.title = `${about.name} · wids`;
  element("name").textContent = about.name;
  const shards = `${about.num_shards.toLocaleString("en")} shards`;
  element("about").textContent = [`${total.toLocaleString("en")} samples`, shards, about.size]
    .filter(Boolean).join(" · ");
  for (const { name, share, size } of about.fields) {
    const option = document.createElement("option");
    option.value = name;
    option.textContent = `with ${name} (${share}, ${size})`;
    element("field").append(option);
  }
  show();
}).catch((error) => say(error.message));
