//! The command line: its subcommands and options, without their implementation.

mod import_args;
mod inject_args;
mod kubectl_args;
mod kubectl_completion;
mod manual;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::builder::FalseyValueParser;
use clap::{Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use self::manual::KUBECTL_PROGRAM;

pub use self::import_args::ImportArgs;
pub use self::inject_args::{InjectArgs, RedirectArgs};
pub use self::kubectl_args::{KeyArgs, KubectlCli, KubectlCommand, PodArgs};
pub use self::manual::{command, kubectl_command, manual_page, manual_pages};

/// Configuration file of `weir run` without `-c`.
pub const DEFAULT_CONFIG: &str = "/etc/weir/weir.yaml";

/// Address of the admin port without `--admin`.
pub const DEFAULT_ADMIN: &str = "127.0.0.1:9901";

/// A rate-limiting reverse proxy that runs as a sidecar of one service.
#[derive(Debug, Parser)]
#[command(name = "weir", version, about, arg_required_else_help = true, disable_help_subcommand = true)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
    /// Minimum level of log messages.
    ///
    /// Defaults to `info`, or to the LOG_LEVEL variable for `weir rls`.
    #[arg(short, long, global = true, value_name = "LEVEL")]
    #[arg(value_parser = ["off", "error", "warn", "info", "debug", "trace"], env = "WEIR_LOG_LEVEL")]
    pub log_level: Option<String>,
    /// Format of log lines on standard error.
    ///
    /// Defaults to `text`, or to the LOG_FORMAT variable for `weir rls`.
    #[arg(long, global = true, value_enum, value_name = "FORMAT", env = "WEIR_LOG_FORMAT")]
    pub log_format: Option<LogFormatArg>,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormatArg {
    /// Readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the proxy until SIGTERM or SIGINT, then drain.
    ///
    /// Exits with 0 when drained, 1 on a failure, 2 if the configuration is invalid.
    Run {
        /// Configuration file.
        #[arg(short, long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
        config: PathBuf,
        /// A file without `-c`, which is a mistake.
        #[arg(hide = true, value_name = "FILE")]
        misplaced: Option<PathBuf>,
    },
    /// Validate configurations and print every problem as FILE:LINE:COL: PATH: what is wrong (hint).
    ///
    /// Exits with 0 if all are valid, 2 if not. With `--against`, prints the changes from that configuration
    /// instead of notes. In a Kubernetes manifest, the configurations inside its ConfigMaps are checked.
    Check {
        /// Exit with 1 if there are notes.
        #[arg(long, conflicts_with = "against")]
        strict: bool,
        /// Running configuration file, to compare with.
        #[arg(long, value_name = "RUNNING")]
        against: Option<PathBuf>,
        /// Configuration files or Kubernetes manifests; `-` reads standard input, `FILE#KEY` selects a key of a
        /// ConfigMap.
        #[arg(required_unless_present = "misplaced", value_name = "FILE")]
        files: Vec<PathBuf>,
        /// A file with `-c`, which is a mistake.
        #[arg(short = 'c', long = "config", hide = true, value_name = "FILE")]
        misplaced: Option<PathBuf>,
    },
    /// Print the JSON Schema of the configuration, for editors and validators.
    Schema,
    /// Serve Envoy's rate limit service, configured by the environment variables of envoyproxy/ratelimit.
    ///
    /// Needs no configuration file: `RUNTIME_ROOT`, `GRPC_PORT` and the others have the same meaning as in
    /// the reference. With `REDIS_URL` the instances share counters; without it counters are in memory.
    Rls {
        /// Print the configuration that the environment variables produce, and exit.
        #[arg(long)]
        print_config: bool,
    },
    /// Show rules and heaviest keys of a running instance, live.
    ///
    /// Redraws every second; `q` or Ctrl-C ends it. Without a terminal it prints one view, as with `--once`. Exits
    /// with 0, or 1 if the admin port cannot be used.
    Top {
        /// Admin port: HOST:PORT or unix:PATH.
        #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADMIN)]
        admin: String,
        /// Token of the admin port.
        #[command(flatten)]
        token: AdminTokenArgs,
        /// Print one view and exit.
        #[arg(long)]
        once: bool,
        /// Use no colours.
        #[arg(long, env = "NO_COLOR", value_parser = FalseyValueParser::new(), hide_env_values = true)]
        no_color: bool,
    },
    /// Suggest limits from the traffic of a running instance, as a dry run with reasons.
    ///
    /// Prints rules in shadow mode, which count beside the present ones and reject nothing. Exits with 0, or 1 if the
    /// instance does not respond.
    Suggest {
        /// Admin port: HOST:PORT or unix:PATH.
        #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADMIN)]
        admin: String,
        /// Token of the admin port.
        #[command(flatten)]
        token: AdminTokenArgs,
        /// Suggest lower limits, too.
        #[arg(long)]
        lower: bool,
    },
    /// Replay recorded access logs through the rules of a configuration, and report what they would have done.
    ///
    /// Reads Weir's and Envoy's format, the combined format of nginx, and JSON lines, plain or compressed with gzip or
    /// Zstandard. Exits with 0, 1 if a log cannot be read or a report cannot be written, 2 if a configuration is
    /// invalid.
    Replay(ReplayArgs),
    /// Convert another rate limiter's configuration to rules, with comments on what cannot be expressed.
    ///
    /// Exits with 0, 1 if the rules cannot be printed, 2 if a file cannot be read.
    Import {
        /// The format to import.
        #[command(subcommand)]
        from: ImportArgs,
    },
    /// Add Weir as a sidecar to the workloads of Kubernetes manifests.
    ///
    /// Manifests in, manifests out. A second run with the same options changes nothing. Exits with 0, 1 if `--check` finds
    /// that manifests would change, 2 if a workload cannot have the sidecar; then nothing is printed.
    Inject(InjectArgs),
    /// Remove the sidecar that `weir inject` has added, and restore what was there.
    ///
    /// Exits with 0, 1 if the manifests cannot be printed, 2 if a file cannot be read.
    Uninject {
        /// Manifests in YAML or JSON; `-` is standard input, and the default.
        #[arg(default_value = "-", value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Redirect connections for a port to Weir, in the network of this pod.
    ///
    /// Replaces the nftables table `weir`. Needs the capability NET_ADMIN. Exits with 0, or 1 if the rules cannot be
    /// installed.
    Redirect(RedirectArgs),
    /// Explain what would happen to a request: which rules match, with which key, and what their counters say.
    ///
    /// Nothing is sent and nothing is charged. Without `--admin`, the configuration file decides and all counters are
    /// unused. Exits with 0, or 2 if there is no explanation.
    Explain(ExplainOptions),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the manual page weir(1), or write a page for each subcommand.
    ///
    /// Exits with 0, or 1 if a page cannot be written.
    Man {
        /// Directory for the pages: weir.1, weir-run.1 and so on. It must exist.
        #[arg(value_name = "DIRECTORY")]
        directory: Option<PathBuf>,
    },
}

/// Where the token of an admin port comes from.
#[derive(Debug, Args)]
pub struct AdminTokenArgs {
    /// File with the token of the admin port, if it requires one.
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The token itself. Other users of the machine can see options, so prefer the file or the variable.
    #[arg(long, global = true, value_name = "TOKEN", env = "WEIR_ADMIN_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}

/// Options of `weir replay`.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// Configuration file with the rules to try.
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
    /// Configuration file whose decisions are compared with those of `--config`.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// Write the report as one page with plots.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the report as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Format of the logs. Detected for each log by default.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<RecordedFormatArg>,
    /// Meaning of a field of JSON logs, such as `client_ip=remote_addr` or `header:x-api-key=key`. May be repeated.
    ///
    /// Fields of bodies that rules read are `json:PATH=KEY` and `form:NAME=KEY`. Those of responses that state a cost are
    /// `response_json:PATH=KEY`.
    #[arg(long = "field", value_name = "NAME=KEY")]
    pub fields: Vec<String>,
    /// Headroom of the upstream for elastic limits: 0 leaves them as configured, 1 is their maximum.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0)]
    pub elastic_headroom: f64,
    /// Number of keys and clients in each list of the report.
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    pub top: usize,
    /// Access logs; `-` is standard input.
    #[arg(required = true, value_name = "LOG")]
    pub logs: Vec<PathBuf>,
}

/// Formats of access logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RecordedFormatArg {
    /// Envoy's default format, and Weir's.
    Envoy,
    /// The combined or the common log format.
    Combined,
    /// One JSON object per line.
    Json,
}

/// Options of `weir explain`.
#[derive(Debug, Args)]
pub struct ExplainOptions {
    /// Configuration file. With `--admin`, it is only compared with that of the instance.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of the admin port of a running instance, whose counters and configuration decide.
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<String>,
    /// Token of the admin port. Defaults to that of the configuration file.
    #[command(flatten)]
    pub token: AdminTokenArgs,
    /// The request.
    #[command(flatten)]
    pub request: RequestArgs,
    /// Format of the output.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub format: OutputFormat,
    /// Method of the request.
    #[arg(value_name = "METHOD", required_unless_present = "domain", requires = "url")]
    pub method: Option<String>,
    /// URL of the request, or its path. A descriptor needs neither.
    #[arg(value_name = "URL", required_unless_present = "domain")]
    pub url: Option<String>,
}

/// What describes a request, besides its method and its URL.
#[derive(Clone, Debug, Default, Args)]
pub struct RequestArgs {
    /// Header of the request; may be repeated.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub headers: Vec<String>,
    /// Body of the request, or `@FILE`; `@-` is standard input. Several are joined with `&`. As with curl, it is a form unless a
    /// `content-type` is given.
    #[arg(short = 'd', long = "data", value_name = "DATA")]
    pub data: Vec<String>,
    /// Address from which the request arrives. Defaults to 127.0.0.1.
    #[arg(long, value_name = "IP")]
    pub client: Option<IpAddr>,
    /// Name of the listener at which the request arrives. Unknown unless given.
    #[arg(long, value_name = "NAME")]
    pub listener: Option<String>,
    /// Envoy domain, if the request is a descriptor of Envoy's rate limit service.
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// Entry of the descriptor; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", requires = "domain")]
    pub descriptor: Vec<String>,
}

/// Format of a command's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Readable text.
    #[default]
    Text,
    /// JSON.
    Json,
}

