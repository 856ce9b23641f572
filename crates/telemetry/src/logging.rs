//! Log messages of the process, on standard error, at levels that can be changed at runtime.
//!
//! Messages are written synchronously, and the reader may be slow. So messages of requests must either be below the
//! default level or be logged only once.

mod targets;

use std::fmt;
use std::io::{self, IsTerminal};

use tracing::Subscriber;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry, reload};

pub use self::targets::KNOWN_TARGETS;

/// Target of the audit log: lines about what operators have changed. They are written at any level.
pub const AUDIT_TARGET: &str = "weir::audit";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogMessageFormat {
    /// A human-readable line.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Why logging cannot be set up or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoggingError {
    /// Not a log level.
    #[error("unknown log level, expected one of trace, debug, info, warn, error, off, got \"{0}\"")]
    UnknownLevel(String),
    /// Not in the form `target=level`.
    #[error("expected target and level as in weir::proxy=debug, got \"{0}\"")]
    InvalidTarget(String),
    /// No log line has this target.
    #[error("unknown log target \"{0}\", expected one of {known}, or a module below", known = targets::known_list())]
    UnknownTarget(String),
    /// A subscriber is already installed, or has been removed.
    #[error("it is already set up")]
    AlreadyInstalled,
}

/// Handle for changing log levels at runtime.
#[derive(Clone)]
pub struct LevelHandle(reload::Handle<Targets, Registry>);

impl fmt::Debug for LevelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LevelHandle({})", self.describe())
    }
}

impl LevelHandle {
    /// Sets one level for all targets.
    ///
    /// # Errors
    /// [`LoggingError::UnknownLevel`] if `level` is unknown.
    pub fn set_level(&self, level: &str) -> Result<(), LoggingError> {
        let level = parse_level(level)?;
        self.0
            .reload(with_audit(Targets::new().with_default(level)))
            .map_err(|_| LoggingError::AlreadyInstalled)
    }

    /// Sets the level of a module and its submodules, such as `weir::proxy`, in addition to existing levels.
    /// `weir::store` stands for the crate `weir_store`, and so for each crate.
    ///
    /// # Errors
    /// [`LoggingError::UnknownLevel`] if `level` is unknown, [`LoggingError::InvalidTarget`] if `target` is
    /// invalid, or [`LoggingError::UnknownTarget`] if no log line has it.
    pub fn set_target(&self, target: &str, level: &str) -> Result<(), LoggingError> {
        let level = parse_level(level)?;
        if target.is_empty() || target.len() > MAX_TARGET_LENGTH || !target.bytes().all(is_target_byte) {
            return Err(LoggingError::InvalidTarget(target.to_owned()));
        }
        let target = targets::resolve(target)?;
        self.0
            .modify(|targets| *targets = with_audit(std::mem::take(targets).with_target(target, level)))
            .map_err(|_| LoggingError::AlreadyInstalled)
    }

    /// Returns the levels in effect, in the format that [`init`] reads. That of the audit log never changes and is left
    /// out.
    pub fn describe(&self) -> String {
        let describe = |targets: &Targets| {
            let default = targets.default_level().unwrap_or(LevelFilter::OFF);
            let others = targets.iter().filter(|(target, _)| *target != AUDIT_TARGET);
            let mut set: Vec<_> = others.map(|(target, level)| format!("{target}={level}")).collect();
            set.sort_unstable();
            set.insert(0, default.to_string());
            set.join(",")
        };
        self.0.with_current(describe).unwrap_or_else(|_| LevelFilter::OFF.to_string())
    }
}

/// Maximum length of a target, in bytes. Targets are stored, so their size must be bounded.
const MAX_TARGET_LENGTH: usize = 128;

const fn is_target_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':' | b'-')
}

/// Starts logging to standard error. `level` is a level, or a list such as `info,weir::proxy=debug`. Colours are used
/// on a terminal only, and not if `NO_COLOR` is set.
///
/// # Errors
/// [`LoggingError`] if `level` is invalid, or logging has been set up before.
pub fn init(level: &str, format: LogMessageFormat) -> Result<LevelHandle, LoggingError> {
    let (subscriber, handle) = subscriber(level, format, io::stderr)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LoggingError::AlreadyInstalled)?;
    Ok(handle)
}

