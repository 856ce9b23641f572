//! The `weir` command.

use std::error::Error as _;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[cfg(all(feature = "mimalloc", not(feature = "jemalloc")))]
use commonware_allocator::mimalloc::{Config as MiMallocConfig, MiMalloc, Purge};
use weir::admin_client::AdminClient;
use weir::app;
use weir::cli;
use weir::cli::{
    AdminTokenArgs, Cli, Command, DEFAULT_CONFIG, ExplainOptions, ImportArgs, InjectArgs, Invocation,
    KubectlCli, LogFormatArg, OutputFormat, RecordedFormatArg, RedirectArgs, ReplayArgs,
};
use weir::explain_command::{self, ExplainArgs, ExplainError};
use weir::inject_command::{self, InjectOutput};
use weir::kubectl::{self, KubectlExit};
use weir::suggest_command;
use weir::top::{self, TopOptions, TopSource};
use weir_config as config;
use weir_config::check::{self, CheckStatus};
use weir_config::environment;
use weir_import::ImportSource;
use weir_redirect::Redirection;
use weir_replay as replay;
use weir_replay::format::LogFormat;
use weir_replay::report::ReportFile;
use weir_replay::{ReplayError, ReplayOptions, ReplayRules};
use weir_telemetry::logging::{self, LevelHandle};

/// jemalloc suits many small, short-lived allocations. Its background thread returns memory to the system
/// after clients have left, even while there are no requests.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// mimalloc gives each page back to the system when its last block is freed. The C library keeps what was freed below a
/// block that is in use, so that memory in use would never fall after a burst of clients.
#[cfg(all(feature = "mimalloc", not(feature = "jemalloc")))]
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc::new(MiMallocConfig {
    purge: Purge::After(std::time::Duration::ZERO),
    ..MiMallocConfig::DEFAULT
});

/// Exit code of a failure at run time.
const EXIT_FAILURE: u8 = 1;
/// Exit code of an invalid command line or configuration.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    if let Some(code) = app::supervise() {
        return code;
    }
    match Invocation::from_process_args() {
        Invocation::Weir(cli) => run_weir(&cli),
        Invocation::Kubectl(cli) => run_kubectl(&cli),
        Invocation::KubectlCompletion(candidates) => print_text(&candidates, "candidates"),
    }
}

/// Runs a command on the pods of a Kubernetes workload.
fn run_kubectl(cli: &KubectlCli) -> ExitCode {
    let token = match read_token(&cli.token) {
        Ok(token) => token,
        Err(message) => return report_failure(&message),
    };
    match kubectl::run(cli, token.as_deref()) {
        KubectlExit::Done => ExitCode::SUCCESS,
        KubectlExit::Failed => ExitCode::from(EXIT_FAILURE),
        KubectlExit::BadUsage => ExitCode::from(EXIT_USAGE),
    }
}

fn run_weir(cli: &Cli) -> ExitCode {
    if let Some(misuse) = cli.misuse() {
        return report_usage(&[format!("weir: {misuse}")]);
    }
    match &cli.command {
        Command::Run { config, .. } => run_proxy(config, cli),
        Command::Rls { print_config } => run_rls(*print_config, cli),
        Command::Top { admin, token, once, no_color } => match admin_client(admin, token) {
            Ok(client) => show_top(&TopOptions {
                source: TopSource::One(client),
                is_once: *once,
                has_colors: !no_color,
            }),
            Err(message) => report_failure(&message),
        },
        Command::Suggest { admin, token, lower } => {
            let suggested =
                read_token(token).and_then(|token| suggest_command::run(admin, token.as_deref(), *lower));
            match suggested {
                Ok(text) => print_text(&text, "suggestions"),
                Err(message) => report_failure(&message),
            }
        }
        Command::Check { strict, files, against, .. } => check_configs(files, against.as_deref(), *strict),
        Command::Schema => print_text(&config::schema_text(), "schema"),
        Command::Replay(args) => replay_logs(args),
        Command::Import { from } => import_rules(from),
        Command::Inject(args) => inject_sidecars(args),
        Command::Uninject { files } => print_manifests(inject_command::uninject(files)),
        Command::Redirect(args) => install_redirection(args),
        Command::Explain(options) => explain_request(options),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut cli::command(), "weir", &mut script);
            print_text(&String::from_utf8_lossy(&script), "completions")
        }
        Command::Man { directory } => write_manual(directory.as_deref()),
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

