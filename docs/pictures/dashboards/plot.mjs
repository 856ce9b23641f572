// A panel of lines as SVG: axes with units, stacked areas or lines, annotations.

import { formatMark, ticks } from "./units.mjs";

// Colours of Grafana's dark scheme: its classic palette, and those that the dashboards name.
const PALETTE = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#8ab8ff", "#b877d9", "#ffa6b0", "#37872d", "#fa6400", "#96d98d", "#fade2a"];
const NAMED = {
  green: "#73bf69", yellow: "#fade2a", "light-yellow": "#ffee52", "dark-yellow": "#e0b400", orange: "#ff9830", red: "#f2495c",
  "dark-red": "#c4162a", blue: "#5794f2", purple: "#b877d9", text: "#ccccdc",
};
const [TOP, RIGHT, BOTTOM] = [8, 6, 20];

/** Returns the value of a colour with a name. */
export function named(color) {
  if (!NAMED[color]) throw new Error(`unknown colour ${color}`);
  return NAMED[color];
}

/** Returns the colour of a series: that of the dashboard, or the next of the palette. */
export function colorOf(panel, name, index) {
  const override = panel.fieldConfig.overrides.find(({ matcher }) => matcher.id === "byName" && matcher.options === name);
  const color = override?.properties.find(({ id }) => id === "color")?.value.fixedColor;
  return color ? named(color) : PALETTE[index % PALETTE.length];
}

export const escape = (text) => String(text).replace(/[&<>"]/g, (letter) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[letter]);

/** Adds to each series the sum of those before it, as `base` of its points. */
function withBases(series, isStacked) {
  const sums = new Map();
  return series.map(({ name, points }) => ({
    name,
    points: points.map(([time, value]) => {
      const base = isStacked ? (sums.get(time) ?? 0) : 0;
      sums.set(time, base + value);
      return { time, base, value: base + value };
    }),
  }));
}

/** Splits points where values are missing. */
function runs(points, step) {
  const parts = [];
  points.forEach((point, index) => {
    if (index === 0 || point.time - points[index - 1].time > 1.5 * step) parts.push([]);
    parts.at(-1).push(point);
  });
  return parts;
}

function shapes(line, { x, y, color, fill, lineWidth = 1.3, step }) {
  const path = (points, of) => points.map((point) => `${x(point.time).toFixed(1)} ${y(of(point)).toFixed(1)}`).join("L");
  return runs(line.points, step).map((points) => {
    if (points.length === 1) return `<circle cx="${x(points[0].time).toFixed(1)}" cy="${y(points[0].value).toFixed(1)}" r="1.5" fill="${color}"/>`;
    const top = path(points, ({ value }) => value);
    const area = `<path d="M${top}L${path([...points].reverse(), ({ base }) => base)}Z" fill="${color}" fill-opacity="${fill / 100}"/>`;
    return `${fill > 0 ? area : ""}<path d="M${top}" fill="none" stroke="${color}" stroke-width="${lineWidth}" stroke-linejoin="round"/>`;
  }).join("");
}

function timeAxis({ from, to }, x, height) {
  const marks = [];
  for (let time = Math.ceil(from / 60) * 60; time <= to; time += 60) marks.push(time);
  return marks.map((time) => {
    const label = new Date(time * 1000).toISOString().slice(11, 16);
    return `<path class="grid" d="M${x(time)} ${TOP}V${height - BOTTOM}"/><text x="${x(time)}" y="${height - 5}" text-anchor="middle">${label}</text>`;
  }).join("");
}

function annotationLines(annotations, x, height) {
  return annotations.map(({ time }) => {
    const [at, base] = [x(time).toFixed(1), height - BOTTOM];
    return `<path d="M${at} ${TOP}V${base}" stroke="#5794f2" stroke-dasharray="3 3"/><path d="M${at} ${base}l-4 5h8z" fill="#5794f2"/>`;
  }).join("");
}

/** Returns the plot of a panel of the kind `timeseries`. */
export function plot({ panel, series }, { span, annotations, width, height }) {
  const { unit, max, custom } = panel.fieldConfig.defaults;
  const lines = withBases(series, custom.stacking.mode === "normal");
  const highest = Math.max(...lines.flatMap(({ points }) => points.map(({ value }) => value)));
  const marks = ticks(max ?? (highest > 0 ? highest : 1), unit);
  const labels = marks.map((mark) => formatMark(mark, unit));
  const left = 14 + Math.max(...labels.map((label) => label.length)) * 6.4;
  const x = (time) => left + ((time - span.from) / (span.to - span.from)) * (width - left - RIGHT);
  const y = (value) => height - BOTTOM - (value / marks.at(-1)) * (height - BOTTOM - TOP);
  const values = marks.map((mark, index) => `<path class="grid" d="M${left} ${y(mark).toFixed(1)}H${width - RIGHT}"/>`
    + `<text x="${left - 6}" y="${(y(mark) + 4).toFixed(1)}" text-anchor="end">${escape(labels[index])}</text>`).join("");
  const drawn = lines.map((line, index) => shapes(line, {
    x, y, color: colorOf(panel, line.name, index), fill: custom.fillOpacity, lineWidth: custom.lineWidth, step: span.step,
  })).join("");
  return `<svg width="${width}" height="${height}">${values}${timeAxis(span, x, height)}${drawn}${annotationLines(annotations, x, height)}</svg>`;
}
