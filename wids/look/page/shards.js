// Shards that have no index, of which each is shown by itself.

import { copy, dataset, element, navigate, number, prefix, request, setBanner, setStatus, state } from "./address.js";

let current = null;
let known = ""; // how many samples of the shard are known

export const knownText = () => known;

export function offerShards(about) {
  [dataset.numShards, dataset.firstShard] = [about.num_shards, about.shard];
  element("shards").hidden = false;
  element("shard").max = about.num_shards - 1;
  const isOne = about.num_shards === 1;
  for (const id of ["previous-shard", "shard-label", "next-shard"]) element(id).hidden = isOne;
  element("shard-count").textContent = isOne ? "shard 1 of 1" : `of ${number(about.num_shards)}, from 0`;
  element("command").textContent = about.command;
  element("jump-to").placeholder = "position or key";
  element("jump-to").ariaLabel = "go to position in the shard, or to key";
}

// Return what is known of a shard that was not shown before, or null.
export async function showShard(shard) {
  if (shard === null || shard === current) return null;
  current = shard;
  element("shard").value = shard;
  element("previous-shard").disabled = shard <= 0;
  element("next-shard").disabled = shard >= dataset.numShards - 1;
  for (const id of ["shard-url", "shard-known", "shard-remark"]) element(id).textContent = "";
  element("make-index").hidden = true;
  element("grid").replaceChildren(); // those of another shard
  setStatus("loading …");
  try {
    const answer = await request(`${prefix(shard)}about`);
    if (current !== shard) return null;
    describeShard(answer);
    return answer;
  } catch (error) {
    if (current === shard) current = null;
    throw error;
  }
}

export function describeKnown(answer) {
  [dataset.numSamples, known] = [answer.num_samples, answer.known];
  element("shard-known").textContent = known;
  element("shard-remark").textContent = answer.remark;
}

function describeShard(answer) {
  describeKnown(answer);
  dataset.python = answer.python;
  element("shard-url").textContent = answer.url;
  element("make-index").hidden = answer.cost === "";
  element("make-index").textContent = `index this shard (${answer.cost})`;
}

const goToShard = (shard) => navigate({ shard, start: 0, q: "", field: "", where: [], sample: null });

export function turnShard(distance) {
  if (dataset.numShards === null) return;
  const shard = state().shard + distance;
  if (shard >= 0 && shard < dataset.numShards) goToShard(shard);
}

export function watchShards(reload) {
  element("previous-shard").onclick = () => turnShard(-1);
  element("next-shard").onclick = () => turnShard(1);
  element("shard").onchange = (event) => {
    goToShard(Math.min(Math.max(Number.parseInt(event.target.value, 10) || 0, 0), dataset.numShards - 1));
  };
  element("copy-command").onclick = () => copy(element("command").textContent, element("copy-command"));
  element("make-index").onclick = async () => {
    const { shard } = state();
    element("make-index").disabled = true;
    setStatus(`indexing shard ${number(shard)} …`);
    try {
      const answer = await request(`${prefix(shard)}index`, "POST");
      if (state().shard !== shard) return; // the user has moved on meanwhile
      current = null;
      await reload();
      setStatus(`shard ${number(shard)} is indexed: ${answer.known}`);
      element("shard").focus();
    } catch (error) {
      setStatus("");
      setBanner(error.message);
    } finally {
      element("make-index").disabled = false;
    }
  };
}
