//! Accounts for every directive: what no rule expresses becomes a remark.
//!
//! Directives of limits that have no effect are written in full. The others of a block are one remark with their names
//! and a checksum, so that every change of the file shows, although the values (which may be secrets) do not.

use std::collections::HashSet;

use super::super::remark::{Effect, Remark, brief, checksum, nearest};
use super::syntax::{Directive, Place};

/// Directives that a rule or a comment has, or that are written in full.
const LIMITS: [&str; 8] =
    ["limit_req_zone", "limit_conn_zone", "limit_req", "limit_conn", "allow", "deny", "map", "geo"];
/// Blocks that get a remark of their own.
const BLOCKS: [&str; 3] = ["http", "server", "location"];
/// Other directives of nginx whose names begin as those of limits.
const KNOWN: [&str; 13] = [
    "limit_req_status",
    "limit_conn_status",
    "limit_req_dry_run",
    "limit_conn_dry_run",
    "limit_req_log_level",
    "limit_conn_log_level",
    "limit_rate",
    "limit_rate_after",
    "limit_except",
    "limit_zone",
    "set_real_ip_from",
    "real_ip_header",
    "real_ip_recursive",
];
/// Maximum number of names in a remark.
const MAX_NAMES: usize = 12;

/// Returns remarks on all directives but those in `used`.
pub(super) fn leftovers(directives: &[Directive], used: &HashSet<Place>) -> Vec<Remark> {
    let mut remarks = Vec::new();
    add_block(None, directives, used, &mut remarks);
    remarks
}

fn add_block(
    block: Option<&Directive>,
    directives: &[Directive],
    used: &HashSet<Place>,
    remarks: &mut Vec<Remark>,
) {
    let mut others: Vec<&Directive> = Vec::new();
    let at = remarks.len();
    for directive in directives {
        let name = directive.name.as_str();
        if LIMITS.contains(&name) {
            match used.contains(&directive.place) {
                true => remarks.extend(zone_size(directive).or_else(|| entries_of(directive))),
                false => remarks.push(unused(directive)),
            }
        } else if BLOCKS.contains(&name) {
            add_block(Some(directive), directive.children(), used, remarks);
        } else {
            remarks.extend(misspelt(directive));
            others.push(directive);
        }
    }
    let parameters = block.map(|block| block.arguments.join(" ")).unwrap_or_default();
    if others.is_empty() && parameters.is_empty() {
        return;
    }
    let mut names: Vec<&str> = Vec::new();
    for directive in &others {
        if !names.contains(&directive.name.as_str()) {
            names.push(&directive.name);
        }
    }
    let more = if names.len() > MAX_NAMES { ", …" } else { "" };
    let names = names.into_iter().take(MAX_NAMES).collect::<Vec<_>>().join(", ");
    let text: String = others.iter().map(|one| written(one)).collect();
    let place =
        block.or_else(|| others.first().copied()).map(|one| one.place.to_string()).unwrap_or_default();
    let kind = block.map_or("the file", |block| &block.name);
    let names = if names.is_empty() { "none".to_owned() } else { format!("{names}{more}") };
    let sum = checksum(&format!("{parameters}{text}"));
    let block = format!("{kind} {}", brief(&parameters));
    let text = format!("{place}: {}: other directives: {names} (checksum {sum})", block.trim_end());
    remarks.insert(at, Remark::new(Effect::None, text));
}

/// Says of a zone that its size has no equivalent.
fn zone_size(directive: &Directive) -> Option<Remark> {
    let zone = directive.arguments.iter().find_map(|word| word.strip_prefix("zone="))?;
    let (name, size) = zone.split_once(':')?;
    let others: Vec<&str> = directive
        .arguments
        .iter()
        .skip(1)
        .map(String::as_str)
        .filter(|word| !word.starts_with("zone=") && !word.starts_with("rate="))
        .collect();
    let others = if others.is_empty() { String::new() } else { format!("; not read: {}", others.join(" ")) };
    let text = format!(
        "{}: the zone `{name}` needs no size ({size}): `limiter.max_keys` bounds all{others}",
        directive.place
    );
    Some(Remark::new(Effect::None, text))
}

/// Says of a block of values that the rules have them: several spellings mean the same.
fn entries_of(directive: &Directive) -> Option<Remark> {
    let count = directive.block.as_ref()?.len();
    let (name, sum) = (&directive.name, checksum(&written(directive)));
    let variable = directive.arguments.last().map(String::as_str).unwrap_or_default();
    let text = format!(
        "{}: the rules have the {count} entries of `{name} … {variable}` (checksum {sum})",
        directive.place
    );
    Some(Remark::new(Effect::None, text))
}

fn unused(directive: &Directive) -> Remark {
    let text = written(directive);
    Remark::new(Effect::None, format!("{}: no rule has this: `{}`", directive.place, brief(text.trim())))
}

/// Says of a directive that it is not one of nginx, if its name is like those of limits.
fn misspelt(directive: &Directive) -> Option<Remark> {
    let name = directive.name.as_str();
    let is_like = ["limit_", "real_ip", "set_real_ip"].iter().any(|begin| name.starts_with(begin));
    if !is_like || KNOWN.contains(&name) {
        return None;
    }
    let hint = nearest(name, LIMITS.into_iter().chain(KNOWN)).map(|near| format!(", did you mean `{near}`?"));
    let text = format!(
        "{}: unknown directive: `{}`{}",
        directive.place,
        brief(written(directive).trim()),
        hint.unwrap_or_default()
    );
    Some(Remark::new(Effect::Differs, text))
}

/// Returns a directive with its block on one line.
fn written(directive: &Directive) -> String {
    let mut text = directive.name.clone();
    for word in &directive.arguments {
        text.push(' ');
        // Words are apart, whatever they contain.
        text.push_str(&word.replace('\\', "\\\\").replace(' ', "\\ "));
    }
    match &directive.block {
        None => text.push_str("; "),
        Some(block) => {
            text.push_str(" { ");
            block.iter().for_each(|inner| text.push_str(&written(inner)));
            text.push_str("} ");
        }
    }
    text
}
