//! One file of the corpus. `tests/hostile/README.md` describes the format.

use std::fs;
use std::path::{Path, PathBuf};

/// The input of a client, and the expected result.
#[derive(Debug)]
pub(super) struct HostileCase {
    pub(super) path: PathBuf,
    /// Name of the configuration.
    pub(super) config_name: String,
    pub(super) input: CaseInput,
    /// Expected responses, followed by `close` or `open`.
    pub(super) expected: Vec<String>,
    pub(super) upstream: ExpectedUpstream,
}

#[derive(Debug)]
pub(super) enum CaseInput {
    /// Bytes in pieces; each piece after the first is sent after one more response.
    Bytes(Vec<Vec<u8>>),
    /// HTTP/2 frames, in their text form.
    Frames(String),
}

/// Bytes that the upstream is expected to receive.
#[derive(Debug)]
pub(super) enum ExpectedUpstream {
    /// Exactly these bytes.
    Exactly(Vec<u8>),
    /// A strict prefix of these bytes.
    StrictPrefix(Vec<u8>),
}

impl HostileCase {
    /// Returns all cases below `directory`, sorted by name.
    pub(super) fn all(directory: &Path) -> Vec<Self> {
        let mut paths: Vec<PathBuf> = Vec::new();
        for group in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if group.is_dir() {
                paths.extend(fs::read_dir(group).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let (mut with, mut pieces, mut frames) = ("plain".to_owned(), Vec::new(), None);
        let (mut answer, mut upstream) = (Vec::new(), ExpectedUpstream::Exactly(Vec::new()));
        for section in text.split("\n--- ").skip(1) {
            let (title, content) = section.split_once('\n').unwrap_or((section, ""));
            match title.trim() {
                "client" => pieces.push(decode_bytes(content)),
                "frames" => frames = Some(content.to_owned()),
                "answer" => {
                    answer = content.lines().filter(|line| !line.is_empty()).map(Into::into).collect()
                }
                "upstream" => upstream = ExpectedUpstream::Exactly(decode_bytes(content)),
                "upstream, less than" => upstream = ExpectedUpstream::StrictPrefix(decode_bytes(content)),
                title => match title.strip_prefix("with ") {
                    Some(name) => name.clone_into(&mut with),
                    None => panic!("{}: unknown section `{title}`", path.display()),
                },
            }
        }
        assert!(text.starts_with("# "), "{}: the first line is not a `# ` comment", path.display());
        assert!(!answer.is_empty(), "{}: no expected response", path.display());
        let input = frames.map_or(CaseInput::Bytes(pieces), CaseInput::Frames);
        Self { path: path.to_owned(), config_name: with, input, expected: answer, upstream }
    }

    /// Writes the actual result into the file, as the expected one.
    pub(super) fn bless(&self, answer: &[String], upstream: &[u8]) {
        let text = fs::read_to_string(&self.path).unwrap();
        let (before, _) = text.split_once("\n--- answer").unwrap();
        let mut text = format!("{before}\n--- answer\n{}\n", answer.join("\n"));
        if !upstream.is_empty() {
            text += &format!("--- upstream\n{}", encode_bytes(upstream));
        }
        fs::write(&self.path, text).unwrap();
    }
}

/// Decodes a text: line breaks are ignored, each escape is one byte, and `\{N:TEXT}` is TEXT repeated N times.
pub(super) fn decode_bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '\n']) {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = &rest[at..];
        let after = match escape.as_bytes().get(1) {
            _ if escape.starts_with('\n') => 1,
            Some(b'x') => {
                bytes.push(u8::from_str_radix(&escape[2..4], 16).unwrap());
                4
            }
            Some(b'{') => {
                let (inside, _) = escape[2..].split_once('}').unwrap();
                let (count, what) = inside.split_once(':').unwrap();
                bytes.extend(decode_bytes(what).repeat(count.parse().unwrap()));
                inside.len() + 3
            }
            Some(letter) => {
                let meant = [(b'r', b'\r'), (b'n', b'\n'), (b't', b'\t'), (b'0', 0), (b'\\', b'\\')];
                bytes.push(meant.iter().find(|(written, _)| written == letter).unwrap().1);
                2
            }
            None => panic!("incomplete escape at the end"),
        };
        rest = &escape[after..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

/// Encodes `bytes` as text, with a line break after each LF byte.
pub(super) fn encode_bytes(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = bytes;
    while let Some(&first) = rest.first() {
        let run = rest.iter().take_while(|byte| **byte == first).count();
        let one = match first {
            b'\r' => "\\r".to_owned(),
            b'\n' => "\\n\n".to_owned(),
            b'\\' => "\\\\".to_owned(),
            b'\t' => "\\t".to_owned(),
            b' '..=b'~' => char::from(first).to_string(),
            other => format!("\\x{other:02x}"),
        };
        if run >= 40 {
            text += &format!("\\{{{run}:{one}}}");
            rest = &rest[run..];
        } else {
            text += &one;
            rest = &rest[1..];
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}