fn check_configs(files: &[PathBuf], against: Option<&Path>, strict: bool) -> ExitCode {
    let report = check::check_files(files, against);
    print_lines(&mut std::io::stdout(), &report.lines);
    match report.status {
        CheckStatus::Invalid => ExitCode::from(EXIT_USAGE),
        CheckStatus::HasNotes if strict => ExitCode::from(EXIT_FAILURE),
        CheckStatus::HasNotes | CheckStatus::Valid => ExitCode::SUCCESS,
    }
}

fn show_top(options: &TopOptions) -> ExitCode {
    match top::run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report_failure(&error.to_string()),
    }
}

/// Creates the client of an admin port, with its token if there is one.
fn admin_client(address: &str, args: &AdminTokenArgs) -> Result<AdminClient, String> {
    AdminClient::new(address, read_token(args)?.as_deref()).map_err(|error| error.to_string())
}

/// Returns the token of an admin port, if there is one.
fn read_token(args: &AdminTokenArgs) -> Result<Option<String>, String> {
    let read = |file: &PathBuf| {
        std::fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
    };
    let token = args.token_file.as_ref().map(read).transpose()?.or_else(|| args.token.clone());
    Ok(token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()))
}

fn replay_logs(args: &ReplayArgs) -> ExitCode {
    let load = || -> Result<_, Vec<String>> {
        Ok((load_rules(&args.config)?, args.against.as_deref().map(load_rules).transpose()?))
    };
    let (config, against) = match load() {
        Ok(configs) => configs,
        Err(problems) => return report_usage(&problems),
    };
    let options = ReplayOptions {
        logs: args.logs.clone(),
        format: args.format.map(|format| match format {
            RecordedFormatArg::Envoy => LogFormat::Envoy,
            RecordedFormatArg::Combined => LogFormat::Combined,
            RecordedFormatArg::Json => LogFormat::Json,
        }),
        fields: args.fields.clone(),
        headroom: args.elastic_headroom,
        top: args.top,
    };
    let open = |path: &Option<PathBuf>| {
        let failed = |path: &Path, error| format!("{}: cannot be written: {error}", path.display());
        path.as_deref().map(|path| ReportFile::create(path).map_err(|error| failed(path, error))).transpose()
    };
    let (html, json) = match open(&args.html).and_then(|html| Ok((html, open(&args.json)?))) {
        Ok(files) => files,
        Err(message) => return report_failure(&message),
    };
    let against = args.against.as_deref().zip(against.as_ref());
    let against = against.map(|(path, config)| replay_rules(path, config));
    let report = match replay::run(&replay_rules(&args.config, &config), against.as_ref(), &options) {
        Ok(report) => report,
        Err(error @ ReplayError::Option(_)) => return report_usage(&[format!("weir: {error}")]),
        Err(error) => return report_failure(&error.to_string()),
    };
    print_lines(&mut std::io::stdout(), &[report.to_string().trim_end()]);
    let written = html
        .map_or(Ok(()), |file| file.finish(&report.to_html()))
        .and_then(|()| json.map_or(Ok(()), |file| file.finish(&report.to_json())));
    match written {
        Err(error) => report_failure(&format!("the report cannot be written: {error}")),
        Ok(()) if report.problems.is_empty() => ExitCode::SUCCESS,
        Ok(()) => report_failure(&report.problems.join("\nweir: ")),
    }
}

/// Loads a configuration whose rules are replayed.
fn load_rules(path: &Path) -> Result<config::Config, Vec<String>> {
    match config::load(path) {
        Ok(config) if config.central.is_some() => Err(vec![format!(
            "{}: config: the rules are on another server, replay needs a file with rules",
            path.display()
        )]),
        Ok(config) => Ok(config),
        Err(problems) => Err(problems.iter().map(ToString::to_string).collect()),
    }
}

