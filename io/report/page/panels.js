// What is no single chart: step time with its parts, loads of ranks, per-tensor diagnostics.
"use strict";

const stepParts = [
  ["data_s", "data"], ["forward_backward_s", "forward and backward"], ["reduce_s", "reduce"], ["optimizer_s", "optimizer"],
  ["refresh_wait_s", "refresh"], ["gather_s", "gather"], ["rest", "rest"],
];

function meanWithin(run, key, [low, high], xs) {
  const values = (run.series[key] ?? []).filter((v, i) => v !== null && xs[i] >= low && xs[i] <= high);
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

// Mean seconds of each part of a step within the window, their percentages, and seconds of the whole step.
function stepSplit(run, window, xs) {
  const whole = meanWithin(run, "step_s", window, xs);
  if (whole === null) return null;
  const parts = stepParts.map(([key]) => (key === "rest" ? 0 : meanWithin(run, key, window, xs) ?? 0));
  parts[parts.length - 1] = Math.max(0, whole - parts.reduce((a, b) => a + b, 0));
  return { whole, parts, percent: percentages(parts) };
}

// The card of the step time: the curve, and next to it one stacked bar per run, of the steps in the window.
class StepTimePanel {
  constructor(page) {
    this.page = page;
    this.chart = new Chart({
      id: "step_s", title: "Step time", unit: "seconds", zero: true, lines: run => page.seriesLines(run, "step_s", "curve"),
    }, page);
    this.node = this.chart.node;
    this.bars = element("div.stacks");
    this.node.classList.add("wide-card");
    const split = element("div.split");
    this.chart.svg.replaceWith(split);
    split.append(element("div", {}, this.chart.svg), this.bars);
  }

  draw() {
    this.chart.draw();
    const window = this.page.state.zoom ?? [-Infinity, Infinity];
    const splits = this.page.visibleRuns().map(run => [run, stepSplit(this.page.runs[run], window, this.page.xs(run))]).filter(([, s]) => s);
    const used = stepParts.map((_, p) => splits.some(([, s]) => s.parts[p] > 0.002 * s.whole));
    const most = Math.max(...splits.map(([, s]) => s.whole));
    const alone = splits.length === 1 ? splits[0][1] : null;
    const value = p => (alone ? ` ${shown(alone.parts[p], "seconds")} (${alone.percent[p]} %)` : "");
    const legend = element("div.parts", {}, element("span", {}, "mean of a step:"),
      ...stepParts.flatMap(([, name], p) => (used[p] ? [element("span", {}, element(`i.p${p}`), name + value(p))] : [])));
    this.bars.classList.toggle("many", splits.length > 5);
    this.bars.replaceChildren(legend, ...splits.map(([run, s]) => this.bar(run, s, most)));
    this.chart.note.textContent = this.page.state.zoom ? "bars: of the steps shown" : "";
  }

  bar(run, { whole, parts, percent }, most) {
    const pieces = parts.map((seconds, p) => {
      const share = seconds / whole, text = `${stepParts[p][1]} ${shown(seconds, "seconds")} (${percent[p]} %)`;
      const piece = element(`span.p${p}`, { title: text, "data-text": text }, share * whole / most > (this.bars.classList.contains("many") ? 0.11 : 0.07) ? `${percent[p]} %` : "");
      piece.style.flexGrow = seconds / most;
      piece.style.flexBasis = "0";
      return piece;
    }).filter((_, p) => parts[p] > 0.002 * whole);
    const stack = element("div.stack", { role: "img", "aria-label": pieces.map(piece => piece.dataset.text).join(", ") }, ...pieces);
    stack.style.width = `${Math.max(2, 100 * whole / most)}%`;
    const name = this.page.runs.length > 1 ? this.page.runs[run].name : "";
    return element("div.stack-row", {}, element("div.stack-label", {}, element("span", {}, ...(name ? [swatch(run)] : []), name), element("span", {}, shown(whole, "seconds"))), stack);
  }
}

// Loads of the ranks of one run: bars as measured, outlines as planned, both relative to their mean.
function loadsCard(page, run) {
  const { optimizer_s: seconds, planned, step } = page.runs[run].loads;
  const relative = values => {
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    return mean > 0 ? values.map(v => v / mean) : null;
  };
  const measured = relative(seconds), plan = planned.length === seconds.length ? relative(planned) : null;
  const width = 400, height = 190, left = 36, bottom = height - 30, n = seconds.length, top = 8;
  const most = Math.max(1, ...(measured ?? []), ...(plan ?? [])) * 1.06;
  const yOf = v => bottom - (bottom - top) * v / most, slot = (width - left - 8) / n;
  const svg = drawing("svg", { class: `loads ${colorOf(run)}`, viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const tick of linearTicks(0, most, 4, ""))
    svg.append(drawing("line", { class: "grid", x1: left, x2: width - 8, y1: yOf(tick), y2: yOf(tick) }),
      drawing("text", { class: "end", x: left - 6, y: yOf(tick) + 4 }, `${Number(tick.toPrecision(3))}`));
  for (let rank = 0; rank < n; rank++) {
    const x = left + rank * slot, wide = Math.min(60, slot * 0.72), start = x + (slot - wide) / 2;
    const said = `rank ${rank}: ${shown(seconds[rank], "seconds")} per step${plan ? `, planned load ${plan[rank].toFixed(3)} of the mean` : ""}`;
    if (measured) svg.append(drawing("rect", { class: "measured", x: start, width: wide, y: yOf(measured[rank]), height: bottom - yOf(measured[rank]) }, drawing("title", {}, said)));
    if (plan) svg.append(drawing("rect", { class: "planned", x: start - 2, width: wide + 4, y: yOf(plan[rank]), height: bottom - yOf(plan[rank]) }, drawing("title", {}, said)));
    if (rank % Math.ceil(n / 16) === 0) svg.append(drawing("text", { class: "middle", x: x + slot / 2, y: bottom + 15 }, String(rank)));
  }
  svg.append(drawing("text", { class: "end", x: width - 8, y: height - 2 }, "rank"));
  const ratio = values => (values ? Math.max(...values).toFixed(3) : "–");
  const text = `Bars: optimizer time of each rank up to step ${step}; outlines: planned load; both relative to their mean. Largest: measured ${ratio(measured)}, planned ${ratio(plan)}`;
  svg.setAttribute("aria-label", text);
  return element("div.card", { "data-card": `loads-${run}` },
    element("div.card-head", {}, element("h3", {}, `Loads by rank${page.runs.length > 1 ? `: ${page.runs[run].name}` : ""}`)),
    svg, element("p.hint", {}, text));
}

// Stages of an asynchronous pipeline: a bar for how far the weights of each moved over its delay, which stands under it.
function stagesCard(page, run) {
  const { staleness, drift, cosine, step } = page.runs[run].stages;
  const width = 400, height = 190, left = 52, bottom = height - 44, top = 8, n = drift.length, slot = (width - left - 8) / n;
  const most = Math.max(...drift.map(v => v ?? 0)) * 1.06 || 1, yOf = v => bottom - (bottom - top) * v / most;
  const svg = drawing("svg", { class: `loads stages ${colorOf(run)}`, viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const tick of linearTicks(0, most, 4, ""))
    svg.append(drawing("line", { class: "grid", x1: left, x2: width - 8, y1: yOf(tick), y2: yOf(tick) }),
      drawing("text", { class: "end", x: left - 6, y: yOf(tick) + 4 }, `${Number(tick.toPrecision(3))}`));
  for (let stage = 0; stage < n; stage++) {
    const x = left + stage * slot, wide = Math.min(60, slot * 0.72), value = drift[stage];
    const said = `stage ${stage}: ${staleness[stage] ?? "–"} steps late, weights moved by ${value === null ? "not known" : value.toPrecision(3)}${cosine[stage] == null ? "" : `, cosine with the gradient at the newest weights ${cosine[stage].toFixed(3)}`}`;
    if (value !== null) svg.append(drawing("rect", { class: "measured", x: x + (slot - wide) / 2, width: wide, y: yOf(value), height: bottom - yOf(value) }, drawing("title", {}, said)));
    if (stage % Math.ceil(n / 16) === 0)
      svg.append(drawing("text", { class: "middle", x: x + slot / 2, y: bottom + 15 }, String(stage)), drawing("text", { class: "middle", x: x + slot / 2, y: bottom + 29 }, `${staleness[stage] ?? "–"}`));
  }
  svg.append(drawing("text", { class: "end", x: left - 6, y: bottom + 15 }, "stage"), drawing("text", { class: "end", x: left - 6, y: bottom + 29 }, "late by"));
  const text = `Bars: how far the weights of each stage moved, relative to them, between the forward pass of a gradient and its update (step ${step}); under them the steps in between.${cosine.some(v => v !== null) ? ` Cosines of the gradients with those at the newest weights: ${cosine.map(v => (v === null ? "–" : v.toFixed(3))).join(", ")}.` : ""}`;
  svg.setAttribute("aria-label", text);
  return element("div.card", { "data-card": `stages-${run}` },
    element("div.card-head", {}, element("h3", {}, `Stages${page.runs.length > 1 ? `: ${page.runs[run].name}` : ""}`)),
    svg, element("p.hint", {}, text));
}

// Updates of one run: a row for each pattern of tensors with its rule, and a heat map of update / weight by layer, whose
// colours are by the logarithm.
function updatesCard(page, run) {
  const { step, rows } = page.runs[run].updates, short = v => (v === null ? "–" : v === 0 ? "0" : v < 1e-3 ? v.toExponential(1) : String(Number(v.toPrecision(2))));
  const layers = Math.max(0, ...rows.map(row => row.layers.length));
  const known = rows.flatMap(row => (row.layers.length ? row.layers : [row.update_ratio])).filter(v => v > 0).map(Math.log);
  const low = Math.min(...known), span = Math.max(...known) - low || 1;
  const heat = (row, value, where, wide) => {
    if (value === null) return element("td", {});
    const said = `${row.pattern}, ${where}: ${short(value)}`, cell = element("td.heat", { title: said, "aria-label": said, ...(wide > 1 ? { colspan: wide } : {}) }), shade = element("i");
    shade.style.opacity = value > 0 ? 0.08 + 0.92 * (Math.log(value) - low) / span : 0;
    cell.append(shade);
    return cell;
  };
  const head = ["tensors", "rule", "split", "ranks", "calls", "defect", "update / weight"].map(text => element("th", { scope: "col" }, text));
  for (let layer = 0; layer < layers; layer++) head.push(element("th.layer", { scope: "col" }, layer % Math.ceil(layers / 16) === 0 ? String(layer) : ""));
  const body = rows.map(row => element("tr", {}, element("th", { scope: "row", title: row.pattern }, shortName(row.pattern).replace("*.", "")),
    ...[row.rule, row.split, row.owner, String(row.calls), short(row.orthogonality_defect), short(row.update_ratio)].map(text => element("td", {}, text)),
    ...(row.layers.length ? row.layers.map((value, layer) => heat(row, value, `layer ${layer}`, 1)) : [heat(row, row.update_ratio, "of no layer", Math.max(1, layers))])));
  return element("div.card.wide-card", { "data-card": `updates-${run}` },
    element("div.card-head", {}, element("h3", {}, `Updates${page.runs.length > 1 ? `: ${page.runs[run].name}` : ""}`)),
    element("div.wide", {}, element("table.updates", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body))),
    element("p.hint", {}, `Step ${step}: the rule that updated each tensor, calls of its optimizer since the line before, how far its direction is from orthogonal (0: equal singular values), and the size of its movement relative to the weights: ${short(Math.exp(low))} (light) to ${short(Math.exp(low + span))} (dark) by layer.`));
}

// Rotations of one run: a row for each pattern of weights, with the singular values now and how far they are from those
// of the first line.
function rotationsCard(page, run) {
  const { step, first_step, rows } = page.runs[run].rotations, short = v => (v === null ? "–" : v === 0 ? "0" : v < 1e-3 ? v.toExponential(1) : String(Number(v.toPrecision(3))));
  const moved = (now, first) => `${short(now)}${now === null || !(first > 0) || step === first_step ? "" : ` (${(100 * (now / first - 1)).toFixed(2)} %)`}`;
  const head = ["weights", "largest ‖Q‖", "layer of it", "defect", "defect as applied", "largest singular value", "smallest", "rms"].map(text => element("th", { scope: "col" }, text));
  const body = rows.map(row => element("tr", {}, element("th", { scope: "row", title: row.pattern }, shortName(row.pattern).replace("*.", "")),
    ...[short(row.largest_q), String(row.layers.indexOf(Math.max(...row.layers.filter(v => v !== null)))), short(row.defect), short(row.applied_defect),
      moved(row.sigma_max, row.first_max), moved(row.sigma_min, row.first_min), moved(row.sigma_rms, row.first_rms)].map(text => element("td", {}, text))));
  return element("div.card.wide-card", { "data-card": `rotations-${run}` },
    element("div.card-head", {}, element("h3", {}, `Rotations${page.runs.length > 1 ? `: ${page.runs[run].name}` : ""}`)),
    element("div.wide", {}, element("table.rotations", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body))),
    element("p.hint", {}, `Step ${step}: how far the weights are turned since their last merge, how far blocks are from orthogonal (‖GᵀG − I‖ / √b of the worst one), and the singular values, which rotations keep${step === first_step ? "" : `; in brackets their change since step ${first_step}`}.`));
}

const tensorQuantities = [
  ["update_ratio", "update / weight"], ["update_rms", "update RMS"], ["weight_rms", "weight RMS"], ["spectral_norm", "spectral norm"],
];

const shortName = name => name.replace(/^model\./, "").replace(/^layers\./, "").replace(/\.weight$/, "");

// One tensor's curve for all runs; a sortable table of the newest values of one run chooses the tensor.
class TensorPanel {
  constructor(page) {
    this.page = page;
    this.sort = { key: null, down: true };
    const withTensors = page.runs.map((run, i) => i).filter(i => page.runs[i].tensors);
    this.run = withTensors[withTensors.length - 1];
    this.names = [...new Set(withTensors.flatMap(i => page.runs[i].tensors.names))];
    this.chart = new Chart({ id: "tensors", title: "Tensors", unit: "", lines: run => this.lines(run) }, page);
    this.node = this.chart.node;
    this.node.classList.add("wide-card");
    this.quantity = this.select("quantity", tensorQuantities);
    this.tensor = this.select("tensor", this.names.map(name => [name, name]));
    this.whose = this.select("table of run", withTensors.map(i => [String(i), page.runs[i].name]));
    this.whose.value = String(this.run);
    this.list = element("div.tensor-list", { tabindex: "0", role: "region", "aria-label": "Newest values of all tensors" });
    const split = element("div.split"), controls = element("div.controls", {}, this.quantity.parentNode, this.tensor.parentNode,
      ...(withTensors.length > 1 ? [this.whose.parentNode] : []));
    this.chart.svg.replaceWith(controls, split);
    split.append(element("div", {}, this.chart.svg), this.list);
    this.quantity.addEventListener("change", () => page.change({ quantity: this.quantity.value }));
    this.tensor.addEventListener("change", () => page.change({ tensor: this.tensor.value }));
    this.whose.addEventListener("change", () => { this.run = Number(this.whose.value); this.fill(); });
  }

  select(label, options) {
    const select = element("select", {}, ...options.map(([value, text]) => element("option", { value }, text)));
    element("label", {}, label, select);
    return select;
  }

  values(run, name, quantity) {
    const tensors = this.page.runs[run].tensors, i = tensors ? tensors.names.indexOf(name) : -1;
    if (i < 0) return null;
    if (quantity !== "update_ratio") return tensors[quantity][i];
    return tensors.update_rms[i].map((u, k) => (u === null || !tensors.weight_rms[i][k] ? null : u / tensors.weight_rms[i][k]));
  }

  lines(run) {
    const y = this.values(run, this.tensor.value, this.quantity.value);
    return y ? [{ x: this.page.runs[run].tensors.step.map(step => this.page.xOfStep(run, step)), y, kind: "plain", label: "" }] : [];
  }

  draw() {
    const { tensor, quantity } = this.page.state;
    this.tensor.value = this.names.includes(tensor) ? tensor : this.names[0];
    this.quantity.value = tensorQuantities.some(([key]) => key === quantity) ? quantity : "update_ratio";
    this.chart.title.textContent = "Tensors";
    this.chart.note.textContent = `${this.tensor.value}: ${this.quantity.selectedOptions[0].text}`;
    this.chart.draw();
    this.fill();
  }

  fill() {
    const newest = (name, key) => this.values(this.run, name, key).findLast(v => v !== null) ?? null;
    let rows = this.page.runs[this.run].tensors.names.map(name => ({ name, values: tensorQuantities.map(([key]) => newest(name, key)) }));
    const column = tensorQuantities.findIndex(([key]) => key === this.sort.key);
    if (column >= 0) rows = rows.sort((a, b) => (this.sort.down ? 1 : -1) * ((b.values[column] ?? -Infinity) - (a.values[column] ?? -Infinity)));
    const heads = tensorQuantities.map(([key, text]) => {
      const mine = this.sort.key === key, head = element("th", { scope: "col", "aria-sort": mine ? (this.sort.down ? "descending" : "ascending") : "none" });
      head.append(this.button(`${text}${mine ? (this.sort.down ? " ▾" : " ▴") : ""}`, () => {
        this.sort = { key, down: mine ? !this.sort.down : true };
        this.fill();
      }));
      return head;
    });
    const body = rows.map(({ name, values }) => element(name === this.tensor.value ? "tr.chosen" : "tr", {},
      element("th", { scope: "row" }, this.button(shortName(name), () => this.page.change({ tensor: name }), name)),
      ...values.map(v => element("td", {}, v === null ? "–" : v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential(2) : String(Number(v.toPrecision(3)))))));
    this.list.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "tensor"), ...heads)),
      element("tbody", {}, ...body)));
  }

  button(text, action, title = "") {
    const button = element("button", { type: "button", title }, text);
    button.addEventListener("click", action);
    return button;
  }
}
