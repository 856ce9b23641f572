//! A provider: a server that enforces a limit of calls a second and rejects every call above it.
//!
//! It runs in a process of its own. `GET /stats` returns a summary as JSON, `POST /reset` clears the record, and
//! `POST /limit?n=500` changes the limit. `GET /free` is a call that is not counted. Every other request is a call.

#[path = "provider/enforcement.rs"]
pub(crate) mod enforcement;
#[path = "provider/process.rs"]
pub(crate) mod process;
#[path = "provider/record.rs"]
pub(crate) mod record;

use std::fmt::Write as _;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::BytesMut;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use self::enforcement::{Enforcement, Kind, SECOND, Verdict};
use self::record::Record;
use crate::http1::{self, Call};

/// What the provider says about its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Signals {
    /// `retry-after` in a rejection, and nothing else.
    RetryAfter,
    /// Also `retry-after-ms`, and `x-ratelimit-*` in every response.
    Headers,
}

/// Settings of a provider.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProviderSettings {
    pub(crate) kind: String,
    pub(crate) limit: u64,
    pub(crate) signals: Signals,
    /// Time that a call takes, in milliseconds.
    pub(crate) service_time: u64,
    pub(crate) threads: usize,
}

/// Microseconds since the epoch; not affected by changes of the wall clock.
#[derive(Clone, Copy, Debug)]
struct WallClock {
    started: Instant,
    epoch: u64,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Call,
    /// A call outside the limit.
    Free,
    Control,
}

#[derive(Debug)]
struct Provider {
    settings: ProviderSettings,
    clock: WallClock,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    enforcement: Enforcement,
    record: Record,
}

impl WallClock {
    fn start() -> Self {
        let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), epoch: epoch.as_micros() as u64 }
    }

    fn now(&self) -> u64 {
        self.epoch + self.started.elapsed().as_micros() as u64
    }
}

/// Serves until the process ends. The first line of the output is the address.
pub(crate) fn serve(settings: ProviderSettings) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    process::announce(listener.local_addr()?);
    let clock = WallClock::start();
    let kind = Kind::parse(&settings.kind).ok_or(io::ErrorKind::InvalidInput)?;
    let enforcement = Enforcement::new(kind, settings.limit);
    let state = Mutex::new(State { enforcement, record: Record::new(clock.now()) });
    let threads = settings.threads;
    let provider = Arc::new(Provider { settings, clock, state });
    for _ in 0..threads {
        let (provider, listener) = (Arc::clone(&provider), listener.try_clone()?);
        std::thread::spawn(move || accept(&provider, listener));
    }
    process::await_end_of_input();
    Ok(())
}

fn accept(provider: &Arc<Provider>, listener: TcpListener) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let provider = Arc::clone(provider);
            tokio::task::spawn_local(async move {
                // The end of a connection is no error here.
                let _ = provider.serve_connection(stream).await;
            });
        }
    });
}

impl Provider {
    async fn serve_connection(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut buffer = BytesMut::with_capacity(4096);
        let mut responses = String::new();
        loop {
            while let Some(call) = http1::take_call(&mut buffer)? {
                match self.respond(&call, &mut responses) {
                    Purpose::Call if self.settings.service_time > 0 => {
                        tokio::time::sleep(Duration::from_millis(self.settings.service_time)).await;
                    }
                    Purpose::Call | Purpose::Free => {}
                    // The control reads to the end of the connection.
                    Purpose::Control => return stream.write_all(responses.as_bytes()).await,
                }
            }
            if !responses.is_empty() {
                stream.write_all(responses.as_bytes()).await?;
                responses.clear();
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Appends the response to a request.
    fn respond(&self, call: &Call, responses: &mut String) -> Purpose {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let (path, query) = call.target.split_once('?').unwrap_or((&call.target, ""));
        let body = match path {
            "/stats" => {
                let stats = state.record.stats(state.enforcement.limit(), now);
                serde_json::to_string(&stats).unwrap_or_default()
            }
            "/reset" => {
                state.record = Record::new(now);
                String::new()
            }
            "/limit" => {
                let limit = query.strip_prefix("n=").and_then(|text| text.parse().ok());
                limit.into_iter().for_each(|limit| state.enforcement.set_limit(limit));
                String::new()
            }
            "/free" => {
                drop(state);
                let verdict = Verdict { is_admitted: true, remaining: 1, reset: 0 };
                self.write_response(self.settings.limit, verdict, responses);
                return Purpose::Free;
            }
            _ => {
                let verdict = state.enforcement.decide(now);
                state.record.add(now, &call.tenant, verdict.is_admitted);
                call.sequence.into_iter().for_each(|number| state.record.add_sequence(number));
                let limit = state.enforcement.limit();
                drop(state);
                self.write_response(limit, verdict, responses);
                return Purpose::Call;
            }
        };
        let _ = write!(responses, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        Purpose::Control
    }

    fn write_response(&self, limit: u64, verdict: Verdict, responses: &mut String) {
        let Verdict { is_admitted, remaining, reset } = verdict;
        responses.push_str(if is_admitted {
            "HTTP/1.1 200 OK\r\n"
        } else {
            "HTTP/1.1 429 Too Many Requests\r\n"
        });
        responses.push_str("x-provider: 1\r\ncontent-length: 0\r\n");
        // Writing to a `String` cannot fail.
        let has_headers = self.settings.signals == Signals::Headers;
        if !is_admitted {
            let _ = write!(responses, "retry-after: {}\r\n", reset.div_ceil(SECOND));
            if has_headers {
                let _ = write!(responses, "retry-after-ms: {}\r\n", reset.div_ceil(1000));
            }
        }
        if has_headers {
            let _ = write!(
                responses,
                "x-ratelimit-limit: {limit}\r\nx-ratelimit-remaining: {remaining}\r\nx-ratelimit-reset: {}\r\n",
                reset.div_ceil(SECOND)
            );
        }
        responses.push_str("\r\n");
    }
}
