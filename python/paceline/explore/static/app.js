// Sliders, the call, and three charts. The state stands behind the # of the address.
"use strict";

const token = document.body.dataset.token;
const told = JSON.parse(document.body.dataset.told);
const state = { ...told.first };

// name, label, unit, scale: "log" sliders run over the logarithm, so that 1 to 400 Gbit/s have room.
const SLIDERS = [
  ["workers", "Workers", "", "power"],
  ["bandwidth_gbps", "Bandwidth of a node", "Gbit/s", "log", 1, 400],
  ["latency_us", "Latency", "µs", "linear", 0, 200, 1],
  ["compute_speedup", "Compute speed", "×", "log", 0.25, 8],
  ["bucket_mb", "Bucket size (0: no fusion)", "MB", "linear", 0, 100, 1],
  ["servers", "Parameter servers", "", "linear", 1, 16, 1],
  ["gpus_per_node", "GPUs a node", "", "linear", 1, 16, 1],
  ["straggler", "Slowest rank computes", "× as long", "linear", 1, 4, 0.05],
];
// What is the library's own until it is moved: what its slider shows meanwhile, and its checkbox.
const OWN = { bucket_mb: [25, "Buckets as the library makes them"], servers: [1, "Servers as the library has them"] };
const CHECKS = [["multicast", "The switch multicasts"], ["aggregation", "The switch aggregates"]];
const NUMBERS = new Set(SLIDERS.map(([name]) => name));
const LAYOUT = { margin: { l: 62, r: 12, t: 8, b: 44 }, font: { size: 12 }, paper_bgcolor: "#fff", plot_bgcolor: "#fff" };
const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false };

const form = document.getElementById("controls");
const status = document.getElementById("status");
const LABEL = 11;
// Pixels that the longest label needs, measured: a narrow screen has none to spare.
const pen = document.createElement("canvas").getContext("2d");
pen.font = `${LABEL}px "Open Sans", verdana, arial, sans-serif`;
const room = labels => 14 + Math.ceil(Math.max(...labels.map(label => pen.measureText(label).width)));
const show = value => Number(value.toPrecision(3)).toString();

function element(tag, properties = {}, children = []) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function choice(name, label, values) {
  const select = element("select", { name }, values.map(value => element("option", { value, textContent: value || "the fastest" })));
  select.value = state[name];
  select.addEventListener("change", async () => {
    state[name] = select.value;
    if (name === "cluster") await adopt(select.value);
    ask();
  });
  form.append(element("label", {}, [element("span", { textContent: label }), select]));
}

// A preset moves the sliders that describe a cluster.
async function adopt(name) {
  const reply = await fetch(`/cluster?name=${encodeURIComponent(name)}`, { headers: { "X-Paceline-Token": token } });
  if (reply.ok) Object.assign(state, await reply.json());
  reflect();
}

function slider([name, label, unit, scale, least, most, step]) {
  const [low, high] = scale === "power" ? [1, told.limits.workers[1]] : [least, most];
  const to = scale === "log" ? Math.log10 : scale === "power" ? Math.log2 : value => value;
  const from = scale === "log" ? value => 10 ** value : scale === "power" ? value => Math.round(2 ** value) : Number;
  const range = element("input", { type: "range", name, min: to(low), max: to(high), step: scale === "power" ? 1 : step ?? 0.01 });
  const output = element("output");
  range.reflect = () => {
    const own = state[name] === null;
    range.value = to(Math.max(low, own ? OWN[name][0] : state[name]));
    output.textContent = own ? "the library's" : `${show(state[name])} ${unit}`;
  };
  range.addEventListener("input", () => {
    const value = from(Number(range.value));
    state[name] = scale === "log" ? Number(value.toPrecision(3)) : value;
    output.textContent = `${show(state[name])} ${unit}`;
    if (name in OWN) reflect();
    ask();
  });
  form.append(element("label", {}, [element("span", { textContent: label }), output, range]));
}

