//! What the configuration may import from other modules.

use super::source::Source;
use super::{assert_none, program_sources};

/// Returns what a file of the configuration imports from the shell other than settings.
pub(super) fn non_settings_imports(source: &Source) -> Vec<String> {
    const SETTINGS: [(&str, &[&str]); 20] = [
        ("listener", &["ListenerSettings", "ListenAddress", "ListenerLimits", "ProxyProtocol"]),
        ("upstream", &["settings", "UpstreamSettings", "UpstreamAddress"]),
        ("weir_upstream", &["settings", "UpstreamSettings", "UpstreamAddress", "forward_proxy"]),
        ("alerts", &["settings"]),
        ("drain", &["DrainSettings"]),
        ("central", &["settings", "document"]),
        ("state_file", &["StateFileSettings"]),
        ("overload", &["OverloadSettings", "MemoryLimit"]),
        ("weir_telemetry", &["access_log", "alerts", "metrics", "observe", "spans", "statsd"]),
        ("metrics", &["ReloadOutcome"]),
        ("rls", &["options", "settings"]),
        ("weir_rls", &["options", "settings"]),
        ("remote", &["channel", "service", "RemoteServiceSettings"]),
        ("store", &["settings"]),
        ("weir_store", &["settings", "remote", "state_file"]),
        ("statsd", &["StatsdSettings", "StatsdProtocol"]),
        ("spans", &["TracingSettings"]),
        ("observe", &["key_writer"]),
        ("key_writer", &["LogKeys"]),
        ("access_log", &["AccessLogSettings", "CustomFormat", "Format", "RequestKind", "Sink"]),
    ];
    let mut found = Vec::new();
    // A module of the configuration may have the name of the module that it configures.
    for (module, settings) in
        SETTINGS.into_iter().filter(|(module, _)| !source.has_tokens(&["mod", module, ";"]))
    {
        for path in source.paths_from(module) {
            let taken = path.get(1).map_or("", String::as_str);
            if !taken.is_empty() && !settings.contains(&taken) {
                found.push(format!("{}: {}", source.path, path.join("::")));
            }
        }
    }
    found
}

#[test]
fn config_imports_only_settings_from_outer_modules() {
    let config: Vec<Source> = program_sources()
        .into_iter()
        .filter(|source| {
            source.path.starts_with("crates/config/src/")
                && !source.path.starts_with("crates/config/src/central")
        })
        .collect();
    assert_none(
        "imports other than settings",
        &config.iter().flat_map(non_settings_imports).collect::<Vec<_>>(),
    );
}
