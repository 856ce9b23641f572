//! Arguments of `kubectl weir`.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand};

use super::{AdminTokenArgs, OutputFormat, RequestArgs};

/// Maximum number of pods without `--max-pods`. Each has a process of kubectl.
const DEFAULT_MAX_PODS: &str = "64";

/// Watch and change the limits of Weir in the pods of a Kubernetes workload.
///
/// TARGET is a workload or a pod, such as `deploy/shop`, `service/shop` or `pod/shop-0`; a name alone is a pod. With
/// `-l`, labels select the pods, and there is no TARGET.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-weir",
    bin_name = "kubectl weir",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct KubectlCli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: KubectlCommand,
    /// Which pods.
    #[command(flatten)]
    pub pods: PodArgs,
    /// Token of the admin ports.
    #[command(flatten)]
    pub token: AdminTokenArgs,
}

/// Options that say which pods are meant, and how they are reached.
#[derive(Clone, Debug, Args)]
pub struct PodArgs {
    /// Namespace of the target. Defaults to that of the context.
    #[arg(short, long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Pods of all namespaces. Needs `--selector`.
    #[arg(short = 'A', long, global = true)]
    pub all_namespaces: bool,
    /// Labels of the pods, such as `app=shop,tier!=test`, in place of a target.
    #[arg(short = 'l', long, global = true, value_name = "LABELS")]
    pub selector: Option<String>,
    /// Name of Weir's container.
    #[arg(short, long, global = true, value_name = "NAME", default_value = "weir")]
    pub container: String,
    /// Admin port in the pods. Defaults to that of the configuration in the pod's ConfigMap, or 9901.
    #[arg(long, global = true, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub admin_port: Option<u16>,
    /// Maximum number of pods. With more there is an error, and nothing is done.
    #[arg(long, global = true, value_name = "NUMBER", default_value = DEFAULT_MAX_PODS)]
    pub max_pods: usize,
    /// Context of the kubeconfig.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// The kubeconfig.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// Subcommands of `kubectl weir`.
#[derive(Debug, Subcommand)]
pub enum KubectlCommand {
    /// Show rules and heaviest keys of all pods in one view, live.
    ///
    /// Redraws every second; `q` or Ctrl-C ends it. Without a terminal it prints one view, as with `--once`. Rates and counts
    /// are sums over the pods.
    #[command(override_usage = "kubectl weir top <TARGET | -l LABELS> [OPTIONS]")]
    Top {
        /// Workload or pod.
        #[arg(value_name = "TARGET")]
        target: Option<String>,
        /// Print one view and exit.
        #[arg(long)]
        once: bool,
        /// Use no colours.
        #[arg(long, env = "NO_COLOR", value_parser = FalseyValueParser::new(), hide_env_values = true)]
        no_color: bool,
    },
    /// Print the rules of each pod with their decisions, and the bans and boosts in force.
    #[command(override_usage = "kubectl weir limits <TARGET | -l LABELS> [OPTIONS]")]
    Limits {
        /// Workload or pod.
        #[arg(value_name = "TARGET")]
        target: Option<String>,
        /// Format of the output.
        #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
        format: OutputFormat,
    },
    /// Explain what each pod would do with a request.
    ///
    /// Nothing is sent to the application, and nothing is charged.
    #[command(override_usage = "kubectl weir explain <TARGET | -l LABELS> METHOD URL [OPTIONS]")]
    Explain {
        /// Workload or pod, unless there is `-l`; then method and URL of the request. A descriptor needs neither.
        #[arg(value_names = ["TARGET", "METHOD", "URL"], num_args = 0..=3)]
        words: Vec<String>,
        /// The request.
        #[command(flatten)]
        request: RequestArgs,
        /// Format of the output.
        #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
        format: OutputFormat,
    },
    /// Reject all requests of a key in each pod, until a fixed time.
    ///
    /// Without `--rule`, the key is banned in every rule that counts by the same attributes.
    #[command(override_usage = "kubectl weir ban <TARGET | -l LABELS> [KEY] --for DURATION [OPTIONS]")]
    Ban {
        /// The key and its rules.
        #[command(flatten)]
        key: KeyArgs,
        /// How long, such as `10m`; at most `30d`.
        #[arg(long = "for", value_name = "DURATION")]
        duration: String,
    },
    /// End the ban of a key in each pod.
    #[command(override_usage = "kubectl weir unban <TARGET | -l LABELS> [KEY] [OPTIONS]")]
    Unban {
        /// The key and its rules.
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Raise the limits of a key in each pod, until a fixed time.
    ///
    /// Without `--rule`, exactly one rule must count by the attributes of the key. `--factor 1` ends a boost.
    #[command(
        override_usage = "kubectl weir boost <TARGET | -l LABELS> [KEY] <--factor N | --limit RATE> --for DURATION [OPTIONS]"
    )]
    Boost {
        /// The key and its rules.
        #[command(flatten)]
        key: KeyArgs,
        /// Factor for limit and burst, from 1 to 1000.
        #[arg(long, value_name = "N", required_unless_present = "limit", conflicts_with = "limit")]
        factor: Option<String>,
        /// Limit in place of that of the rule, such as `500/s`.
        #[arg(long, value_name = "RATE")]
        limit: Option<String>,
        /// How long, such as `1h`; at most `30d`. `--factor 1` needs none.
        #[arg(long = "for", value_name = "DURATION")]
        duration: Option<String>,
    },
}

/// A key of rules.
#[derive(Clone, Debug, Args)]
pub struct KeyArgs {
    /// Workload or pod, unless there is `-l`; then the key, as `client_ip=203.0.113.7` or `path=/login, client_ip=203.0.113.7`. An
    /// address alone is a `client_ip`. A rule with `key: []` has none.
    #[arg(value_names = ["TARGET", "KEY"], num_args = 0..=2)]
    pub words: Vec<String>,
    /// Name of the rule; may be repeated.
    #[arg(long = "rule", value_name = "NAME")]
    pub rules: Vec<String>,
    /// Format of the output.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub format: OutputFormat,
}
