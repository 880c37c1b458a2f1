"""The style sheet of the report's pages. No fonts are fetched, and colours have a contrast of 4.5 with their ground."""

STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1c2330; --faint: #5b6472; --rule: #dfe3ea; --soft: #f4f6f9;
  --demand: #2456a6; --p50: #a04a00; --band: #e8a15a; --bound: #8a2be2; --capacity: #b3261e; --good: #1a7f37; }
@media (prefers-color-scheme: dark) { :root { --page: #12161d; --text: #e4e8ef; --faint: #9aa5b5; --rule: #2c3442;
  --soft: #1a202a; --demand: #7fb0ff; --p50: #ffb06b; --band: #b8742f; --bound: #c79bff; --capacity: #ff8a80;
  --good: #6fd08c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { margin: .5rem 0; } h2 { margin: 2.2rem 0 .5rem; border-bottom: 1px solid var(--rule); overflow-wrap: anywhere; }
nav ul { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; list-style: none; padding: 0; margin: 0; }
a { color: var(--demand); } bdi { overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); padding: .2rem 0; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--rule); text-align: right; vertical-align: top; }
th:first-child, .name { text-align: left; } thead th { background: var(--soft); font-weight: 600; }
tbody th { font-weight: 500; min-width: 10rem; } td.name { min-width: 6rem; }
@media (max-width: 40rem) { tbody th { min-width: 6rem; } td:not(.name) { white-space: nowrap; } }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); gap: .5rem 1rem; }
.facts div { background: var(--soft); padding: .4rem .7rem; border-radius: .4rem; }
dt { color: var(--faint); font-size: .8rem; } dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.verdict { font-size: 1.25rem; margin: .3rem 0; } .legend { display: grid; gap: .3rem; }
.legend div { display: grid; grid-template-columns: minmax(8rem, 14rem) 1fr; gap: .8rem; }
.legend dd { font-weight: 400; }
.note { border-left: .25rem solid var(--p50); padding-left: .8rem; } .empty { color: var(--faint); font-style: italic; }
strong.bad { color: var(--capacity); } strong.good { color: var(--good); }
figure svg { display: block; width: 100%; min-width: 40rem; height: auto; }
figcaption { color: var(--faint); font-size: .875rem; }
svg text { fill: var(--text); font: 11px system-ui, sans-serif; } svg .unit, svg .tick { fill: var(--faint); }
svg .label { paint-order: stroke; stroke: var(--page); stroke-width: 3px; }
svg path { fill: none; stroke-width: 1.4; } .grid { stroke: var(--rule); } .axis { stroke: var(--faint); }
.demand { stroke: var(--demand); } .p50 { stroke: var(--p50); } .bound { stroke: var(--bound); stroke-dasharray: 6 3; }
.capacity { stroke: var(--capacity); } .target { stroke: var(--capacity); stroke-dasharray: 2 3; }
svg path.band { fill: var(--band); fill-opacity: .35; stroke: none; }
.now { stroke: var(--faint); stroke-dasharray: 3 3; } .crossed { stroke: var(--capacity); stroke-width: 2; }
@media print { :root { --page: #fff; --text: #000; --faint: #444; --rule: #bbb; --soft: #eee; --demand: #2456a6;
  --p50: #a04a00; --band: #e8a15a; --bound: #8a2be2; --capacity: #b3261e; --good: #1a7f37; }
  main { max-width: none; padding: 0; } nav { display: none; } h2 { break-after: avoid; }
  figure, tr, .facts { break-inside: avoid; } figure svg { min-width: 0; } .wide { overflow: visible; } }
"""