function check([name, label]) {
  const box = element("input", { type: "checkbox", name });
  box.reflect = () => { box.checked = state[name]; };
  box.addEventListener("change", () => { state[name] = box.checked; ask(); });
  form.append(element("label", { className: "check" }, [box, element("span", { textContent: label })]));
}

function own([name, [moved, label]]) {
  const box = element("input", { type: "checkbox", name: `own_${name}` });
  box.reflect = () => { box.checked = state[name] === null; };
  box.addEventListener("change", () => { state[name] = box.checked ? null : moved; reflect(); ask(); });
  form.append(element("label", { className: "check" }, [box, element("span", { textContent: label })]));
}

function reflect() {
  for (const input of form.elements) (input.reflect ?? (() => { input.value = state[input.name]; }))();
}

function remember() {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) if (value !== told.first[name]) words.set(name, value);
  history.replaceState(null, "", `${location.pathname}${location.search}#${words}`);
}

function recall() {
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    if (!(name in state)) continue;
    state[name] = text === "null" ? null : NUMBERS.has(name) ? Number(text) : typeof state[name] === "boolean" ? text === "true" : text;
  }
}

// One call at a time; of those wanted meanwhile only the last.
let busy = false, wanted = false;
async function ask() {
  remember();
  if (busy) { wanted = true; return; }
  busy = true;
  do {
    wanted = false;
    try {
      const reply = await fetch("/forecast", {
        method: "POST", body: JSON.stringify(state),
        headers: { "Content-Type": "application/json", "X-Paceline-Token": token },
      });
      const answer = await reply.json();
      if (!reply.ok) throw new Error(answer.error);
      draw(answer);
      status.className = "";
      status.textContent = `${answer.bandwidth}; ${answer.simulations} simulations in ${answer.elapsed_ms.toFixed(0)} ms`;
    } catch (error) {
      status.className = "wrong";
      status.textContent = error instanceof TypeError ? "paceline explore does not answer: is it still running?" : error.message;
    }
  } while (wanted);
  busy = false;
}

// Curves that coincide within 1 % are drawn as one, with all names.
function merged(curves) {
  const groups = [];
  const alike = (a, b) => a.samples_per_s.every((y, i) => Math.abs(y - b.samples_per_s[i]) <= 0.01 * Math.max(y, b.samples_per_s[i]));
  for (const curve of curves) {
    const group = groups.find(others => alike(others[0], curve));
    if (group) group.push(curve); else groups.push([curve]);
  }
  return groups;
}

