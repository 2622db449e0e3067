"""Look and behaviour of the page: colours that colour-blind eyes tell apart, and a table that sorts."""

from __future__ import annotations

from typing import Final

#: Okabe and Ito's colours but black and yellow, which are hard to see on white or taken by the text.
PALETTE: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
#: An axis of accuracies is at least so many points long.
ACCURACY_SPAN: Final = 2.0
KEPT, REMOVED, FIXED_COLOUR = "#0072B2", "#E69F00", "#BBBBBB"

STYLE: Final = """
:root{--kept:#0072B2;--removed:#E69F00;--fixed:#BBBBBB;--line:#d5d9de;--soft:#f4f6f8;--ink:#1b1f24;--dim:#59636e}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1100px;padding:1rem;font:16px/1.45 system-ui,sans-serif;color:var(--ink);background:#fff;
 -webkit-print-color-adjust:exact;print-color-adjust:exact}
h1{font-size:1.5rem;margin:.2rem 0;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2rem 0 .6rem;border-bottom:1px solid var(--line);padding-bottom:.2rem}
h3{font-size:1rem;margin:.8rem 0 .3rem}
p{margin:.4rem 0}.dim{color:var(--dim);font-size:.9rem}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:.7rem}
.card{border:1px solid var(--line);border-radius:8px;padding:.6rem .8rem;background:var(--soft);break-inside:avoid}
.card b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}
.card .was{color:var(--dim);font-variant-numeric:tabular-nums}.card .name{font-size:.9rem}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin:.3rem 0 .6rem;font-size:.9rem}
.legend i,.dot{display:inline-block;width:.9em;height:.9em;border-radius:2px;margin-right:.35em;vertical-align:-.08em}
.kept{background:var(--kept)}.fixed{background:var(--fixed)}
.removed{background:repeating-linear-gradient(45deg,var(--removed) 0 4px,#f6d48f 4px 6px)}
.layer{display:grid;grid-template-columns:minmax(120px,20rem) 1fr 8.5rem;gap:.6rem;align-items:center;
 padding:.15rem 0;break-inside:avoid}
.layer .name{overflow-wrap:anywhere;font-size:.9rem;line-height:1.2}
.layer .sum{font-size:.85rem;text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums;color:var(--dim)}
.bar{display:flex;height:16px;background:#fff;min-width:4px}.bar span{height:100%;min-width:1px}
.tag{display:inline-block;min-width:1.5em;text-align:center;border-radius:4px;padding:0 .3em;margin-right:.4em;
 font-size:.8rem;font-weight:600;border:2px solid var(--line);background:#fff;color:var(--ink)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .5rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{white-space:nowrap;background:var(--soft)}
td.num,th.num{text-align:right}td.why{min-width:14rem}td.long{overflow-wrap:anywhere;min-width:13rem}
th button{font:inherit;border:0;background:none;color:inherit;cursor:pointer;padding:0}
th[aria-sort=ascending] button::after{content:" \\25B2"}th[aria-sort=descending] button::after{content:" \\25BC"}
table.confusion td{text-align:right;min-width:2.2rem;border:1px solid #fff}
.pair{display:flex;flex-wrap:wrap;gap:1.5rem}.pair>div{max-width:100%}
svg{display:block;max-width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:var(--dim)}
#network{max-width:none}
svg.strip{width:100%;height:28px;max-width:none}
pre{background:var(--soft);border:1px solid var(--line);border-radius:6px;padding:.7rem;white-space:pre-wrap;
 overflow-wrap:anywhere;font-size:.88rem}
@media(max-width:640px){body{padding:.7rem;font-size:15px}.layer{grid-template-columns:1fr 8.5rem}
 svg text{font-size:18px}#network text{font-size:12px}
 .layer .name{grid-column:1/3}.layer .bar,.layer .strip{grid-column:1}.cards{grid-template-columns:1fr 1fr}}
@media print{html{font-size:11px}body{max-width:none;padding:0;font-size:11px}
 .scroll{overflow:visible}#network{max-width:100%}h2,h3,p.dim,.legend{break-after:avoid}tr,svg{break-inside:avoid}
 table{font-size:8.5px}th,td{padding:.15rem .3rem}th{white-space:normal}td.why,td.long{min-width:5rem}}
"""

SCRIPT: Final = """
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const numeric = head.classList.contains("num");
    const order = (a, b) => numeric ? Number(key(a)) - Number(key(b)) : key(a).localeCompare(key(b));
    const rows = [...table.tBodies[0].rows].sort((a, b) => down ? order(b, a) : order(a, b));
    table.tBodies[0].append(...rows);
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  }));
}
"""
