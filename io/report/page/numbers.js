// Numbers: how they are written, where ticks stand, what a curve shows of them. Nothing here touches the page.
"use strict";

function trimmed(value, digits) {
  return String(Number(value.toFixed(digits)));
}

// unit: "", "count", "seconds", "bytes" or "share". As in a read-out: about four digits.
function shown(value, unit) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  const size = Math.abs(value);
  if (unit === "share") return `${trimmed(100 * value, 1)} %`;
  if (unit === "bytes") return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"], " ");
  if (unit === "seconds") return duration(value);
  if (unit === "count" && size < 1e6) return value.toLocaleString("en", { maximumFractionDigits: 1 });
  if (size === 0) return "0";
  if (size < 1e-3) return value.toExponential(3).replace(/\.?0+e/, "e");
  if (size >= 1e5) return scaled(value, 1000, ["", "k", "M", "G", "T", "P"], "");
  return String(Number(value.toPrecision(5)));
}

function scaled(value, base, suffixes, gap) {
  let power = 0;
  while (power + 1 < suffixes.length && Math.abs(value) >= base * 0.9999) { value /= base; power++; }
  return String(Number(value.toPrecision(4))) + gap + suffixes[power];
}

function duration(value) {
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${Number((value * 1e6).toPrecision(3))} µs`;
  if (size < 1) return `${Number((value * 1e3).toPrecision(3))} ms`;
  if (size < 120) return `${Number(value.toPrecision(3))} s`;
  if (size < 7200) return `${Number((value / 60).toPrecision(3))} min`;
  return `${Number((value / 3600).toPrecision(4))} h`;
}

// Whole percentages of parts that add up to 100: rounded down, and what is missing goes to those that lost most.
function percentages(parts) {
  const sum = parts.reduce((a, b) => a + b, 0), exact = parts.map(part => (sum > 0 ? 100 * part / sum : 0));
  const whole = exact.map(Math.floor);
  const lost = exact.map((_, p) => p).sort((a, b) => exact[b] - whole[b] - (exact[a] - whole[a]));
  const missing = sum > 0 ? 100 - whole.reduce((a, b) => a + b, 0) : 0;
  for (const p of lost.slice(0, missing)) whole[p]++;
  return whole;
}

// Round numbers from low to high, about `wished` of them. Seconds go by 15 and 30 min, bytes by powers of two.
function linearTicks(low, high, wished, unit) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, wished);
  let step = 0;
  if (unit === "seconds" && raw > 20) {
    const nice = [30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
    step = nice.find(s => s >= raw) ?? 86400 * Math.ceil(raw / 86400);
  } else if (unit === "bytes") {
    step = 2 ** Math.round(Math.log2(raw));
  } else {
    const power = 10 ** Math.floor(Math.log10(raw));
    step = power * [1, 2, 5, 10].find(s => s * power >= raw * 0.75);
    if (unit === "count") step = Math.max(1, step);
  }
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

// Powers of ten; 2 and 5 times them where there are few.
function logTicks(low, high, wished) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const factors = last - first <= 1 ? [1, 2, 3, 5, 7] : last - first <= 3 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil((last - first) / Math.max(2, wished)));
  const ticks = [];
  for (let e = first; e <= last; e += every)
    for (const factor of factors) {
      const tick = factor * 10 ** e;
      if (tick >= low * 0.9999 && tick <= high * 1.0001) ticks.push(tick);
    }
  return ticks.length >= 2 ? ticks : linearTicks(low, high, wished, "");
}

// Labels of ticks share the digits that tell them apart.
function tickLabels(ticks, unit) {
  const most = Math.max(...ticks.map(Math.abs), 0);
  if (unit === "share") return ticks.map(t => `${trimmed(100 * t, 2)} %`);
  if (unit === "bytes" || unit === "seconds") return ticks.map(t => (t === 0 ? "0" : shown(t, unit)));
  if (most >= 1e4) return ticks.map(t => (t === 0 ? "0" : scaled(t, 1000, ["", "k", "M", "G", "T", "P"], "")));
  if (most > 0 && most < 1e-2) return ticks.map(t => (t === 0 ? "0" : Number(t.toPrecision(6)).toExponential().replace("e", "e")));
  return ticks.map(t => String(Number(t.toPrecision(6))));
}

// Means over up to `reach` values on either side, neighbours counting most (two passes of half the reach); near the ends
// over fewer, at the start as many on both sides, so that its slope is not flattened. A gap stays a gap.
function smoothed(values, reach) {
  if (reach < 1) return values;
  const half = Math.max(1, Math.round(reach / 2));
  return runningMean(runningMean(values, half), half);
}

function runningMean(values, reach) {
  const sums = [0], counts = [0];
  values.forEach((v, i) => {
    sums.push(sums[i] + (v === null ? 0 : v));
    counts.push(counts[i] + (v === null ? 0 : 1));
  });
  return values.map((v, i) => {
    if (v === null) return null;
    const right = Math.min(reach, i, values.length - 1 - i);
    const left = i >= reach ? Math.max(right, Math.ceil(reach / 2)) : right;  // the last values do not stand alone
    return (sums[i + right + 1] - sums[i - left]) / (counts[i + right + 1] - counts[i - left]);
  });
}

// The range of values. With `clipped`, values that lie further from their 1st to 99th percentile than half the width of
// that are outliers, and the range ends at the percentile.
function rangeOf(values, clipped) {
  if (values.length === 0) return null;
  const sorted = Float64Array.from(values).sort(), n = sorted.length;
  const low = sorted[0], high = sorted[n - 1];
  if (!clipped || n < 40) return [low, high];
  const cut = Math.ceil(n * 0.01), first = sorted[cut], last = sorted[n - 1 - cut], far = 0.5 * (last - first);
  return [low < first - far ? first : low, high > last + far ? last : high];
}

// Index of the value nearest to x in an ascending list, -1 in an empty one.
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  if (high < 0) return -1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

// The value of the piecewise linear curve through (from, to) at x; beyond its ends the value there.
function interpolated(from, to, x) {
  const n = from.length;
  if (n === 0) return null;
  if (x <= from[0]) return to[0];
  if (x >= from[n - 1]) return to[n - 1];
  const i = Math.max(1, from.findIndex(f => f >= x));
  const share = (x - from[i - 1]) / (from[i] - from[i - 1] || 1);
  return to[i - 1] + share * (to[i] - to[i - 1]);
}