function draw(answer) {
  const trains = answer.ideal[0] !== null;
  const lines = merged(answer.curves).map(group => ({
    x: group[0].workers, y: group[0].samples_per_s, name: group.map(it => it.strategy).join(" = "), mode: "lines+markers",
    line: { color: answer.colours[group[0].strategy], width: 2 },
  }));
  if (trains) lines.unshift({ x: answer.curves[0].workers, y: answer.ideal, name: "linear scaling", mode: "lines", line: { color: "#999", width: 1 } });
  Plotly.react("curves", lines, {
    // One entry a line: nothing of the legend scrolls or covers the axis.
    ...LAYOUT, height: 330 + 19 * lines.length, margin: { ...LAYOUT.margin, b: 60 + 19 * lines.length },
    legend: { orientation: "v", yref: "container", y: 0, yanchor: "bottom", x: 0 },
    xaxis: { title: { text: "workers" }, type: "log", tickvals: answer.curves[0].workers, ticktext: answer.curves[0].workers.map(String) },
    yaxis: { title: { text: "samples/s" }, type: "log", dtick: "D2" },
  }, CONFIG);

  const ranked = [...answer.ranking].reverse();
  // Slow ones must not squeeze the others: their bars are cut, and their values say so.
  const fastest = Math.min(...ranked.map(it => it.iteration_s)), longest = Math.max(...ranked.map(it => it.iteration_s));
  const end = Math.min(longest, 4 * fastest);
  const cut = it => ({ compute_s: Math.min(it.compute_s, end), exposed_s: Math.min(it.exposed_s, Math.max(0, end - it.compute_s)) });
  const bar = (key, name, color) => ({
    type: "bar", orientation: "h", name, marker: { color }, y: ranked.map(it => it.strategy), x: ranked.map(it => 1e3 * cut(it)[key]),
    customdata: ranked.map(it => [1e3 * it[key], it.path]),
    hovertemplate: `%{customdata[0]:.4g} ms ${name}<br>%{customdata[1]}<extra>%{y}</extra>`,
  });
  document.getElementById("ranking-title").textContent = `${state.workers} workers, fastest first`;
  const parts = ["computation", "exposed communication"];
  // The value stands at the end of a bar; the axis leaves room for it.
  const ends = ranked.map(it => ({
    x: 1e3 * Math.min(end, it.iteration_s), y: it.strategy, xanchor: "left", showarrow: false,
    text: ` ${it.iteration_s > end ? "… " : ""}${show(1e3 * it.iteration_s)}`,
  }));
  Plotly.react("ranking", ["compute_s", "exposed_s"].map((key, place) => bar(key, parts[place], answer.colours[parts[place]])), {
    ...LAYOUT, height: 150 + 24 * ranked.length, barmode: "stack", annotations: ends,
    legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
    margin: { ...LAYOUT.margin, l: room(ranked.map(it => it.strategy)), b: 80 },
    xaxis: { title: { text: "iteration (ms)" }, range: [0, 1.2e3 * end] }, yaxis: { tickfont: { size: LABEL } },
  }, CONFIG);

  const { timeline } = answer;
  document.getElementById("timeline-title").textContent = `One iteration: ${timeline.strategy}, ${timeline.workers} workers, `
    + (timeline.workers > timeline.ranks ? `the first ${timeline.ranks} of them` : "all of them");
  const kinds = [...new Set(timeline.spans.map(span => span.category))];
  // A narrow legend has one entry a line.
  const below = innerWidth < 600 ? 60 + 20 * kinds.length : 90;
  Plotly.react("timeline", kinds.map(kind => {
    const own = timeline.spans.filter(span => span.category === kind);
    return {
      type: "bar", orientation: "h", name: kind === "wait" ? "waiting" : kind, marker: { color: answer.colours[kind] },
      y: own.map(span => span.lane), base: own.map(span => 1e3 * span.begin_s), x: own.map(span => 1e3 * span.duration_s),
      hovertemplate: "%{x:.4g} ms from %{base:.4g}<extra>%{y}</extra>",
    };
  }), {
    ...LAYOUT, height: 20 + below + 26 * timeline.lanes.length, barmode: "overlay", bargap: 0.2,
    legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" }, margin: { ...LAYOUT.margin, l: room(timeline.lanes), b: below },
    xaxis: { title: { text: "ms", standoff: 4 }, rangemode: "tozero" }, yaxis: { categoryorder: "array", categoryarray: [...timeline.lanes].reverse(), tickfont: { size: LABEL } },
  }, CONFIG);
  document.getElementById("left-out").textContent = answer.left_out.length
    ? `Left out, because the switch does not do what they need: ${answer.left_out.join(", ")}` : "";
}

// Charts follow their place at once: what follows a resize later may be missing in a picture or on paper.
const places = new ResizeObserver(entries => {
  for (const { target } of entries) {
    if (target._fullLayout && target._fullLayout.width !== target.clientWidth) Plotly.relayout(target, { width: target.clientWidth });
  }
});
for (const name of ["curves", "ranking", "timeline"]) places.observe(document.getElementById(name));

recall();
choice("trace", "Model", told.traces);
choice("cluster", "Cluster", told.clusters);
choice("library", "Library", told.libraries);
SLIDERS.forEach(slider);
Object.entries(OWN).forEach(own);
CHECKS.forEach(check);
choice("strategy", "Timeline of", ["", ...told.strategies]);
reflect();
window.addEventListener("hashchange", () => { recall(); reflect(); ask(); });
ask();
