//! The `weir` command.

use std::error::Error as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory as _;
use weir::cli::{Cli, Command, Import, LogFormat};
use weir::config::environment;
use weir::telemetry::logging::{self, LevelHandle};
use weir::{app, config, import};

/// jemalloc suits many small, short-lived allocations. Its background thread returns memory to the system
/// after clients have left, even while there are no requests.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit code of a failure at run time.
const FAILED: u8 = 1;
/// Exit code of an invalid command line or configuration.
const BAD_USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::of_process();
    match &cli.command {
        Command::Run { config } => run(config, &cli),
        Command::Rls { print_config } => rls(*print_config, &cli),
        Command::Check { files, against } => check(files, against.as_deref()),
        Command::Import { from } => imported(from),
        Command::Completions { shell } => {
            clap_complete::generate(*shell, &mut Cli::command(), "weir", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
    }
}

fn run(path: &Path, cli: &Cli) -> ExitCode {
    match log(cli, "info", LogFormat::default()) {
        Ok(levels) => ended(app::run(app::Origin::File(path), levels)),
        Err(failed) => failed,
    }
}

fn rls(print_config: bool, cli: &Cli) -> ExitCode {
    let read = match environment::read() {
        Ok(read) => read,
        Err(problems) => {
            say(&mut std::io::stderr(), &problems);
            return ExitCode::from(BAD_USAGE);
        }
    };
    if print_config {
        say(&mut std::io::stdout(), &[read.text.trim_end()]);
        return ExitCode::SUCCESS;
    }
    let format = if read.is_log_json { LogFormat::Json } else { LogFormat::Text };
    let levels = match log(cli, read.log_level.unwrap_or("info"), format) {
        Ok(levels) => levels,
        Err(failed) => return failed,
    };
    for notice in &read.notices {
        tracing::warn!("{notice}");
    }
    ended(app::run(app::Origin::Text(&read.text), levels))
}

/// Starts logging with the options of the command line, or else with the given values.
fn log(cli: &Cli, level: &str, format: LogFormat) -> Result<LevelHandle, ExitCode> {
    let format = match cli.log_format.unwrap_or(format) {
        LogFormat::Text => logging::LogFormat::Text,
        LogFormat::Json => logging::LogFormat::Json,
    };
    let level = cli.log_level.as_deref().unwrap_or(level);
    logging::init(level, format).map_err(|error| fail(&format!("cannot set up logging: {error}")))
}

fn ended(how: Result<(), app::Error>) -> ExitCode {
    match how {
        Ok(()) => ExitCode::SUCCESS,
        Err(app::Error::Configuration(problems)) => {
            say(&mut std::io::stderr(), &problems);
            ExitCode::from(BAD_USAGE)
        }
        Err(app::Error::System(doing, error)) => {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            fail(&format!("{doing}: {error}{cause}"))
        }
        Err(app::Error::Thread(name)) => fail(&format!("thread {name} has failed")),
    }
}

fn check(files: &[PathBuf], against: Option<&Path>) -> ExitCode {
    let out = &mut std::io::stdout();
    let running = match against.map(config::load).transpose() {
        Ok(running) => running,
        Err(problems) => {
            say(out, &problems);
            return ExitCode::from(BAD_USAGE);
        }
    };
    let mut valid = true;
    for file in files {
        match (config::load(file), &running) {
            (Ok(config), None) => say(out, &config.notices),
            (Ok(config), Some(running)) => match config::changes(running, &config) {
                changes if changes.is_empty() => say(out, &["nothing changes"]),
                changes => say(out, &changes),
            },
            (Err(problems), _) => {
                say(out, &problems);
                valid = false;
            }
        }
    }
    if valid { ExitCode::SUCCESS } else { ExitCode::from(BAD_USAGE) }
}

fn imported(from: &Import) -> ExitCode {
    let files = match from {
        Import::EnvoyRatelimit { files } => files.as_slice(),
        Import::LocalRatelimit { file } => std::slice::from_ref(file),
    };
    let (mut texts, mut problems) = (Vec::new(), Vec::new());
    for file in files {
        match std::fs::read_to_string(file) {
            Ok(text) => texts.push((file.display().to_string(), text)),
            Err(error) => problems.push(format!("{}: not readable: {error}", file.display())),
        }
    }
    let texts: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let rules = match (from, texts.as_slice()) {
        _ if !problems.is_empty() => Ok(String::new()),
        (Import::LocalRatelimit { .. }, [(name, text)]) => import::local_ratelimit::import(name, text),
        (_, texts) => import::envoy_ratelimit::import(texts),
    };
    let rules = rules.unwrap_or_else(|wrong| {
        problems.extend(wrong.iter().map(ToString::to_string));
        String::new()
    });
    if !problems.is_empty() {
        say(&mut std::io::stderr(), &problems);
        return ExitCode::from(BAD_USAGE);
    }
    let mut out = std::io::stdout();
    match out.write_all(rules.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("cannot print the rules: {error}")),
    }
}

fn fail(message: &str) -> ExitCode {
    say(&mut std::io::stderr(), &[format!("weir: {message}")]);
    ExitCode::from(FAILED)
}

/// Prints line by line. Errors are ignored, because the reading process may have ended.
fn say(out: &mut impl std::io::Write, lines: &[impl std::fmt::Display]) {
    for line in lines {
        let _ = writeln!(out, "{line}");
    }
    let _ = std::io::stdout().flush();
}
