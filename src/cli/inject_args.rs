//! The arguments of `weir inject` and `weir uninject`.

use std::path::PathBuf;

use clap::Args;

/// Options of `weir inject`.
#[derive(Clone, Debug, Args)]
pub struct InjectArgs {
    /// Limit for each client address, such as `100/s`. This is also the default.
    #[arg(long, value_name = "RATE", conflicts_with_all = ["config", "config_map"])]
    pub limit: Option<String>,
    /// Configuration file. It is checked, and becomes a ConfigMap.
    #[arg(short, long, value_name = "FILE", conflicts_with = "config_map")]
    pub config: Option<PathBuf>,
    /// ConfigMap with the key `weir.yaml`, which exists in the cluster.
    #[arg(long, value_name = "NAME")]
    pub config_map: Option<String>,
    /// Port of the application. Found in the manifest by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Image of Weir. Defaults to `weir` with the version of this program.
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Redirect connections by rules of the pod's network, so that Services, ports and probes stay as they are.
    ///
    /// An init container with the capability NET_ADMIN installs the rules.
    #[arg(long)]
    pub redirect: bool,
    /// Print no manifests. Exit with 1 if an injection would change them.
    #[arg(long)]
    pub check: bool,
    /// Manifests in YAML or JSON; `-` is standard input, and the default. Services of the workloads may be among them.
    #[arg(default_value = "-", value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Options of `weir redirect`.
#[derive(Clone, Debug, Args)]
pub struct RedirectArgs {
    /// Port that clients connect to.
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Port of Weir's listener.
    #[arg(long, value_name = "Q", value_parser = clap::value_parser!(u16).range(1..))]
    pub to: u16,
    /// User of Weir, whose connections to the application are not redirected.
    #[arg(long, value_name = "UID")]
    pub uid: u32,
    /// Port that is never redirected; may be repeated.
    #[arg(long, value_name = "PORT")]
    pub exclude: Vec<u16>,
}
