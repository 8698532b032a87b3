// The page of models on GPUs: sliders, and charts of all shardings.
"use strict";

const SLIDERS = [
  ["gpus", "GPUs", "", "power", 1, told.limits.gpus[1]],
  ["bandwidth_gbps", "Bandwidth per node", "Gbps", "log", 10, 14400],
  ["seq", "Sequence length", "", "power", 128, 131072],
  ["batch", "Batch size per GPU", "", "power", 1, told.limits.batch[1]],
  ["accumulate", "Accum steps", "", "power", 1, told.limits.accumulate[1]],
  ["tensor_parallel", "TP degree", "", "power", 1, 8],
];
// What is the nodes' or the model's own until it is moved: what its slider shows meanwhile, its checkbox, and its value.
const OWN = {
  bandwidth_gbps: [400, "The network of the GPU's usual nodes", "the nodes'"],
  seq: [4096, "The model's sequence length, at most 8,192", "the model's"],
};
const gb = bytes => bytes / 1e9;

function draw(answer) {
  const rate = `${answer.unit} per GPU`;
  // A hollow mark does not fit.
  const lines = merged(answer.curves, curve => [curve.gpus, curve.per_gpu, curve.fits].flat().map(Number)).map(group => {
    const [curve] = group, name = group.map(it => it.sharding).join(" = ");
    return {
      x: curve.gpus, y: curve.per_gpu, name, mode: "lines+markers",
      line: { color: answer.colors[curve.sharding], width: 2 },
      marker: { size: 8, symbol: curve.fits.map(fits => fits ? "circle" : "circle-open") },
      customdata: curve.gpus.map((_, i) => [group.map(it => show(gb(it.peak_bytes[i]))).join(", "), curve.fits[i] ? "" : ", does not fit"]),
      hovertemplate: `%{x} GPUs: %{y:.4g} ${rate}<br>%{customdata[0]} GB of memory%{customdata[1]}<extra>${name}</extra>`,
    };
  });
  const counts = [...new Set(answer.curves.flatMap(curve => curve.gpus))].sort((a, b) => a - b);
  Plotly.react("curves", lines, {
    ...LAYOUT, height: 350, showlegend: true, legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" }, margin: { ...LAYOUT.margin, b: 80 },
    xaxis: { title: { text: "GPUs" }, type: "log", tickvals: counts, ticktext: counts.map(String) },
    yaxis: { title: { text: rate }, rangemode: "tozero" },
  }, CONFIG);

  const rows = [...answer.rows].reverse(), labels = rows.map(row => row.label);
  // What a bar says stands at its end; the axis leaves room for it.
  const bars = (id, parts, colors, value, unit, most, whole, text, more) => {
    const below = innerWidth < 600 ? 60 + 20 * Math.ceil(parts.length / 2) : 100;
    const ends = rows.map(row => ({ x: whole(row), y: row.label, xanchor: "left", showarrow: false, text: ` ${text(row)}`, font: { size: LABEL } }));
    const place = document.getElementById(id).clientWidth - room(labels) - LAYOUT.margin.r;
    const end = most * place / Math.max(place / 3, place - width(ends.map(one => one.text)) - 10);
    Plotly.react(id, parts.map(part => ({
      type: "bar", orientation: "h", name: part, marker: { color: colors[part] }, y: labels, x: rows.map(row => value(row, part)),
      hovertemplate: `%{x:.4g} ${unit} ${part}<extra>%{y}</extra>`,
    })), {
      ...LAYOUT, height: 40 + below + 30 * rows.length, barmode: "stack",
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", traceorder: "normal" },
      margin: { ...LAYOUT.margin, l: room(labels), b: below },
      xaxis: { title: { text: unit, standoff: 4 }, range: [0, end] }, yaxis: { tickfont: { size: LABEL } }, annotations: ends, ...more,
    }, CONFIG);
  };
  const spent = ["compute", ...new Set(rows.flatMap(row => Object.keys(row.parts)))];
  const percent = mfu => mfu === null ? "" : `, MFU ${(100 * mfu).toFixed(0)}%`;
  document.getElementById("iteration-title").textContent = `Iteration on ${state.gpus} GPUs, fastest first`;
  bars("iteration", spent, answer.colors, (row, part) => 1e3 * (part === "compute" ? row.compute_s : row.parts[part] ?? 0), "ms",
    1e3 * Math.max(...rows.map(row => row.iteration_s)), row => 1e3 * row.iteration_s,
    row => `${show(row.per_gpu)} ${answer.unit}${percent(row.mfu)}`);

  const capacity = gb(answer.capacity_bytes), peaks = rows.map(row => gb(row.peak_bytes));
  document.getElementById("memory-title").textContent = `Memory per GPU, of ${show(capacity)} GB`;
  const kinds = Object.keys(rows[0].memory).filter(kind => rows.some(row => row.memory[kind]));
  bars("memory", kinds, answer.colors_of_memory, (row, kind) => gb(row.memory[kind]), "GB", Math.max(capacity, ...peaks),
    row => gb(row.peak_bytes), row => `${show(gb(row.peak_bytes))}${row.fits ? row.tight ? " tight" : "" : " does not fit"}`, {
    shapes: [{ type: "line", x0: capacity, x1: capacity, yref: "paper", y0: 0, y1: 1, line: { color: "#a00", width: 2, dash: "dash" } }],
  });

  const shown = answer.rows.find(row => row.sharding === answer.shown);
  document.getElementById("timeline-title").textContent = `Timeline of ${shown.label} on ${state.gpus} GPUs, rank 0`;
  drawTimeline(answer.timeline, answer.colors);
  const notes = [...answer.answer.notes, ...answer.notes].flatMap(note => [note, element("br")]);
  document.getElementById("left-out").replaceChildren(...notes, "try: ", element("code", { textContent: answer.command }));
}

start({
  figures: [["curves", "Throughput per GPU (hollow: does not fit)"], ["memory", "Memory"], ["iteration", "Iteration", "wide"], ["timeline", "Timeline", "wide"]],
  sliders: SLIDERS,
  own: OWN,
  draw,
  controls() {
    const { choices } = told;
    choice("model", "Model", choices.model);
    choice("gpu", "GPU", choices.gpu);
    SLIDERS.forEach(slider);
    Object.entries(OWN).forEach(own);
    choice("checkpointing", "Activation checkpointing", choices.checkpointing);
    choice("dtype", "Dtype", choices.dtype, "the GPU's");
    choice("kernels", "Kernels", choices.kernels);
    choice("sharding", "Timeline of", choices.sharding, "the fastest that fits");
  },
});
