"""How HTML in a notebook looks: one style sheet, which each output carries with it.

Colours are those of the surrounding page, light or dark.
"""

from __future__ import annotations

from typing import Final

# `!important` is for JupyterLab, whose style sheet aligns and colours all cells of tables.
STYLE: Final = """<style>
.wids{font:inherit;line-height:1.4;max-width:100%;overflow-wrap:anywhere}
.wids *{box-sizing:border-box}
.wids h3{margin:0 0 .4em;font-size:1.15em}
.wids dl{display:flex;flex-wrap:wrap;gap:.3em 2em;margin:.2em 0 .8em}
.wids dl div{display:flex;flex-direction:column}
.wids dt{font-size:.78em;opacity:.7}.wids dd{margin:0;font-variant-numeric:tabular-nums}
.wids table{border-collapse:collapse;margin:0 0 .9em;background:none}
.wids th,.wids td{padding:.25em .9em .25em 0;text-align:left!important;vertical-align:top;
background:none!important;border:0;
border-bottom:1px solid color-mix(in srgb,currentColor 15%,transparent)}
.wids th{font-weight:600;white-space:nowrap}.wids td.n{text-align:right!important}
.wids code{font-size:.92em;background:none;padding:0;color:inherit}
.wids pre{margin:.2em 0;white-space:pre-wrap;max-height:20em;overflow:auto;background:none;
color:inherit}
.wids img{max-width:100%;height:auto;border-radius:3px;display:block}
.wids small{opacity:.7}.wids .bad{font-style:italic;opacity:.8}
.wids .none{display:flex;align-items:center;justify-content:center;text-align:center;
min-height:5em;padding:.5em;border:1px dashed color-mix(in srgb,currentColor 30%,transparent);
border-radius:3px}.wids .card .none{height:120px}.wids .card p.line{-webkit-line-clamp:1}
.wids .grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:.7em}
.wids .card{border:1px solid color-mix(in srgb,currentColor 18%,transparent);border-radius:6px;
padding:.5em;display:flex;flex-direction:column;gap:.3em;min-width:0}
.wids .card img{width:100%;height:120px;object-fit:contain}
.wids .card p{margin:0;display:-webkit-box;-webkit-line-clamp:3;-webkit-box-orient:vertical;
overflow:hidden}
.wids .card>small:last-child{margin-top:auto}
</style>"""
