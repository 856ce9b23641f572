//! The rule of the egress instances, as YAML.

use std::fmt::Write as _;

/// How requests over the limit are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// Requests wait in a queue for room.
    Wait,
    /// The departure time of a request is fixed when it arrives.
    Delay,
    /// Requests are rejected.
    Hard,
}

impl Treatment {
    const ALL: [(&'static str, Self); 3] =
        [("wait", Self::Wait), ("delay", Self::Delay), ("hard", Self::Hard)];

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, treatment)| *treatment)
    }
}

/// The only rule of an instance. It applies to the path `/call`.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// Calls a second.
    pub(crate) rate: f64,
    pub(crate) burst: Option<u64>,
    pub(crate) algorithm: &'static str,
    pub(crate) treatment: Treatment,
    /// Maximum wait, in milliseconds.
    pub(crate) max_wait: u64,
    pub(crate) queue: u64,
    pub(crate) order: Option<&'static str>,
    /// Valid with [`Treatment::Wait`].
    pub(crate) pace: Option<&'static str>,
    pub(crate) is_shared: bool,
    pub(crate) has_feedback: bool,
}

impl Rule {
    /// Returns an item of `rules`.
    pub(crate) fn yaml(&self) -> String {
        let mut yaml = String::from("  - name: provider\n    match: { path: /call }\n    key: []\n");
        // Writing to a `String` cannot fail.
        let mut line = |text: String| {
            let _ = writeln!(yaml, "    {text}");
        };
        line(format!("limit: {}", written_rate(self.rate)));
        line(format!("algorithm: {}", self.algorithm));
        self.burst.into_iter().for_each(|burst| line(format!("burst: {burst}")));
        let max = self.max_wait;
        match self.treatment {
            Treatment::Wait => {
                let order = self.order.map(|order| format!(", order: {order}")).unwrap_or_default();
                let pace = self.pace.map(|pace| format!(", pace: {pace}")).unwrap_or_default();
                let wait = format!("{{ max: {max}ms, queue: {}{order} }}", self.queue);
                line(format!("throttle: {{ wait: {wait}{pace} }}"));
            }
            Treatment::Delay => line(format!("throttle: {{ delay: {max}ms, queue: {} }}", self.queue)),
            Treatment::Hard => line("throttle: hard".to_owned()),
        }
        if self.is_shared {
            line("scope: shared".to_owned());
        }
        if self.has_feedback {
            line("feedback: true".to_owned());
        }
        yaml
    }
}

/// Returns a rate as the configuration has it, to the third decimal.
fn written_rate(rate: f64) -> String {
    let [count, seconds] = [1_u64, 10, 100, 1000]
        .map(|seconds| [rate * seconds as f64, seconds as f64])
        .into_iter()
        .find(|[count, seconds]| (count - count.round()).abs() < 1e-6 || *seconds >= 1000.0)
        .unwrap_or([rate, 1.0]);
    format!("{}/{seconds}s", count.round())
}