/// Name of the reference's executable, which manifests run by its path.
const REFERENCE_EXECUTABLE: &str = "ratelimit";

/// Name of the executable that kubectl runs to complete a line of the plugin.
const COMPLETION_EXECUTABLE: &str = "kubectl_complete-weir";

/// A command line, by the name of the executable.
#[derive(Debug)]
pub enum Invocation {
    /// `weir`.
    Weir(Box<Cli>),
    /// `kubectl weir`.
    Kubectl(Box<KubectlCli>),
    /// What kubectl offers to complete a line of `kubectl weir`, as text.
    KubectlCompletion(String),
}

impl Invocation {
    /// Parses the command line of this process. If the executable is called `kubectl-weir`, it is parsed as that of the
    /// plugin. If it is called `ratelimit`, it is parsed as `weir rls`, and arguments are ignored as the reference ignores
    /// them.
    pub fn from_process_args() -> Self {
        Self::from_args(std::env::args_os())
    }

    fn from_args(arguments: impl IntoIterator<Item = OsString>) -> Self {
        let mut arguments = arguments.into_iter().peekable();
        let name = arguments.peek().and_then(|program| Path::new(program).file_name()?.to_str());
        match name {
            Some(REFERENCE_EXECUTABLE) => Self::Weir(Box::new(Cli::parse_from(["weir", "rls"]))),
            Some(COMPLETION_EXECUTABLE) => {
                let words: Vec<String> =
                    arguments.skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
                Self::KubectlCompletion(kubectl_completion::candidates(&kubectl_command(), &words))
            }
            Some(KUBECTL_PROGRAM) => Self::Kubectl(parsed(kubectl_command(), arguments)),
            _ => Self::Weir(parsed(command(), arguments)),
        }
    }
}

