//! `weir top`: a live view of rules and heaviest keys in a terminal, from the snapshots of `/events`.
//!
//! Reading snapshots (`feed`), computing rates (`view`), adding up several instances (`several`), drawing (`screen`, which
//! is pure) and the terminal itself (`terminal`) are apart. Text of clients, such as keys, never reaches the terminal with control characters.

mod feed;
pub(crate) mod line;
mod numbers;
mod screen;
mod several;
mod snapshot;
mod terminal;
mod view;

use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use self::feed::{Feed, FeedEvent, FeedUpdate};
use self::line::{ColorChoice, Line};
use self::screen::ScreenSize;
use self::several::SeveralViews;
use self::terminal::{Key, Terminal};
use self::view::TopView;
use crate::admin_client::{AdminClient, AdminClientError};

/// Options of `weir top`.
#[derive(Clone, Debug)]
pub struct TopOptions {
    /// What is shown.
    pub source: TopSource,
    /// Print one view and exit. Also the case if standard output is not a terminal.
    pub is_once: bool,
    /// Whether colours are allowed.
    pub has_colors: bool,
}

/// What is shown.
#[derive(Clone, Debug)]
pub enum TopSource {
    /// One instance.
    One(AdminClient),
    /// The sum of several instances, each with a line of its own.
    Several {
        /// What they are.
        title: String,
        /// At least one.
        instances: Vec<TopInstance>,
    },
}

/// One of several instances.
#[derive(Clone, Debug)]
pub struct TopInstance {
    /// Its name.
    pub name: String,
    /// Its admin port.
    pub client: AdminClient,
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
    /// Some of several instances have no snapshot.
    #[error("{}", .0.join("\nweir: "))]
    Missing(Vec<String>),
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
    runtime.block_on(show(options))
}

/// As [`run`], inside of a runtime.
pub(crate) async fn show(options: &TopOptions) -> Result<(), TopError> {
    if !options.is_once && terminal::is_terminal() {
        return show_live(options).await.map_err(TopError::Terminal);
    }
    let (text, missing) = match &options.source {
        TopSource::One(client) => (text(&view_of(client).await?), Vec::new()),
        TopSource::Several { title, instances } => text_of_several(title, instances).await,
    };
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reading process may have ended.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(TopError::Output(error)),
        Ok(()) | Err(_) if missing.is_empty() => Ok(()),
        Ok(()) | Err(_) => Err(TopError::Missing(missing)),
    }
}

fn text(view: &TopView) -> String {
    screen::text(view).iter().map(|line| line.to_text() + "\n").collect()
}

/// Returns the view after two snapshots, because rates need two.
async fn view_of(client: &AdminClient) -> Result<TopView, TopError> {
    let address = || client.address().to_string();
    let mut events = client.events().await?;
    let mut view = TopView::new(address());
    for _ in 0..2 {
        let data = events.next_snapshot().await?.ok_or_else(|| TopError::StreamEnded(address()))?;
        let snapshot = serde_json::from_str(&data).map_err(|error| TopError::Snapshot(address(), error))?;
        view.add(snapshot);
    }
    Ok(view)
}

/// Returns the sum of all instances that have a view, and why others have none. Without any, the text is empty.
async fn text_of_several(title: &str, instances: &[TopInstance]) -> (String, Vec<String>) {
    let mut tasks = JoinSet::new();
    for (index, TopInstance { client, .. }) in instances.iter().cloned().enumerate() {
        tasks.spawn(async move { (index, view_of(&client).await) });
    }
    let mut several = several_of(title, instances);
    let mut missing = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok((index, Ok(view))) => several.set(index, view),
            Ok((index, Err(error))) => {
                missing.push(format!("{}: {error}", instances[index].name));
                several.set_lost(index, error.to_string());
            }
            Err(error) => missing.push(error.to_string()),
        }
    }
    missing.sort();
    let text = if missing.len() < instances.len() { text(&several.sum()) } else { String::new() };
    (text, missing)
}

fn several_of(title: &str, instances: &[TopInstance]) -> SeveralViews {
    let names = instances.iter().map(|instance| instance.name.clone());
    SeveralViews::new(title.to_owned(), names)
}

/// The view of one instance, or of several.
#[derive(Debug)]
enum LiveView {
    One(Box<TopView>),
    Several(SeveralViews),
}

impl LiveView {
    fn add(&mut self, update: FeedUpdate) {
        match (self, update.event) {
            (Self::One(view), FeedEvent::Snapshot(snapshot)) => view.add(*snapshot),
            (Self::One(view), FeedEvent::Lost(message)) => view.set_lost(message),
            (Self::Several(views), FeedEvent::Snapshot(snapshot)) => views.add(update.instance, *snapshot),
            (Self::Several(views), FeedEvent::Lost(message)) => views.set_lost(update.instance, message),
        }
    }

    fn tick(&mut self) {
        match self {
            Self::One(view) => view.tick(),
            Self::Several(views) => views.tick(),
        }
    }

    fn scroll_by(&mut self, lines: isize) {
        match self {
            Self::One(view) => view.scroll_by(lines),
            Self::Several(views) => views.scroll_by(lines),
        }
    }

    fn draw(&self, size: &ScreenSize) -> Vec<Line> {
        match self {
            Self::One(view) => screen::draw(view, size),
            Self::Several(views) => screen::draw(&views.sum(), size),
        }
    }
}

/// Redraws with each snapshot, second, key and change of the size, until `q` or a signal.
async fn show_live(options: &TopOptions) -> io::Result<()> {
    let mut stops =
        [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    let mut resized = signal(SignalKind::window_change())?;
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (clients, mut view) = match &options.source {
        TopSource::One(client) => {
            (vec![client.clone()], LiveView::One(Box::new(TopView::new(client.address().to_string()))))
        }
        TopSource::Several { title, instances } => {
            let clients = instances.iter().map(|instance| instance.client.clone());
            (clients.collect(), LiveView::Several(several_of(title, instances)))
        }
    };
    let mut feed = Feed::start(clients);
    let mut terminal = Terminal::enter()?;
    let colors = if options.has_colors { ColorChoice::Ansi } else { ColorChoice::Plain };
    loop {
        let size = terminal.size();
        terminal.show(&view.draw(&size), size.columns, colors)?;
        tokio::select! {
            update = feed.next() => view.add(update),
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
