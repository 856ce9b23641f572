//! Patterns of other configurations as patterns of rules.

use regex::{Regex, RegexBuilder};

/// Maximum memory of a compiled regex, in bytes, as for the patterns of rules.
const REGEX_SIZE_LIMIT: usize = 1 << 20;

/// Compiles a regex as rules do; `None` if its syntax is not supported.
pub(super) fn parse_regex(text: &str, ignores_case: bool) -> Option<Regex> {
    let text = if ignores_case { format!("(?i){text}") } else { text.to_owned() };
    RegexBuilder::new(&text).size_limit(REGEX_SIZE_LIMIT).build().ok()
}

/// Whether a rule's path pattern of this text means this path.
pub(super) fn is_literal_path(path: &str) -> bool {
    let is_plain = |byte: u8| {
        byte.is_ascii_graphic() && !matches!(byte, b'*' | b'{' | b'}' | b'?' | b'#' | b'%' | b'\\')
    };
    // Rules remove empty segments and dots from their patterns; nginx compares them as they are.
    let mut segments = path.strip_suffix('/').unwrap_or(path).split('/').skip(1);
    path == "/"
        || (path.starts_with('/')
            && path.bytes().all(is_plain)
            && segments.all(|segment| !matches!(segment, "" | "." | "..")))
}