/// Parses arguments, or exits with a message about them.
fn parsed<T: FromArgMatches>(
    command: clap::Command,
    arguments: impl IntoIterator<Item = OsString>,
) -> Box<T> {
    let matches = command.get_matches_from(arguments);
    Box::new(T::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
}

impl Cli {
    /// Returns what is wrong with arguments that the parser accepts, to be explained better than it would.
    pub fn misuse(&self) -> Option<String> {
        match &self.command {
            Command::Run { misplaced: Some(file), .. } => {
                let file = file.display();
                Some(format!("`weir run` takes its file with -c: write `weir run -c {file}`"))
            }
            Command::Check { misplaced: Some(file), .. } => {
                let file = file.display();
                Some(format!("`weir check` takes its files without -c: write `weir check {file}`"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        command().debug_assert();
        kubectl_command().debug_assert();
    }

    #[test]
    fn run_defaults_to_the_standard_config_path() {
        let cli = Cli::parse_from(["weir", "run", "--log-format", "json"]);
        assert_eq!(cli.log_format, Some(LogFormatArg::Json));
        assert!(
            matches!(cli.command, Command::Run { config, .. } if config.to_str() == Some(DEFAULT_CONFIG))
        );
    }

    #[test]
    fn executable_named_ratelimit_runs_rls_and_ignores_arguments() {
        let command = |arguments: &[&str]| match Invocation::from_args(arguments.iter().map(OsString::from)) {
            Invocation::Weir(cli) => cli.command,
            other => panic!("{arguments:?}: {other:?}"),
        };
        for arguments in [&["/bin/ratelimit"][..], &["ratelimit", "--flag"], &["./ratelimit", "run"]] {
            assert!(matches!(command(arguments), Command::Rls { print_config: false }), "{arguments:?}");
        }
        assert!(matches!(command(&["/opt/ratelimit/weir", "run"]), Command::Run { .. }));
    }

    #[test]
    fn executable_named_kubectl_weir_is_the_plugin() {
        let arguments =
            ["/usr/local/bin/kubectl-weir", "-n", "web", "top", "deploy/shop", "--admin-port", "9911"];
        let Invocation::Kubectl(cli) = Invocation::from_args(arguments.map(OsString::from)) else {
            panic!("not the plugin");
        };
        assert_eq!((cli.pods.namespace.as_deref(), cli.pods.admin_port), (Some("web"), Some(9911)));
        assert!(
            matches!(cli.command, KubectlCommand::Top { target: Some(target), .. } if target == "deploy/shop")
        );
    }

    #[test]
    fn top_defaults_to_the_default_admin_address() {
        let cli = Cli::parse_from(["weir", "top"]);
        assert!(matches!(cli.command, Command::Top { admin, once: false, .. } if admin == DEFAULT_ADMIN));
    }

    #[test]
    fn check_requires_a_file() {
        assert!(Cli::try_parse_from(["weir", "check"]).is_err());
        assert!(Cli::try_parse_from(["weir", "check", "a.yaml", "b.yaml"]).is_ok());
        assert!(Cli::try_parse_from(["weir", "check", "--against", "a.yaml"]).is_err());
    }
}
