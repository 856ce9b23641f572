//! Import of nginx's `limit_req`, `limit_conn`, `allow` and `deny`.
//!
//! nginx counts a request by the limits of the one location that serves it. A rule applies to every request that
//! it matches, so a rule for some locations excepts those that take precedence over them. A limit whose key, hosts
//! or paths rules cannot express exactly becomes a comment with the reason and the line.

mod addresses;
mod composed;
mod coverage;
mod dump;
mod host;
mod http_config;
mod include;
mod key_piece;
mod leftovers;
mod level;
mod lexer;
mod listen;
mod location;
mod other_directive;
mod precedence;
mod redirect;
mod rules;
mod selection;
mod server;
mod syntax;
mod try_files;
mod zone;

use self::dump::Dump;
use self::http_config::HttpConfig;
pub use self::include::read_files;
use self::level::has_limits;
use self::rules::RuleWriter;
pub use self::syntax::{IncludeReader, IncludedFile};
use super::ImportError;
use super::importer::{Conversion, Importer};
use super::output::Imported;
use super::rule_text::RuleListItem;

/// The format on the command line.
pub static IMPORTER: Importer = Importer {
    name: "nginx",
    about: "The limits of nginx: `limit_req`, `limit_conn`, `allow` and `deny`, with all included files",
    files: "File to import: nginx.conf, a part of it, or the output of `nginx -T`. `-` is standard input",
    examples: &[("weir import nginx /etc/nginx/nginx.conf > rules.yaml", "with all included files")],
    convert: Conversion::OneFile(|source| {
        import(&source.name, &source.text, &|pattern| read_files(&source.path, pattern))
    }),
};

/// Converts the limits of nginx's configuration to rules; `read` returns the files that an `include` names. The text may
/// be the output of `nginx -T`, which has all files.
///
/// # Errors
/// Returns a syntax error, or that the file has nothing to convert.
pub fn import(file: &str, text: &str, read: IncludeReader<'_>) -> Result<Imported, Vec<ImportError>> {
    let dump = Dump::parse(text);
    let parsed = match &dump {
        Some(dump) => {
            let (name, text) = dump.main_file();
            syntax::parse(name, text, &|pattern| dump.read(pattern))
        }
        None => syntax::parse(file, text, read),
    };
    let parsed = parsed.map_err(|error| vec![error])?;
    if !parsed.directives.iter().any(has_limits) {
        let notes: Vec<&str> = parsed.notes.iter().map(|note| note.text.as_str()).collect();
        let notes = if notes.is_empty() { String::new() } else { format!("; {}", notes.join("; ")) };
        let message = format!("no limit_req, limit_conn, allow or deny in the file{notes}");
        return Err(vec![ImportError { file: file.to_owned(), position: None, message }]);
    }
    let config = HttpConfig::new(&parsed.directives);
    let mut items: Vec<RuleListItem> = parsed.notes.iter().cloned().map(RuleListItem::Comment).collect();
    let (rules, used) = RuleWriter::default().write(&config);
    items.extend(rules);
    let mut tail = dump.map(|dump| dump.remarks(&parsed.included)).unwrap_or_default();
    tail.extend(leftovers::leftovers(&parsed.directives, &used));
    Ok(Imported::new(&header_comments(file), items, &tail))
}

fn header_comments(file: &str) -> Vec<String> {
    let lines = [
        "A request that `deny` rejects is not charged; nginx counts it first.",
        "Rates are exact; nginx rounds them down to a thousandth of a request per second: 10r/m is 9.96 there.",
        "`limiter.max_keys` bounds all counters together, and none in use is evicted; nginx evicts from a full zone.",
        "`%2F` in a path stays encoded; nginx compares `/`.",
        "Different values of one header, cookie or parameter in a key are rejected with 400.",
        "Responses have rate-limit headers (`ratelimit_headers`) and `retry-after`.",
        "What admits more or fewer requests than nginx begins with `looser`, `tighter` or `differs`.",
    ];
    let first = format!("From {file}, nginx. Differences of a rule are above it, of all rules here:");
    std::iter::once(first).chain(lines.map(|line| format!("- {line}"))).collect()
}

#[cfg(test)]
mod tests;