/// Returns the subscriber that [`init`] installs, with another writer.
///
/// # Errors
/// [`LoggingError`] if `level` is invalid.
pub fn subscriber<W>(
    level: &str,
    format: LogMessageFormat,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync, LevelHandle), LoggingError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(parse_targets(level)?);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = match format {
        LogMessageFormat::Text if io::stderr().is_terminal() => lines.compact().boxed(),
        LogMessageFormat::Text => lines.compact().with_ansi(false).boxed(),
        LogMessageFormat::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
    };
    Ok((tracing_subscriber::registry().with(filter).with(lines), LevelHandle(handle)))
}

/// Parses a list of levels. [`Targets`] would accept a misspelt level as the name of a module.
fn parse_targets(spec: &str) -> Result<Targets, LoggingError> {
    let mut targets = Targets::new();
    for part in spec.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        targets = match part.split_once('=') {
            Some((target, level)) => {
                targets.with_target(targets::resolve(target.trim())?, parse_level(level.trim())?)
            }
            None => targets.with_default(parse_level(part)?),
        };
    }
    Ok(with_audit(targets))
}

/// Adds the audit log, which no level turns off.
fn with_audit(targets: Targets) -> Targets {
    targets.with_target(AUDIT_TARGET, LevelFilter::INFO)
}

/// Parses a level; Envoy's names are accepted as well.
fn parse_level(name: &str) -> Result<LevelFilter, LoggingError> {
    match name.to_ascii_lowercase().as_str() {
        "trace" => Ok(LevelFilter::TRACE),
        "debug" => Ok(LevelFilter::DEBUG),
        "info" => Ok(LevelFilter::INFO),
        "warn" | "warning" => Ok(LevelFilter::WARN),
        "error" | "critical" => Ok(LevelFilter::ERROR),
        "off" => Ok(LevelFilter::OFF),
        _ => Err(LoggingError::UnknownLevel(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct CapturedLog(Arc<Mutex<Vec<u8>>>);

    impl io::Write for CapturedLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl CapturedLog {
        fn to_text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn captured_log(format: LogMessageFormat, log: impl FnOnce(&LevelHandle)) -> String {
        let lines = CapturedLog::default();
        let writer = lines.clone();
        let (subscriber, handle) = subscriber("info", format, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || log(&handle));
        lines.to_text()
    }

    #[test]
    fn log_levels_can_change_at_runtime() {
        let text = captured_log(LogMessageFormat::Text, |handle| {
            tracing::debug!("before");
            handle.set_level("debug").unwrap();
            tracing::debug!("after");
            handle.set_level("off").unwrap();
            tracing::error!("silence");
        });
        assert!(!text.contains("before") && text.contains("after") && !text.contains("silence"), "{text}");
    }

    #[test]
    fn log_level_can_be_set_for_one_module() {
        let text = captured_log(LogMessageFormat::Text, |handle| {
            handle.set_target("weir::proxy", "trace").unwrap();
            assert_eq!(handle.describe(), "info,weir::proxy=trace");
            tracing::trace!(target: "weir::proxy::service", "loud");
            tracing::trace!(target: "weir::rules", "quiet");
        });
        assert!(text.contains("loud") && !text.contains("quiet"), "{text}");
    }

    #[test]
    fn audit_log_is_written_at_any_level() {
        let text = captured_log(LogMessageFormat::Text, |handle| {
            for (number, target) in ["", "weir", "weir::audit"].into_iter().enumerate() {
                match target {
                    "" => handle.set_level("off").unwrap(),
                    target => handle.set_target(target, "off").unwrap(),
                }
                tracing::info!(target: AUDIT_TARGET, "line {number}");
                tracing::error!("silence");
            }
            assert_eq!(handle.describe(), "off,weir=off");
        });
        assert_eq!(text.matches("weir::audit: line").count(), 3, "{text}");
        assert!(!text.contains("silence"), "{text}");
        assert!(parse_targets("error").unwrap().would_enable(AUDIT_TARGET, &tracing::Level::INFO));
    }

    #[test]
    fn json_log_lines_have_time_level_and_fields() {
        let text =
            captured_log(LogMessageFormat::Json, |_| tracing::info!(rule = "per-ip", "limited \"so\"\n"));
        let line: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
        assert_eq!((&line["level"], &line["rule"]), (&"INFO".into(), &"per-ip".into()));
        assert_eq!(line["message"], "limited \"so\"\n");
        assert!(line["timestamp"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{line}");
    }

    #[test]
    fn misspelt_log_level_is_an_error() {
        assert_eq!(parse_targets("debgu"), Err(LoggingError::UnknownLevel("debgu".to_owned())));
        assert_eq!(parse_targets("info,weir=loud"), Err(LoggingError::UnknownLevel("loud".to_owned())));
        assert!(parse_targets("warning,weir::proxy=debug").is_ok());
    }
}
