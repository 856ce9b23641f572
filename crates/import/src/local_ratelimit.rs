//! Import of Envoy's local rate limit filter from any position: a bootstrap, listeners, routes, Istio's patches, or the
//! filter's configuration alone.
//!
//! Its buckets become rules with `algorithm: token_bucket`. Descriptors are translated to the attributes that make
//! them, if the file shows those for the same requests: the client's address, headers, routes. Otherwise the rule
//! matches the descriptor itself, which only works for calls of Envoy to its rate limit service.

mod actions;
mod buckets;
mod discover;
mod envoy_filter;
mod filter;
mod messages;
mod requests;
mod routes;
mod rules;
mod units;

use self::discover::Discovery;
use self::rules::FilterRuleWriter;
use super::ImportError;
use super::importer::{Conversion, Importer};
use super::ledger::Ledger;
use super::output::Imported;
use super::remark::{Effect, Remark};
use super::tree::read_documents;

/// The format on the command line.
pub static IMPORTER: Importer = Importer {
    name: "local-ratelimit",
    about: "Envoy's local rate limit filter, anywhere in a configuration file of Envoy, in YAML or JSON",
    files: "File to import; `-` is standard input",
    examples: &[(
        "weir import local-ratelimit envoy.yaml",
        "the filter, anywhere in a configuration of Envoy",
    )],
    convert: Conversion::OneFile(|source| import(&source.name, &source.text)),
};

/// Converts the filter's configurations in all documents of `text` to rules.
///
/// # Errors
/// Returns syntax errors, or that the file has no such filter.
pub fn import(file: &str, text: &str) -> Result<Imported, Vec<ImportError>> {
    let documents = read_documents(file, text)?;
    let ledger = Ledger::default();
    let found = Discovery::new(&documents.nodes, &ledger);
    if !found.has_filters() {
        let embedded = documents.nodes.iter().find_map(|node| discover::embedded_text(node, ""));
        let hint = embedded.map(|path| {
            format!(": the text of `{}` contains one, import that alone", path.trim_start_matches('.'))
        });
        let message =
            format!("no envoy.filters.http.local_ratelimit in the file{}", hint.unwrap_or_default());
        return Err(vec![ImportError { file: file.to_owned(), position: None, message }]);
    }
    let chains: Vec<_> = found.chains.iter().map(|chain| (chain, units::units(chain, &ledger))).collect();
    let mut writer = FilterRuleWriter::new(&ledger);
    let limiting = chains.iter().filter(|(_, units)| !units.is_empty()).count();
    let known = chains.iter().filter(|(chain, _)| chain.is_known).count();
    for (chain, units) in &chains {
        let place = (limiting > 0 && known.max(limiting) > 1).then(|| {
            let label = if chain.label.is_empty() { "one of them" } else { &chain.label };
            Remark::new(
                Effect::Tighter,
                format!(
                    "of several listeners, in Envoy only `{label}` has it: use `match: {{ listener: NAME }}`"
                ),
            )
        });
        units.iter().for_each(|unit| writer.add_unit(unit, place.as_ref()));
    }
    chains.iter().for_each(|(_, units)| writer.lose_unpaired(units));
    let mut tail: Vec<Remark> =
        documents.duplicates.into_iter().map(|text| Remark::new(Effect::Differs, text)).collect();
    tail.extend(ledger.remarks(file, &documents.nodes, &messages::DEFAULTS));
    Ok(Imported::new(&header_comments(file), writer.items, &tail))
}

fn header_comments(file: &str) -> Vec<String> {
    let lines = [
        "A rejected request is not charged; Envoy takes tokens from the buckets before the empty one.",
        "Each client has a bucket, at most `limiter.max_keys` in total; Envoy keeps the last 20 buckets.",
        "Responses have rate-limit headers (`ratelimit_headers`) and `retry-after`.",
        "What admits more or fewer requests than Envoy begins with `looser`, `tighter` or `differs`.",
    ];
    let first = format!(
        "From {file}, Envoy's local_ratelimit. Differences of a rule are above it, of all rules here:"
    );
    std::iter::once(first).chain(lines.map(|line| format!("- {line}"))).collect()
}
