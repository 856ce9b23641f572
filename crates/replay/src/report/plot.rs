//! Plots of the report as SVG: requests over time, and the distribution of the keys' rates.

use std::fmt::Write as _;

use super::{DemandReport, RuleReport, SeriesReport, grouped};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 200.0;
/// Space for the axes.
const LEFT: f64 = 64.0;
const BOTTOM: f64 = 24.0;
const TOP: f64 = 8.0;
/// Maximum number of points of a line.
const MAX_POINTS: usize = 360;

/// Scale of an axis that begins at zero.
#[derive(Clone, Copy)]
struct Scale {
    max: f64,
    length: f64,
}

impl Scale {
    fn at(self, value: f64) -> f64 {
        self.length * value / self.max.max(f64::MIN_POSITIVE)
    }
}

/// Returns the plot of requests per minute by class of outcome.
pub(super) fn series(rule: &RuleReport, id: usize) -> String {
    let series = &rule.series;
    let points = condensed(series);
    let max = points.iter().flatten().copied().fold(1.0, f64::max);
    let (x, y) = (
        Scale { max: (points.len().max(2) - 1) as f64, length: WIDTH - LEFT },
        Scale { max, length: HEIGHT - BOTTOM - TOP },
    );
    let mut lines = String::new();
    for (class, name) in series.classes.iter().enumerate() {
        if points.iter().all(|point| point[class] == 0.0) {
            continue;
        }
        let mut path = String::new();
        for (index, point) in points.iter().enumerate() {
            let (across, down) = (LEFT + x.at(index as f64), HEIGHT - BOTTOM - y.at(point[class]));
            let _ = write!(path, "{}{across:.1} {down:.1}", if index == 0 { "M" } else { "L" });
        }
        let _ = write!(lines, "<path class=\"c{class}\" d=\"{path}\"><title>{name}</title></path>");
    }
    let minutes = series.minutes * series.intervals.len() as u64;
    let description =
        format!("{} minutes from {}, at most {max:.0} requests per minute", grouped(minutes), series.start);
    let labels = AxisLabels {
        top: grouped(max as u64),
        start: short_time(&series.start),
        end: format!("+{} min", grouped(minutes)),
    };
    frame(&format!("series-{id}"), "Requests per minute by outcome", &description, &lines, &labels)
}

/// Returns requests per minute of each class, at no more than [`MAX_POINTS`] points.
fn condensed(series: &SeriesReport) -> Vec<[f64; 4]> {
    let per_point = series.intervals.len().div_ceil(MAX_POINTS).max(1);
    let mean = |intervals: &[[u32; 4]]| {
        let minutes = intervals.len() as f64 * series.minutes.max(1) as f64;
        [0, 1, 2, 3].map(|class| intervals.iter().map(|it| f64::from(it[class])).sum::<f64>() / minutes)
    };
    series.intervals.chunks(per_point).map(mean).collect()
}

/// Returns the plot of how many keys have how many requests in their busiest period. Both axes are logarithmic.
pub(super) fn demand(demand: &DemandReport, id: &str) -> String {
    let logarithm = |number: u64| (number.max(1) as f64).log2();
    let right = logarithm(demand.max.max(demand.limit)) + 0.5;
    let (x, bars) = (Scale { max: right, length: WIDTH - LEFT }, octave_parts(demand));
    let most = bars.iter().map(|bar| bar.2).max().unwrap_or(1);
    let y = Scale { max: (most as f64 + 1.0).log2(), length: HEIGHT - BOTTOM - TOP };
    let mut shapes = String::new();
    for (from, to, keys) in bars {
        let (start, end) = (LEFT + x.at(from), LEFT + x.at(to).min(x.length));
        let height = y.at((keys as f64 + 1.0).log2());
        let _ = write!(
            shapes,
            "<rect class=\"bar\" x=\"{start:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{:.0} to {:.0} requests: {} keys</title></rect>",
            HEIGHT - BOTTOM - height,
            (end - start - 1.0).max(1.0),
            from.exp2(),
            to.exp2(),
            grouped(keys),
        );
    }
    for (class, value) in [("limit", demand.limit), ("p99", demand.p99)] {
        let across = LEFT + x.at(logarithm(value));
        let _ = write!(
            shapes,
            "<line class=\"{class}\" x1=\"{across:.1}\" x2=\"{across:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"><title>{class}: {}</title></line>",
            HEIGHT - BOTTOM,
            grouped(value),
        );
    }
    let title = format!(
        "Keys by requests in their busiest {}. Solid line: the limit, {}. Dashed line: 99 % of the keys have at most {}.",
        demand.period,
        grouped(demand.limit),
        grouped(demand.p99)
    );
    let description = format!(
        "99 % of the keys have at most {}, all at most {}; the limit is {}",
        grouped(demand.p99),
        grouped(demand.max),
        grouped(demand.limit)
    );
    let labels = AxisLabels {
        top: format!("{} keys", grouped(most)),
        start: "1".to_owned(),
        end: grouped(demand.max.max(demand.limit)),
    };
    frame(&format!("demand-{id}"), &title, &description, &shapes, &labels)
}

/// Joins the histogram to four bars per power of two; returns the bounds of each as logarithms, and its keys.
fn octave_parts(demand: &DemandReport) -> Vec<(f64, f64, u64)> {
    let mut bars: Vec<(f64, f64, u64)> = Vec::new();
    for (requests, keys) in &demand.histogram {
        let start = ((*requests).max(1) as f64).log2();
        let part = (start * 4.0).floor() / 4.0;
        match bars.last_mut().filter(|(from, _, _)| *from == part) {
            Some((_, _, sum)) => *sum += keys,
            None => bars.push((part, part + 0.25, *keys)),
        }
    }
    bars
}

/// Texts at the ends of the axes.
struct AxisLabels {
    top: String,
    start: String,
    end: String,
}

/// Returns a figure with its title and an SVG image with axes around `shapes`.
fn frame(id: &str, title: &str, description: &str, shapes: &str, labels: &AxisLabels) -> String {
    let (base, AxisLabels { top, start, end }) = (HEIGHT - BOTTOM, labels);
    format!(
        "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"{id}-title {id}-text\">\
         <title id=\"{id}-title\">{title}</title><desc id=\"{id}-text\">{description}</desc>\
         <path class=\"axis\" d=\"M{LEFT} {TOP}V{base}H{WIDTH}\"/>{shapes}\
         <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{top}</text><text x=\"{}\" y=\"{base}\" text-anchor=\"end\">0</text>\
         <text x=\"{LEFT}\" y=\"{}\">{start}</text><text x=\"{WIDTH}\" y=\"{}\" text-anchor=\"end\">{end}</text></svg></figure>",
        LEFT - 6.0,
        TOP + 10.0,
        LEFT - 6.0,
        HEIGHT - 6.0,
        HEIGHT - 6.0,
    )
}

/// Returns date and minute of an RFC 3339 time.
fn short_time(time: &str) -> String {
    time.get(..16).unwrap_or(time).replace('T', " ")
}
