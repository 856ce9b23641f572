//! `weir top`: a live view of rules and heaviest keys in a terminal, from the snapshots of `/events`.
//!
//! Reading snapshots (`feed`), computing rates (`view`), drawing (`screen`, which is pure) and the terminal itself
//! (`terminal`) are apart. Text of clients, such as keys, never reaches the terminal with control characters.

mod feed;
mod line;
mod numbers;
mod screen;
mod snapshot;
mod terminal;
mod view;

use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use self::feed::{Feed, FeedUpdate};
use self::line::ColorChoice;
use self::terminal::{Key, Terminal};
use self::view::TopView;
use crate::admin_client::{AdminClient, AdminClientError};

/// Options of `weir top`.
#[derive(Clone, Debug)]
pub struct TopOptions {
    /// The admin port.
    pub client: AdminClient,
    /// Print one view and exit. Also the case if standard output is not a terminal.
    pub is_once: bool,
    /// Whether colours are allowed.
    pub has_colors: bool,
}

/// Why `weir top` has ended early.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// There is no snapshot.
    #[error(transparent)]
    Client(#[from] AdminClientError),
    /// The stream of snapshots ended before the first two.
    #[error("the admin port at {0} has ended the stream of events")]
    StreamEnded(String),
    /// A snapshot cannot be read.
    #[error("unexpected data from {0}: {1}")]
    Snapshot(String, serde_json::Error),
    /// The view cannot be written to standard output.
    #[error("cannot print the view: {0}")]
    Output(#[source] io::Error),
    /// The terminal cannot be used.
    #[error("cannot use the terminal: {0}")]
    Terminal(#[source] io::Error),
}

/// Shows the view until the operator ends it, or once.
///
/// # Errors
/// See [`TopError`]. A lost connection is an error only with [`TopOptions::is_once`]; otherwise it is shown, and
/// opened again.
pub fn run(options: &TopOptions) -> Result<(), TopError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(TopError::Terminal)?;
    if options.is_once || !terminal::is_terminal() {
        let text = runtime.block_on(text_of_one_view(options))?;
        let mut out = io::stdout();
        return match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // The reading process may have ended.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(TopError::Output(error)),
            Ok(()) | Err(_) => Ok(()),
        };
    }
    runtime.block_on(show_live(options)).map_err(TopError::Terminal)
}

/// Returns the view after two snapshots, because rates need two.
async fn text_of_one_view(options: &TopOptions) -> Result<String, TopError> {
    let address = || options.client.address().to_string();
    let mut events = options.client.events().await?;
    let mut view = TopView::new(address());
    for _ in 0..2 {
        let data = events.next_snapshot().await?.ok_or_else(|| TopError::StreamEnded(address()))?;
        let snapshot = serde_json::from_str(&data).map_err(|error| TopError::Snapshot(address(), error))?;
        view.add(snapshot);
    }
    let lines = screen::text(&view);
    Ok(lines.iter().map(|line| line.to_text() + "\n").collect())
}

/// Redraws with each snapshot, second, key and change of the size, until `q` or a signal.
async fn show_live(options: &TopOptions) -> io::Result<()> {
    let mut stops =
        [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    let mut resized = signal(SignalKind::window_change())?;
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut feed = Feed::start(options.client.clone());
    let mut view = TopView::new(options.client.address().to_string());
    let mut terminal = Terminal::enter()?;
    let colors = if options.has_colors { ColorChoice::Ansi } else { ColorChoice::Plain };
    loop {
        let size = terminal.size();
        terminal.show(&screen::draw(&view, &size), size.columns, colors)?;
        tokio::select! {
            update = feed.next() => match update {
                FeedUpdate::Snapshot(snapshot) => view.add(*snapshot),
                FeedUpdate::Lost(message) => view.set_lost(message),
            },
            _ = ticks.tick() => view.tick(),
            key = terminal.next_key() => match key {
                Key::Quit => return Ok(()),
                Key::Scroll(lines) => view.scroll_by(lines),
                Key::Other => {}
            },
            _ = resized.recv() => {}
            () = any(&mut stops) => return Ok(()),
        }
    }
}

/// Waits for the first of several signals.
async fn any(signals: &mut [Signal; 3]) {
    let [first, second, third] = signals;
    tokio::select! {
        _ = first.recv() => {}
        _ = second.recv() => {}
        _ = third.recv() => {}
    }
}
