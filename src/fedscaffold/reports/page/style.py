"""The page's style: light, dark, narrow and printed."""

CLASS_COLOURS = 10

LIGHT = """--paper: #ffffff; --ink: #1b1f24; --soft: #57606a; --rule: #d5dae0; --tint: #f3f5f8;
  --scaffold: #005f9e; --fedavg: #b84500; --predicted: #1b1f24; --target: #1a7f37;
  --k0: #4477aa; --k1: #cc6677; --k2: #2f8f4e; --k3: #a08516; --k4: #7a4fa3;
  --k5: #2f8fb0; --k6: #8c510a; --k7: #85852a; --k8: #aa4499; --k9: #7f7f7f;"""
DARK = """--paper: #14171b; --ink: #e6e9ed; --soft: #a3acb7; --rule: #3a424c; --tint: #1e232a;
  --scaffold: #6cb6ff; --fedavg: #ff9b5e; --predicted: #e6e9ed; --target: #57d279;
  --k0: #77aadd; --k1: #ee8899; --k2: #66c285; --k3: #ddc84f; --k4: #b590dd;
  --k5: #77ccee; --k6: #d8a35f; --k7: #c8c85f; --k8: #dd88cc; --k9: #b5b5b5;"""

STYLE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem clamp(1rem, 4vw, 3rem) 4rem; }
h1 { font-size: clamp(1.5rem, 4vw, 2.1rem); line-height: 1.2; margin: 1rem 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .8rem; padding-bottom: .3rem; border-bottom: 1px solid var(--rule); }
p { max-width: 46rem; margin: .6rem 0; }
.lead { font-size: 1.1rem; }
.pair { display: grid;
  gap: 1.5rem 2.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.pair > * { min-width: 0; }
figure { margin: 1rem 0; max-width: 42rem; }
figure > svg { display: block; width: 100%; height: auto; color: var(--ink); }
figcaption, caption { color: var(--soft); font-size: .92rem; text-align: left; }
caption { padding: .3rem 0 .5rem; }
.wide caption span { display: inline-block; position: sticky; left: 0; max-width: min(46rem, calc(100vw - 3rem)); }
svg text { fill: currentColor; font: 13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
svg .grid { stroke: var(--rule); stroke-width: 1; fill: none; }
svg .line { stroke-width: 2; fill: none; stroke-linejoin: round; }
.scaffold { stroke: var(--scaffold); } .fedavg { stroke: var(--fedavg); stroke-dasharray: 8 3; }
.predicted { stroke: var(--predicted); stroke-dasharray: 2 4; stroke-width: 2.5; }
.target { stroke: var(--target); stroke-dasharray: 12 4 2 4; }
.dot-common { fill: var(--scaffold); }
.dot-rows { fill: var(--scaffold); fill-opacity: .45; stroke: var(--scaffold); }
.dot-local { fill: var(--paper); stroke: var(--fedavg); stroke-width: 2.5; }
.link { stroke: var(--soft); stroke-width: 1.5; }
.key { width: 1.6rem; height: .7rem; margin-right: .45rem; fill: none; stroke-width: 3; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .4rem 0;
  padding: 0; font-size: .92rem; }
.wide { overflow-x: auto; max-width: 100%; margin: 1rem 0; }
.wide:focus-visible { outline: 2px solid var(--scaffold); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .95rem; }
th, td { padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { text-align: left; font-weight: 600; } td, thead th:not(:first-child) { text-align: right; }
td.text { text-align: left; overflow-wrap: anywhere; }
.facts { width: 100%; margin: 1rem 0; } .facts th { width: 40%; font-weight: 400; color: var(--soft); }
pre { background: var(--tint); border: 1px solid var(--rule); border-radius: 6px; padding: .8rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: .9rem; }
details { border-bottom: 1px solid var(--rule); padding: .35rem 0; } summary { cursor: pointer; }
details p { font-size: .9rem; overflow-wrap: anywhere; }
footer { margin-top: 3rem; color: var(--soft); font-size: .9rem; }
"""

CLASSES = "\n".join(
    f".k{k} {{ fill: var(--k{k}); }} .s{k} {{ stroke: var(--k{k}); stroke-width: 9; }}"
    for k in range(CLASS_COLOURS)
)

NARROW = """
@media screen and (max-width: 44rem) {
  .wide table, .wide caption, .wide tbody, .wide tr, .wide th, .wide td { display: block; width: auto; }
  .wide thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .wide tr { padding: .5rem 0; border-bottom: 1px solid var(--rule); }
  .wide th[scope=row], .wide td { border: 0; padding: .1rem 0; overflow-wrap: anywhere; }
  .wide td { display: flex; justify-content: space-between; gap: 1rem; }
  .wide td::before { content: attr(data-name); color: var(--soft); text-align: left; } }
"""

PRINT = """
@media print {
  main { max-width: none; padding: 0; } body { font-size: 11pt; }
  figure, tr, pre { break-inside: avoid; } h2 { break-after: avoid; } .wide { overflow: visible; }
  figure { max-width: 15cm; } }
"""


def stylesheet() -> str:
    """The page's CSS: light or dark as the reader prefers, always light on paper."""
    schemes = (
        f":root {{ color-scheme: light dark; {LIGHT} }}",
        f"@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}",
        f"@media print {{ :root {{ color-scheme: light; {LIGHT} }} }}",
    )
    return "\n".join((*schemes, STYLE, CLASSES, NARROW, PRINT))
