//! A fetched configuration: loaded at startup, followed from then on, and cached for the next start.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;

use super::{AppError, RunningApp, thread};
use weir_config::Config;
use weir_config::central::cache;
use weir_config::central::document::FetchedDocument;
use weir_config::central::follower::{DocumentFollower, FollowerResources, InitialFetch};
use weir_config::central::settings::CentralSettings;
use weir_config::reload::{ReloadHandle, Reloader};
use weir_telemetry::metrics::FetchMetrics;

/// The follower of the server, not started yet.
pub(super) struct CentralSource {
    follower: DocumentFollower,
    settings: CentralSettings,
    /// The running document, if it was fetched.
    fetched: Option<FetchedDocument>,
    /// The running document, if it came from the cache.
    cached: Option<FetchedDocument>,
    /// The server's document, if it was invalid and another is running.
    rejected: Option<FetchedDocument>,
}

/// Caches applied documents, and passes changed settings of the bootstrap to the follower.
pub(super) struct CentralHandle {
    settings: watch::Sender<Arc<CentralSettings>>,
    /// The document in the cache, if this process wrote it.
    written: Option<FetchedDocument>,
    /// The document used at startup, if it came from the cache.
    loaded: Option<FetchedDocument>,
    metrics: FetchMetrics,
}

/// Loads the bootstrap at `path` together with the server's document, or with the cached one if that fails.
pub(super) fn start(
    path: &Path,
    settings: CentralSettings,
) -> Result<(Config, Reloader, CentralSource), AppError> {
    let cached = load_cached(&settings);
    let follower = DocumentFollower::new(settings.clone(), cached.clone())
        .map_err(AppError::system("cannot set up TLS"))?;
    let mut central =
        CentralSource { follower, settings, fetched: None, cached: cached.clone(), rejected: None };
    let first = thread::runtime()?.block_on(central.follower.fetch_initial());
    let url = central.settings.server.url.without_query();
    let started = match (first, cached) {
        (Ok(InitialFetch::Document(document)), cached) => {
            return central.start_with_document(path, document, cached);
        }
        (Ok(InitialFetch::NotModified), Some(cached)) => Reloader::start_with_bootstrap(path, cached),
        (Err(failure), Some(cached)) => {
            tracing::warn!(
                url,
                error = %failure,
                "cannot fetch the configuration, starting with the cached one"
            );
            Reloader::start_with_bootstrap(path, cached)
        }
        (Err(failure), None) => {
            let doing = format!("cannot fetch the configuration from {url}, and none is cached");
            return Err(AppError::System(doing, io::Error::other(failure)));
        }
        (Ok(InitialFetch::NotModified), None) => {
            let error = io::Error::other("304 response to an unconditional request");
            return Err(AppError::System(format!("cannot fetch the configuration from {url}"), error));
        }
    };
    let (config, reloader) = started.map_err(AppError::Configuration)?;
    Ok((config, reloader, central))
}

impl CentralSource {
    fn start_with_document(
        mut self,
        path: &Path,
        document: FetchedDocument,
        cached: Option<FetchedDocument>,
    ) -> Result<(Config, Reloader, Self), AppError> {
        let problems = match Reloader::start_with_bootstrap(path, document.clone()) {
            Ok((config, reloader)) => {
                (self.fetched, self.cached) = (Some(document), None);
                return Ok((config, reloader, self));
            }
            Err(problems) => problems,
        };
        let Some(cached) = cached else { return Err(AppError::Configuration(problems)) };
        let Ok((config, reloader)) = Reloader::start_with_bootstrap(path, cached.clone()) else {
            return Err(AppError::Configuration(problems));
        };
        tracing::warn!(
            url = %document.url,
            "the fetched configuration is invalid, starting with the cached one"
        );
        self.follower.set_unconfirmed(cached);
        self.rejected = Some(document);
        Ok((config, reloader, self))
    }

    /// Starts the follower, on a thread of its own for the lifetime of the process.
    pub(super) fn start_follower(self, running: &RunningApp) -> Result<CentralHandle, AppError> {
        let Self { mut follower, settings, fetched, cached, rejected } = self;
        let metrics = running.shared.metrics.fetches();
        follower.record_start(&metrics, &running.shared.clock);
        let written = fetched.filter(|document| write_cache(&settings, document, &metrics));
        // Delivers the invalid document, so that its rejection appears in the status.
        rejected.into_iter().for_each(|document| running.reload.deliver_document(document));
        let (sender, receiver) = watch::channel(Arc::new(settings));
        let resources = FollowerResources {
            settings: receiver,
            fetch_now: running.reload.fetch_notify(),
            metrics: metrics.clone(),
            clock: Arc::clone(&running.shared.clock),
        };
        let reload: ReloadHandle = running.reload.clone();
        let follow = move || async move {
            follower.run(resources, |document| reload.deliver_document(document)).await;
        };
        thread::start_with_runtime("config", follow)?;
        Ok(CentralHandle { settings: sender, written, loaded: cached, metrics })
    }
}

impl CentralHandle {
    /// Records that a configuration with this document has been applied.
    pub(super) fn record_applied(&mut self, settings: CentralSettings, document: &FetchedDocument) {
        if self.loaded.as_ref() != Some(document) {
            self.metrics.set_from_cache(false);
        }
        let differs = **self.settings.borrow() != settings;
        if differs || self.written.as_ref() != Some(document) {
            self.written = write_cache(&settings, document, &self.metrics).then(|| document.clone());
        }
        if differs {
            self.settings.send_replace(Arc::new(settings));
        }
    }
}

/// Loads the document cached by an earlier run.
fn load_cached(settings: &CentralSettings) -> Option<FetchedDocument> {
    let file = settings.cache_file.as_deref()?;
    cache::load(file, &settings.server.url).unwrap_or_else(|problem| {
        tracing::warn!(file = %file.display(), problem, "the cached configuration is not used");
        None
    })
}

/// Caches the document; returns whether that succeeded or was not needed.
fn write_cache(settings: &CentralSettings, document: &FetchedDocument, metrics: &FetchMetrics) -> bool {
    let Some(file) = &settings.cache_file else { return true };
    let Err(error) = cache::store(file, &settings.server.url, document) else { return true };
    metrics.record_cache_failure();
    let file = file.display();
    tracing::warn!(
        %file,
        %error,
        "cannot cache the configuration: the next start fails if the server is unreachable"
    );
    false
}
