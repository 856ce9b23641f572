//! Import of nginx's `limit_req`, `limit_conn`, `allow` and `deny`.
//!
//! nginx counts a request by the limits of the one location that serves it. A rule applies to every request that
//! it matches, so a rule for some locations excepts those that take precedence over them. A limit whose key, hosts
//! or paths rules cannot express exactly becomes a comment with the reason and the line.

mod cell;
mod coverage;
mod host;
mod include;
mod level;
mod lexer;
mod listen;
mod location;
mod precedence;
mod rules;
mod scope;
mod selection;
mod syntax;
mod zone;

use self::cell::HttpConfig;
pub use self::include::read_files;
use self::rules::RuleWriter;
pub use self::syntax::{IncludeReader, IncludedFile};
use super::ImportError;
use super::rule_text::{RuleListItem, format_rules};

/// Converts the limits of nginx's configuration to rules; `read` returns the files that an `include` names.
///
/// # Errors
/// Returns a syntax error, or that the file has nothing to convert.
pub fn import(file: &str, text: &str, read: IncludeReader<'_>) -> Result<String, Vec<ImportError>> {
    let parsed = syntax::parse(file, text, read).map_err(|error| vec![error])?;
    if !parsed.directives.iter().any(cell::has_limits) {
        let message = "no limit_req, limit_conn, allow or deny in the file".to_owned();
        return Err(vec![ImportError { file: file.to_owned(), position: None, message }]);
    }
    let config = HttpConfig::new(&parsed.directives);
    let mut items: Vec<RuleListItem> = parsed.notes.iter().cloned().map(RuleListItem::Comment).collect();
    items.extend(RuleWriter::default().write(&config));
    Ok(format_rules(&header_comments(file), &items))
}

fn header_comments(file: &str) -> Vec<String> {
    let lines = [
        "A request that `deny` rejects is not charged; nginx counts it first.",
        "Rates are exact; nginx rounds them down to a thousandth of a request per second: 10r/m is 9.96 there.",
        "`limiter.max_keys` bounds all counters together, and none in use is evicted; nginx evicts from a full zone.",
        "`%2F` in a path stays encoded; nginx compares `/`.",
        "Different values of one header, cookie or parameter in a key are rejected with 400.",
        "Responses have rate-limit headers (`ratelimit_headers`) and `retry-after`.",
    ];
    let first = format!("From {file}, nginx. Differences of a rule are above it, of all rules here:");
    std::iter::once(first).chain(lines.map(|line| format!("- {line}"))).collect()
}

#[cfg(test)]
mod tests;
