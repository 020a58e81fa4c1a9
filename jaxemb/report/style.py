"""Style sheet and script of the report, as they stand in the page.

The six colours of the map keep apart, on light and on dark ground, for people
with normal sight and for those with deuteranopia, protanopia or tritanopia
(simulated after Machado, Oliveira and Fernandes 2009: at least 14 units of
100 times the distance in Oklab), at a contrast of 3 or more to the ground.
Text has a contrast of 4.5 or more. The script only adds to a page that is
complete without it.
"""

CSS = """
:root {
  color-scheme: light dark;
  --ground: #fff; --raised: #f5f7f9; --ink: #191d21; --soft: #59636e;
  --rule: #dce1e6; --accent: #0b5cad; --tint: #d8e7f6; --warn: #8f3b00;
  --c0: #0f55c2; --c1: #d47a08; --c2: #13a397;
  --c3: #b61b06; --c4: #ab73f6; --c5: #6e2b6b;
}
@media (prefers-color-scheme: dark) { :root {
  --ground: #14171a; --raised: #1d2125; --ink: #e7eaed; --soft: #a1abb5;
  --rule: #30363d; --accent: #79b4f2; --tint: #1f3d5c; --warn: #f2a65e;
  --c0: #6881fd; --c1: #c8bf0e; --c2: #19cdf1;
  --c3: #dc7982; --c4: #a7359d; --c5: #66832a;
} }
@media print { :root {
  color-scheme: light;
  --ground: #fff; --raised: #fff; --ink: #000; --soft: #444;
  --rule: #bbb; --accent: #0b5cad; --tint: #d8e7f6; --warn: #8f3b00;
  --c0: #0f55c2; --c1: #d47a08; --c2: #13a397;
  --c3: #b61b06; --c4: #ab73f6; --c5: #6e2b6b;
} }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; max-width: 1160px; padding: 0 clamp(16px, 4vw, 40px) 48px;
  background: var(--ground); color: var(--ink);
  font: 15px/1.5 "Segoe UI", -apple-system, BlinkMacSystemFont, Roboto,
    "Helvetica Neue", "Noto Sans", "Liberation Sans", Arial, sans-serif;
  overflow-wrap: anywhere;
}
header { padding: 40px 0 8px; }
h1, h2, h3 { line-height: 1.25; font-weight: 600; margin: 0; }
h1 { font-size: clamp(24px, 4vw, 32px); letter-spacing: -.01em; }
h2 { font-size: 21px; margin: 0 0 4px; }
h3 { font-size: 15px; margin: 0 0 8px; }
p { margin: 0 0 12px; max-width: 72ch; }
a { color: var(--accent); }
.brand { color: var(--soft); margin: 0 0 6px; font-size: 13px; }
.lead { font-size: 17px; margin-top: 10px; }
.note, figcaption, caption, small { color: var(--soft); font-size: 13px; }
.warning {
  border-left: 3px solid var(--warn); background: var(--raised);
  padding: 8px 14px; margin: 12px 0; max-width: none;
}
.warning b { color: var(--warn); }
nav { margin: 16px 0 0; font-size: 14px; }
nav a { margin-right: 18px; text-decoration: none; white-space: nowrap; }
nav a:hover { text-decoration: underline; }
section { border-top: 1px solid var(--rule); margin-top: 36px; }
section > h2 { padding-top: 22px; }
h2 + p { color: var(--soft); }
dl, dd { margin: 0; }
.tiles {
  display: grid; gap: 1px; margin: 22px 0 0;
  grid-template-columns: repeat(auto-fit, minmax(150px, 1fr));
  border: 1px solid var(--rule); border-radius: 6px; overflow: hidden;
}
.tiles > div { box-shadow: 0 0 0 1px var(--rule); padding: 14px 16px; }
.tiles dt { color: var(--soft); font-size: 13px; }
.tiles dd { font-size: 24px; font-weight: 600; letter-spacing: -.01em; }
.tiles small { display: block; font-weight: 400; letter-spacing: 0; }
.columns {
  display: grid; gap: 24px 40px; align-items: start; margin: 18px 0;
  grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr));
}
.columns > * { min-width: 0; }
figure { margin: 0; }
svg { display: block; width: 100%; height: auto; }
svg text {
  font: 11px "Segoe UI", -apple-system, BlinkMacSystemFont, Roboto,
    "Helvetica Neue", "Noto Sans", "Liberation Sans", Arial, sans-serif;
  fill: var(--soft); unicode-bidi: plaintext;
}
.curves svg { max-width: 520px; }
.grid { stroke: var(--rule); fill: none; }
.axis, .tick { stroke: var(--soft); fill: none; }
.line {
  stroke: var(--accent); fill: none; stroke-width: 1.75;
  stroke-linejoin: round; stroke-linecap: round;
}
.dot { fill: var(--accent); }
.scroll { overflow-x: auto; max-width: 100%; margin: 0 0 18px; }
.scroll:focus-visible, summary:focus-visible, a:focus-visible, li:focus-visible
  { outline: 2px solid var(--accent); outline-offset: 2px; }
table {
  border-collapse: collapse; width: 100%; font-size: 14px;
  overflow-wrap: break-word;
}
caption { text-align: left; padding: 0 0 6px; }
th, td {
  text-align: left; vertical-align: top; padding: 5px 14px 5px 0;
  border-bottom: 1px solid var(--rule); font-weight: 400;
}
thead th { color: var(--soft); font-size: 13px; white-space: nowrap; }
.n { text-align: right; white-space: nowrap; }
th:last-child, td:last-child { padding-right: 2px; }
.n, .tiles dd, dd { font-variant-numeric: tabular-nums; }
tbody th { min-width: 8.5em; }
tr.total > * { font-weight: 600; }
tr.sub > th { padding-left: 16px; }
.bar::after {
  content: ""; display: inline-block; width: 64px; height: .62em;
  margin-left: 8px; border-radius: 1px;
  background: linear-gradient(var(--accent), var(--accent)) 0 / var(--v) 100%
    no-repeat var(--tint);
}
dl.rows > div {
  display: flex; justify-content: space-between; gap: 16px;
  padding: 4px 0; border-bottom: 1px solid var(--rule); font-size: 14px;
}
dl.rows dt { color: var(--soft); flex: 1 1 0; min-width: 0; }
dl.rows dd { text-align: right; flex: 0 0 auto; max-width: 70%; }
dl.near {
  display: grid; column-gap: 40px; margin: 16px 0 0;
  grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr));
}
dl.near > div {
  display: grid; grid-template-columns: minmax(96px, 24%) 1fr; gap: 12px;
  padding: 7px 0; border-bottom: 1px solid var(--rule); font-size: 14px;
}
dl.near dt { font-weight: 600; }
dl.near dt small { display: block; font-weight: 400; }
dl.near dt small span { display: inline-block; margin-right: 6px; }
dl.near dd span { margin-right: 10px; display: inline-block; }
details { margin: 8px 0 16px; }
summary { cursor: pointer; color: var(--accent); font-size: 14px; }
details > :not(summary) { margin-top: 10px; }
.map { position: relative; margin-top: 14px; }
.map > .frame { border: 1px solid var(--rule); border-radius: 6px; }
.map svg text { font-size: 10.5px; }
.map svg text.group {
  font-size: 12.5px; font-weight: 600; fill: var(--ink);
  stroke: var(--ground); stroke-width: 3.5px; stroke-linejoin: round;
  paint-order: stroke; pointer-events: none;
}
.narrow { display: none; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); }
.c3 { fill: var(--c3); } .c4 { fill: var(--c4); } .c5 { fill: var(--c5); }
.p path { stroke: var(--ground); stroke-width: 1; }
ul.legend {
  list-style: none; margin: 12px 0 0; padding: 0; font-size: 13px;
  display: flex; flex-wrap: wrap; gap: 4px 18px;
}
.mark { display: inline-block; width: 12px; height: 12px; margin-right: 5px; }
.faded .p, .faded .group { opacity: .1; }
.faded .p.on { opacity: 1; }
.scripted .legend li { cursor: pointer; }
.scripted .legend li[aria-pressed=true] {
  color: var(--accent); text-decoration: underline;
}
.find { margin: 0 0 10px; font-size: 14px; }
.find input {
  font: inherit; color: inherit; background: var(--ground); width: 200px;
  border: 1px solid var(--soft); border-radius: 4px; padding: 4px 8px;
  margin-left: 6px;
}
.tip {
  position: absolute; pointer-events: none; background: var(--ink);
  color: var(--ground); font-size: 13px; padding: 3px 8px; border-radius: 4px;
  max-width: 240px; z-index: 1;
}
footer { margin-top: 40px; color: var(--soft); font-size: 13px; }
@media (max-width: 700px) {
  header { padding-top: 24px; }
  .wide { display: none; }
  .narrow { display: block; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .tiles > div { padding: 10px 12px; }
  .bar::after { display: none; }
  .tiles dd { font-size: 20px; }
}
@media print {
  body { max-width: none; font-size: 11pt; padding: 0; }
  nav, .find, .tip { display: none; }
  .bar::after { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .scroll { overflow: visible; }
  figure, tr, dl > div, h2, h3 { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""

JS = """
'use strict';
for (const map of document.querySelectorAll('.map')) {
  map.classList.add('scripted');
  const marks = [...map.querySelectorAll('.p')];
  const items = [...map.querySelectorAll('.legend li')];
  for (const mark of marks) {
    const title = mark.querySelector('title');
    mark.dataset.tip = title.textContent;
    title.remove();
  }
  const choose = (accept) => {
    map.classList.toggle('faded', accept !== null);
    for (const mark of marks) {
      mark.classList.toggle('on', accept !== null && accept(mark));
    }
  };
  const label = document.createElement('label');
  label.className = 'find';
  label.textContent = 'Find a word';
  label.style.display = 'block';
  const input = document.createElement('input');
  input.type = 'search';
  label.append(input);
  map.prepend(label);
  const release = () => {
    for (const item of items) item.setAttribute('aria-pressed', 'false');
  };
  input.addEventListener('input', () => {
    release();
    const start = input.value.trim().toLowerCase();
    choose(start ?
      (mark) => mark.dataset.tip.toLowerCase().startsWith(start) : null);
  });
  for (const item of items) {
    item.tabIndex = 0;
    item.setAttribute('role', 'button');
    const press = () => {
      const on = item.getAttribute('aria-pressed') !== 'true';
      release();
      input.value = '';
      item.setAttribute('aria-pressed', String(on));
      choose(on ? (mark) => mark.dataset.g === item.dataset.g : null);
    };
    item.addEventListener('click', press);
    item.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      press();
    });
  }
  release();
  const tip = document.createElement('div');
  tip.className = 'tip';
  tip.hidden = true;
  tip.setAttribute('aria-hidden', 'true');
  map.append(tip);
  map.addEventListener('pointerover', (event) => {
    const mark = event.target.closest('.p');
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.tip;
    const frame = map.getBoundingClientRect();
    const spot = mark.querySelector('path').getBoundingClientRect();
    const x = spot.left - frame.left;
    tip.style.top = `${spot.bottom - frame.top + 6}px`;
    const room = Math.max(0, frame.width - tip.offsetWidth);
    tip.style.left = `${Math.min(x, room)}px`;
  });
  map.addEventListener('pointerleave', () => { tip.hidden = true; });
}
addEventListener('beforeprint', () => {
  for (const part of document.querySelectorAll('details')) part.open = true;
});
"""
