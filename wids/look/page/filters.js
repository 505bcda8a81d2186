// What is searched and filtered for: the search field with its hits, the values of a column, the fields, the
// order. Searches that have to read samples run on the server; their progress is asked for while they run.

import { copy, counted, dataset, element, isSelective, listed, made, navigate, number, prefix, request, selection,
  setBanner, state } from "./address.js";

const POLL_MS = 300;
const SHOWN_VALUES = 12;
let asked = ""; // the search whose progress is shown
let columnAsked = ""; // the column whose values are shown
let countAsked = ""; // which values of which samples are shown
let showsAllValues = false;
const valueNames = new Map(); // of classes, by column and number

// The next look at the progress of a kind, of which there is one, however often what is looked at changes.
const looks = { hits: 0, column: 0 };

function lookLater(kind, look, ms) {
  clearTimeout(looks[kind]);
  looks[kind] = setTimeout(look, ms);
}

// Hits of the search.

export async function search(view, reload) {
  const wanted = JSON.stringify([view.shard, [...selection({ ...view, seed: null })]]);
  element("query").value = view.q;
  if (!isSelective(view)) {
    asked = "";
    setBanner("", "search");
    element("hits-line").hidden = true;
    return;
  }
  if (wanted === asked) return;
  asked = wanted;
  await follow(view, wanted, reload, await ask(view, "POST"));
}

const ask = (view, method) => request(`${prefix(view.shard)}hits?${selection({ ...view, seed: null })}`, method);

async function follow(view, wanted, reload, first) {
  // The first page is loaded by the caller; more hits come to it while the search runs.
  describe(first);
  const poll = async () => {
    if (asked !== wanted) return;
    try {
      const progress = await ask(view, "GET");
      if (asked !== wanted) return;
      describe(progress);
      reload(progress.found, progress.state !== "running");
      if (progress.state === "running") lookLater("hits", poll, POLL_MS);
    } catch (error) {
      setBanner(error.message);
    }
  };
  if (first.state === "running") lookLater("hits", poll, POLL_MS / 3);
}

const share = (part, whole) => (whole ? Math.min(Math.floor((part / whole) * 100), 100) : 100);

function describe({ state: kind, found, searched, total, unreadable, too_long: tooLong, problem }) {
  element("hits-line").hidden = false;
  const hits = `${number(found)} hit${found === 1 ? "" : "s"}`;
  const bad = unreadable ? ` · ${counted(unreadable, "field")} could not be read` : "";
  const long = tooLong ? ` · ${counted(tooLong, "field")} too long to be searched (texts over 16 kB, values over 1 MB)` : "";
  const isDone = kind === "done";
  const progress = isDone ? `${number(searched)} searched` : `${share(searched, total)}% of ${number(total)} searched`;
  element("hits").textContent = `${hits} · ${progress}${bad}${long}`;
  element("hits-progress").hidden = isDone;
  element("hits-progress").value = total ? searched / total : 1;
  element("stop-hits").hidden = isDone;
  element("stop-hits").textContent = kind === "running" ? "stop" : "continue";
  setBanner(problem ?? "", "search");
}

export function watchSearch(show) {
  element("search").onsubmit = (event) => {
    event.preventDefault();
    navigate({ q: element("query").value.trim(), start: 0, sample: null });
  };
  element("query").addEventListener("search", () => { // its button to clear it
    if (!element("query").value && state().q) navigate({ q: "", start: 0 });
  });
  element("stop-hits").onclick = async () => {
    const view = state();
    try {
      if (element("stop-hits").textContent === "stop") await request(`${prefix(view.shard)}stop/hits`, "POST");
      else { asked = ""; show(); }
    } catch (error) {
      setBanner(error.message);
    }
  };
  element("shuffle").onclick = () => navigate({
    seed: state().seed === null ? Number.parseInt(element("seed").value, 10) || 0 : null, start: 0, sample: null });
  element("seed").onchange = () => {
    if (state().seed !== null) navigate({ seed: Number.parseInt(element("seed").value, 10) || 0, start: 0 });
  };
  element("picture").onchange = (event) => navigate({ picture: event.target.value });
  element("copy-opening").onclick = () => copy(element("python").textContent, element("copy-opening"));
}

// What is active, each with a button that takes it away.

const text = ({ column, value, low, high }) => (value !== undefined
  ? `= ${valueNames.get(`${column}=${value}`) || (value ?? "no value")}` : low === null ? `≤ ${high}` : high === null ? `≥ ${low}` : `${low} to ${high}`);

export function nameFilters(view, names) {
  view.where.forEach(({ column, value }, at) => valueNames.set(`${column}=${value}`, names[at]));
  showActive(view);
}

