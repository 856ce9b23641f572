// Stacked areas of rates over the last two minutes, as SVG that stretches to its box.

const SVG = "http://www.w3.org/2000/svg";
const PLOT_HEIGHT = 100;

function createShape(name, attributes) {
  const shape = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) shape.setAttribute(attribute, value);
  return shape;
}

/** Returns the least of 1, 2, 4, 5, 10, 20, … that is at least `value`. */
function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 4, 5, 10].find((step) => step * power >= value) * power;
}

/** A plot without axes, for a row of a table. */
class Sparkline {
  constructor(className = "spark") {
    this.svg = createShape("svg", {
      class: className, role: "img", preserveAspectRatio: "none", viewBox: `0 0 ${SPAN_SECONDS} ${PLOT_HEIGHT}`,
    });
    this.areas = SERIES.map((name) => createShape("path", { class: name, "data-series": name }));
    this.svg.append(...this.areas);
  }

  /** Draws a history that ends at `now`; returns the upper end of the scale. */
  draw(history, now, label) {
    const ceiling = niceCeiling(history.peak() * 1.05);
    stackedPaths(history.points, now, ceiling).forEach((path, index) => this.areas[index].setAttribute("d", path));
    this.svg.setAttribute("aria-label", label);
    return ceiling;
  }
}

/** A plot with a scale and times. */
class Plot {
  constructor() {
    this.spark = new Sparkline("");
    for (const y of [0.5, PLOT_HEIGHT / 2]) {
      this.spark.svg.prepend(createShape("line", { class: "grid", x1: 0, x2: SPAN_SECONDS, y1: y, y2: y }));
    }
    this.top = create("span");
    this.middle = create("span");
    const scale = create("div", { class: "scale", "aria-hidden": "true" }, this.top, this.middle, create("span", {}, "0"));
    const times = create("div", { class: "times", "aria-hidden": "true" },
      create("span", {}, "2 min ago"), create("span", {}, "1 min"), create("span", {}, "now"));
    this.element = create("div", { class: "plot" }, this.spark.svg, scale, times);
  }

  draw(history, now, label) {
    const ceiling = this.spark.draw(history, now, label);
    setText(this.top, `${formatRate(ceiling)}/s`);
    setText(this.middle, formatRate(ceiling / 2));
  }
}

/** Returns one closed path per series, each on top of the one before. */
function stackedPaths(points, now, ceiling) {
  const x = (at) => (SPAN_SECONDS + Math.min(at - now, 0)).toFixed(2);
  const y = (rate) => (PLOT_HEIGHT - (rate / ceiling) * PLOT_HEIGHT).toFixed(2);
  const line = (heights) => points.flatMap(({ at, span }, index) => {
    const end = `${x(at)},${y(heights[index])}`;
    // A longer step is the mean over an interruption, so it is drawn flat.
    return index === 0 || span > 3 ? [`${x(at - span)},${y(heights[index])}`, end] : [end];
  });
  let lower = points.map(() => 0);
  return SERIES.map((_, series) => {
    if (!points.some(({ rates }) => rates[series] > 0)) return "";
    const upper = points.map(({ rates }, index) => lower[index] + rates[series]);
    const outline = [...line(upper), ...line(lower).reverse()];
    lower = upper;
    return `M${outline.join("L")}Z`;
  });
}

/** Describes a history in words, as the text alternative of its plot. */
function describeHistory(name, history) {
  const rates = history.recent();
  if (!rates) return `${name}: no data yet`;
  const parts = SERIES.map((series, index) => `${series} ${formatRate(rates[index])}`);
  return `${name}, per second: ${parts.join(", ")}; at most ${formatRate(history.peak())} in the last two minutes`;
}
