//! Manifests of others: an injection is undone byte for byte, and a second one changes nothing.

use weir_inject::{InjectOptions, ManifestSource, inject, uninject};

/// Injects into a manifest, with Services and with redirection.
///
/// # Panics
/// Panics if a second injection changes the text, or if the removal does not restore it.
pub fn manifest(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let sources = [ManifestSource { name: "fuzz.yaml".to_owned(), text: text.to_owned() }];
    // A text with records has been injected before; what its removal leaves is the one to compare with.
    let Ok(original) = uninject(&sources) else { return };
    if original.files[0].text != text {
        return;
    }
    for is_redirect in [false, true] {
        let options = InjectOptions { port: Some(8080), is_redirect, ..InjectOptions::default() };
        let Ok(first) = inject(&sources, &options) else { continue };
        let second = inject(&first.files, &options).unwrap_or_else(|problems| {
            panic!("the second injection fails: {}\n{}", problems[0], first.files[0].text)
        });
        assert_eq!(second.files[0].text, first.files[0].text, "a second injection");
        let removed =
            uninject(&first.files).unwrap_or_else(|problems| panic!("the removal fails: {}", problems[0]));
        assert_eq!(removed.files[0].text, text, "the removal");
    }
}