export function showActive(view) {
  const items = [];
  if (view.q) items.push([`search: ${view.q}`, { q: "" }]);
  view.where.forEach((filter, at) => items.push([`${filter.column} ${text(filter)}`,
    { where: view.where.filter((_, other) => other !== at) }]));
  if (view.field) items.push([`with ${view.field}`, { field: "" }]);
  if (view.step !== null) items.push([`step ${number(view.step)} of training`, { step: null }]);
  if (view.seed !== null) items.push([`shuffled by seed ${view.seed}`, { seed: null }]);
  const shown = JSON.stringify(items);
  if (element("active").dataset.shown !== shown) element("active").replaceChildren(...items.map(([label, changes]) => {
    const button = made("button", label, { type: "button", "aria-label": `remove ${label}` });
    button.append(made("span", " ✕", { "aria-hidden": "true" }));
    button.onclick = () => navigate({ ...changes, start: 0, sample: null });
    return listed(button);
  }));
  element("active").dataset.shown = shown; // a button that is replaced while it is pressed gets no click
  element("shuffle").ariaPressed = String(view.seed !== null);
  if (view.seed !== null) element("seed").value = view.seed;
  element("picture").value = view.picture;
  for (const button of element("fields").querySelectorAll("button")) {
    button.ariaPressed = String(button.dataset.field === view.field);
  }
  for (const button of element("values").querySelectorAll("button")) {
    const filter = view.where.find(({ column, value }) => column === columnAsked && value !== undefined);
    button.ariaPressed = String(filter !== undefined && JSON.stringify(filter.value) === button.dataset.value);
  }
}

// Fields.

export function offerFields(fields, pictures) {
  element("fields").replaceChildren(...fields.map(({ name, label, share: part, size }) => {
    const button = made("button", "", { type: "button", "aria-pressed": "false", "data-field": name,
      title: `show only samples with ${label}` });
    button.append(made("code", label), made("small", `${part} · ${size}`));
    button.onclick = () => navigate({ field: state().field === name ? "" : name, start: 0, sample: null });
    return listed(button);
  }));
  element("picture").replaceChildren(element("picture").options[0], ...pictures.map((field) =>
    made("option", field, { value: field })));
  element("picture-choice").hidden = pictures.length < 2;
  element("fields").parentElement.hidden = !fields.length && pictures.length < 2;
}

// Values of a column.

const OTHER = "\u0000";

export async function offerColumns(shard) {
  const { columns, first, problem } = await request(`${prefix(shard)}columns`);
  const options = columns.map(({ name, label }) => made("option", label, { value: name }));
  element("column").replaceChildren(...options, made("option", "another path …", { value: OTHER }));
  element("column-note").textContent = problem;
  const filtered = state().where[0]?.column;
  if (filtered !== undefined && !columns.some(({ name }) => name === filtered)) addColumn(filtered);
  const chosen = filtered ?? first;
  if (chosen) element("column").value = chosen;
  else element("column").value = OTHER;
  await chooseColumn();
}

function addColumn(name) {
  element("column").insertBefore(made("option", name, { value: name }), element("column").lastChild);
}

async function chooseColumn() {
  const name = element("column").value;
  element("other-column").hidden = name !== OTHER;
  showsAllValues = false;
  columnAsked = name;
  showValues({ values: [], bins: [] });
  if (name !== OTHER) await followColumn(name, "GET");
}

// The samples that are counted: those that are shown, whatever their value in this column.
function counting(name) {
  const view = state();
  const where = view.where.filter(({ column }) => column !== name);
  const query = selection({ ...view, where, seed: null });
  query.set("name", name);
  return `${prefix(view.shard)}column?${query}`;
}

// The counts follow the search.
export async function recount() {
  if (columnAsked && columnAsked !== OTHER && counting(columnAsked) !== countAsked) await followColumn(columnAsked, "GET");
}

async function followColumn(name, method) {
  const path = counting(name);
  countAsked = path;
  clearTimeout(looks.column);
  const answer = await request(path, method);
  if (columnAsked !== name || counting(name) !== path) return;
  showValues(answer);
  const look = () => followColumn(name, "GET").catch((e) => setBanner(e.message));
  if (answer.state === "running") lookLater("column", look, POLL_MS);
}

function showValues(answer) {
  const { state: kind, total, searched, values = [], bins = [], problem, num_values: count } = answer;
  const isDone = kind === undefined || kind === "done";
  element("column-line").hidden = isDone;
  element("column-progress").hidden = kind === "new";
  element("column-progress").value = total ? searched / total : 1;
  element("count-column").textContent = kind === "new" ? `count the values of ${number(total)} samples`
    : kind === "running" ? "stop" : "continue";
  element("count-column").dataset.action = kind === "running" ? "stop" : "count";
  if (kind !== undefined) element("column-note").textContent = noteOf(answer);
  setBanner(problem ?? "", "column");
  showHistogram(answer, bins);
  const most = Math.max(1, ...values.map(({ count: one }) => one ?? 0));
  const items = values.map((value) => valueItem(value, most));
  if (answer.num_nulls && count) items.push(valueItem({ label: null, count: answer.num_nulls }, most));
  const shown = showsAllValues ? items : items.slice(0, SHOWN_VALUES);
  element("values").replaceChildren(...shown);
  element("values").hidden = !shown.length;
  element("more-values").hidden = shown.length === items.length;
  element("more-values").textContent = `show ${items.length - shown.length} more`;
  element("more-values").onclick = () => { showsAllValues = true; showValues(answer); element("values").lastChild.firstChild.focus(); };
  showActive(state());
}

