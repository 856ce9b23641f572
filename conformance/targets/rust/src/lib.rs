//! What the servers share: their settings, and how they serve.

use axum::Router;
use axum::serve::ListenerExt as _;
use serde::Deserialize;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

#[derive(Deserialize)]
pub struct Settings {
    pub port: u16,
    pub key_header: String,
    pub limits: Vec<Limit>,
}

#[derive(Clone, Deserialize)]
pub struct Limit {
    pub count: NonZeroU32,
    pub period: u32,
    pub key: String,
}

impl Limit {
    /// Time between two requests at the rate of the limit.
    pub fn interval(&self) -> Duration {
        Duration::from_secs(self.period.into()) / self.count.get()
    }
}

/// Reads the file that the first argument names.
pub fn settings() -> Settings {
    let file = std::env::args().nth(1).expect("usage: PROGRAM SETTINGS");
    serde_json::from_str(&std::fs::read_to_string(file).expect("settings")).expect("settings")
}

/// Serves until the process is ended.
pub async fn serve(port: u16, app: Router) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.expect("a free port");
    let listener = listener.tap_io(|stream| stream.set_nodelay(true).expect("TCP_NODELAY"));
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await.expect("a server");
}

/// Forgets the keys that have their whole limit again, as the documentation of governor recommends.
pub fn clean_up(mut retain_recent: impl FnMut() + Send + 'static) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(10));
            retain_recent();
        }
    });
}