fn report_usage<L: std::fmt::Display>(problems: &[L]) -> ExitCode {
    print_lines(&mut std::io::stderr(), problems);
    ExitCode::from(EXIT_USAGE)
}

fn replay_rules<'a>(path: &Path, config: &'a config::Config) -> ReplayRules<'a> {
    ReplayRules { name: path.display().to_string(), policy: &config.policy, max_keys: config.max_keys }
}

fn import_rules(ImportArgs { importer, files, option }: &ImportArgs) -> ExitCode {
    let (mut sources, mut problems) = (Vec::new(), Vec::new());
    for file in files {
        let (path, name) = (file.clone(), file.display().to_string());
        match read_import(file) {
            Ok(text) => sources.push(ImportSource { path, name, text }),
            Err(error) => problems.push(format!("{name}: not readable: {error}")),
        }
    }
    let imported =
        if problems.is_empty() { importer.import(&sources, option.as_deref()) } else { Err(Vec::new()) };
    match imported {
        Ok(imported) => {
            print_lines(&mut std::io::stderr(), &imported.warnings);
            print_text(&imported.rules, "rules")
        }
        Err(wrong) => {
            problems.extend(wrong.iter().map(ToString::to_string));
            print_lines(&mut std::io::stderr(), &problems);
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// Reads a file to import; `-` is standard input.
fn read_import(file: &Path) -> std::io::Result<String> {
    if file != Path::new("-") {
        return std::fs::read_to_string(file);
    }
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text)?;
    Ok(text)
}

fn inject_sidecars(args: &InjectArgs) -> ExitCode {
    match inject_command::inject(args) {
        Ok(output) if args.check => {
            let changed = output.changed.iter().map(|name| format!("{name}: an injection would change it"));
            print_lines(&mut std::io::stderr(), &changed.collect::<Vec<_>>());
            ExitCode::from(if output.changed.is_empty() { 0 } else { EXIT_FAILURE })
        }
        outcome => print_manifests(outcome),
    }
}

fn install_redirection(args: &RedirectArgs) -> ExitCode {
    let redirection =
        Redirection { port: args.port, to: args.to, uid: args.uid, excluded: args.exclude.clone() };
    match weir_redirect::install(&redirection) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            report_failure(&format!("{error}{cause}"))
        }
    }
}

fn print_manifests(outcome: Result<InjectOutput, Vec<String>>) -> ExitCode {
    match outcome {
        Ok(output) => {
            let notes = output.notes.iter().map(|note| format!("weir: {note}"));
            print_lines(&mut std::io::stderr(), &notes.collect::<Vec<_>>());
            print_text(&output.text, "manifests")
        }
        Err(problems) => report_usage(&problems),
    }
}

/// Prints a text on standard output; `what` names it if that fails. The reading process may end early, as `head` does.
fn print_text(text: &str, what: &str) -> ExitCode {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => report_failure(&format!("cannot print the {what}: {error}")),
    }
}

/// Writes the manual pages to `directory`, or the first to standard output.
fn write_manual(directory: Option<&Path>) -> ExitCode {
    let write_pages = |directory: &Path| {
        let pages = cli::manual_pages()?;
        pages.iter().try_for_each(|(name, page)| std::fs::write(directory.join(name), page))
    };
    let (written, page) = match directory {
        Some(directory) => (write_pages(directory), Vec::new()),
        None => match cli::manual_page(&cli::command()) {
            Ok(page) => (Ok(()), page),
            Err(error) => (Err(error), Vec::new()),
        },
    };
    match written {
        Ok(()) => print_text(&String::from_utf8_lossy(&page), "manual"),
        Err(error) => report_failure(&format!("cannot write the manual: {error}")),
    }
}

fn explain_request(options: &ExplainOptions) -> ExitCode {
    let token = match read_token(&options.token) {
        Ok(token) => token,
        Err(problem) => return report_usage(&[format!("weir: {problem}")]),
    };
    let args = ExplainArgs {
        config: options.config.clone(),
        admin: options.admin.clone(),
        token,
        method: options.method.clone(),
        url: options.url.clone(),
        request: options.request.clone(),
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
