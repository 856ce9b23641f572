//! One experiment: a provider, instances of Weir before it, and callers.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::callers::outcomes::GroupReport;
use crate::callers::{CallerSettings, Group};
use crate::provider::ProviderSettings;
use crate::provider::process::{ProviderProcess, RoleProcess};
use crate::provider::record::Stats;
use crate::rule::Rule;
use crate::servers::Server;
use crate::sidecar::{Sidecar, SidecarConfig, await_fleet};
use crate::support::wait::pause;

/// Maximum number of connections of the callers.
pub(crate) const MAX_CONNECTIONS: usize = 18_000;
/// Keys of the upstream that keep its circuit breaker out of the way.
pub(crate) const UPSTREAM: &str = "  timeout: 1h\n  connect_timeout: 10m\n  outliers: false\n  \
    limits: { connections: 256, pending: 1000000, requests: 1000000, requests_per_client: false, min_client_rate: false }\n";
/// Interval between two calls of the observer of an experiment.
const TICK: Duration = Duration::from_millis(100);

/// Programs that experiments use.
pub(crate) struct Laboratory {
    pub(crate) weir: PathBuf,
    redis: Option<Server>,
}

/// Parts of an experiment.
pub(crate) struct Experiment {
    pub(crate) provider: ProviderSettings,
    /// `None`: no limit.
    pub(crate) rule: Option<Rule>,
    pub(crate) instances: usize,
    pub(crate) groups: Vec<Group>,
    /// Durations in seconds.
    pub(crate) warm_up: f64,
    pub(crate) measured: f64,
}

/// Processes of an experiment while it runs.
pub(crate) struct Running {
    pub(crate) provider: ProviderProcess,
    pub(crate) sidecars: Vec<Sidecar>,
}

/// Results of an experiment.
pub(crate) struct Results {
    /// What the provider has seen in the measured time.
    pub(crate) provider: Stats,
    /// One report for each group of callers.
    pub(crate) callers: Vec<GroupReport>,
}

impl Laboratory {
    pub(crate) const fn new(weir: PathBuf) -> Self {
        Self { weir, redis: None }
    }

    /// Returns the URL of an empty store.
    fn empty_store(&mut self) -> String {
        let redis = self.redis.get_or_insert_with(Server::start);
        redis.cli(&["flushall"]);
        redis.url()
    }

    /// Runs an experiment. `observe` is called ten times a second with the measured time, in seconds. The error is what
    /// Weir says about the configuration.
    pub(crate) fn run(
        &mut self,
        experiment: &Experiment,
        mut observe: impl FnMut(f64, &Running),
    ) -> Result<Results, String> {
        let running = self.start(experiment)?;
        let settings = CallerSettings {
            targets: running.sidecars.iter().map(Sidecar::address).collect(),
            groups: experiment.groups.clone(),
            warm_up: experiment.warm_up,
            measured: experiment.measured,
            grace: experiment.rule.as_ref().map_or(0.0, |rule| rule.max_wait as f64 / 1e3) + 1.0,
            max_connections: MAX_CONNECTIONS,
        };
        let mut callers = RoleProcess::start("callers", &settings);
        pause(Duration::from_secs_f64(experiment.warm_up));
        running.provider.reset();
        let began = Instant::now();
        let end = Duration::from_secs_f64(experiment.measured);
        while began.elapsed() < end {
            observe(began.elapsed().as_secs_f64(), &running);
            pause(TICK.min(end.saturating_sub(began.elapsed())));
        }
        let provider = running.provider.stats();
        let callers = serde_json::from_str(&callers.line()).unwrap();
        let is_error = |line: &String| line.contains("\"ERROR\"");
        match running.sidecars.iter().flat_map(Sidecar::log).find(is_error) {
            Some(line) => Err(line),
            None => Ok(Results { provider, callers }),
        }
    }

    fn start(&mut self, experiment: &Experiment) -> Result<Running, String> {
        let provider = ProviderProcess::start(&experiment.provider);
        let is_shared = experiment.rule.as_ref().is_some_and(|rule| rule.is_shared);
        let config = SidecarConfig {
            provider: provider.address(),
            upstream: UPSTREAM.to_owned(),
            store: is_shared.then(|| self.empty_store()),
            rules: experiment.rule.as_ref().map_or_else(|| "  []\n".to_owned(), Rule::yaml),
        };
        let yaml = config.yaml();
        let start = |_| Sidecar::start(&self.weir, &yaml);
        let sidecars = (0..experiment.instances).map(start).collect::<Result<Vec<_>, _>>()?;
        if is_shared {
            await_fleet(&sidecars);
        }
        Ok(Running { provider, sidecars })
    }
}
