use proptest::prelude::*;

use super::*;
use crate::headers::WritableHeaders;

/// Decodes `bytes` cut at `cuts`; returns the head with the bytes after it.
fn decode_in_pieces(
    bytes: &[u8],
    cuts: &[usize],
    to_head: bool,
) -> Result<Option<(ResponseHead, Vec<u8>)>, MalformedMessage> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    let (mut reader, mut read) = (ResponseHeadDecoder::new(to_head), BytesMut::new());
    for (index, pair) in cuts.windows(2).enumerate() {
        read.extend_from_slice(&bytes[pair[0]..pair[1]]);
        if pair[0] == pair[1] && index > 0 {
            continue;
        }
        if let Some(head) = reader.decode(&mut read)? {
            read.extend_from_slice(&bytes[pair[1]..]);
            return Ok(Some((head, read.to_vec())));
        }
    }
    Ok(None)
}

fn decode(text: &str) -> Result<Option<ResponseHead>, MalformedMessage> {
    ResponseHeadDecoder::new(false).decode(&mut BytesMut::from(text))
}

fn decode_headers(fields: &str) -> ResponseHead {
    decode(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n")).unwrap().expect("a complete head")
}

fn decode_error(text: &str) -> MalformedMessage {
    decode(text).expect_err(text)
}

#[test]
fn response_status_and_headers_are_decoded() {
    let head = decode_headers(
        "X-One: 1\r\nset-cookie: a=\u{e4}\r\nSet-Cookie: b\r\nempty:\r\ncontent-length: 0\r\n",
    );
    assert_eq!(head.status, StatusCode::OK);
    let fields = head.headers.into_map();
    let fields: Vec<_> =
        fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes().to_vec())).collect();
    let wanted = [
        ("x-one", b"1".to_vec()),
        ("set-cookie", "a=\u{e4}".as_bytes().to_vec()),
        ("set-cookie", b"b".to_vec()),
        ("empty", Vec::new()),
        ("content-length", b"0".to_vec()),
    ];
    assert_eq!(fields, wanted);
}

#[test]
fn raw_response_headers_are_normalised() {
    let mut head = decode_headers("a: 1\r\nb:2\r\nc:\t 3 \r\nd: 4\ne:\r\nf: \r\nContent-Length: 5 \r\n");
    let WritableHeaders::Raw(raw) = head.headers.writable() else { panic!("parsed") };
    let mut out = Vec::new();
    raw.write(&mut out);
    assert_eq!(String::from_utf8(out).unwrap(), "a: 1\r\nb: 2\r\nc: 3\r\nd: 4\r\ne: \r\nf: \r\n");
    assert_eq!(head.headers.get(&CONTENT_LENGTH), Some(&b"5"[..]));
}

#[test]
fn response_body_is_framed_by_its_headers() {
    assert_eq!(decode_headers("content-length: 12\r\n").decoder, BodyDecoder::Length(12));
    assert_eq!(
        decode_headers("content-length: 12, 12\r\ncontent-length: 12\r\n").decoder,
        BodyDecoder::Length(12)
    );
    assert_eq!(
        decode_headers("transfer-encoding: Chunked\r\n").decoder,
        BodyDecoder::Chunked(ChunkedDecoder::default())
    );
    assert_eq!(decode_headers("").decoder, BodyDecoder::Close);
}

#[test]
fn bodiless_responses_ignore_content_length() {
    for status in ["204 No Content", "304 Not Modified", "101 Switching Protocols"] {
        let text = format!("HTTP/1.1 {status}\r\ncontent-length: 9\r\n\r\n");
        assert_eq!(decode(&text).unwrap().expect(status).decoder, BodyDecoder::Length(0), "{status}");
    }
    let mut read = BytesMut::from("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n");
    let response = ResponseHeadDecoder::new(true).decode(&mut read).unwrap().unwrap();
    assert_eq!((response.decoder, response.keep_alive), (BodyDecoder::Length(0), true));
}

#[test]
fn keep_alive_of_a_response_follows_its_headers_and_version() {
    assert!(decode_headers("content-length: 1\r\n").keep_alive);
    assert!(decode_headers("connection: keep-alive\r\ncontent-length: 1\r\n").keep_alive);
    assert!(
        !decode_headers("connection: x, Close\r\nconnection: keep-alive\r\ncontent-length: 1\r\n").keep_alive
    );
    assert!(!decode_headers("").keep_alive, "a body without a length ends with the connection");
    assert!(
        !decode_headers("content-length: 1\r\ntransfer-encoding: chunked\r\n").keep_alive,
        "length and coding"
    );
    let old = decode("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n").unwrap().unwrap();
    assert!(!old.keep_alive, "HTTP/1.0");
    let switched = decode("HTTP/1.1 101 Switching Protocols\r\n\r\n").unwrap().unwrap();
    assert!(!switched.keep_alive, "no longer HTTP");
}

#[test]
fn connection_headers_of_a_response_are_removed() {
    let names = |fields: &str| -> Vec<String> {
        decode_headers(fields).headers.into_map().keys().map(|name| name.as_str().to_owned()).collect()
    };
    let usual = "Connection: keep-alive\r\nKeep-Alive: timeout=5\r\ntransfer-encoding: chunked\r\na: b\r\n";
    assert_eq!(names(usual), ["a"]);
    assert_eq!(names("connection: Close , Keep-Alive\r\ncontent-length: 1\r\n"), ["content-length"]);
    assert_eq!(names("connection: x-named, close\r\nx-named: b\r\n"), ["connection", "x-named"]);
    let both = "content-length: 5\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\na: b\r\n";
    assert_eq!(names(both), ["a"], "only the transfer coding is used");
}

