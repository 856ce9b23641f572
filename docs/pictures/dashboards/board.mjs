// Reads a Grafana dashboard and runs its queries, with the variables replaced as Grafana replaces them.

import { SCRAPE_SECONDS } from "./prometheus.mjs";

/** Returns the values of the variables. `chosen` are those that a user would select. */
async function valuesOf(board, prometheus, chosen) {
  const values = {};
  for (const variable of board.templating.list.filter(({ type }) => type === "query")) {
    const [, match, label] = /^label_values\((.*), *(\w+)\)$/.exec(variable.query.query);
    const options = await prometheus.labelValues(label, replace(match, values));
    const value = chosen[variable.name] ?? (variable.includeAll ? variable.allValue : options.sort()[0]);
    if (!variable.includeAll && !options.includes(value)) throw new Error(`${variable.name} has no value ${value}`);
    values[variable.name] = value;
  }
  return values;
}

/** Replaces variables, built-in ones first. `$__rate_interval` is at least four scrapes, and one more than the step. */
function replace(expression, values, step = SCRAPE_SECONDS) {
  const rate = Math.max(step + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS);
  const all = { ...values, __rate_interval: `${rate}s`, __interval: `${step}s` };
  const replaced = expression.replace(/\$(\w+)/g, (text, name) => all[name] ?? text);
  if (replaced.includes("$")) throw new Error(`unknown variable in ${replaced}`);
  return replaced;
}

function legend(format, labels) {
  if (format) return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? "");
  return `{${Object.entries(labels).map(([name, value]) => `${name}="${value}"`).join(", ")}}`;
}

/** Returns the series of a panel, without values that are no numbers. */
async function seriesOf(panel, prometheus, values, span) {
  const series = [];
  for (const { expr, legendFormat } of panel.targets) {
    for (const { labels, points } of await prometheus.range(replace(expr, values, span.step), span)) {
      series.push({ name: legend(legendFormat, labels), points: points.filter(([, value]) => Number.isFinite(value)) });
    }
  }
  return series.filter(({ points }) => points.length > 0);
}

/** Returns the columns and rows of a table: its queries joined by one field, without the excluded columns. */
async function tableOf(panel, prometheus, values, span) {
  const join = panel.transformations.find(({ id }) => id === "joinByField").options.byField;
  const excluded = panel.transformations.find(({ id }) => id === "organize").options.excludeByName;
  const [columns, rows] = [[join], new Map()];
  for (const { expr, refId } of panel.targets) {
    for (const { labels, value } of await prometheus.instant(replace(expr, values, span.step), span.to)) {
      const row = rows.get(labels[join]) ?? {};
      rows.set(labels[join], Object.assign(row, labels, { [`Value #${refId}`]: value }));
      for (const name of Object.keys(labels).concat(`Value #${refId}`)) if (!columns.includes(name)) columns.push(name);
    }
  }
  const shown = columns.filter((name) => !excluded[name]).map((name) => {
    const override = panel.fieldConfig.overrides.find(({ matcher }) => matcher.options === name);
    const property = (id) => override?.properties.find((one) => one.id === id)?.value;
    return { name, title: property("displayName") ?? name, unit: property("unit"), isLink: property("links") !== undefined };
  });
  return { columns: shown, rows: [...rows].sort().map(([, row]) => row) };
}

/** Returns the times at which an annotation begins, with its text. */
async function annotationsOf(board, prometheus, values, span) {
  const found = [];
  for (const { expr, textFormat } of board.annotations.list.filter(({ enable }) => enable)) {
    for (const { labels, points } of await prometheus.range(replace(expr, values, span.step), span)) {
      const begins = points.filter(([time], index) => index === 0 || time - points[index - 1][0] > 1.5 * span.step);
      found.push(...begins.map(([time]) => ({ time, text: legend(textFormat, labels) })));
    }
  }
  // What begins with the plot has begun before it.
  return found.filter(({ time }) => time > span.from + span.step);
}

/** Returns the dashboard with the data of every panel, and the titles of those without any. */
export async function evaluate(board, prometheus, span, chosen = {}) {
  const values = await valuesOf(board, prometheus, chosen);
  const panels = [];
  for (const panel of board.panels) {
    if (panel.type === "row") panels.push({ panel });
    else if (panel.type === "table") panels.push({ panel, table: await tableOf(panel, prometheus, values, span) });
    else panels.push({ panel, series: await seriesOf(panel, prometheus, values, span) });
  }
  const isEmpty = ({ series, table }) => series?.length === 0 || table?.rows.length === 0;
  const empty = panels.filter(isEmpty).map(({ panel }) => panel.title);
  return { board, values, panels, empty, annotations: await annotationsOf(board, prometheus, values, span), span };
}
