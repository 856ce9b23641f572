//! Generators of messages: well-formed ones, and corrupted ones made of them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Framing of a message's body, which may be wrong.
#[derive(Clone, Debug)]
enum Framing {
    None,
    Length,
    /// The length is too large (`true`) or too small by one.
    WrongLength(bool),
    LiteralLength(&'static str),
    Chunked {
        extension: &'static str,
        trailers: Vec<&'static str>,
    },
    LengthAndChunked,
    Coding(&'static str),
}

fn framing() -> impl Strategy<Value = Framing> {
    let trailer = select(vec!["x-sum: 1", "X-Sum: 2", "a:", "content-length: 5", "b : 1", " c: 1", "d"]);
    let extension = select(vec!["", "", ";a", ";a=\"b\"", " ", "\t;a", ";\n", "x", ";a\r"]);
    prop_oneof![
        2 => Just(Framing::None),
        3 => Just(Framing::Length),
        1 => any::<bool>().prop_map(Framing::WrongLength),
        1 => select(vec!["005", "+5", "5 ", "5, 5", "5,6", "", "0x5", "18446744073709551616", "9223372036854775808"])
            .prop_map(Framing::LiteralLength),
        4 => (extension, vec(trailer, 0..3)).prop_map(|(extension, trailers)| Framing::Chunked { extension, trailers }),
        1 => Just(Framing::LengthAndChunked),
        1 => select(vec!["gzip", "gzip, chunked", "Chunked", "chunked, gzip", "chunked, chunked", "identity", "", "xchunked"])
            .prop_map(Framing::Coding),
    ]
}

fn chunks(body: &str, size: usize, extension: &str, trailers: &[&str]) -> String {
    let mut text = String::new();
    for chunk in body.as_bytes().chunks(size.max(1)) {
        text.push_str(&format!("{:x}{extension}\r\n{}\r\n", chunk.len(), String::from_utf8_lossy(chunk)));
    }
    text.push_str("0\r\n");
    trailers.iter().for_each(|trailer| text.extend([trailer, "\r\n"]));
    text + "\r\n"
}

impl Framing {
    /// Returns the framing headers and the framed body.
    fn write(&self, body: &str, size: usize) -> (String, String) {
        let length = body.len();
        match self {
            Self::None => (String::new(), String::new()),
            Self::Length => (format!("Content-Length: {length}\r\n"), body.to_owned()),
            Self::WrongLength(more) => {
                let length = if *more { length + 1 } else { length.saturating_sub(1) };
                (format!("content-length: {length}\r\n"), body.to_owned())
            }
            Self::LiteralLength(words) => (format!("content-length: {words}\r\n"), "hello".to_owned()),
            Self::Chunked { extension, trailers } => {
                ("Transfer-Encoding: chunked\r\n".to_owned(), chunks(body, size, extension, trailers))
            }
            Self::LengthAndChunked => {
                let fields = format!("content-length: {length}\r\ntransfer-encoding: chunked\r\n");
                (fields, chunks(body, size, "", &[]))
            }
            Self::Coding(coding) => (format!("transfer-encoding: {coding}\r\n"), chunks(body, size, "", &[])),
        }
    }
}

fn field() -> impl Strategy<Value = (&'static str, &'static str)> {
    let field = select(vec![
        "Host: a.test",
        "x-a: 1",
        "X-A: 2",
        "x-empty:",
        "x-wide:  \t b \t",
        "x-high: \u{e9}",
        "cookie: a=b; c=d",
        "x-space : 1",
        " folded: 1",
        "connection: close",
        "Connection: keep-alive",
        "connection: x-a, close",
        "keep-alive: timeout=5",
        "expect: something",
        "upgrade: x",
        "trailer: x-sum",
        "te: trailers",
        "noline",
        ": nameless",
        "x-nul: \0",
        "x(y: 1",
    ]);
    let end = select(vec!["\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r"]);
    (field, end)
}

/// Generates messages whose first line is one of `lines`.
pub(super) fn message(lines: Vec<&'static str>) -> impl Strategy<Value = String> {
    let body = select(vec![
        "",
        "a",
        "hello",
        "GET / HTTP/1.1\r\n\r\n",
        "0\r\n\r\n",
        "a longer body of several chunks",
    ]);
    (select(lines), vec(field(), 0..4), framing(), body, 1..9_usize).prop_map(
        |(line, fields, framing, body, size)| {
            let (framed, content) = framing.write(body, size);
            let fields: String = fields.into_iter().flat_map(|(field, end)| [field, end]).collect();
            format!("{line}\r\n{fields}{framed}\r\n{content}")
        },
    )
}

/// A corruption of the bytes of messages.
#[derive(Clone, Debug)]
enum Corruption {
    Overwrite(Index, u8),
    Remove(Index),
    Insert(Index, &'static str),
    Truncate(Index),
}

fn corruption() -> impl Strategy<Value = Corruption> {
    let piece =
        select(vec!["\r", "\n", "\r\n", " ", ":", ",", ";", "0", "\0", "\u{e9}", "\r\n\r\n", "x: y\r\n"]);
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(place, byte)| Corruption::Overwrite(place, byte)),
        any::<Index>().prop_map(Corruption::Remove),
        (any::<Index>(), piece).prop_map(|(place, piece)| Corruption::Insert(place, piece)),
        any::<Index>().prop_map(Corruption::Truncate),
    ]
}

/// Generates the bytes of these messages, most of them unchanged and some corrupted.
pub(super) fn message_bytes(messages: impl Strategy<Value = Vec<String>>) -> impl Strategy<Value = Vec<u8>> {
    let spoilt = prop_oneof![2 => Just(Vec::new()), 1 => vec(corruption(), 1..3)];
    (messages, spoilt).prop_map(|(messages, spoilt)| {
        let mut bytes = messages.concat().into_bytes();
        for spoil in spoilt {
            if bytes.is_empty() {
                break;
            }
            match spoil {
                Corruption::Overwrite(place, byte) => {
                    let place = place.index(bytes.len());
                    bytes[place] = byte;
                }
                Corruption::Remove(place) => drop(bytes.remove(place.index(bytes.len()))),
                Corruption::Insert(place, piece) => {
                    let place = place.index(bytes.len());
                    bytes.splice(place..place, piece.bytes());
                }
                Corruption::Truncate(place) => bytes.truncate(place.index(bytes.len())),
            }
        }
        bytes
    })
}
