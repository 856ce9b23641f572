//! The lines of several instances, of which the rest of the screen is the sum.

use super::STALE_SECONDS;
use crate::top::line::{Line, Tone, left_aligned, right_aligned, width};
use crate::top::numbers::{count_text, duration_text, rate_text};
use crate::top::view::{InstanceLine, TopView};

/// Bounds of the column with names. Names of pods are long, and differ at their end.
const MIN_NAME: usize = 8;
const MAX_NAME: usize = 52;

/// Width of a column with numbers.
const NUMBER: usize = 12;

/// Adds how many of the instances are connected to a line.
pub(super) fn summary(line: Line, view: &TopView) -> Line {
    let connected = view.instances.iter().filter(|instance| is_fresh(instance)).count();
    let all = view.instances.len();
    let tone = if connected < all { Tone::Alert } else { Tone::Plain };
    line.with(tone, &format!("{connected} of {all} connected"))
}

/// Returns a heading and a line per instance, those with a problem or the most rejections first.
pub(super) fn lines(instances: &[InstanceLine], max: usize) -> Vec<Line> {
    if instances.is_empty() {
        return Vec::new();
    }
    let mut sorted: Vec<&InstanceLine> = instances.iter().collect();
    // Sums in which nothing is rejected keep the order of the names.
    sorted.sort_by(|one, other| {
        let rejected = |instance: &InstanceLine| instance.rejected.unwrap_or(0.0);
        is_fresh(one).cmp(&is_fresh(other)).then(rejected(other).total_cmp(&rejected(one)))
    });
    let name = instances.iter().map(|instance| width(&instance.name)).max().unwrap_or(0);
    let name = name.clamp(MIN_NAME, MAX_NAME);
    let mut heading = left_aligned("POD", name);
    for title in ["REQUESTS/s", "REJECTED/s", "IN FLIGHT"] {
        heading += &right_aligned(title, NUMBER);
    }
    let mut lines = vec![Line::default().with(Tone::Strong, &heading)];
    // One line is of use in any terminal.
    let shown = max.max(1);
    lines.extend(sorted.iter().take(shown).map(|instance| line(instance, name)));
    if sorted.len() > shown {
        lines.push(Line::default().with(Tone::Faint, &format!("and {} more pods", sorted.len() - shown)));
    }
    lines
}

fn is_fresh(instance: &InstanceLine) -> bool {
    instance.has_snapshot && instance.lost.is_none() && instance.age < STALE_SECONDS
}

fn line(instance: &InstanceLine, name: usize) -> Line {
    let mut line = Line::default().with(Tone::Plain, &left_aligned(&instance.name, name));
    for (text, is_alert) in [
        (rate_text(instance.requests), false),
        (rate_text(instance.rejected), instance.rejected.is_some_and(|rate| rate > 0.0)),
        (count_text(instance.in_flight), false),
    ] {
        let tone = if is_alert { Tone::Alert } else { Tone::Plain };
        line.push(tone, &right_aligned(&text, NUMBER));
    }
    if !is_fresh(instance) {
        let age = duration_text(instance.age as f64);
        let state = match &instance.lost {
            Some(error) => format!("  error: {error}"),
            None if instance.has_snapshot => format!("  data is {age} old"),
            None => "  connecting".to_owned(),
        };
        return line.with(Tone::Alert, &state);
    }
    if instance.is_draining {
        line.push(Tone::Alert, "  draining");
    }
    line.with(Tone::Faint, "  up ")
        .with(Tone::Plain, &duration_text(instance.uptime_seconds))
        .with(Tone::Faint, "  generation ")
        .with(Tone::Plain, &instance.generation.to_string())
}
