//! Fuzz target for the import of nginx's configuration.

use std::path::Path;

use weir_config as config;
use weir_import::Imported;
use weir_import::nginx::{self, IncludedFile};

const SERVICE: &str = "listeners: 127.0.0.1:0\nupstream: echo\n";

/// A file is converted deterministically or rejected. Converted rules are a valid configuration.
pub fn nginx(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // A file that includes itself.
    let read = |name: &str| vec![IncludedFile { name: name.to_owned(), text: Ok(text.to_owned()) }];
    let imported = nginx::import("fuzz.conf", text, &read);
    assert_eq!(imported, nginx::import("fuzz.conf", text, &read));
    let Ok(Imported { rules, .. }) = imported else { return };
    if let Err(problems) = config::from_text(&format!("{SERVICE}{rules}"), Path::new("fuzz.yaml"), &|_| None)
    {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        panic!("imported rules are invalid: {}\n{rules}", problems.join("\n"));
    }
}
