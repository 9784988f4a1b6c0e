// The page: its state, kept in the address so that a reload or a link shows the same; the bar of controls with the one
// legend; and the sections of charts.
"use strict";

const axes = {
  step: { label: "step", unit: "count" }, tokens: { label: "tokens", unit: "count" }, time: { label: "training time", unit: "seconds" },
};
// Series of metrics.jsonl that have a chart of their own, by section: [key, title, note, unit, kind, starts at zero].
const sections = [
  ["Training", [
    ["loss", "Loss", "nats per token", "", "curve", false], ["lr", "Learning rate", "", "", "plain", true],
    ["grad_norm", "Gradient norm", "before clipping", "", "curve", true], ["skipped_steps", "Skipped steps", "so far", "count", "plain", true],
  ]],
  ["Speed", [
    ["step_s"], ["tokens_per_s", "Tokens per second", "", "", "curve", true], ["tflops", "TFLOP/s", "", "", "curve", true],
    ["mfu", "MFU", "of the peak", "share", "curve", true], ["memory_peak_bytes", "Memory", "peak so far", "bytes", "plain", true],
    ["energy_j", "Energy", "joules", "", "curve", true], ["watts", "Power", "watts", "", "curve", true],
    ["joules_per_token", "Energy of a token", "joules", "", "curve", true],
    ["energy_package_j", "Energy of processors", "joules", "", "curve", true], ["energy_dram_j", "Energy of memory", "joules", "", "curve", true],
    ["energy_device_j", "Energy of devices", "joules", "", "curve", true],
    ["processor_s", "Processor time", "in the place of an energy", "seconds", "curve", true],
  ]],
  ["Parts of a step", [
    ["forward_backward_s", "Forward and backward", "", "seconds", "curve", true], ["optimizer_s", "Optimizer", "", "seconds", "curve", true],
    ["refresh_wait_s", "Refresh", "work and waiting in the step", "seconds", "curve", true],
    ["refresh_copy_s", "Refresh copies", "for workers and from them", "seconds", "curve", true],
    ["refresh_worker_s", "Refresh workers", "on the results taken in the step, of all ranks", "seconds", "curve", true],
    ["refreshed_sides", "Refreshed sides", "started by drift, of all ranks", "count", "curve", true],
    ["basis_drift", "Drift of bases", "largest of the looks in the step before", "", "curve", true],
    ["preconditioner_age_max", "Preconditioner age", "oldest, in steps", "count", "curve", true],
    ["preconditioner_age_mean", "Preconditioner age", "mean, in steps", "", "curve", true],
    ["preconditioner_age_max_stage", "Preconditioner age by stage", "oldest, in steps", "count", "curve", true],
    ["preconditioner_age_mean_stage", "Preconditioner age by stage", "mean, in steps", "", "curve", true],
    ["staleness", "Staleness", "largest of all stages, in steps", "count", "curve", true], ["replica_drift", "Drift of replicas", "weights, largest of all ranks, relative", "", "plain", true], ["coherence_bytes", "Coherence", "bytes of all ranks in a step", "", "plain", true],
    ["drift", "Drift of weights", "over the delay, largest of all stages", "", "plain", true],
    ["reduce_s", "Reduce", "gradients: waiting", "seconds", "curve", true], ["gather_s", "Gather", "weights: waiting", "seconds", "curve", true],
    ["data_s", "Data", "", "seconds", "curve", true],
  ]],
  ["Experts", [
    ["expert_load_max", "Load of an expert", "largest, over the mean of its layer", "", "curve", false],
    ["expert_load_layer", "Layer of the largest load", "from 0", "count", "plain", true],
  ]],
  ["Rotations", [
    ["rotation_norm", "Norm of rotations", "largest ‖Q‖ of all blocks", "", "check", true],
    ["rotation_defect", "Defect of rotations", "largest ‖GᵀG − I‖ / √b", "", "check", true],
    ["sigma_max", "Largest singular value", "of all weights in rotations", "", "check", false],
    ["sigma_min", "Smallest singular value", "of all weights in rotations", "", "check", false],
  ]],
];
// "x_stage" of "x_stage_0": one chart shows them all.
const oneOfMany = name => name.replace(/_stage_\d+$/, "_stage");