function noteOf({ state: kind, searched, total, num_values: count, num_nulls: nulls, num_distinct: distinct, values,
  bins, is_exact: isExact, unreadable, too_long: tooLong }) {
  const notes = [];
  if (kind === "running" || kind === "stopped") notes.push(`${share(searched, total)}% counted`);
  if (kind === "done" && !count) notes.push("no sample has a value here");
  if (distinct && (bins.length || distinct > values.length)) {
    notes.push(`${isExact ? "" : "more than "}${number(distinct)} different values`);
  }
  if (nulls && bins.length) notes.push(`${number(nulls)} without a value`);
  if (kind === "done" && searched < total) notes.push(`of the first ${number(searched)} samples`);
  if (unreadable) notes.push(`${number(unreadable)} could not be read`);
  if (tooLong) notes.push(`${number(tooLong)} of more than 1 MB not counted`);
  return notes.join(" · ");
}

function valueItem({ label, name, count }, most) {
  if (name) valueNames.set(`${columnAsked}=${label}`, name);
  const shown = label === null ? "no value" : name || label;
  const button = made("button", "", { type: "button", "aria-pressed": "false", "data-value": JSON.stringify(label),
    title: label === null ? "samples without a value" : `${columnAsked} = ${label}` });
  button.style.setProperty("--share", `${((count ?? 0) / most) * 100}%`);
  button.append(made("span", shown), made("small", count === null ? "" : number(count))); // null: not counted yet
  button.onclick = () => toggle({ column: columnAsked, value: label });
  return listed(button);
}

// A filter takes the place of another one of the same column, or is taken away.
function toggle(filter) {
  const { where } = state();
  const isSame = where.some((other) => JSON.stringify(other) === JSON.stringify(filter));
  const others = where.filter(({ column }) => column !== filter.column);
  navigate({ where: isSame ? others : [...others, filter], start: 0, sample: null });
}

function showHistogram({ low, high, is_numeric: isNumeric }, bins) {
  const histogram = element("histogram");
  const shown = isNumeric ? [low, high].map((value) => Number(value.toPrecision(6))) : [];
  for (const id of ["histogram", "axis", "range"]) element(id).hidden = bins.length < 2;
  if (bins.length < 2) return;
  histogram.ariaLabel = `distribution of the values from ${shown[0]} to ${shown[1]}`;
  const most = Math.max(...bins);
  const width = (high - low) / bins.length;
  const middle = Number((low + (high - low) / 2).toPrecision(3));
  element("axis").replaceChildren(...[shown[0], middle, shown[1]].map((value) => made("span", number(value))));
  element("most").textContent = number(most);
  histogram.replaceChildren(...bins.map((count, at) => {
    const bar = made("span", "", { title: `${number(count)} samples from ${(low + at * width).toPrecision(4)}` });
    bar.style.setProperty("--height", count ? `${Math.max((count / most) * 100, 2)}%` : "0");
    bar.onclick = () => filterRange(low + at * width, at === bins.length - 1 ? high : low + (at + 1) * width);
    return bar;
  }));
  const filter = state().where.find(({ column, value }) => column === columnAsked && value === undefined);
  [element("low").value, element("high").value] = [filter?.low ?? "", filter?.high ?? ""];
  [element("low").placeholder, element("high").placeholder] = shown;
}

function filterRange(low, high) {
  const others = state().where.filter(({ column }) => column !== columnAsked);
  const where = low === null && high === null ? others : [...others, { column: columnAsked, low, high }];
  navigate({ where, start: 0, sample: null });
}

export function watchColumns() {
  const report = (error) => setBanner(error.message);
  element("column").onchange = () => chooseColumn().catch(report);
  element("other-column").onsubmit = (event) => {
    event.preventDefault();
    const name = element("other-path").value.trim();
    if (!name) return;
    addColumn(name);
    element("column").value = name;
    chooseColumn().catch(report);
  };
  element("range").onsubmit = (event) => {
    event.preventDefault();
    const [low, high] = ["low", "high"].map((id) => (element(id).value === "" ? null : Number(element(id).value)));
    filterRange(low, high);
  };
  element("count-column").onclick = (event) => {
    const isStop = event.target.dataset.action === "stop";
    const done = isStop ? request(`${prefix(state().shard)}stop/column`, "POST") : followColumn(columnAsked, "POST");
    done.catch(report);
  };
}

// How to open what is shown in Python, with its conditions and its order.
export function showPython(found = "") {
  element("python-section").hidden = !dataset.python;
  const name = dataset.numShards === null ? "dataset" : "samples";
  const view = found && dataset.numShards === null ? `\nview = ${found}` : "";
  element("python").textContent = `import wids\n\n${name} = ${dataset.python}${view}`;
}
