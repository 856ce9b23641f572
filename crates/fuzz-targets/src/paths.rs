//! Fuzz target for paths: one normalised form each, and none outside of the root.

use weir_policy::identify::path::normalise;

/// A path has one normalised form, which all its spellings lead to.
pub fn path(data: &[u8]) {
    let Ok(path) = std::str::from_utf8(data) else { return };
    // HTTP parsers reject other paths.
    if !path.starts_with('/') || path.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return;
    }
    let Ok(normal) = normalise(path) else { return };
    assert_normalised(&normal);
    assert_eq!(
        normalise(&percent_encode_all(&normal)).as_deref(),
        Ok(&*normal),
        "percent-encoded, {path:?} is another path"
    );
    assert_eq!(
        normalise(&add_detours(&normal)).as_deref(),
        Ok(&*normal),
        "with dot segments, {path:?} is another path"
    );
}

/// Checks that `normal` is in normalised form.
pub(super) fn assert_normalised(normal: &str) {
    assert_eq!(normalise(normal).as_deref(), Ok(normal), "normalising twice changes a path");
    let inside = normal.strip_prefix('/').unwrap_or_else(|| panic!("{normal:?} does not begin at the root"));
    let mut segments = inside.split('/').rev();
    let last = segments.next().unwrap_or_default();
    assert!(!matches!(last, "." | ".."), "{normal:?} ends in dots");
    assert!(
        segments.all(|segment| !matches!(segment, "" | "." | "..")),
        "{normal:?} has an empty or dot segment"
    );
    assert!(!normal.contains('\0'));
}

/// Returns the path with every byte percent-encoded that may be.
fn percent_encode_all(normal: &str) -> String {
    let bytes = normal.as_bytes();
    let mut text = String::new();
    let mut skipped = 0;
    for byte in bytes {
        match byte {
            // Already encoded; it must keep its meaning.
            b'%' => {
                skipped = 2;
                text.push('%');
            }
            byte if skipped > 0 => {
                skipped -= 1;
                text.push(char::from(*byte));
            }
            b'/' => text.push('/'),
            // An encoded backslash is a different character for Weir, as for some servers.
            b'\\' => text.push('\\'),
            byte => text.push_str(&format!("%{byte:02x}")),
        }
    }
    text
}

/// Returns the path with a detour inserted at every slash.
fn add_detours(normal: &str) -> String {
    normal.replace('/', "//./%2e/elsewhere/%2E./")
}