class Page {
  constructor(data) {
    this.runs = data.runs;
    this.reload = data.reload;
    this.state = { axis: "step", logX: false, log: new Set(), hidden: new Set(), zoom: null, smooth: 2, clip: true, at: null, show: null, tensor: null, quantity: null };
    this.parts = [];
    this.touched = 0;
    this.readAddress();
  }

  axis() { return axes[this.state.axis]; }
  xs(run) { return this.runs[run].x[this.state.axis]; }
  visibleRuns() { return this.runs.map((_, i) => i).filter(i => !this.state.hidden.has(i)); }
  xOfStep(run, step) {
    return this.state.axis === "step" ? step : interpolated(this.runs[run].x.step, this.xs(run), step) ?? 0;
  }
  // From the first to the last value of the visible runs; on a logarithmic axis from the first above zero.
  wholeRange() {
    const ends = this.visibleRuns().flatMap(run => [this.xs(run).find(x => !this.state.logX || x > 0), this.xs(run).at(-1)]).filter(x => x !== undefined);
    return ends.length ? [Math.min(...ends), Math.max(...ends)] : null;
  }
  withinAll([low, high]) {
    const [first, last] = this.wholeRange();
    return low <= first && high >= last ? null : [Math.max(low, first), Math.min(high, last)];
  }

  seriesLines(run, key, kind) {
    const { series, low, high } = this.runs[run], x = this.xs(run);
    if (series[key] && kind === "check") {  // known at some steps only
      const known = series[key].map((_, i) => i).filter(i => series[key][i] !== null);
      return [{ x: known.map(i => x[i]), y: known.map(i => series[key][i]), kind }];
    }
    if (series[key]) return [{ x, y: series[key], kind, low: low?.[key], high: high?.[key] }];
    return Object.keys(series).filter(name => oneOfMany(name) === key)
      .map(name => ({ x, y: series[name], kind, label: `stage ${name.slice(key.length + 1)}` }));
  }
  lossLines(run) {
    const { validation } = this.runs[run];
    const lines = this.seriesLines(run, "loss", "curve").map(line => ({ ...line, label: "training" }));
    if (validation.loss.length) lines.push({ x: validation[this.state.axis], y: validation.loss, kind: "check", label: "validation" });
    return lines;
  }
  bitsLines(run) {
    const { validation } = this.runs[run];
    return validation.bits_per_byte.some(v => v !== null) ? [{ x: validation[this.state.axis], y: validation.bits_per_byte, kind: "check" }] : [];
  }

  // ---- State ----
  readAddress() {
    const given = new URLSearchParams(location.hash.slice(1)), state = this.state, numbers = name => (given.get(name) ?? "").split(",").filter(t => t).map(Number);
    if (axes[given.get("x")]) state.axis = given.get("x");
    state.logX = given.get("logx") === "1";
    state.log = new Set((given.get("log") ?? "").split(",").filter(t => t));
    state.hidden = new Set(numbers("hide").filter(run => run < this.runs.length));
    if (numbers("zoom").length === 2 && numbers("zoom").every(isFinite)) state.zoom = numbers("zoom");
    if (given.has("smooth")) state.smooth = Math.min(20, Math.max(0, Number(given.get("smooth")) || 0));
    state.clip = given.get("clip") !== "0";
    if (given.has("at")) [state.at, state.show] = [Number(given.get("at")), given.get("show") ?? "loss"];
    state.tensor = given.get("tensor");
    state.quantity = given.get("quantity");
  }
  writeAddress() {
    const s = this.state, said = new URLSearchParams(), put = (name, value, usual) => { if (value !== usual) said.set(name, value); };
    put("x", s.axis, "step"), put("logx", s.logX ? "1" : "0", "0"), put("log", [...s.log].join(","), ""), put("hide", [...s.hidden].join(","), "");
    put("zoom", s.zoom ? s.zoom.map(v => Number(v.toPrecision(8))).join(",") : "", ""), put("smooth", String(s.smooth), "2"), put("clip", s.clip ? "1" : "0", "1");
    put("tensor", s.tensor ?? "", ""), put("quantity", s.quantity ?? "", "");
    try { history.replaceState(null, "", `#${said}`); } catch { /* an address that may not be changed: the state is lost on a reload */ }
  }
  change(changes) {
    Object.assign(this.state, changes);
    this.writeAddress();
    this.draw();
  }
  setZoom(zoom) { this.change({ zoom }); }
  toggleLog(id) {
    const log = new Set(this.state.log);
    if (!log.delete(id)) log.add(id);
    this.change({ log });
  }
  toggleRun(run) {
    const hidden = new Set(this.state.hidden);
    if (!hidden.delete(run)) hidden.add(run);
    this.change({ hidden });
  }
  onlyRun(run) { this.change({ hidden: new Set(this.runs.map((_, i) => i).filter(i => i !== run)) }); }
  setCursor(at, show) {
    Object.assign(this.state, { at, show });
    for (const part of this.parts) (part.chart ?? part).drawCursor?.();
  }
  say(text) {
    clearTimeout(this.saying);
    this.saying = setTimeout(() => { document.getElementById("said").textContent = text; }, 400);
  }

