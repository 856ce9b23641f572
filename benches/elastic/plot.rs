//! SVG line charts: stacked panels with a common time axis.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 52.0;
const HEIGHT: f64 = 96.0;
const GAP: f64 = 36.0;
/// Height of the time axis below the last panel.
const AXIS_HEIGHT: f64 = 24.0;
const COLOURS: [&str; 2] = ["#1f6feb", "#8b949e"];

/// One curve of a panel.
pub(crate) struct Series {
    /// Name in the legend.
    pub(crate) name: &'static str,
    /// Pairs of seconds and values.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Curves with common axes. Values above `max` are drawn at the top edge, and the legend states the highest
/// value.
pub(crate) struct Panel {
    /// Unit after the name in the legend; may be empty.
    pub(crate) unit: &'static str,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) series: Vec<Series>,
}

/// Returns the chart as SVG. All panels share one time axis at the bottom.
pub(crate) fn svg(title: &str, panels: &[Panel]) -> String {
    let bottom = TOP + panels.len() as f64 * (HEIGHT + GAP) - GAP;
    let height = bottom + AXIS_HEIGHT;
    let points = panels.iter().flat_map(|panel| &panel.series).flat_map(|series| &series.points);
    let seconds = points.map(|(second, _)| *second).fold(1.0, f64::max);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{title}</text>\n"
    );
    let x = |second: f64| LEFT + second / seconds * (WIDTH - RIGHT - LEFT);
    for (index, panel) in panels.iter().enumerate() {
        let top = TOP + index as f64 * (HEIGHT + GAP);
        grid(&mut text, panel, top, seconds, x);
        draw(&mut text, panel, top, x);
    }
    for second in axis_seconds(seconds) {
        let (at, below) = (x(second), bottom + 16.0);
        let _ = writeln!(
            text,
            "<text x=\"{at:.1}\" y=\"{below:.1}\" text-anchor=\"middle\" fill=\"#57606a\">{second} s</text>"
        );
    }
    text.push_str("</svg>\n");
    text
}

/// Returns the labelled seconds of the time axis: every 20th second of runs above 100 s, otherwise every 10th.
fn axis_seconds(seconds: f64) -> impl Iterator<Item = f64> {
    let step = if seconds > 100.0 { 20.0 } else { 10.0 };
    (0..).map(move |number| f64::from(number) * step).take_while(move |second| *second <= seconds + 0.5)
}

/// Draws the grid. Writing to a `String` cannot fail, so results are ignored here and below.
fn grid(text: &mut String, panel: &Panel, top: f64, seconds: f64, x: impl Fn(f64) -> f64) {
    let (right, bottom) = (WIDTH - RIGHT, top + HEIGHT);
    for second in axis_seconds(seconds) {
        let at = x(second);
        let _ = writeln!(text, "<path d=\"M{at:.1} {top:.1}V{bottom:.1}\" stroke=\"#eaeef2\"/>");
    }
    for step in 0..=2 {
        let value = panel.min + (panel.max - panel.min) * f64::from(step) / 2.0;
        let at = panel.y(value, top);
        let _ = writeln!(text, "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#d0d7de\"/>");
        let (left, at) = (LEFT - 8.0, at + 4.0);
        let _ = writeln!(
            text,
            "<text x=\"{left}\" y=\"{at:.1}\" text-anchor=\"end\" fill=\"#57606a\">{value}</text>"
        );
    }
}

fn draw(text: &mut String, panel: &Panel, top: f64, x: impl Fn(f64) -> f64) {
    let (mut legend, above) = (LEFT, top - 8.0);
    for (series, colour) in panel.series.iter().zip(COLOURS) {
        let mut path = String::new();
        for (index, (second, value)) in series.points.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", x(*second), panel.y(*value, top));
        }
        let _ = writeln!(
            text,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.2\" stroke-linejoin=\"round\"/>"
        );
        let name = panel.legend(series);
        let _ = writeln!(text, "<text x=\"{legend:.1}\" y=\"{above:.1}\" fill=\"{colour}\">{name}</text>");
        legend += 6.2 * name.chars().count() as f64 + 20.0;
    }
}

impl Panel {
    fn y(&self, value: f64, top: f64) -> f64 {
        let part = (value.clamp(self.min, self.max) - self.min) / (self.max - self.min);
        top + HEIGHT - part * HEIGHT
    }

    fn legend(&self, series: &Series) -> String {
        let highest = series.points.iter().map(|(_, value)| *value).fold(f64::MIN, f64::max);
        let unit = if self.unit.is_empty() { String::new() } else { format!(", {}", self.unit) };
        let cut = if highest > self.max { format!(" (up to {highest:.0})") } else { String::new() };
        format!("{}{unit}{cut}", series.name)
    }
}
