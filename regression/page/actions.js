// What a reader does with the page, and what it then shows: run in the page by test_page.py, which reads the results.
"use strict";

const results = {};
const chartOf = id => page.parts.map(part => part.chart ?? part).find(chart => chart.spec.id === id);
const one = selector => document.querySelector(selector);
const every = selector => [...document.querySelectorAll(selector)];

function pointer(type, chart, x) {
  const frame = chart.svg.getBoundingClientRect(), scale = frame.width / chart.width;
  chart.svg.dispatchEvent(new PointerEvent(type, { pointerId: 1, button: 0, bubbles: true, clientX: frame.left + x * scale, clientY: frame.top + 60 }));
}
const key = (chart, name) => chart.svg.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
const curves = id => every(`[data-card="${id}"] .curve`).length;

function act() {
  const loss = chartOf("loss");
  results.curves = curves("loss");
  results.faint = every('[data-card="loss"] .faint').length;
  results.checks = every('[data-card="loss"] .check').length;
  results.checkDash = getComputedStyle(one('[data-card="loss"] .check')).strokeDasharray;
  results.lineStyles = new Set(every('[data-card="loss"] .curve').map(c => `${getComputedStyle(c).stroke} ${getComputedStyle(c).strokeDasharray}`)).size;
  results.dashes = new Set(every('[data-card="loss"] .curve').map(c => getComputedStyle(c).strokeDasharray)).size;
  results.legends = every(".legend").length;
  results.crosses = every('[data-card="loss"] .cross').length;
  results.resumes = every('[data-card="loss"] .resume').length;
  results.cards = every("[data-card]").map(card => card.dataset.card);
  results.curvesOfStages = curves("preconditioner_age_mean_stage");
  results.stacks = every(".stack").length;
  results.stackSums = every(".stack").map(stack => [...stack.getAttribute("aria-label").matchAll(/\((\d+) %\)/g)].reduce((sum, [, percent]) => sum + Number(percent), 0));
  results.stackOfFirst = every(".stack")[0].getAttribute("aria-label");
  results.stackRows = every(".stack-row").map(row => row.getBoundingClientRect()).reduce((all, box) => Math.max(all, box.bottom), 0) - every(".stack-row")[0].getBoundingClientRect().top;
  results.touching = every('[data-card="loss"] .dot').map(dot => [dot.getAttribute("class"), Number(dot.getAttribute("cx"))])
    .filter(([name, x], i, all) => i > 0 && all[i - 1][0] === name && x - all[i - 1][1] > 0 && x - all[i - 1][1] < 5).length;
  results.loads = every(".loads:not(.stages)").map(svg => [svg.querySelectorAll(".measured").length, svg.querySelectorAll(".planned").length]);
  results.stages = every(".stages").map(svg => svg.querySelectorAll(".measured").length);
  results.tallest = Math.max(...every(".card svg").map(svg => svg.getBoundingClientRect().height));
  results.updates = every(".updates").map(table => [table.querySelectorAll("tbody tr").length, table.querySelectorAll("th.layer").length, table.querySelectorAll(".heat").length]);
  results.updateTitles = [...one(".updates").querySelectorAll(".heat")].map(cell => cell.title);
  results.updateShades = [...one(".updates").querySelectorAll(".heat i")].map(shade => Number(getComputedStyle(shade).opacity));

  pointer("pointermove", loss, loss.xOf(200));
  results.tip = loss.tip.hidden ? "" : loss.tip.textContent;
  results.cursors = every(".cursor").length;
  pointer("pointerleave", loss, 0);
  results.tipAfter = loss.tip.hidden;

  pointer("pointerdown", loss, loss.xOf(100));
  pointer("pointermove", loss, loss.xOf(900));
  results.brush = every(".brush").length;
  pointer("pointerup", loss, loss.xOf(900));
  results.zoom = page.state.zoom.map(Math.round);
  results.zoomOfOthers = chartOf("lr").xRange.map(Math.round);
  results.zoomAddress = location.hash;
  loss.svg.dispatchEvent(new MouseEvent("dblclick", { bubbles: true }));
  results.zoomAfter = page.state.zoom;

  page.setCursor(6000, "loss");
  key(loss, "+");
  results.keyZoom = page.state.zoom.map(Math.round);
  const before = page.state.at;
  key(loss, "ArrowRight");
  results.keyMoved = page.state.at > before;
  key(loss, "0");
  results.keyZoomAfter = page.state.zoom;

  one('[data-chip="4"]').click();
  results.hiddenCurves = curves("loss");
  results.hiddenStacks = every(".stack").length;
  results.hiddenRow = one('tr[data-run="4"]').classList.contains("off");
  results.hiddenPressed = one('[data-chip="4"]').getAttribute("aria-pressed");
  results.rangeWithout = loss.xRange[1];
  one('[data-chip="all"]').click();
  results.shownAgain = curves("loss");

  const ticks = () => every('[data-card="grad_norm"] .chart text.end').map(t => t.textContent);
  const linear = ticks(), top = chartOf("grad_norm").yRange[1];
  one('[data-card="grad_norm"] .card-head button').click();
  results.logDiffers = linear.join() !== ticks().join() && chartOf("grad_norm").logY;
  results.logLow = chartOf("grad_norm").yRange[0] > 0;
  one('[data-card="grad_norm"] .card-head button').click();
  page.clip.click();
  results.clipped = [top, chartOf("grad_norm").yRange[1]];
  page.clip.click();
  page.logX.click();
  results.logX = Math.round(loss.xAt((loss.box.left + loss.box.right) / 2));
  page.logX.click();
  one('[data-axis="time"]').click();
  results.timeAxis = [loss.svg.getAttribute("aria-label"), Math.round(loss.xRange[1])];
  one('[data-axis="step"]').click();

  const second = every(".tensor-list tbody button")[1];
  second.click();
  results.tensor = [page.state.tensor, one('[data-card="tensors"] .note').textContent, curves("tensors")];
  every(".tensor-list thead button")[0].click();
  results.tensorSorted = every(".tensor-list tbody td:nth-child(2)").map(td => Number(td.textContent));
  page.state.hidden = new Set([1, 2]);
  page.writeAddress();
  results.address = location.hash;
  page.state = { ...page.state, hidden: new Set() };
  page.readAddress();
  results.readBack = [...page.state.hidden];
  page.state.hidden = new Set();
  page.draw();
  results.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  results.width = innerWidth;
}

addEventListener("error", event => { results.error = `${event.message} ${event.lineno}`; });
try { act(); } catch (error) { results.error = error.stack; }
document.body.append(element("pre", { id: "results" }, JSON.stringify(results)));