  // ---- Controls and legend ----
  button(text, action, attributes = {}) {
    const button = element("button", { type: "button", ...attributes }, text);
    button.addEventListener("click", action);
    return button;
  }
  buildBar() {
    const axisButtons = Object.keys(axes).map(name => this.button(name === "step" ? "steps" : name, () => this.change({ axis: name, zoom: null, at: null }), { "data-axis": name }));
    this.logX = this.button("log", () => this.change({ logX: !this.state.logX }), { title: "logarithmic steps, tokens or time" });
    this.smooth = element("input", { type: "range", min: "0", max: "20", step: "1", "aria-label": "smoothing" });
    this.smooth.addEventListener("input", () => this.change({ smooth: Number(this.smooth.value) }));
    this.clip = this.button("clip outliers", () => this.change({ clip: !this.state.clip }), { title: "scales show the 1st to 99th percentile" });
    this.whole = this.button("show all", () => this.setZoom(null), { title: "end the zoom (double click, or 0 in a chart)" });
    const controls = element("div.controls", {}, "x axis", element("span.group", { role: "group", "aria-label": "x axis" }, ...axisButtons), this.logX, element("span.gap"),
      element("label", {}, "smooth", this.smooth), this.clip, this.whole, element("span.key", {}, "drag in a chart to zoom"));
    this.axisButtons = axisButtons;
    const bar = document.getElementById("bar");
    bar.append(controls, this.buildLegend());
    bar.hidden = false;
  }
  buildLegend() {
    this.chips = this.runs.length < 2 ? [] : this.runs.map((run, i) => {
      const chip = this.button(swatch(i), () => this.toggleRun(i), { title: `${run.name}: click hides, double click shows it alone`, "data-chip": i });
      chip.append(element("span.name", {}, run.name), ...(run.diverged ? [element("span.badge.bad", { title: "diverged" }, "✕")] : []));
      chip.addEventListener("dblclick", () => this.onlyRun(i));
      return chip;
    });
    this.everyRun = this.button("all", () => this.change({ hidden: new Set() }), { "data-chip": "all" });
    const key = [], dashed = () => drawing("svg", { class: "swatch", viewBox: "0 0 28 8", "aria-hidden": "true" },
      drawing("path", { class: "check", d: "M0 4h28" }), drawing("circle", { class: "dot", cx: 14, cy: 4, r: 2.8 }));
    if (this.runs.some(run => run.validation.loss.length)) key.push(element("span.key", {}, dashed(), "validation"));
    if (this.runs.some(run => run.resumes.length)) key.push(element("span.key", {}, "▲ resumed"));
    if (this.runs.some(run => run.marks.length)) key.push(element("span.key", {}, "◆ spike, rollback, slow rank or large rotation"));
    if (this.runs.some(run => run.diverged)) key.push(element("span.key", {}, "✕ diverged"));
    return element("div.legend", { role: "group", "aria-label": "Runs" }, ...this.chips, ...(this.chips.length ? [this.everyRun] : []), ...key);
  }
  drawBar() {
    const s = this.state;
    for (const button of this.axisButtons) button.setAttribute("aria-pressed", button.dataset.axis === s.axis);
    this.logX.setAttribute("aria-pressed", s.logX);
    this.clip.setAttribute("aria-pressed", s.clip);
    this.smooth.value = s.smooth;
    this.whole.disabled = s.zoom === null;
    this.everyRun.disabled = s.hidden.size === 0;
    this.chips.forEach((chip, i) => chip.setAttribute("aria-pressed", !s.hidden.has(i)));
    for (const row of document.querySelectorAll("tr[data-run]")) row.classList.toggle("off", s.hidden.has(Number(row.dataset.run)));
  }

