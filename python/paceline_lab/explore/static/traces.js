// The page of recorded models on any cluster: sliders, and charts of all strategies.
"use strict";

const SLIDERS = [
  ["workers", "Workers", "", "power", 1, told.limits.workers[1]],
  ["bandwidth_gbps", "Bandwidth per node", "Gbps", "log", 1, 400],
  ["latency_us", "Latency", "µs", "linear", 0, 200, 1],
  ["compute_speedup", "Compute speed", "x", "log", 0.25, 8],
  ["bucket_mb", "Bucket size (0: no fusion)", "MB", "linear", 0, 100, 1],
  ["servers", "Parameter servers", "", "linear", 1, 16, 1],
  ["gpus_per_node", "GPUs per node", "", "linear", 1, 16, 1],
  ["straggler", "Straggler (rank 0)", "x as long", "linear", 1, 4, 0.05],
];
// What is the framework's own until it is moved: what its slider shows meanwhile, its checkbox, and its value.
const OWN = {
  bucket_mb: [25, "The framework's bucket size", "the framework's"],
  servers: [1, "The framework's number of servers", "the framework's"],
};
const CHECKS = [["multicast", "Switch multicast"], ["aggregation", "In-network aggregation (SHARP)"]];

// A preset moves the sliders that describe a cluster.
async function adopt(name) {
  const reply = await fetch(`/cluster?name=${encodeURIComponent(name)}`, { headers: { "X-Paceline-Token": token } });
  if (reply.ok) Object.assign(state, await reply.json());
  reflect();
}

function draw(answer) {
  const trains = answer.ideal[0] !== null;
  const lines = merged(answer.curves, curve => curve.samples_per_s).map(group => ({
    x: group[0].workers, y: group[0].samples_per_s, name: group.map(it => it.strategy).join(" = "), mode: "lines+markers",
    line: { color: answer.colors[group[0].strategy], width: 2 },
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
  const parts = ["compute", "exposed communication"];
  // The value stands at the end of a bar; the axis leaves room for it.
  const ends = ranked.map(it => ({
    x: 1e3 * Math.min(end, it.iteration_s), y: it.strategy, xanchor: "left", showarrow: false,
    text: ` ${it.iteration_s > end ? "… " : ""}${show(1e3 * it.iteration_s)}`,
  }));
  Plotly.react("ranking", ["compute_s", "exposed_s"].map((key, place) => bar(key, parts[place], answer.colors[parts[place]])), {
    ...LAYOUT, height: 150 + 24 * ranked.length, barmode: "stack", annotations: ends,
    legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
    margin: { ...LAYOUT.margin, l: room(ranked.map(it => it.strategy)), b: 80 },
    xaxis: { title: { text: "iteration time (ms)" }, range: [0, 1.2e3 * end] }, yaxis: { tickfont: { size: LABEL } },
  }, CONFIG);

  const { timeline } = answer;
  document.getElementById("timeline-title").textContent = `Timeline: ${timeline.strategy}, ${timeline.workers} workers, `
    + (timeline.workers > timeline.ranks ? `the first ${timeline.ranks} of them` : "all of them");
  drawTimeline(timeline, answer.colors);
  document.getElementById("left-out").textContent = answer.left_out.length
    ? `Skipped strategies that the switch does not support: ${answer.left_out.join(", ")}` : "";
}

start({
  figures: [["curves", "Throughput"], ["ranking", "Ranking"], ["timeline", "Timeline", "wide"]],
  sliders: SLIDERS,
  own: OWN,
  draw,
  chosen: async name => { if (name === "cluster") await adopt(state.cluster); },
  controls() {
    choice("trace", "Model", told.choices.trace);
    choice("cluster", "Cluster", told.choices.cluster);
    choice("library", "Framework", told.choices.library);
    SLIDERS.forEach(slider);
    Object.entries(OWN).forEach(own);
    CHECKS.forEach(check);
    choice("strategy", "Timeline of", ["", ...told.strategies]);
  },
});
