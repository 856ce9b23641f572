//! Follows a document on a server: requests it repeatedly and delivers each new version.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::client::{FetchClient, FetchError, FetchResult};
use super::document::{FetchedDocument, Validators};
use super::poll_interval::{self, PollOutcome};
use super::settings::CentralSettings;
use weir_net::clock::{Clock, Stopwatch};
use weir_net::outage::Outage;
use weir_telemetry::metrics::{FetchMetrics, FetchOutcome};

/// The server's response at startup.
#[derive(Debug)]
pub enum InitialFetch {
    /// A document.
    Document(FetchedDocument),
    /// The cached document is current.
    NotModified,
}

/// The follower of one document.
#[derive(Debug)]
pub struct DocumentFollower {
    client: FetchClient,
    last_document: Option<FetchedDocument>,
    /// The running document, if it came from the cache and the server has not confirmed it.
    unconfirmed: Option<FetchedDocument>,
    outage: Outage,
    /// The last failure, which has been logged.
    last_error: Option<String>,
    /// Outcomes of requests before metrics were available.
    initial_outcomes: Vec<FetchOutcome>,
}

/// What a follower needs from the process.
#[derive(Debug)]
pub struct FollowerResources {
    /// How the document is fetched; may change.
    pub settings: watch::Receiver<Arc<CentralSettings>>,
    /// Causes the document to be fetched at once.
    pub fetch_now: Arc<Notify>,
    /// Counters of fetches.
    pub metrics: FetchMetrics,
    /// Clock for the time stamps of metrics.
    pub clock: Arc<Clock>,
}

impl DocumentFollower {
    /// Creates a follower that has the cached document, if there is one.
    ///
    /// # Errors
    /// Returns an error if TLS cannot be set up.
    pub fn new(settings: CentralSettings, cached: Option<FetchedDocument>) -> io::Result<Self> {
        let client = FetchClient::new(Arc::new(settings))?;
        Ok(Self {
            client,
            last_document: cached,
            unconfirmed: None,
            outage: Outage::default(),
            last_error: None,
            initial_outcomes: Vec::new(),
        })
    }

    /// Requests the document until there is a response or `timeout` has passed. With a cached document only
    /// once, because the cached one serves for a start.
    ///
    /// # Errors
    /// Returns the last `FetchError`.
    pub async fn fetch_initial(&mut self) -> Result<InitialFetch, FetchError> {
        let limit = self.client.settings().timeout;
        let mut last = FetchError::Timeout(limit);
        let attempts = async {
            loop {
                match self.fetch(None).await {
                    Ok(FetchResult::NotModified) => {
                        self.initial_outcomes.push(FetchOutcome::Unchanged);
                        return Ok(InitialFetch::NotModified);
                    }
                    Ok(FetchResult::Document(document)) => {
                        self.initial_outcomes.push(FetchOutcome::Changed);
                        self.last_document = Some(document.clone());
                        return Ok(InitialFetch::Document(document));
                    }
                    Err(failure) => {
                        self.initial_outcomes.push(failure.outcome());
                        self.outage.record_failure();
                        last = failure;
                    }
                }
                if self.last_document.is_some() {
                    return Err(());
                }
                sleep(poll_interval::pause(
                    PollOutcome::Failed(self.outage.failures()),
                    None,
                    Duration::ZERO,
                ))
                .await;
            }
        };
        let result = timeout(limit, attempts).await;
        result.unwrap_or(Err(())).map_err(|()| {
            if self.outage.is_over() {
                self.outage.record_failure();
            }
            self.unconfirmed.clone_from(&self.last_document);
            last
        })
    }

    /// Notes that `cached` is running although the server has another document.
    pub fn set_unconfirmed(&mut self, cached: FetchedDocument) {
        self.unconfirmed = Some(cached);
    }

    /// Adds the requests of the start to the metrics, and whether a cached document is running.
    pub fn record_start(&mut self, metrics: &FetchMetrics, clock: &Clock) {
        for outcome in std::mem::take(&mut self.initial_outcomes) {
            metrics.record_fetch(outcome, clock.civil_now());
        }
        metrics.set_from_cache(self.unconfirmed.is_some());
    }

