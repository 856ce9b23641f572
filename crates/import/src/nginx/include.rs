//! The files that an `include` names, on disk.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::syntax::IncludedFile;

/// Maximum number of files that one `include` reads.
const MAX_FILES: usize = 1000;
/// Maximum size of a file, in bytes.
const MAX_FILE_SIZE: u64 = 16 << 20;

/// Returns the files that match `pattern`, sorted by name as nginx sorts them. `*`, `?` and `[…]` are wildcards
/// in any part of the path. A relative pattern is relative to the directory of the main file.
pub fn read_files(main_file: &Path, pattern: &str) -> Vec<IncludedFile> {
    let directory = main_file.parent().unwrap_or_else(|| Path::new(""));
    let mut paths = vec![if pattern.starts_with('/') { PathBuf::from("/") } else { directory.to_owned() }];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        paths = paths.iter().flat_map(|path| matching_paths(path, part)).take(MAX_FILES).collect();
    }
    paths
        .into_iter()
        .map(|path| IncludedFile { name: path.display().to_string(), text: read(&path) })
        .collect()
}

/// Returns the entries of a directory that match one part of a pattern.
fn matching_paths(directory: &Path, part: &str) -> Vec<PathBuf> {
    if !part.contains(['*', '?', '[']) {
        return vec![directory.join(part)];
    }
    let listed = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let mut names: Vec<String> = fs::read_dir(listed)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        // A leading dot needs a dot in the pattern.
        .filter(|name| !name.starts_with('.') || part.starts_with('.'))
        .filter(|name| matches_glob(part.as_bytes(), name.as_bytes()))
        .collect();
    names.sort_unstable();
    names.into_iter().map(|name| directory.join(name)).collect()
}

fn read(path: &Path) -> Result<String, String> {
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    match file.take(MAX_FILE_SIZE + 1).read_to_string(&mut text) {
        Ok(size) if size as u64 > MAX_FILE_SIZE => Err(format!("above {MAX_FILE_SIZE} bytes")),
        Ok(_) => Ok(text),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether a name matches a pattern with `*`, `?` and `[…]`. Takes at most the product of both lengths.
pub(super) fn matches_glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut position) = (0, 0);
    // Where to continue if the rest does not match: behind the last `*`, with one more byte matched by it.
    let mut retry: Option<(usize, usize)> = None;
    while position < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                retry = Some((at + 1, position));
                at += 1;
                continue;
            }
            Some(_) => {
                if let Some(length) = match_one(&pattern[at..], name[position]) {
                    (at, position) = (at + length, position + 1);
                    continue;
                }
            }
            None => {}
        }
        let Some((after_star, matched)) = retry else { return false };
        retry = Some((after_star, matched + 1));
        (at, position) = (after_star, matched + 1);
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Returns the length of the pattern's first element if it matches `byte`.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', rest @ ..] => {
            let Some(end) = rest.iter().skip(1).position(|byte| *byte == b']').map(|end| end + 1) else {
                return (byte == b'[').then_some(1);
            };
            let (is_negated, set) = match &rest[..end] {
                [b'!' | b'^', set @ ..] => (true, set),
                set => (false, set),
            };
            (set_contains(set, byte) != is_negated).then_some(end + 2)
        }
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

fn set_contains(mut set: &[u8], byte: u8) -> bool {
    loop {
        set = match set {
            [] => return false,
            [first, b'-', last, ..] if (*first..=*last).contains(&byte) => return true,
            [_, b'-', _, rest @ ..] => rest,
            [one, ..] if *one == byte => return true,
            [_, rest @ ..] => rest,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glob_patterns_match_as_in_a_shell() {
        let matches = |pattern: &str, name: &str| matches_glob(pattern.as_bytes(), name.as_bytes());
        for (pattern, name) in [
            ("*.conf", "a.conf"),
            ("a*b*c", "aXbYbc"),
            ("?", "a"),
            ("[a-c]x", "bx"),
            ("[!a]", "b"),
            ("*", ""),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("*.conf", "a.con"),
            ("a*b", "ac"),
            ("?", ""),
            ("[a-c]", "d"),
            ("[!a]", "a"),
            ("[", "a"),
            ("a", "aa"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!(matches("[", "["));
    }

    #[test]
    fn included_files_are_sorted_and_relative_to_the_main_file() {
        let directory = tempfile::tempdir().unwrap();
        let main = directory.path().join("nginx.conf");
        fs::create_dir(directory.path().join("conf.d")).unwrap();
        for name in ["b.conf", "a.conf", ".hidden.conf", "c.txt"] {
            fs::write(directory.path().join("conf.d").join(name), name).unwrap();
        }
        let texts = |pattern: &str| -> Vec<String> {
            read_files(&main, pattern).into_iter().filter_map(|file| file.text.ok()).collect()
        };
        assert_eq!(texts("conf.d/*.conf"), ["a.conf", "b.conf"]);
        assert_eq!(texts("*.d/b.conf"), ["b.conf"]);
        assert_eq!(texts(&format!("{}/conf.d/c.txt", directory.path().display())), ["c.txt"]);
        assert!(read_files(&main, "none.conf")[0].text.is_err());
        assert!(read_files(&main, "none/*.conf").is_empty());
    }
}
