//! Curves above each other over the same seconds, as SVG.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 44.0;
const HEIGHT: f64 = 96.0;
const GAP: f64 = 26.0;
const COLOURS: [&str; 2] = ["#1f6feb", "#8b949e"];

/// One curve.
pub(crate) struct Series {
    /// What it shows.
    pub(crate) name: &'static str,
    /// Seconds and values.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Curves on the same axes; what is above `most` runs along the top.
pub(crate) struct Panel {
    /// Beside the axis.
    pub(crate) unit: &'static str,
    pub(crate) least: f64,
    pub(crate) most: f64,
    pub(crate) series: Vec<Series>,
}

/// The picture.
pub(crate) fn svg(title: &str, panels: &[Panel]) -> String {
    let height = TOP + panels.len() as f64 * (HEIGHT + GAP) + 8.0;
    let points = panels.iter().flat_map(|panel| &panel.series).flat_map(|series| &series.points);
    let seconds = points.map(|(second, _)| *second).fold(1.0, f64::max);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{title}</text>\n"
    );
    for (index, panel) in panels.iter().enumerate() {
        draw(&mut text, panel, TOP + index as f64 * (HEIGHT + GAP), seconds);
    }
    text.push_str("</svg>\n");
    text
}

/// Writing to a string cannot fail, so results are dropped.
fn draw(text: &mut String, panel: &Panel, top: f64, seconds: f64) {
    let (right, bottom) = (WIDTH - RIGHT, top + HEIGHT);
    let x = |second: f64| LEFT + second / seconds * (right - LEFT);
    let y = |value: f64| {
        let part = (value.clamp(panel.least, panel.most) - panel.least) / (panel.most - panel.least);
        bottom - part * HEIGHT
    };
    for step in 0..=2 {
        let value = panel.least + (panel.most - panel.least) * f64::from(step) / 2.0;
        let at = y(value);
        let _ = writeln!(text, "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#d0d7de\"/>");
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    let mut second = 0.0;
    while second <= seconds {
        let at = x(second);
        let _ = writeln!(
            text,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#57606a\">{second} s</text>",
            bottom + 12.0
        );
        second += if seconds > 100.0 { 20.0 } else { 10.0 };
    }
    let mut legend = LEFT + 4.0;
    for (series, colour) in panel.series.iter().zip(COLOURS) {
        let mut path = String::new();
        for (index, (second, value)) in series.points.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", x(*second), y(*value));
        }
        let _ = writeln!(text, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.2\"/>");
        let name = format!("{} ({})", series.name, panel.unit);
        let _ = writeln!(text, "<text x=\"{legend}\" y=\"{:.1}\" fill=\"{colour}\">{name}</text>", top - 4.0);
        legend += 6.2 * name.len() as f64 + 16.0;
    }
}