  // ---- Charts ----
  build() {
    const main = document.getElementById("charts"), has = key => this.runs.some((_, run) => this.seriesLines(run, key).length);
    const known = new Set(sections.flatMap(([, charts]) => charts.map(([key]) => key)));
    const others = [...new Set(this.runs.flatMap(run => Object.keys(run.series).map(oneOfMany)))].filter(key => !known.has(key));
    const all = [...sections, ["Other series", others.map(key => [key, key, "", key.endsWith("_s") ? "seconds" : key.endsWith("_bytes") ? "bytes" : "", "curve", true])]];
    this.buildBar();
    for (const [title, charts] of all) {
      const parts = charts.filter(([key]) => has(key) || (key === "loss" && this.runs.length)).flatMap(chart => this.chartsOf(...chart));
      if (title === "Training" && this.runs.some((_, run) => this.bitsLines(run).length))
        parts.push(new Chart({ id: "bits_per_byte", title: "Bits per byte", note: "validation", unit: "", lines: run => this.bitsLines(run) }, this));
      if (parts.length === 0) continue;
      this.section(main, title, parts.map(part => part.node));
      this.parts.push(...parts);
    }
    const loaded = this.runs.map((_, i) => i).filter(i => this.runs[i].loads);
    if (loaded.length) this.section(main, "Loads", loaded.map(run => loadsCard(this, run)));
    const staged = this.runs.map((_, i) => i).filter(i => this.runs[i].stages);
    if (staged.length) this.section(main, "Stages", staged.map(run => stagesCard(this, run)));
    const updated = this.runs.map((_, i) => i).filter(i => this.runs[i].updates?.rows.length);
    if (updated.length) this.section(main, "Updates", updated.map(run => updatesCard(this, run)));
    const rotated = this.runs.map((_, i) => i).filter(i => this.runs[i].rotations?.rows.length);
    if (rotated.length) this.section(main, "Rotations by weight", rotated.map(run => rotationsCard(this, run)));
    if (this.runs.some(run => run.tensors)) {
      const panel = new TensorPanel(this);
      this.parts.push(panel);
      this.section(main, "Diagnostics", [panel.node]);
    }
  }
  section(main, title, nodes) {
    main.append(element("section", { "aria-label": title }, element("h2", {}, title), element("div.cards", {}, ...nodes)));
  }
  chartsOf(key, title, note, unit, kind, zero) {
    if (key === "step_s") return [new StepTimePanel(this)];
    const lines = key === "loss" ? run => this.lossLines(run) : run => this.seriesLines(run, key, kind);
    return [new Chart({ id: key, title, note, unit, zero, lines, big: key === "loss", cross: key === "loss" || key === "grad_norm" }, this)];
  }
  draw() {
    this.drawBar();
    for (const part of this.parts) part.draw();
  }

  // ---- A page of a run that goes on loads itself again, but not under the reader's hands ----
  keepFresh() {
    if (!(this.reload > 0)) return;
    document.getElementById("live").textContent = `, reloads every ${shown(this.reload, "seconds")} while the runs go on`;
    for (const event of ["pointerdown", "pointermove", "keydown", "wheel", "touchstart"])
      addEventListener(event, () => { this.touched = Date.now(); }, { passive: true });
    const look = () => (Date.now() - this.touched > 2500 ? location.reload() : setTimeout(look, 500));
    setTimeout(look, 1000 * this.reload);
  }
}

const page = new Page(JSON.parse(document.getElementById("data").textContent));
page.build();
page.draw();
page.keepFresh();
let resizing = null;
addEventListener("resize", () => {
  cancelAnimationFrame(resizing);
  resizing = requestAnimationFrame(() => page.draw());
});
