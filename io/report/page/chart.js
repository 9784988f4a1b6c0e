// One chart: curves of the visible runs in an SVG with axes, a read-out under the pointer or the arrow keys, and a zoom
// by dragging. What all charts share (axis, zoom, hidden runs) lies in `page`, made by report.js.
"use strict";

const svgName = "http://www.w3.org/2000/svg";

// element("p.hint", {title: "x"}, "text", child, ...)
function element(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function drawing(tag, attributes = {}, ...children) {
  const node = document.createElementNS(svgName, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const colorOf = run => `c${run % 8}`;
const dashOf = run => `d${(run + Math.floor(run / 8)) % 4}`;

function swatch(run) {
  return drawing("svg", { class: `swatch ${colorOf(run)} ${dashOf(run)}`, viewBox: "0 0 28 8", "aria-hidden": "true" },
    drawing("line", { x1: 1, y1: 4, x2: 27, y2: 4 }));
}

class Chart {
  // spec: {id, title, note, unit, zero (the axis starts there), lines(run) -> [{x, y, kind, low, high, label}]}; kind is
  // "curve" (smoothed over the values), "plain" or "check" (dashed, with points).
  constructor(spec, page) {
    this.spec = spec;
    this.page = page;
    this.log = element("button", { type: "button", "aria-pressed": "false", title: "logarithmic values" }, "log");
    this.svg = drawing("svg", { class: "chart", tabindex: "0", role: "img", "data-chart": spec.id });
    this.note = element("span.note", {}, spec.note ?? "");
    this.title = element("h3", {}, spec.title);
    this.tip = element("div.tip", { hidden: "" });
    this.node = element(spec.big ? "div.card.big" : "div.card", { "data-card": spec.id }, element("div.card-head", {}, this.title, this.note, this.log), this.svg, this.tip);
    this.log.addEventListener("click", () => this.page.toggleLog(spec.id));
    this.listen();
  }

  // Scales from data to pixels and what there is to draw, for the state as it is now.
  layout() {
    const { page, spec } = this, state = page.state;
    this.width = Math.max(240, this.svg.clientWidth || this.node.clientWidth - 26 || 600);
    this.height = this.width < 380 ? 205 : 245;
    this.logX = state.logX;
    this.logY = state.log.has(spec.id);
    this.lines = [];
    for (const run of page.visibleRuns()) for (const line of spec.lines(run)) this.lines.push(this.prepared(run, line));
    this.xRange = state.zoom ?? page.wholeRange();
    if (!this.xRange) return false;
    if (this.xRange[0] === this.xRange[1]) this.xRange = [this.xRange[0] - 0.5, this.xRange[1] + 0.5];
    return this.chooseRange();
  }

  prepared(run, line) {
    const { smooth, clip } = this.page.state, reach = line.kind === "curve" ? Math.round(line.y.length * smooth / 200) : 0;
    if (reach === 0) return { ...line, run, main: line.y, faint: false };
    const [low, high] = rangeOf(line.y.filter(y => y !== null), clip) ?? [];  // one outlier would lift a whole stretch
    return { ...line, run, main: smoothed(line.y.map(y => (y === null ? null : Math.min(high, Math.max(low, y)))), reach), faint: true };
  }

  chooseRange() {
    const [left, right] = this.xRange, main = [], rest = [];
    for (const line of this.lines)
      line.x.forEach((x, i) => {
        if (x < left || x > right || (this.logX && x <= 0)) return;
        const y = line.y[i];
        if (y !== null && y !== undefined && (!this.logY || y > 0)) (line.kind === "check" ? rest : main).push(y);
      });
    const clip = this.page.state.clip, ranges = [rangeOf(main, clip), rangeOf(rest, clip)].filter(r => r);
    if (ranges.length === 0) return false;
    let low = Math.min(...ranges.map(r => r[0])), high = Math.max(...ranges.map(r => r[1]));
    if (this.logY) {
      const pad = (high / low) ** 0.04 || 1.1;
      [low, high] = low === high ? [low / 2, high * 2] : [low / pad, high * pad];
    } else {
      if (this.spec.zero && low > 0) low = 0;
      const pad = high > low ? 0.05 * (high - low) : Math.abs(high) * 0.1 || 1;
      if (low !== 0) low -= pad;
      high += pad;
    }
    this.yRange = [low, high];
    this.above = main.filter(y => y > high).length + rest.filter(y => y > high).length;
    this.below = main.filter(y => y < low).length + rest.filter(y => y < low).length;
    return true;
  }

  draw() {
    this.log.setAttribute("aria-pressed", this.page.state.log.has(this.spec.id));
    const good = this.layout();
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.setAttribute("height", this.height);
    this.svg.setAttribute("aria-label", `${this.spec.title} against ${this.page.axis().label}. Arrow keys read values, plus and minus zoom, 0 shows all.`);
    this.empty = !good;
    if (!good) {
      this.svg.append(drawing("text", { x: this.width / 2, y: this.height / 2, class: "middle" }, "no data"));
      return;
    }
    this.frame();
    const id = `clip-${this.spec.id}`;
    const { left, top, right, bottom } = this.box;
    this.svg.append(drawing("clipPath", { id }, drawing("rect", { x: left - 4, y: top - 2, width: right - left + 8, height: bottom - top + 4 })));
    const plot = drawing("g", { "clip-path": `url(#${id})` });
    for (const pass of ["band", "faint", "main"]) for (const line of this.lines) this.drawLine(plot, line, pass);
    this.marks(plot);
    this.over = drawing("g");
    this.svg.append(plot, this.over);
    this.drawCursor();
  }

  frame() {
    const unit = this.spec.unit, axis = this.page.axis();
    const yTicks = this.logY ? logTicks(...this.yRange, 5) : linearTicks(...this.yRange, 5, unit);
    const yLabels = tickLabels(yTicks, unit);
    const left = Math.max(34, 7 * Math.max(...yLabels.map(l => l.length)) + 12);
    this.box = { left, right: this.width - 12, top: 10, bottom: this.height - 34 };
    const { right, top, bottom } = this.box;
    const wished = Math.max(2, Math.floor((right - left) / 85));
    const xLow = this.logX ? Math.max(this.xRange[0], this.xRange[1] * 1e-9) : this.xRange[0];
    const xTicks = this.logX ? logTicks(xLow, this.xRange[1], wished) : linearTicks(...this.xRange, wished, axis.unit);
    const xLabels = tickLabels(xTicks, axis.unit);
    yTicks.forEach((tick, i) => {
      const y = Math.round(this.yOf(tick)) + 0.5;
      if (y < top - 2 || y > bottom + 2) return;
      this.svg.append(drawing("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }),
        drawing("text", { class: "end", x: left - 6, y: y + 4 }, yLabels[i]));
    });
    let last = -100;
    xTicks.forEach((tick, i) => {
      const x = this.xOf(tick), half = 3.4 * xLabels[i].length;
      this.svg.append(drawing("line", { class: "axis", x1: Math.round(x) + 0.5, x2: Math.round(x) + 0.5, y1: bottom, y2: bottom + 4 }));
      const at = Math.min(x, this.width - half - 1);
      if (at - half < last + 6) return;
      last = at + half;
      this.svg.append(drawing("text", { class: "middle", x: at, y: bottom + 16 }, xLabels[i]));
    });
    this.svg.append(drawing("line", { class: "axis", x1: left, x2: right, y1: bottom + 0.5, y2: bottom + 0.5 }),
      drawing("text", { class: "end", x: right, y: this.height - 4 }, axis.label));
    const beyond = [this.above ? `▲ ${this.above} above` : "", this.below ? `▼ ${this.below} below` : ""].filter(t => t).join("  ");
    if (beyond) this.svg.append(drawing("text", { class: "beyond", x: left, y: this.height - 4 }, `${beyond} this scale`));
  }

  xOf(x) { return this.scaleOf(x, this.xRange, this.logX, this.box.left, this.box.right); }
  yOf(y) { return this.scaleOf(y, this.yRange, this.logY, this.box.bottom, this.box.top); }
  scaleOf(value, [low, high], log, from, to) {
    if (log) {
      const least = low > 0 ? low : high * 1e-9;
      return from + (to - from) * Math.log(Math.max(value, least * 1e-3) / least) / Math.log(high / least);
    }
    return from + (to - from) * (value - low) / (high - low);
  }
  xAt(pixel) {
    const share = Math.min(1, Math.max(0, (pixel - this.box.left) / (this.box.right - this.box.left)));
    const [low, high] = this.xRange;
    if (!this.logX) return low + share * (high - low);
    const least = low > 0 ? low : high * 1e-9;
    return least * (high / least) ** share;
  }

  // The path through all known values, cut at gaps; a value between two gaps is a point.
  pathOf(xs, ys) {
    let path = "", pen = false;
    const points = [];
    for (let i = 0; i < xs.length; i++) {
      const y = ys[i];
      if (y === null || y === undefined || (this.logY && y <= 0) || (this.logX && xs[i] <= 0)) { pen = false; continue; }
      const next = i + 1 < xs.length && ys[i + 1] !== null;
      const px = this.xOf(xs[i]).toFixed(1), py = Math.max(-9e3, Math.min(9e3, this.yOf(y))).toFixed(1);
      if (!pen && !next) points.push([px, py]);
      else path += `${pen ? "L" : "M"}${px} ${py}`;
      pen = true;
    }
    return { path, points };
  }

  drawLine(plot, line, pass) {
    const color = colorOf(line.run);
    const put = (xs, ys, cls) => {
      const { path, points } = this.pathOf(xs, ys);
      if (path) plot.append(drawing("path", { class: `${cls} ${color}`, d: path }));
      for (const [x, y] of points) plot.append(drawing("circle", { class: `point ${color}`, cx: x, cy: y, r: 2 }));
    };
    if (pass === "band" && line.low) {
      const up = this.pathOf(line.x, line.high).path, down = this.pathOf([...line.x].reverse(), [...line.low].reverse()).path;
      if (up && down && up.lastIndexOf("M") === 0 && down.lastIndexOf("M") === 0)
        plot.append(drawing("path", { class: `band ${color}`, d: `${up}L${down.slice(1)}Z` }));
    }
    if (pass === "faint" && line.faint) put(line.x, line.y, "faint");
    if (pass !== "main") return;
    if (line.kind !== "check") return put(line.x, line.main, `curve ${dashOf(line.run)}`);
    put(line.x, line.y, "check");
    const n = line.x.length, spread = n > 1 ? (this.xOf(line.x[n - 1]) - this.xOf(line.x[0])) / (n - 1) : Infinity;
    if (spread < 9) return;  // circles that touch would hide the curves
    line.x.forEach((x, i) => {
      if (line.y[i] === null || (this.logX && x <= 0)) return;
      plot.append(drawing("circle", { class: `dot ${color}`, cx: this.xOf(x).toFixed(1), cy: this.yOf(line.y[i]).toFixed(1), r: 2.8 }));
    });
  }

  // Resumes stand as triangles on the axis, spikes and the like as diamonds; a cross ends a run that diverged.
  marks(plot) {
    for (const run of this.page.visibleRuns()) {
      for (const step of this.page.runs[run].resumes) {
        const x = this.xOf(this.page.xOfStep(run, step)), y = this.box.bottom;
        plot.append(drawing("path", { class: `resume ${colorOf(run)}`, d: `M${x} ${y - 9}l5 9h-10z` },
          drawing("title", {}, `${this.page.runs[run].name}: resumed from step ${step}`)));
      }
      for (const mark of this.page.runs[run].marks) {
        const x = this.xOf(this.page.xOfStep(run, mark.step)), y = this.box.bottom;
        plot.append(drawing("path", { class: `mark ${colorOf(run)}`, d: `M${x} ${y - 10}l4 5l-4 5l-4 -5z` },
          drawing("title", {}, `${this.page.runs[run].name}, step ${mark.step}: ${mark.text}`)));
      }
    }
    if (!this.spec.cross) return;
    for (const line of this.lines) {
      if (line.kind === "check" || !this.page.runs[line.run].diverged) continue;
      let i = line.main.length - 1;
      while (i >= 0 && (line.main[i] === null || (this.logY && line.main[i] <= 0))) i--;
      if (i < 0) continue;
      const y = Math.min(this.box.bottom - 6, Math.max(this.box.top + 6, this.yOf(line.main[i])));
      plot.append(drawing("path", { class: "cross", d: `M${this.xOf(line.x[i]) - 5} ${y - 5}l10 10m0 -10l-10 10` },
        drawing("title", {}, `${this.page.runs[line.run].name} diverged`)));
    }
  }

  // Values of all lines nearest to the cursor.
  readings() {
    const at = this.page.state.at;
    return this.lines.map(line => ({ line, i: nearest(line.x, at) })).filter(({ line, i }) => {
      if (i < 0 || at > line.x[line.x.length - 1] * 1.02 + 1) return false;
      return line.y[i] !== null && line.y[i] !== undefined;
    });
  }

  drawCursor() {
    if (this.empty || !this.over) return;
    this.over.replaceChildren();
    const { at, show } = this.page.state;
    const inside = at !== null && at >= this.xRange[0] && at <= this.xRange[1];
    this.tip.hidden = !(inside && show === this.spec.id);
    if (!inside) return;
    const x = this.xOf(at).toFixed(1);
    this.over.append(drawing("line", { class: "cursor", x1: x, x2: x, y1: this.box.top, y2: this.box.bottom }));
    const readings = this.readings();
    for (const { line, i } of readings) {
      const value = line.main[i] ?? line.y[i];
      if ((this.logY && value <= 0) || value < this.yRange[0] || value > this.yRange[1]) continue;
      this.over.append(drawing("circle", { class: `point ${colorOf(line.run)}`, cx: this.xOf(line.x[i]).toFixed(1), cy: this.yOf(value).toFixed(1), r: 3.4 }));
    }
    if (!this.tip.hidden) this.fillTip(readings, Number(x));
  }

  // A row for each run: the value of the step, the mean over its neighbours, the last validation.
  fillTip(readings, x) {
    const axis = this.page.axis(), unit = this.spec.unit, first = readings.find(({ line }) => line.kind !== "check") ?? readings[0];
    const where = `${axis.label} ${shown(first ? first.line.x[first.i] : this.page.state.at, axis.unit)}`;
    const cells = new Map(), heads = new Set();
    for (const { line, i } of readings) {
      const row = cells.get(line.run) ?? cells.set(line.run, {}).get(line.run), name = line.label ?? "";
      row[name] = shown(line.y[i], unit);
      heads.add(name);
      if (line.faint) { row.mean = shown(line.main[i], unit); heads.add("mean"); }
    }
    const order = ["", "training", "mean", "validation"].filter(name => heads.has(name)), head = order.length > 1;
    const rows = [...cells].map(([run, row]) => element("tr", {}, element("td", {}, swatch(run)), ...(this.page.runs.length > 1 ? [element("th", {}, this.page.runs[run].name)] : []),
      ...order.map(name => element("td", {}, row[name] ?? ""))));
    const titles = element("tr.hint", {}, element("td"), ...(this.page.runs.length > 1 ? [element("td")] : []), ...order.map(name => element("td", {}, name || "value")));
    this.tip.replaceChildren(element("div", {}, where), element("table", {}, ...(head ? [titles] : []), ...rows));
    const scale = (this.svg.clientWidth || this.width) / this.width, card = this.node.clientWidth;
    const pixel = this.svg.offsetLeft + x * scale || x * scale + 13;
    const width = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(4, pixel + 14 + width < card ? pixel + 14 : pixel - width - 14)}px`;
    this.tip.style.top = "2.6rem";
    this.page.say(`${where}: ${rows.map(row => [...row.children].map(cell => cell.textContent).join(" ").trim()).join("; ")}`);
  }

  listen() {
    let from = null;
    const pixel = event => {
      const frame = this.svg.getBoundingClientRect();
      return (event.clientX - frame.left) * this.width / frame.width;
    };
    this.svg.addEventListener("pointerdown", event => {
      if (this.empty || event.button !== 0) return;
      from = pixel(event);
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", event => {
      if (this.empty) return;
      const now = pixel(event);
      this.page.setCursor(this.xAt(now), this.spec.id);
      if (from !== null && Math.abs(now - from) > 5) {
        const { left, right, top, bottom } = this.box, a = Math.max(left, Math.min(from, now)), b = Math.min(right, Math.max(from, now));
        this.over.append(drawing("rect", { class: "brush", x: a, y: top, width: Math.max(0, b - a), height: bottom - top }));
      }
    });
    this.svg.addEventListener("pointerup", event => {
      if (from === null) return;
      const [a, b] = [this.xAt(Math.min(from, pixel(event))), this.xAt(Math.max(from, pixel(event)))];
      const far = Math.abs(pixel(event) - from) > 8;
      from = null;
      if (far && b > a) this.page.setZoom([a, b]);
    });
    this.svg.addEventListener("pointercancel", () => { from = null; });
    this.svg.addEventListener("pointerleave", () => { if (from === null) this.page.setCursor(null, null); });
    this.svg.addEventListener("dblclick", () => this.page.setZoom(null));
    this.svg.addEventListener("blur", () => this.page.setCursor(null, null));
    this.svg.addEventListener("keydown", event => this.key(event));
  }

  key(event) {
    if (this.empty) return;
    const [low, high] = this.xRange, at = this.page.state.at ?? (low + high) / 2;
    const far = event.shiftKey ? 10 : 1;
    const pixels = { ArrowLeft: -3 * far, ArrowRight: 3 * far }[event.key];
    const about = share => [at - share * (at - low), at + share * (high - at)];
    if (pixels) this.page.setCursor(this.xAt(this.xOf(at) + pixels), this.spec.id);
    else if (event.key === "+" || event.key === "=") this.page.setZoom(about(0.5));
    else if (event.key === "-") this.page.setZoom(this.page.withinAll(about(2)));
    else if (event.key === "0" || event.key === "Escape") this.page.setZoom(null);
    else return;
    event.preventDefault();
  }
}
