// Draws an evaluated dashboard as a page: each panel at the place that the dashboard gives it.

import { colorOf, escape, named, plot } from "./plot.mjs";
import { format } from "./units.mjs";

const [WIDTH, COLUMNS, CELL, GAP] = [1200, 24, 31, 6];
const [TITLE, LEGEND] = [28, 36];
// Grafana applies these to a panel of the kind `stat` that has no thresholds.
const DEFAULT_THRESHOLDS = { steps: [{ color: "green", value: null }, { color: "red", value: 80 }] };

const STYLE = `
body { background: #111217; color: #ccccdc; font: 12px/1.3 Inter, "DejaVu Sans", system-ui, sans-serif; margin: 0; width: ${WIDTH}px; }
header { align-items: center; display: flex; gap: 8px; height: 44px; padding: 0 10px; }
header h1 { flex: 1; font-size: 16px; font-weight: 500; margin: 0; }
header span { background: #181b1f; border: 1px solid #2c3235; border-radius: 2px; padding: 4px 8px; }
header b { color: #6e9fff; font-weight: 400; }
main { position: relative; }
main > * { box-sizing: border-box; overflow: hidden; position: absolute; }
h2 { align-items: center; display: flex; font-size: 14px; font-weight: 500; margin: 0; padding-left: 10px; }
section { background: #181b1f; border: 1px solid #25282d; border-radius: 2px; }
h3 { font-size: 12px; font-weight: 500; height: ${TITLE}px; line-height: ${TITLE}px; margin: 0; overflow: hidden; padding: 0 8px; text-overflow: ellipsis; white-space: nowrap; }
.big { align-items: center; display: flex; font-weight: 500; height: calc(100% - ${TITLE}px); justify-content: center; padding-bottom: 8px; }
.none { color: #8e8e99; font-size: 14px; }
svg { display: block; }
svg text { fill: #9d9da8; font-size: 11px; }
.grid { stroke: #2a2d33; }
ul { display: flex; flex-wrap: wrap; font-size: 11px; gap: 2px 10px; list-style: none; margin: 3px 8px 0; max-height: ${LEGEND - 4}px; overflow: hidden; padding: 0; }
li::before { background: var(--color); border-radius: 1px; content: ""; display: inline-block; height: 4px; margin-right: 5px; vertical-align: middle; width: 12px; }
table { border-collapse: collapse; width: 100%; }
th { color: #6e9fff; font-weight: 500; }
th, td { border-bottom: 1px solid #25282d; padding: 7px 10px; text-align: left; }
td a { color: #ccccdc; text-decoration: underline; }
`;

function place({ x, y, w, h }) {
  const width = WIDTH / COLUMNS;
  return { left: x * width + GAP / 2, top: y * CELL, width: w * width - GAP, height: h * CELL - GAP };
}

function thresholdColor(value, { steps }) {
  const step = steps.filter(({ value: least }) => least === null || value >= least).at(-1);
  return named(step.color);
}

function stat({ panel, series }, { width }) {
  const [{ name, points }] = series;
  const { unit, thresholds = DEFAULT_THRESHOLDS } = panel.fieldConfig.defaults;
  const value = points.at(-1)[1];
  const text = panel.options.textMode === "name" ? name : format(value, unit);
  const size = Math.min(27, (width - 20) / (text.length * 0.62));
  return `<div class="big" style="color: ${thresholdColor(value, thresholds)}; font-size: ${size.toFixed(1)}px">${escape(text)}</div>`;
}

function timeseries(data, context, { width, height }) {
  const inner = { width: Math.floor(width) - 2, height: height - TITLE - LEGEND };
  const names = data.series.map(({ name }, index) => `<li style="--color: ${colorOf(data.panel, name, index)}">${escape(name)}</li>`);
  return `${plot(data, { ...context, ...inner })}<ul>${names.join("")}</ul>`;
}

function table({ columns, rows }) {
  const cell = (row, { name, unit, isLink }) => {
    const text = escape(unit ? format(row[name], unit) : row[name]);
    return `<td>${isLink ? `<a>${text}</a>` : text}</td>`;
  };
  const body = rows.map((row) => `<tr>${columns.map((column) => cell(row, column)).join("")}</tr>`);
  return `<table><tr>${columns.map(({ title }) => `<th>${escape(title)}</th>`).join("")}</tr>${body.join("")}</table>`;
}

function content(data, context, size) {
  if ((data.table?.rows ?? data.series).length === 0) {
    return `<div class="big none">${escape(data.panel.fieldConfig.defaults.noValue ?? "No data")}</div>`;
  }
  if (data.table) return table(data.table);
  return data.panel.type === "stat" ? stat(data, size) : timeseries(data, context, size);
}

function element(data, context) {
  const size = place(data.panel.gridPos);
  const style = Object.entries(size).map(([name, value]) => `${name}: ${value}px`).join("; ");
  if (data.panel.type === "row") return `<h2 style="${style}">⌄ ${escape(data.panel.title)}</h2>`;
  return `<section style="${style}"><h3>${escape(data.panel.title)}</h3>${content(data, context, size)}</section>`;
}

/** Returns the page of an evaluated dashboard, or of the part from row `from` on and before row `to`. */
export function pageOf({ board, values, panels, span, annotations }, { from, to }) {
  const rowAt = (title, otherwise) => panels.find(({ panel }) => panel.type === "row" && panel.title === title)?.panel.gridPos.y ?? otherwise;
  const bottom = Math.max(...panels.map(({ panel: { gridPos } }) => gridPos.y + gridPos.h));
  const [first, end] = [rowAt(from, 0), rowAt(to, bottom)];
  const shown = panels.filter(({ panel }) => panel.gridPos.y >= first && panel.gridPos.y < end)
    .map((data) => ({ ...data, panel: { ...data.panel, gridPos: { ...data.panel.gridPos, y: data.panel.gridPos.y - first } } }));
  const variables = board.templating.list.filter(({ type }) => type === "query")
    .map(({ name, label, allValue }) => `<span><b>${label}</b> ${escape(values[name] === allValue ? "All" : values[name])}</span>`);
  const range = `<span>Last ${Math.round((span.to - span.from) / 60)} minutes</span>`;
  const header = `<header><h1>${escape(board.title)}</h1>${variables.join("")}${range}</header>`;
  const drawn = shown.map((data) => element(data, { span, annotations })).join("\n");
  return `<!doctype html><meta charset="utf-8"><style>${STYLE}</style>${first === 0 ? header : ""}
<main style="height: ${(end - first) * CELL}px">${drawn}</main>`;
}