    /// Follows the document for as long as it is polled; `deliver` receives each new version.
    pub async fn run(mut self, resources: FollowerResources, deliver: impl Fn(FetchedDocument)) {
        let FollowerResources { mut settings, fetch_now, metrics, clock } = resources;
        let mut may_wait = true;
        loop {
            tokio::select! {
                () = self.poll_once(may_wait, &metrics, &clock, &deliver) => may_wait = true,
                () = fetch_now.notified() => may_wait = false,
                changed = settings.changed() => match changed {
                    Ok(()) => self.apply_settings(Arc::clone(&settings.borrow_and_update())),
                    Err(_) => return pending().await,
                },
            }
        }
    }

    /// Continues with new settings. Validators are kept, unless the URL has changed.
    fn apply_settings(&mut self, settings: Arc<CentralSettings>) {
        if settings.server.url != self.client.settings().server.url
            && let Some(known) = &mut self.last_document
        {
            known.validators = Validators::default();
        }
        match FetchClient::new(settings) {
            Ok(client) => self.client = client,
            Err(error) => {
                tracing::error!(
                    %error,
                    "cannot set up TLS: the configuration is still fetched with the previous settings"
                )
            }
        }
    }

    /// Performs one request, and the pause after it.
    async fn poll_once(
        &mut self,
        may_wait: bool,
        metrics: &FetchMetrics,
        clock: &Clock,
        deliver: &impl Fn(FetchedDocument),
    ) {
        let interval = self.client.settings().poll_interval;
        // No long poll after a failure: the next response should come at once, because it ends the failure.
        let wait = Some(self.client.settings().wait).filter(|wait| {
            let has_condition = self.last_document.as_ref().is_some_and(|known| known.validators.has_any());
            may_wait && has_condition && self.outage.is_over() && !wait.is_zero()
        });
        let started = Stopwatch::start();
        let outcome = match self.fetch(wait).await {
            Ok(fetched) => {
                self.record_success();
                if self.handle_result(fetched, metrics, clock, deliver) {
                    PollOutcome::Changed
                } else {
                    PollOutcome::Unchanged(started.elapsed())
                }
            }
            Err(failure) => {
                metrics.record_fetch(failure.outcome(), clock.civil_now());
                self.record_failure(&failure);
                PollOutcome::Failed(self.outage.failures())
            }
        };
        sleep(poll_interval::pause(outcome, wait, interval)).await;
    }

    /// Handles a response; returns whether there is a new document.
    fn handle_result(
        &mut self,
        result: FetchResult,
        metrics: &FetchMetrics,
        clock: &Clock,
        deliver: &impl Fn(FetchedDocument),
    ) -> bool {
        if let FetchResult::Document(document) = result {
            // A server may send the same content again, with a new validator or because it ignores
            // conditions.
            if self.last_document.as_ref() != Some(&document) {
                metrics.record_fetch(FetchOutcome::Changed, clock.civil_now());
                self.last_document = Some(document.clone());
                deliver(document);
                return true;
            }
            self.last_document = Some(document);
        }
        metrics.record_fetch(FetchOutcome::Unchanged, clock.civil_now());
        if self.unconfirmed.is_some() && self.unconfirmed == self.last_document {
            self.unconfirmed = None;
            metrics.set_from_cache(false);
        }
        false
    }

    fn record_failure(&mut self, failure: &FetchError) {
        self.outage.record_failure();
        let message = failure.to_string();
        if self.last_error.as_ref() != Some(&message) {
            let url = self.client.settings().server.url.without_query();
            tracing::warn!(%url, error = message, "cannot fetch the configuration, the last one stays in force");
        }
        self.last_error = Some(message);
    }

    fn record_success(&mut self) {
        if self.outage.record_success() > 0 {
            let url = self.client.settings().server.url.without_query();
            tracing::info!(%url, "the configuration can be fetched again");
        }
        self.last_error = None;
    }

    async fn fetch(&mut self, wait: Option<Duration>) -> Result<FetchResult, FetchError> {
        let none = Validators::default();
        let known = self.last_document.as_ref().map_or(&none, |known| &known.validators);
        match self.client.fetch(known, wait).await {
            Ok(FetchResult::NotModified) if !known.has_any() => {
                let text = "304 response to an unconditional request";
                Err(FetchError::InvalidResponse(text.to_owned()))
            }
            fetched => fetched,
        }
    }
}
