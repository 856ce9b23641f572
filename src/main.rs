//! The `weir` command.

use std::error::Error as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory as _;
use weir::cli::{Cli, Command, DEFAULT_CONFIG, ExplainOptions, ImportFormat, LogFormatArg, OutputFormat};
use weir::config::environment;
use weir::explain_command::{self, ExplainArgs, ExplainError};
use weir::telemetry::logging::{self, LevelHandle};
use weir::{app, config, import};

/// jemalloc suits many small, short-lived allocations. Its background thread returns memory to the system
/// after clients have left, even while there are no requests.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit code of a failure at run time.
const EXIT_FAILURE: u8 = 1;
/// Exit code of an invalid command line or configuration.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::from_process_args();
    match &cli.command {
        Command::Run { config } => run_proxy(config, &cli),
        Command::Rls { print_config } => run_rls(*print_config, &cli),
        Command::Check { files, against } => check_configs(files, against.as_deref()),
        Command::Import { from } => import_rules(from),
        Command::Explain(options) => explain_request(options),
        Command::Completions { shell } => {
            clap_complete::generate(*shell, &mut Cli::command(), "weir", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
    }
}

fn run_proxy(path: &Path, cli: &Cli) -> ExitCode {
    match init_logging(cli, "info", LogFormatArg::default()) {
        Ok(levels) => exit_code(app::run(app::ConfigOrigin::File(path), levels)),
        Err(failed) => failed,
    }
}

fn run_rls(print_config: bool, cli: &Cli) -> ExitCode {
    let read = match environment::read() {
        Ok(read) => read,
        Err(problems) => {
            print_lines(&mut std::io::stderr(), &problems);
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if print_config {
        print_lines(&mut std::io::stdout(), &[read.text.trim_end()]);
        return ExitCode::SUCCESS;
    }
    let format = if read.is_log_json { LogFormatArg::Json } else { LogFormatArg::Text };
    let levels = match init_logging(cli, read.log_level.unwrap_or("info"), format) {
        Ok(levels) => levels,
        Err(failed) => return failed,
    };
    for notice in &read.notices {
        tracing::warn!("{notice}");
    }
    exit_code(app::run(app::ConfigOrigin::Text(&read.text), levels))
}

/// Starts logging with the options of the command line, or else with the given values.
fn init_logging(cli: &Cli, level: &str, format: LogFormatArg) -> Result<LevelHandle, ExitCode> {
    let format = match cli.log_format.unwrap_or(format) {
        LogFormatArg::Text => logging::LogMessageFormat::Text,
        LogFormatArg::Json => logging::LogMessageFormat::Json,
    };
    let level = cli.log_level.as_deref().unwrap_or(level);
    logging::init(level, format).map_err(|error| report_failure(&format!("cannot set up logging: {error}")))
}

fn exit_code(result: Result<(), app::AppError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(app::AppError::Configuration(problems)) => {
            print_lines(&mut std::io::stderr(), &problems);
            ExitCode::from(EXIT_USAGE)
        }
        Err(app::AppError::System(doing, error)) => {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            report_failure(&format!("{doing}: {error}{cause}"))
        }
        Err(app::AppError::Thread(name)) => report_failure(&format!("thread {name} has failed")),
    }
}

fn check_configs(files: &[PathBuf], against: Option<&Path>) -> ExitCode {
    let out = &mut std::io::stdout();
    let running = match against.map(config::load).transpose() {
        Ok(running) => running,
        Err(problems) => {
            print_lines(out, &problems);
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let mut valid = true;
    for file in files {
        match (config::load(file), &running) {
            (Ok(config), None) => print_lines(out, &config.notices),
            (Ok(config), Some(running)) => match config::describe_changes(running, &config) {
                changes if changes.is_empty() => print_lines(out, &["nothing changes"]),
                changes => print_lines(out, &changes),
            },
            (Err(problems), _) => {
                print_lines(out, &problems);
                valid = false;
            }
        }
    }
    if valid { ExitCode::SUCCESS } else { ExitCode::from(EXIT_USAGE) }
}

fn import_rules(from: &ImportFormat) -> ExitCode {
    let files = match from {
        ImportFormat::EnvoyRatelimit { files } => files.as_slice(),
        ImportFormat::LocalRatelimit { file } => std::slice::from_ref(file),
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
        (ImportFormat::LocalRatelimit { .. }, [(name, text)]) => import::local_ratelimit::import(name, text),
        (_, texts) => import::envoy_ratelimit::import(texts),
    };
    let rules = rules.unwrap_or_else(|wrong| {
        problems.extend(wrong.iter().map(ToString::to_string));
        String::new()
    });
    if !problems.is_empty() {
        print_lines(&mut std::io::stderr(), &problems);
        return ExitCode::from(EXIT_USAGE);
    }
    let mut out = std::io::stdout();
    match out.write_all(rules.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report_failure(&format!("cannot print the rules: {error}")),
    }
}

fn explain_request(options: &ExplainOptions) -> ExitCode {
    let args = ExplainArgs {
        config: options.config.clone(),
        admin: options.admin.clone(),
        token: options.token.clone(),
        method: options.method.clone(),
        url: options.url.clone(),
        headers: options.headers.clone(),
        client: options.client,
        domain: options.domain.clone(),
        descriptor: options.descriptor.clone(),
        is_json: options.format == OutputFormat::Json,
    };
    let stderr = &mut std::io::stderr();
    match explain_command::run(&args, Path::new(DEFAULT_CONFIG)) {
        Ok((output, note)) => {
            print_lines(stderr, note.map(|note| format!("weir: {note}")).as_slice());
            print_lines(&mut std::io::stdout(), &[output.trim_end()]);
            return ExitCode::SUCCESS;
        }
        Err(ExplainError::Configuration(problems)) => print_lines(stderr, &problems),
        Err(ExplainError::Other(problem)) => print_lines(stderr, &[format!("weir: {problem}")]),
    }
    ExitCode::from(EXIT_USAGE)
}

fn report_failure(message: &str) -> ExitCode {
    print_lines(&mut std::io::stderr(), &[format!("weir: {message}")]);
    ExitCode::from(EXIT_FAILURE)
}

/// Prints line by line. Errors are ignored, because the reading process may have ended.
fn print_lines(out: &mut impl std::io::Write, lines: &[impl std::fmt::Display]) {
    for line in lines {
        let _ = writeln!(out, "{line}");
    }
    let _ = std::io::stdout().flush();
}
