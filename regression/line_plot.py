"""A line plot as SVG, without any library."""

import math

COLORS = ("#000000", "#d62728", "#1f77b4", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22",
          "#7f7f7f")
PLOT, HEIGHT = 488, 430  # pixels
LEFT, TOP, BOTTOM = 62, 34, 48  # margins; on the right is the legend, as wide as its longest label
SIGN = 6.4  # width of a letter of a label, on the safe side


def ticks(low, high, wanted=6):
    """Round numbers between low and high."""
    raw = (high - low) / wanted
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")


def write_svg(path, curves, title, x_label, y_label):
    """curves: (label, [(x, y)], number of a colour, SVG dash pattern or "") each."""
    xs = [x for _, points, *_ in curves for x, _ in points]
    ys = [y for _, points, *_ in curves for _, y in points]
    x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)
    x1, y1 = (x1 if x1 > x0 else x0 + 1), (y1 if y1 > y0 else y0 + 1)
    right, bottom = LEFT + PLOT, HEIGHT - BOTTOM
    width = round(right + 42 + SIGN * max(len(label) for label, *_ in curves))

    def place(x, y):
        return LEFT + (x - x0) / (x1 - x0) * (right - LEFT), bottom - (y - y0) / (y1 - y0) * (bottom - TOP)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif"',
           'font-size="12">',
           f'<rect width="{width}" height="{HEIGHT}" fill="#fff"/>',
           f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>']
    for x in ticks(x0, x1):
        px, _ = place(x, y0)
        out.append(f'<path d="M{px:.1f} {TOP}V{bottom}" stroke="#e4e4e4"/>'
                   f'<text x="{px:.1f}" y="{bottom + 16}" text-anchor="middle">{x:g}</text>')
    for y in ticks(y0, y1):
        _, py = place(x0, y)
        out.append(f'<path d="M{LEFT} {py:.1f}H{right}" stroke="#e4e4e4"/>'
                   f'<text x="{LEFT - 6}" y="{py + 4:.1f}" text-anchor="end">{y:.4g}</text>')
    out.append(f'<rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}" fill="none" stroke="#666"/>')
    out.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>')
    out.append(f'<text transform="translate(16 {(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
               f'{escape(y_label)}</text>')
    for i, (label, points, number, pattern) in enumerate(curves):
        pattern = pattern or ("" if number < len(COLORS) else "7 2")  # a colour that is there a second time
        color, dash = COLORS[number % len(COLORS)], f' stroke-dasharray="{pattern}"' if pattern else ""
        line = "M" + "L".join("{:.1f} {:.1f}".format(*place(x, y)) for x, y in points)
        legend = TOP + 10 + 17 * i
        out.append(f'<path d="{line}" fill="none" stroke="{color}" stroke-width="1.5"{dash}/>')
        out.append(f'<path d="M{right + 10} {legend}h22" stroke="{color}" stroke-width="2"{dash}/>'
                   f'<text x="{right + 37}" y="{legend + 4}" font-size="11">{escape(label)}</text>')
    path.write_text("\n".join(out) + "\n</svg>\n")
