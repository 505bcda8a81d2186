// A page of samples as cards, and the buttons that turn pages.

import { PAGE_SIZE, counted, dataset, element, hash, isSelective, made, navigate, number, prefix, request, selection,
  setBanner, setStatus, state } from "./address.js";
import { nameFilters, showPython } from "./filters.js";
import { describeKnown, knownText } from "./shards.js";

const FIRST = 12; // cards of the first request, so that something is seen early
let current = ""; // what is shown or being loaded
let cards = [];
let shownPlace = ""; // the page that the cards belong to

export const forget = () => { current = ""; };
export const numShown = () => cards.length;

// The least number of pixels that is sharp at the chosen size.
function pixels() {
  const wanted = Number(element("size").value) * devicePixelRatio;
  return wanted <= 256 ? 256 : wanted <= 512 ? 512 : 1024;
}

export async function showPage(view) {
  const wanted = JSON.stringify([view.shard, view.start, [...selection(view)], view.picture, pixels()]);
  if (wanted === current) return;
  current = wanted;
  if (!element("grid").children.length) setStatus("loading …");
  element("grid").ariaBusy = "true";
  try {
    await load(view, wanted);
  } catch (error) {
    if (current !== wanted) return;
    current = "";
    throw error;
  } finally {
    if (current === wanted || !current) element("grid").ariaBusy = "false";
  }
}

async function load(view, wanted) {
  // How many cards a shard without an index can afford is decided for a whole page.
  const counts = view.shard === null ? [FIRST, PAGE_SIZE - FIRST] : [PAGE_SIZE];
  let shown = [];
  const problems = new Map(); // how many samples have each
  for (const count of counts) {
    const query = selection(view);
    query.set("start", view.start + shown.length);
    query.set("count", count);
    query.set("pixels", pixels());
    if (view.picture) query.set("picture", view.picture);
    const answer = await request(`${prefix(view.shard)}samples?${query}`);
    if (current !== wanted) return; // the user has moved on to another page meanwhile
    shown = [...shown, ...answer.cards];
    for (const [text, times] of Object.entries(answer.problems)) problems.set(text, (problems.get(text) ?? 0) + times);
    const isLast = answer.next === null || answer.cards.length < count || count === counts.at(-1);
    put(view, shown, answer, isLast);
    nameFilters(view, answer.names);
    showPython(answer.python);
    if (isLast) break;
  }
  setBanner([...problems].map(([text, times]) => `${counted(times, "sample")}: ${text}`).join("\n"), "page");
}

function put(view, shown, answer, isLast) {
  const grid = element("grid");
  const place = JSON.stringify([view.shard, view.start, [...selection(view)], view.picture]);
  const isSame = place === shownPlace && grid.children.length === cards.length;
  if (place !== shownPlace) scrollTo(0, 0);
  let kept = 0;
  while (isSame && kept < cards.length && shown[kept]?.index === cards[kept].index
    && shown[kept].html === cards[kept].html) kept += 1;
  // When the same page is loaded again, because more was found, its cards stay where they are.
  if (isSame && !isLast && kept === shown.length) return;
  while (grid.children.length > kept) grid.lastChild.remove();
  grid.append(...shown.slice(kept).map((card) => linkTo(view, card)));
  [cards, shownPlace] = [shown, place];
  if (view.shard !== null && "known" in answer) describeKnown(answer);
  element("shown-range").textContent = rangeText(view, shown, answer.num_found);
  setTargets("previous-page", view.start ? Math.max(0, view.start - PAGE_SIZE) : null);
  const stop = view.start + PAGE_SIZE; // also while only a part of the page is there
  setTargets("next-page", view.shard !== null ? answer.next : stop < answer.num_found ? stop : null);
  setStatus(shown.length ? "" : emptyText(view, answer.next !== null));
}

function linkTo(view, { index, html, audio }) {
  const link = made("a", "", { href: hash({ ...view, sample: index }), "data-index": index });
  link.innerHTML = html; // the server has escaped all text of the dataset
  if (view.q) mark(link, view.q);
  if (!audio) return link;
  const player = made("audio", "", { src: audio, controls: "", preload: "none", "aria-label": `audio of sample ${number(index)}` });
  player.onerror = () => player.replaceWith(made("p", "This browser cannot play the audio.", { class: "note" }));
  const item = made("div", "", { class: "with-player" }); // beside the link, which would take the clicks
  item.append(link, player);
  return item;
}

function rangeText(view, shown, found) {
  if (!shown.length) return "";
  const [first, last] = [number(view.start + 1), number(view.start + shown.length)];
  const range = first === last ? first : `${first} to ${last}`;
  if (dataset.numSamples === null && !isSelective(view)) return `${range} · ${knownText()}`;
  return `${range} of ${number(found)}`;
}

function emptyText(view, canContinue) {
  if (isSelective(view)) return element("hits-progress").hidden ? "no samples match" : ""; // or none so far
  return `no samples here${canContinue ? " yet; next reads on" : ""}`;
}

function setTargets(name, start) {
  for (const button of document.getElementsByClassName(name)) {
    button.disabled = start === null;
    button.dataset.start = start === null ? "" : start;
  }
}

// Mark what was searched for in the texts of a card.
function mark(card, query) {
  const words = [...query.matchAll(/"([^"]+)"|(\S+)/g)].map((found) => found[1] ?? found[2]);
  if (!words.length) return;
  // A pattern, since texts change their length in lower case: "İ" has two characters there.
  const escaped = words.sort((a, b) => b.length - a.length).map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
  const pattern = new RegExp(escaped.join("|"), "giu");
  const walker = document.createTreeWalker(card, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  for (const text of texts) {
    const parts = [];
    let end = 0;
    for (const { 0: found, index } of text.data.matchAll(pattern)) {
      parts.push(text.data.slice(end, index), made("mark", found));
      end = index + found.length;
    }
    if (end) text.replaceWith(...parts, text.data.slice(end));
  }
}

export function turn(isForward, show) {
  const { start } = element(isForward ? "next-page" : "previous-page").dataset;
  if (!start) return;
  if (Number(start) !== state().start) { navigate({ start: Number(start) }); return; }
  current = ""; // nothing was found here yet: read on
  show();
}

export function watchSize(show) {
  const size = element("size");
  const apply = () => document.documentElement.style.setProperty("--card", `${size.value}px`);
  try { size.value = localStorage.getItem("wids-size") ?? size.value; } catch { /* not allowed here */ }
  apply();
  size.oninput = apply;
  size.onchange = () => {
    try { localStorage.setItem("wids-size", size.value); } catch { /* not allowed here */ }
    show(); // larger pictures, if they are needed
  };
}
