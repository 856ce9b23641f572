//! SVG bar charts of the arrivals inside a second: one panel above the other, with a common axis.

use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 52.0;
const HEIGHT: f64 = 96.0;
const GAP: f64 = 36.0;
/// Height of the axis below the last panel.
const AXIS_HEIGHT: f64 = 24.0;
const BAR: &str = "#1f6feb";
const MEAN: &str = "#8b949e";

/// Bars with a title.
pub(crate) struct BarPanel {
    pub(crate) title: String,
    /// Arrivals in each of the equal parts of a second.
    pub(crate) counts: Vec<u32>,
    /// Arrivals in such a part if all were evenly spaced.
    pub(crate) even: f64,
}

/// Returns the chart as SVG. Each panel has a scale of its own, whose maximum is its highest bar.
pub(crate) fn svg(title: &str, panels: &[BarPanel]) -> String {
    let bottom = TOP + panels.len() as f64 * (HEIGHT + GAP) - GAP;
    let height = bottom + AXIS_HEIGHT;
    // Writing to a `String` cannot fail, so results are ignored here and below.
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{title}</text>\n"
    );
    for (index, panel) in panels.iter().enumerate() {
        panel.draw(&mut text, TOP + index as f64 * (HEIGHT + GAP));
    }
    for step in 0..=10 {
        let (at, below) = (x(f64::from(step) / 10.0), bottom + 16.0);
        let _ = writeln!(
            text,
            "<text x=\"{at:.1}\" y=\"{below:.1}\" text-anchor=\"middle\" fill=\"#57606a\">{} ms</text>",
            step * 100
        );
    }
    text.push_str("</svg>\n");
    text
}

/// Returns the abscissa of a part of a second, from 0 to 1.
fn x(part: f64) -> f64 {
    LEFT + part * (WIDTH - RIGHT - LEFT)
}

impl BarPanel {
    fn draw(&self, text: &mut String, top: f64) {
        let highest = self.counts.iter().copied().max().unwrap_or_default();
        // A panel of even arrivals shows them in its middle and not at its top.
        let max = f64::from(highest).max(2.0 * self.even);
        let y = |value: f64| top + HEIGHT - value / max * HEIGHT;
        let (right, above, bottom) = (WIDTH - RIGHT, top - 8.0, top + HEIGHT);
        let _ = writeln!(text, "<path d=\"M{LEFT} {bottom:.1}H{right}\" stroke=\"#d0d7de\"/>");
        let width = (x(1.0) - x(0.0)) / self.counts.len().max(1) as f64;
        for (index, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (at, upper) = (x(index as f64 / self.counts.len() as f64), y(f64::from(*count)));
            let _ = writeln!(
                text,
                "<rect x=\"{at:.1}\" y=\"{upper:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{BAR}\"/>",
                width - 0.8,
                bottom - upper
            );
        }
        let even = y(self.even);
        let _ = writeln!(
            text,
            "<path d=\"M{LEFT} {even:.1}H{right}\" stroke=\"{MEAN}\" stroke-dasharray=\"4 3\"/>"
        );
        let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"{above:.1}\" fill=\"{BAR}\">{}</text>", self.title);
        for value in [max, 0.0] {
            let (left, at) = (LEFT - 8.0, y(value) + 4.0);
            let _ = writeln!(
                text,
                "<text x=\"{left}\" y=\"{at:.1}\" text-anchor=\"end\" fill=\"#57606a\">{value:.0}</text>"
            );
        }
    }
}
