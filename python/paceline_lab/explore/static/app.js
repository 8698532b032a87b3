// What both pages have: controls, the call, and charts that follow their place. The state stands behind the # of the address.
"use strict";

const token = document.body.dataset.token;
const told = JSON.parse(document.body.dataset.told);
const state = { ...told.first };
// What `start` is given: how the sliders are, what is the framework's, the nodes' or the model's own until it is moved, and how an
// answer is drawn.
let page;

const LAYOUT = { margin: { l: 62, r: 12, t: 8, b: 44 }, font: { size: 12 }, paper_bgcolor: "#fff", plot_bgcolor: "#fff" };
const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false };

const form = document.getElementById("controls");
const status = document.getElementById("status");
const LABEL = 11;
// Pixels that the longest label needs, measured: a narrow screen has none to spare.
const pen = document.createElement("canvas").getContext("2d");
pen.font = `${LABEL}px "Open Sans", verdana, arial, sans-serif`;
const width = labels => Math.ceil(Math.max(...labels.map(label => pen.measureText(label).width)));
const room = labels => 14 + width(labels);
const show = value => Number(value.toPrecision(3)).toLocaleString("en-US", { maximumSignificantDigits: 21 });

function element(tag, properties = {}, children = []) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function choice(name, label, values, empty = "the fastest") {
  const select = element("select", { name }, values.map(value => element("option", { value, textContent: value || empty })));
  select.value = state[name];
  select.addEventListener("change", async () => {
    state[name] = select.value;
    await page.chosen?.(name);
    ask();
  });
  form.append(element("label", {}, [element("span", { textContent: label }), select]));
}

// name, label, unit, scale, least, most, step: "log" sliders run over the logarithm, so that 1 to 400 Gbps have room; "power" ones
// over powers of two.
function slider([name, label, unit, scale, low, high, step]) {
  const to = scale === "log" ? Math.log10 : scale === "power" ? Math.log2 : value => value;
  const from = scale === "log" ? value => 10 ** value : scale === "power" ? value => Math.round(2 ** value) : Number;
  const range = element("input", { type: "range", name, min: to(low), max: to(high), step: scale === "power" ? 1 : step ?? 0.01 });
  const output = element("output");
  const shown = () => `${scale === "power" ? state[name].toLocaleString("en-US") : show(state[name])} ${unit}`;
  range.reflect = () => {
    const own = state[name] === null;
    range.value = to(Math.max(low, own ? page.own[name][0] : state[name]));
    output.textContent = own ? page.own[name][2] : shown();
  };
  range.addEventListener("input", () => {
    const value = from(Number(range.value));
    state[name] = scale === "log" ? Number(value.toPrecision(3)) : value;
    output.textContent = shown();
    if (name in page.own) reflect();
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
    state[name] = text === "null" ? null : page.sliders.some(([slider]) => slider === name) ? Number(text) : typeof state[name] === "boolean" ? text === "true" : text;
  }
}

// Facts as a list: a label, and values that are text or a figure with its explanation.
function list(facts) {
  return element("dl", {}, facts.flatMap(({ label, values }) => [element("dt", { textContent: label }), ...values.map(value => Array.isArray(value)
    ? element("dd", {}, [element("b", { textContent: value[0] }), ` ${value[1]}`]) : element("dd", { textContent: value }))]));
}

function say({ fits, headline, facts, memory, remedy, otherwise }) {
  const parts = fits ? [element("h2", { textContent: headline })] : [
    element("h2", { className: "bad", textContent: headline }), list(memory),
    ...(remedy ? [element("p", {}, ["try: ", element("code", { textContent: remedy })])] : []),
    element("h2", { textContent: otherwise }),
  ];
  document.getElementById("answer").replaceChildren(...parts, list(facts));
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
      if (!reply.ok) throw new Error(answer.remedy ? `${answer.error}\ntry: ${answer.remedy}` : answer.error);
      say(answer.answer);
      page.draw(answer);
      status.className = "";
      status.textContent = `${answer.bandwidth}; ${answer.simulations} simulations in ${answer.elapsed_ms.toFixed(0)} ms`;
    } catch (error) {
      status.className = "wrong";
      status.textContent = error instanceof TypeError ? "paceline explore does not answer: is it still running?" : error.message;
    }
  } while (wanted);
  busy = false;
}

// Charts follow their place at once: what follows a resize later may be missing in a picture or on paper.
const places = new ResizeObserver(entries => {
  for (const { target } of entries) {
    if (target._fullLayout && target._fullLayout.width !== target.clientWidth) Plotly.relayout(target, { width: target.clientWidth });
  }
});

// Curves of as many points that coincide within 1 % are drawn as one, with all names.
function merged(curves, values) {
  const groups = [];
  const near = (x, y) => Math.abs(x - y) <= 0.01 * Math.max(x, y);
  const alike = (a, b) => a.length === b.length && a.every((x, i) => near(x, b[i]));
  for (const curve of curves) {
    const group = groups.find(others => alike(values(others[0]), values(curve)));
    if (group) group.push(curve); else groups.push([curve]);
  }
  return groups;
}

// The spans of a timeline, one line a lane.
function drawTimeline(timeline, colors) {
  const kinds = [...new Set(timeline.spans.map(span => span.category))];
  // A narrow legend has one entry a line.
  const below = innerWidth < 600 ? 60 + 20 * kinds.length : 90;
  Plotly.react("timeline", kinds.map(kind => {
    const own = timeline.spans.filter(span => span.category === kind);
    return {
      type: "bar", orientation: "h", name: kind === "wait" ? "waiting" : kind, marker: { color: colors[kind] },
      y: own.map(span => span.lane), base: own.map(span => 1e3 * span.begin_s), x: own.map(span => 1e3 * span.duration_s),
      hovertemplate: "%{x:.4g} ms from %{base:.4g}<extra>%{y}</extra>",
    };
  }), {
    ...LAYOUT, height: 20 + below + 26 * timeline.lanes.length, barmode: "overlay", bargap: 0.2,
    legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" }, margin: { ...LAYOUT.margin, l: room(timeline.lanes), b: below },
    xaxis: { title: { text: "ms", standoff: 4 }, rangemode: "tozero" }, yaxis: { categoryorder: "array", categoryarray: [...timeline.lanes].reverse(), tickfont: { size: LABEL } },
  }, CONFIG);
}

function start(given) {
  page = given;
  for (const [name, title, width] of page.figures) {
    const place = element("div", { id: name });
    document.getElementById("address").before(element("figure", { className: width ?? "" }, [element("figcaption", { id: `${name}-title`, textContent: title }), place]));
    places.observe(place);
  }
  recall();
  page.controls();
  reflect();
  window.addEventListener("hashchange", () => { recall(); reflect(); ask(); });
  ask();
}
