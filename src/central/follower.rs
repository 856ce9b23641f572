//! Follows a document on a server: requests it repeatedly and delivers each new version.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::client::{Client, Failure, Fetched};
use super::document::{Document, Validators};
use super::pacing::{self, Ended};
use super::settings::Settings;
use crate::clock::{Clock, Stopwatch};
use crate::telemetry::metrics::{FetchMetrics, FetchOutcome};

/// The server's response at startup.
#[derive(Debug)]
pub enum First {
    /// A document.
    Document(Document),
    /// The cached document is current.
    Kept,
}

/// The follower of one document.
#[derive(Debug)]
pub struct Follower {
    client: Client,
    known: Option<Document>,
    /// The running document, if it came from the cache and the server has not confirmed it.
    unconfirmed: Option<Document>,
    failures: u32,
    /// The last failure, which has been logged.
    failure: Option<String>,
    /// Outcomes of requests before metrics were available.
    begun: Vec<FetchOutcome>,
}

/// What a follower needs from the process.
#[derive(Debug)]
pub struct Resources {
    /// How the document is fetched; may change.
    pub settings: watch::Receiver<Arc<Settings>>,
    /// Causes the document to be fetched at once.
    pub hurry: Arc<Notify>,
    /// Counters of fetches.
    pub metrics: FetchMetrics,
    /// Clock for the time stamps of metrics.
    pub clock: Arc<Clock>,
}

impl Follower {
    /// Creates a follower that has the cached document, if there is one.
    ///
    /// # Errors
    /// Returns an error if TLS cannot be set up.
    pub fn new(settings: Settings, kept: Option<Document>) -> io::Result<Self> {
        let client = Client::new(Arc::new(settings))?;
        Ok(Self { client, known: kept, unconfirmed: None, failures: 0, failure: None, begun: Vec::new() })
    }

    /// Requests the document until there is a response or `timeout` has passed. With a cached document only
    /// once, because the cached one serves for a start.
    ///
    /// # Errors
    /// Returns the last [`Failure`].
    pub async fn first(&mut self) -> Result<First, Failure> {
        let limit = self.client.settings().timeout;
        let mut last = Failure::Late(limit);
        let asking = async {
            loop {
                match self.ask(None).await {
                    Ok(Fetched::NotModified) => {
                        self.begun.push(FetchOutcome::Unchanged);
                        return Ok(First::Kept);
                    }
                    Ok(Fetched::Document(document)) => {
                        self.begun.push(FetchOutcome::Changed);
                        self.known = Some(document.clone());
                        return Ok(First::Document(document));
                    }
                    Err(failure) => {
                        self.begun.push(failure.outcome());
                        self.failures = self.failures.saturating_add(1);
                        last = failure;
                    }
                }
                if self.known.is_some() {
                    return Err(());
                }
                sleep(pacing::pause(Ended::Failed(self.failures), None, Duration::ZERO)).await;
            }
        };
        let asked = timeout(limit, asking).await;
        asked.unwrap_or(Err(())).map_err(|()| {
            self.failures = self.failures.max(1);
            self.unconfirmed.clone_from(&self.known);
            last
        })
    }

    /// Notes that `kept` is running although the server has another document.
    pub fn start_with(&mut self, kept: Document) {
        self.unconfirmed = Some(kept);
    }

    /// Follows the document for as long as it is polled; `deliver` receives each new version.
    pub async fn run(mut self, resources: Resources, deliver: impl Fn(Document)) {
        let Resources { mut settings, hurry, metrics, clock } = resources;
        for outcome in std::mem::take(&mut self.begun) {
            metrics.fetched(outcome, clock.civil_now());
        }
        metrics.from_cache(self.unconfirmed.is_some());
        let mut may_wait = true;
        loop {
            tokio::select! {
                () = self.round(may_wait, &metrics, &clock, &deliver) => may_wait = true,
                () = hurry.notified() => may_wait = false,
                changed = settings.changed() => match changed {
                    Ok(()) => self.renew(Arc::clone(&settings.borrow_and_update())),
                    Err(_) => return pending().await,
                },
            }
        }
    }

    /// Continues with new settings. Validators are kept, unless the URL has changed.
    fn renew(&mut self, settings: Arc<Settings>) {
        if settings.url != self.client.settings().url
            && let Some(known) = &mut self.known
        {
            known.validators = Validators::default();
        }
        match Client::new(settings) {
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
    async fn round(
        &mut self,
        may_wait: bool,
        metrics: &FetchMetrics,
        clock: &Clock,
        deliver: &impl Fn(Document),
    ) {
        let interval = self.client.settings().interval;
        // No long poll after a failure: the next response should come at once, because it ends the failure.
        let wait = Some(self.client.settings().wait).filter(|wait| {
            let has_condition = self.known.as_ref().is_some_and(|known| known.validators.any());
            may_wait && has_condition && self.failures == 0 && !wait.is_zero()
        });
        let began = Stopwatch::start();
        let ended = match self.ask(wait).await {
            Ok(fetched) => {
                self.recovered();
                if self.take(fetched, metrics, clock, deliver) {
                    Ended::Changed
                } else {
                    Ended::Unchanged(began.elapsed())
                }
            }
            Err(failure) => {
                metrics.fetched(failure.outcome(), clock.civil_now());
                self.failed(&failure);
                Ended::Failed(self.failures)
            }
        };
        sleep(pacing::pause(ended, wait, interval)).await;
    }

    /// Handles a response; returns whether there is a new document.
    fn take(
        &mut self,
        fetched: Fetched,
        metrics: &FetchMetrics,
        clock: &Clock,
        deliver: &impl Fn(Document),
    ) -> bool {
        if let Fetched::Document(document) = fetched {
            // A server may send the same content again, with a new validator or because it ignores
            // conditions.
            if self.known.as_ref() != Some(&document) {
                metrics.fetched(FetchOutcome::Changed, clock.civil_now());
                self.known = Some(document.clone());
                deliver(document);
                return true;
            }
            self.known = Some(document);
        }
        metrics.fetched(FetchOutcome::Unchanged, clock.civil_now());
        if self.unconfirmed.is_some() && self.unconfirmed == self.known {
            self.unconfirmed = None;
            metrics.from_cache(false);
        }
        false
    }

    fn failed(&mut self, failure: &Failure) {
        self.failures = self.failures.saturating_add(1);
        let said = failure.to_string();
        if self.failure.as_ref() != Some(&said) {
            let url = &self.client.settings().url;
            tracing::warn!(%url, error = said, "cannot fetch the configuration, the last one stays in force");
        }
        self.failure = Some(said);
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.failures) > 0 {
            let url = &self.client.settings().url;
            tracing::info!(%url, "the configuration can be fetched again");
        }
        self.failure = None;
    }

    async fn ask(&mut self, wait: Option<Duration>) -> Result<Fetched, Failure> {
        let nothing = Validators::default();
        let known = self.known.as_ref().map_or(&nothing, |known| &known.validators);
        match self.client.fetch(known, wait).await {
            Ok(Fetched::NotModified) if !known.any() => {
                let text = "304 response to an unconditional request";
                Err(Failure::Unusable(text.to_owned()))
            }
            fetched => fetched,
        }
    }
}
