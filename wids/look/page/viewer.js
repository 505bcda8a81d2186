// One sample in a dialog: its pictures, which can be zoomed, and all of its fields.

import { copy, dataset, element, isSelective, listed, made, navigate, number, prefix, request, selection, state } from "./address.js";

const STEP = 1.5;
let current = null; // what is shown: the answer of the server
let picture = null;
let scale = null; // pixels of the screen for each pixel of the picture; null to fit

const name = () => (dataset.numShards === null ? "dataset" : "samples");

export async function showSample(view) {
  const dialog = element("viewer");
  if (view.sample === null) { if (dialog.open) dialog.close(); current = null; return; }
  const query = selection(view);
  if (view.picture) query.set("picture", view.picture);
  try {
    const answer = await request(`${prefix(view.shard)}sample/${view.sample}?${query}`);
    if (state().sample !== view.sample || state().shard !== view.shard) return; // moved on meanwhile
    current = answer;
    element("key").textContent = `${number(answer.index)} · ${answer.key}`;
    element("sample").innerHTML = answer.html; // the server has escaped all text of the dataset
    for (const folded of element("sample").querySelectorAll("details")) folded.open = folded.textContent.length < 3000;
    element("place").textContent = `${answer.shard}, position ${number(answer.local_index)}`;
    element("sample-python").textContent = `${name()}[${answer.index}]`;
    showPictures(answer.pictures);
  } catch (error) {
    if (state().sample !== view.sample) return;
    current = { index: view.sample, previous: null, next: null };
    element("key").textContent = `${view.sample}`;
    // Not as a banner, which the dialog covers.
    element("sample").replaceChildren(made("p", `cannot be shown: ${error.message}`, { role: "alert" }));
    element("place").textContent = "";
    element("sample-python").textContent = `${name()}[${view.sample}]`;
    showPictures([]);
  }
  element("previous-sample").disabled = neighbour(-1) === null;
  element("next-sample").disabled = neighbour(1) === null;
  if (!dialog.open) { dialog.showModal(); layOut(); }
  element("details").scrollTop = 0;
}

// The sample before or after this one in what is shown; by number, where the selection does not have it.
function neighbour(distance) {
  if (current === null) return null;
  const { index, position } = current;
  if (position !== null && position !== undefined) return distance < 0 ? current.previous : current.next;
  const other = index + distance;
  const isInside = other >= 0 && (dataset.numSamples === null || other < dataset.numSamples);
  return isInside && !isSelective(state()) ? other : null;
}

export function step(distance) {
  const index = neighbour(distance);
  if (index !== null) navigate({ sample: index });
}

// Pictures.

function showPictures(pictures) {
  element("picture-pane").hidden = !pictures.length;
  element("panes").classList.toggle("with-picture", pictures.length > 0);
  element("strip").hidden = pictures.length < 2;
  element("strip").replaceChildren(...pictures.map((one) => {
    const button = made("button", "", { type: "button", "aria-pressed": String(one === pictures[0]) });
    if (one.src) button.append(made("img", "", { src: one.src, alt: "" }));
    button.append(made("code", one.label));
    button.onclick = () => {
      for (const other of element("strip").querySelectorAll("button")) other.ariaPressed = String(other === button);
      showPicture(one);
    };
    return listed(button);
  }));
  if (pictures.length) showPicture(pictures[0]);
  else picture = null;
}

function showPicture(one) {
  [picture, scale] = [one, null];
  const shown = one.problem ? made("p", one.problem, { class: "none" })
    : made("img", "", { src: one.src, alt: `${one.label}: ${one.text}` });
  element("stage").replaceChildren(shown);
  element("picture-text").textContent = one.problem ? "" : `${one.label} · ${one.text}`;
  for (const id of ["zoom-in", "zoom-out", "zoom-fit"]) element(id).disabled = Boolean(one.problem);
  element("zoom").hidden = Boolean(one.problem);
  if (!one.problem) shown.onclick = (event) => (scale === null ? zoom(Math.max(1, fitting() * 2), event) : zoom(null));
  layOut();
}

function fitting() {
  const { clientWidth, clientHeight } = element("stage");
  const fit = Math.min(clientWidth / picture.width, clientHeight / picture.height);
  // A picture of a few pixels is enlarged by whole numbers, so that its pixels stay squares of one size.
  return fit >= 2 ? Math.floor(fit) : fit;
}

function layOut() {
  if (!picture || picture.problem || !element("viewer").open) return;
  const image = element("stage").firstChild;
  const used = scale ?? fitting();
  image.style.width = `${picture.width * used}px`;
  image.style.height = `${picture.height * used}px`;
  image.classList.toggle("pixelated", used >= 2);
  element("stage").classList.toggle("zoomed", scale !== null);
  element("zoom").textContent = `${Math.round(used * 100)}%`;
  // The picture of the first answer has 1,200 pixels at most; more are requested when they can be seen.
  if (picture.larger && picture.width * used * devicePixelRatio > 1200 && image.dataset.larger === undefined) {
    image.dataset.larger = "";
    image.src = picture.larger;
  }
}

function zoom(wanted, event) {
  const stage = element("stage");
  const before = stage.firstChild.getBoundingClientRect();
  const [x, y] = event ? [(event.clientX - before.left) / before.width, (event.clientY - before.top) / before.height]
    : [0.5, 0.5];
  scale = wanted;
  layOut();
  stage.scrollLeft = stage.scrollWidth * x - stage.clientWidth / 2;
  stage.scrollTop = stage.scrollHeight * y - stage.clientHeight / 2;
}

function zoomBy(factor) {
  if (!picture || picture.problem) return;
  zoom(Math.min(Math.max((scale ?? fitting()) * factor, 0.02), 64));
}

const keys = {
  ArrowRight: () => step(1),
  ArrowLeft: () => step(-1),
  "+": () => zoomBy(STEP),
  "=": () => zoomBy(STEP),
  "-": () => zoomBy(1 / STEP),
  0: () => picture && !picture.problem && zoom(null),
  Escape: () => navigate({ sample: null }),
};

export function onKey(event) {
  // Arrows scroll a picture that is zoomed in.
  if (event.target === element("stage") && scale !== null && event.key.startsWith("Arrow")) return;
  keys[event.key]?.();
}

export function watchViewer() {
  const dialog = element("viewer");
  const close = () => navigate({ sample: null });
  element("close").onclick = close;
  dialog.addEventListener("cancel", (event) => { event.preventDefault(); close(); });
  dialog.onclick = (event) => { if (event.target === dialog) close(); };
  element("previous-sample").onclick = () => step(-1);
  element("next-sample").onclick = () => step(1);
  element("zoom-in").onclick = () => zoomBy(STEP);
  element("zoom-out").onclick = () => zoomBy(1 / STEP);
  element("zoom-fit").onclick = () => zoom(null);
  element("sample").addEventListener("error", ({ target }) => { // of a player; it does not bubble
    if (!target.matches("video, audio")) return;
    target.nextElementSibling.hidden = false;
    target.remove();
  }, true);
  element("copy-link").onclick = () => copy(location.href, element("copy-link"), "copy the address");
  element("copy-python").onclick = () => copy(`${name()}[${current.index}]`, element("copy-python"));
  addEventListener("resize", layOut);
}
