// The page of `wids browse`: what the address states is shown; what people do changes the address.

import { PAGE_SIZE, counted, dataset, dismiss, element, navigate, number, prefix, request, selection, setBanner, setStatus,
  state } from "./address.js";
import { offerColumns, offerFields, recount, search, showActive, showPython, watchColumns, watchSearch } from "./filters.js";
import { forget, numShown, showPage, turn, watchSize } from "./samples.js";
import { offerShards, showShard, turnShard, watchShards } from "./shards.js";
import { onKey, showSample, step, watchViewer } from "./viewer.js";

const report = (error) => { setStatus(""); setBanner(error.message); };

// More was found: the page grows until it is full, and is laid out again when the search has ended.
function addHits(found, isEnd) {
  if (!isEnd && (numShown() >= PAGE_SIZE || found <= state().start + numShown())) return;
  forget();
  showPage(state()).catch(report);
}

async function show() {
  const view = state();
  setBanner("");
  showActive(view);
  try {
    const about = await showShard(view.shard);
    if (about !== null) {
      offerFields(about.fields, about.pictures);
      showPython();
      offerColumns(view.shard).catch(report);
    }
    await search(view, addHits);
    await Promise.all([showPage(view), showSample(view), recount()]);
  } catch (error) {
    report(error);
  }
}

async function jump(event) {
  event.preventDefault();
  const text = element("jump-to").value.trim();
  if (!text) return;
  const { shard } = state();
  // Digits are an index, unless they start with a zero or exceed the last index: then they are a key.
  const index = /^(0|[1-9][\d,]*)$/.test(text) ? Number(text.replaceAll(",", "")) : null;
  try {
    const isIndex = index !== null && (dataset.numSamples === null || index < dataset.numSamples);
    const found = isIndex ? index
      : (await request(`${prefix(shard)}find?${new URLSearchParams({ key: text })}`)).index;
    element("jump-to").blur();
    navigate({ start: Math.floor(found / PAGE_SIZE) * PAGE_SIZE, q: "", field: "", where: [], seed: null, step: null,
      sample: found });
  } catch (error) {
    report(error);
  }
}

for (const button of document.querySelectorAll(".previous-page")) button.onclick = () => turn(false, show);
for (const button of document.querySelectorAll(".next-page")) button.onclick = () => turn(true, show);
element("jump").onsubmit = jump;
element("dismiss").onclick = dismiss;
watchSearch(show);
watchColumns();
watchShards(() => { forget(); return show(); });
watchViewer();
watchSize(() => { if (element("grid").children.length) show(); });
if (matchMedia("(max-width: 800px)").matches) element("filters").open = false;

document.onkeydown = (event) => {
  if (event.target.matches("input, select, video, audio") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (element("viewer").open) onKey(event);
  else if (event.key === "ArrowRight") turn(true, show);
  else if (event.key === "ArrowLeft") turn(false, show);
  else if (event.key === "]") turnShard(1);
  else if (event.key === "[") turnShard(-1);
  else if (event.key === "/") { event.preventDefault(); element("query").focus(); }
};
addEventListener("hashchange", show);

request("about").then((about) => {
  [dataset.numSamples, dataset.python] = [about.num_samples, about.python];
  if (dataset.numSamples === null) offerShards(about);
  document.title = `${about.name} · wids`;
  element("name").textContent = about.name;
  const samples = dataset.numSamples === null ? "samples not counted yet" : counted(dataset.numSamples, "sample");
  const facts = [samples, counted(about.num_shards, "shard"), about.size];
  element("summary").textContent = facts.filter(Boolean).join(" · ");
  if (dataset.numShards !== null) return show();
  offerFields(about.fields, about.pictures);
  showPython();
  // After the samples, which people want to see first.
  return show().then(() => offerColumns(null));
}).catch(report);
