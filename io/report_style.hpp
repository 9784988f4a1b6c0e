// The report's style sheet: light and dark by the reader's setting, eight colours that keep apart in both.
#pragma once

namespace sestina {

inline constexpr const char* kReportStyle = R"css(
:root { --back: #ffffff; --card: #fbfbfa; --ink: #1d1f21; --soft: #6a6f75; --rule: #e3e4e6; --accent: #2f6fd0;
  --c0: #2f6fd0; --c1: #d9692b; --c2: #23906a; --c3: #8c5fc4; --c4: #c8384f; --c5: #1c93a8; --c6: #99742b; --c7: #c9599c; }
@media (prefers-color-scheme: dark) {
  :root { --back: #15171a; --card: #1b1e22; --ink: #e4e6e8; --soft: #9aa1a9; --rule: #30353b; --accent: #6ea3f2;
    --c0: #6ea3f2; --c1: #f0935c; --c2: #4fc498; --c3: #b694e6; --c4: #f0768a; --c5: #52c3d6; --c6: #d0aa5e; --c7: #ea8dc4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem 1.4rem 3rem; max-width: 1440px; background: var(--back); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.35rem; font-weight: 600; margin: 0 0 .8rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .35rem .8rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
thead th { color: var(--soft); font-weight: 500; }
tbody th { font-weight: 600; }
th:first-child { text-align: left; }
.notes td { text-align: left; }
.notes td:first-child { text-align: right; }
.notes td:last-child { white-space: normal; overflow-wrap: anywhere; }
.notes th { text-align: left; }
.hint { color: var(--soft); font-size: .82rem; margin: .5rem 0 1rem; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 1rem; margin-bottom: 1.4rem; }
figure { margin: 0; padding: .8rem .9rem .4rem; background: var(--card); border: 1px solid var(--rule); border-radius: 8px; min-width: 0;
  display: flex; flex-direction: column; }
figcaption small { color: var(--soft); }
.legend { margin-bottom: auto; padding-bottom: .3rem; font-size: .82rem; color: var(--soft); }
.legend span { margin-right: 1rem; white-space: nowrap; }
.legend i, th i { display: inline-block; margin-right: .4rem; vertical-align: middle; background: currentColor; }
i.line { width: 16px; height: 3px; border-radius: 2px; }
i.dot { width: 8px; height: 8px; border-radius: 50%; }
i.area { width: 11px; height: 11px; border-radius: 2px; opacity: .8; }
svg { display: block; width: 100%; height: auto; }
svg.definitions { position: absolute; width: 0; height: 0; }
svg text { fill: var(--soft); font-size: 12px; }
.middle { text-anchor: middle; }
.end { text-anchor: end; }
.grid { stroke: var(--rule); fill: none; }
.axis { stroke: var(--soft); fill: none; }
path.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
path.faint { fill: none; stroke: currentColor; stroke-width: 1; opacity: .28; }
path.area { fill: currentColor; opacity: .8; stroke: var(--card); stroke-width: .6; }
circle.dot { fill: currentColor; stroke: var(--card); stroke-width: 1.4; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); }
input[name="axis"] { position: absolute; opacity: 0; }
nav { margin: 0 0 .8rem; color: var(--soft); font-size: .9rem; }
nav label { margin-left: .4rem; padding: .2rem .7rem; border: 1px solid var(--rule); border-radius: 99px; cursor: pointer; }
#axis-step:checked ~ nav label[for="axis-step"], #axis-tokens:checked ~ nav label[for="axis-tokens"],
#axis-time:checked ~ nav label[for="axis-time"] { border-color: var(--accent); color: var(--accent); }
input:focus-visible ~ nav { outline: 2px solid var(--accent); outline-offset: 4px; border-radius: 6px; }
.by-step, .by-tokens, .by-time { display: none; }
#axis-step:checked ~ main .by-step, #axis-tokens:checked ~ main .by-tokens, #axis-time:checked ~ main .by-time { display: block; }
details { margin: .6rem 0; }
summary { cursor: pointer; }
pre { overflow-x: auto; padding: .8rem; background: var(--card); border: 1px solid var(--rule); border-radius: 8px; font-size: .82rem; }
@media print { nav { display: none; } figure { break-inside: avoid; } }
)css";

}  // namespace sestina
