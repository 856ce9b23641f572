//! Reader of the Prometheus text format.

/// Returns the sum over all samples of `name` that have all of `labels`.
pub(crate) fn sum(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    samples(text, name)
        .filter(|(given, _)| {
            labels.iter().all(|(label, value)| given.contains(&format!("{label}=\"{value}\"")))
        })
        .map(|(_, value)| value)
        .sum()
}

/// Whether there is any sample of `name`.
pub(crate) fn has(text: &str, name: &str) -> bool {
    samples(text, name).next().is_some()
}

fn samples<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(move |line| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']))?;
        let (labels, value) = rest.rsplit_once(' ')?;
        Some((labels, value.parse().ok()?))
    })
}
