//! An HTTP server that admits requests by tower_governor. Usage: tower_governor SETTINGS

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use conformance_targets::{Limit, clean_up, serve, settings};
use governor::middleware::StateInformationMiddleware;
use std::sync::Arc;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::{KeyExtractor, PeerIpKeyExtractor};
use tower_governor::{GovernorError, GovernorLayer};

#[derive(Clone)]
enum Key {
    /// Requests without the header are one client. An error in its place would be 500.
    Header(String),
    Address,
    All,
}

impl KeyExtractor for Key {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        Ok(match self {
            Self::Header(name) => request
                .headers()
                .get(name)
                .map(|key| String::from_utf8_lossy(key.as_bytes()).into())
                .unwrap_or_default(),
            Self::Address => PeerIpKeyExtractor.extract(request)?.to_string(),
            Self::All => String::new(),
        })
    }
}

type Layer = GovernorLayer<Key, StateInformationMiddleware, Body>;

fn layer(limit: &Limit, key_header: &str) -> Layer {
    let key = match limit.key.as_str() {
        "header" => Key::Header(key_header.to_owned()),
        "address" => Key::Address,
        _ => Key::All,
    };
    let mut builder = GovernorConfigBuilder::default().key_extractor(key).use_headers();
    let config = builder.period(limit.interval()).burst_size(limit.count.get()).finish().expect("a limit");
    let limiter = Arc::clone(config.limiter());
    clean_up(move || {
        limiter.retain_recent();
        limiter.shrink_to_fit();
    });
    GovernorLayer::new(config)
}

#[tokio::main]
async fn main() {
    let settings = settings();
    let layers = settings.limits.iter().map(|limit| layer(limit, &settings.key_header));
    let app = layers.fold(Router::new().fallback(async || "ok"), Router::layer);
    serve(settings.port, app).await;
}
