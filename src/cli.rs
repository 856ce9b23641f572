//! The command line: what can be asked for, and nothing of how it is done.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Where `weir run` looks without `-c`.
pub const DEFAULT_CONFIG: &str = "/etc/weir/weir.yaml";

/// A rate-limiting reverse proxy that stands beside one service.
#[derive(Debug, Parser)]
#[command(name = "weir", version, about, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(after_help = "Try it: weir run -c config/quickstart.yaml, then curl -i http://127.0.0.1:8080/")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How much to log.
    ///
    /// By default `info`, or what LOG_LEVEL says to `weir rls`.
    #[arg(short, long, global = true, value_name = "LEVEL")]
    #[arg(value_parser = ["off", "error", "warn", "info", "debug", "trace"], env = "WEIR_LOG_LEVEL")]
    pub log_level: Option<String>,
    /// What log lines on standard error look like.
    ///
    /// By default `text`, or what LOG_FORMAT says to `weir rls`.
    #[arg(long, global = true, value_enum, value_name = "FORMAT", env = "WEIR_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
}

/// What a log line looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// What can be asked for.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the proxy until SIGTERM or SIGINT, then drain.
    ///
    /// Exits with 0 when drained, 1 when it could not run, 2 for a bad configuration.
    Run {
        /// The configuration.
        #[arg(short, long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
        config: PathBuf,
    },
    /// Validate configurations and print every problem as FILE:LINE:COL: PATH: what is wrong (hint).
    ///
    /// Exits with 0 if all are valid, 2 if not. With `--against`, says instead of notes what each of them would
    /// change where that one runs.
    Check {
        /// The configuration that runs.
        #[arg(long, value_name = "RUNNING")]
        against: Option<PathBuf>,
        /// The configurations.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Answer Envoy's rate limit service, set up by the environment variables of envoyproxy/ratelimit.
    ///
    /// Needs no configuration: `RUNTIME_ROOT`, `GRPC_PORT` and the others mean what they mean to the reference.
    /// With `REDIS_URL` instances count together; without it counters are in memory.
    Rls {
        /// Print the configuration that the variables stand for, and end.
        #[arg(long)]
        print_config: bool,
    },
    /// Print the rules that another limiter's configuration means, with comments on what has no equal.
    ///
    /// Exits with 0, 1 where the rules cannot be printed, 2 for a file that cannot be read.
    Import {
        /// What is imported.
        #[command(subcommand)]
        from: Import,
    },
    /// Print a completion script for a shell.
    Completions {
        /// Which shell.
        #[arg(value_enum)]
        shell: Shell,
    },
}

/// What can be imported.
#[derive(Debug, Subcommand)]
pub enum Import {
    /// Files of envoyproxy/ratelimit, as rules for what Envoy asks about in their domains.
    EnvoyRatelimit {
        /// The files; a domain may be in several.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Envoy's filter for local rate limits, wherever it stands in a file of Envoy's: YAML or JSON.
    LocalRatelimit {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// The name of the reference's program, which manifests run by its path.
const RATELIMIT: &str = "ratelimit";

impl Cli {
    /// The command line of this process. Called as `ratelimit`, it is that of `weir rls`: the reference takes no
    /// arguments and ignores those it is given.
    pub fn of_process() -> Self {
        Self::of(std::env::args_os())
    }

    fn of(arguments: impl IntoIterator<Item = OsString>) -> Self {
        let mut arguments = arguments.into_iter().peekable();
        let name = arguments.peek().and_then(|program| Path::new(program).file_name());
        if name == Some(OsStr::new(RATELIMIT)) {
            return Self::parse_from(["weir", "rls"]);
        }
        Self::parse_from(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn run_knows_where_its_configuration_is() {
        let cli = Cli::parse_from(["weir", "run", "--log-format", "json"]);
        assert_eq!(cli.log_format, Some(LogFormat::Json));
        assert!(matches!(cli.command, Command::Run { config } if config.to_str() == Some(DEFAULT_CONFIG)));
    }

    #[test]
    fn a_program_called_ratelimit_is_the_rate_limit_service_whatever_its_arguments() {
        let of = |arguments: &[&str]| Cli::of(arguments.iter().map(OsString::from)).command;
        for arguments in [&["/bin/ratelimit"][..], &["ratelimit", "--flag"], &["./ratelimit", "run"]] {
            assert!(matches!(of(arguments), Command::Rls { print_config: false }), "{arguments:?}");
        }
        assert!(matches!(of(&["/opt/ratelimit/weir", "run"]), Command::Run { .. }));
    }

    #[test]
    fn check_wants_a_file() {
        assert!(Cli::try_parse_from(["weir", "check"]).is_err());
        assert!(Cli::try_parse_from(["weir", "check", "a.yaml", "b.yaml"]).is_ok());
        assert!(Cli::try_parse_from(["weir", "check", "--against", "a.yaml"]).is_err());
    }
}