#[test]
fn interim_responses_are_skipped() {
    let text =
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\r\nbody";
    let mut read = BytesMut::from(text);
    let response = ResponseHeadDecoder::new(false).decode(&mut read).unwrap().unwrap();
    assert_eq!((response.status, response.headers.into_map().len()), (StatusCode::OK, 0));
    assert_eq!(&read[..], b"body");
}

#[test]
fn ambiguous_response_framing_is_rejected() {
    let with = |fields: &str| decode_error(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n"));
    for length in ["", "five", "+5", "-5", "0x5", "5 5", ",", "5, 6", "18446744073709551616"] {
        assert_eq!(
            with(&format!("content-length: {length}\r\n")),
            MalformedMessage::ContentLength,
            "{length:?}"
        );
    }
    assert_eq!(with("content-length: 5\r\ncontent-length: 6\r\n"), MalformedMessage::ContentLength);
    for coding in ["gzip", "gzip, chunked", "chunked, gzip", "identity", "chunked;a=b", ""] {
        assert_eq!(
            with(&format!("transfer-encoding: {coding}\r\n")),
            MalformedMessage::TransferEncoding,
            "{coding:?}"
        );
    }
    assert_eq!(
        with("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n"),
        MalformedMessage::TransferEncoding
    );
    let old = "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    assert_eq!(decode_error(old), MalformedMessage::TransferEncoding);
    assert_eq!(decode_error("HTTP/1.1 099 Low\r\n\r\n"), MalformedMessage::Status);
}

#[test]
fn response_head_size_and_fields_are_bounded() {
    let long = format!("HTTP/1.1 200 OK\r\nx: {}", "a".repeat(MAX_HEAD_SIZE));
    assert_eq!(decode_error(&long), MalformedMessage::FieldsTooLarge, "incomplete");
    assert_eq!(decode_error(&format!("{long}\r\n\r\n")), MalformedMessage::FieldsTooLarge, "complete");
    let fields = |count| "a: b\r\n".repeat(count);
    assert_eq!(decode_headers(&fields(MAX_FIELDS)).headers.into_map().len(), MAX_FIELDS);
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", fields(MAX_FIELDS + 1));
    assert_eq!(decode_error(&many), MalformedMessage::Head(httparse::Error::TooManyHeaders));
}

const EXAMPLE: &str = "HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 11\r\n\
                       connection: close, x\r\nset-cookie: a\r\nset-cookie: b\r\n\r\nhello world";

#[test]
fn response_head_is_decoded_from_single_bytes() {
    let single: Vec<usize> = (0..EXAMPLE.len()).collect();
    let (head, rest) =
        decode_in_pieces(EXAMPLE.as_bytes(), &single, false).unwrap().expect("a complete head");
    assert_eq!(Some(head), decode(EXAMPLE).unwrap());
    assert_eq!(rest, b"hello world");
}

fn random_bytes() -> impl Strategy<Value = Vec<u8>> {
    let overwritten = (0..EXAMPLE.len(), any::<u8>()).prop_map(|(place, byte)| {
        let mut bytes = EXAMPLE.as_bytes().to_vec();
        bytes[place] = byte;
        bytes
    });
    const WORDS: [&str; 16] = [
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 204 \r\n",
        "\r\n",
        "\n",
        "a: b\r\n",
        "A: c\r\n",
        "content-length: 5",
        "Content-Length: 05, 5\r\n",
        "transfer-encoding: chunked\r\n",
        "connection: close, a\r\n",
        "keep-alive: 5\r\n",
        ":",
        " ",
        "\r",
        "é",
        "\0",
    ];
    let mixed = proptest::collection::vec(proptest::sample::select(&WORDS[..]), 0..12)
        .prop_map(|words| words.concat().into_bytes());
    prop_oneof![overwritten, mixed, proptest::collection::vec(any::<u8>(), 0..64)]
}

proptest! {
    #[test]
    fn response_head_is_decoded_the_same_in_pieces(
        bytes in random_bytes(),
        cuts in proptest::collection::vec(any::<usize>(), 0..8),
        to_head: bool,
    ) {
        let at_once = decode_in_pieces(&bytes, &[], to_head);
        let in_pieces = decode_in_pieces(&bytes, &cuts, to_head);
        match &at_once {
            Ok(Some(_)) => prop_assert_eq!(&in_pieces, &at_once),
            Ok(None) => prop_assert!(matches!(&in_pieces, Ok(None)), "{in_pieces:?}"),
            // In pieces, an error may be found later, once the head may have ended.
            Err(_) => prop_assert!(!matches!(&in_pieces, Ok(Some(_))), "{in_pieces:?}"),
        }
    }
}

#[test]
fn headers_do_not_hold_the_read_buffer() {
    const CAPACITY: usize = 8 * 1024;
    let mut read = BytesMut::with_capacity(CAPACITY);
    read.extend_from_slice(b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\nhi");
    let head = ResponseHeadDecoder::new(false).decode(&mut read).unwrap().expect("a complete head");
    assert_eq!(&read[..], b"hi");
    read.clear();
    assert!(read.try_reclaim(CAPACITY), "the buffer is held");
    assert_eq!(head.headers.into_map()["date"], "today");
}

#[test]
fn empty_lines_before_a_head_are_dropped_as_they_arrive() {
    let (mut decoder, mut read) = (ResponseHeadDecoder::new(false), BytesMut::new());
    for _ in 0..1000 {
        read.extend_from_slice(b"\r\n");
        assert!(decoder.decode(&mut read).unwrap().is_none());
        assert!(read.is_empty(), "they would be parsed again");
    }
    read.extend_from_slice(b"HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(decoder.decode(&mut read).unwrap().unwrap().status, 204);
}
