//! Log messages about reloads, and the hash that identifies a configuration.

use std::path::Path;

use super::status::Reload;
use crate::central::document::FetchedDocument;

/// Maximum number of problems of a rejected configuration that are logged: it may be tried again and again.
const MAX_LOGGED_PROBLEMS: usize = 20;

/// Formats the warning about a text with `lines` lines missing at its end.
pub(super) fn truncation_warning(lines: usize) -> String {
    format!(
        "possibly truncated: the file was written in place and lacks the last {lines} lines of its previous \
         content; replace files by renaming, or end them with the line `...`"
    )
}

pub(super) fn log_reload(file: &Path, reload: &Reload) {
    let file = file.display();
    match reload {
        Reload::Applied { config, warnings, .. } => {
            tracing::info!(%file, rules = config.policy.rules.len(), "configuration reloaded");
            for notice in &config.notices {
                tracing::info!("{notice}");
            }
            for warning in warnings {
                tracing::warn!(%file, "{warning}");
            }
        }
        Reload::TakenOver => tracing::info!(%file, "configuration applied by another process"),
        Reload::Unchanged => tracing::info!(%file, "configuration unchanged"),
        Reload::Rejected { problems } => {
            tracing::error!(
                %file,
                problems = problems.len(),
                "configuration rejected, keeping the running one"
            );
            for problem in problems.iter().take(MAX_LOGGED_PROBLEMS) {
                tracing::error!("{problem}");
            }
            if problems.len() > MAX_LOGGED_PROBLEMS {
                tracing::error!("further problems are not logged: `weir check` prints them");
            }
        }
    }
}

/// Returns the hash of the configuration's texts, without data files.
pub(crate) fn hash_texts(text: &str, document: Option<&FetchedDocument>) -> u64 {
    match document {
        None => fnv1a(text),
        Some(document) => fnv1a(&format!("{text}\0{}", document.text)),
    }
}

/// 64-bit FNV-1a, the same on every machine and in every version. Not for keys that clients choose.
fn fnv1a(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv1a_matches_published_test_vectors() {
        assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
    }
}
