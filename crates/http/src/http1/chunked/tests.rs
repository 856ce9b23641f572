use bytes::Bytes;
use http::HeaderMap;
use proptest::prelude::*;

use super::*;

/// Result of decoding a body: its content so far, how it ended if it did, and the bytes left.
type Outcome = (Vec<u8>, Option<Result<HeaderMap, MalformedMessage>>, Vec<u8>);

fn decode_in_pieces(bytes: &[u8], cuts: &[usize]) -> Outcome {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    let (mut chunked, mut read, mut content) = (ChunkedDecoder::default(), BytesMut::new(), Vec::new());
    for pair in cuts.windows(2) {
        read.extend_from_slice(&bytes[pair[0]..pair[1]]);
        let end = loop {
            match chunked.decode(&mut read) {
                Ok(Piece::Data(data)) => content.extend_from_slice(&data),
                Ok(Piece::NeedMore) => break None,
                Ok(Piece::Trailers(fields)) => break Some(Ok(fields)),
                Ok(Piece::End) => break Some(Ok(HeaderMap::new())),
                Err(malformed) => break Some(Err(malformed)),
            }
        };
        if let Some(end) = end {
            assert!(end.is_err() || chunked.is_complete());
            let rest = if end.is_ok() { [&read[..], &bytes[pair[1]..]].concat() } else { Vec::new() };
            return (content, Some(end), rest);
        }
    }
    (content, None, Vec::new())
}

fn decode(text: &str) -> Outcome {
    decode_in_pieces(text.as_bytes(), &[])
}

fn assert_rejected(text: &str) {
    let (_, end, _) = decode(text);
    assert!(matches!(end, Some(Err(_))), "{text:?}: {end:?}");
}

#[test]
fn chunks_are_joined_and_extensions_dropped() {
    let (content, end, rest) = decode("5\r\nhello\r\n6 ; a=\"b;c\" \r\n world\r\n00 ;x\r\n\r\nnext");
    assert_eq!(content, b"hello world");
    assert_eq!((end, rest), (Some(Ok(HeaderMap::new())), b"next".to_vec()));
}

#[test]
fn chunked_trailers_are_decoded() {
    let (content, end, rest) = decode("A\r\n0123456789\r\n0\r\nx-a: 1\r\nX-A: 2\r\n\r\nnext");
    assert_eq!((content.as_slice(), rest.as_slice()), (&b"0123456789"[..], &b"next"[..]));
    let fields = end.unwrap().unwrap();
    assert_eq!(fields.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
}

#[test]
fn incomplete_chunked_body_has_no_end() {
    for text in
        ["", "5", "5\r\n", "5\r\nhel", "5\r\nhello", "5\r\nhello\r\n", "0\r\n", "0\r\n\r", "0\r\na: b\r\n"]
    {
        assert_eq!(decode(text).1, None, "{text:?}");
    }
}

#[test]
fn ambiguous_chunk_framing_is_rejected() {
    for text in [
        "\r\n",
        "g\r\n",
        "+5\r\n",
        "-1\r\n",
        "0x5\r\n",
        " 5\r\n",
        "5 5\r\n",
        "5\nhello\r\n",
        "5;x\nhello\r\n",
        "5\r\nhello\n",
        "5\r\nhelloX",
        "5\rhello",
        "10000000000000000\r\n",
        "0\r\na b: c\r\n\r\n",
        "0\r\na: b\n\nHTTP/1.1 200 OK\r\n\r\n",
        "0\r\na: b\r\n c\r\n\r\n",
    ] {
        assert_rejected(text);
    }
}

#[test]
fn chunk_size_lines_and_trailers_are_bounded() {
    assert_rejected(&format!("5;{}", "x".repeat(MAX_SIZE_LINE_LENGTH as usize)));
    assert_rejected(&"0".repeat(MAX_SIZE_LINE_LENGTH as usize + 1));
    assert_rejected(&format!("0\r\na: {}", "x".repeat(MAX_TRAILERS_SIZE)));
    assert_rejected(&format!("0\r\n{}\r\n", "a: b\r\n".repeat(MAX_TRAILERS + 1)));
    let many = "1;ext\r\nx\r\n".repeat(MAX_SIZE_LINE_LENGTH as usize);
    assert_eq!(
        decode(&many),
        (vec![b'x'; MAX_SIZE_LINE_LENGTH as usize], None, Vec::new()),
        "the maximum applies to each size line, not to their sum"
    );
}

#[test]
fn maximum_chunk_size_is_accepted() {
    let mut read = BytesMut::from("ffffffffffffffff\r\nab");
    let mut chunked = ChunkedDecoder::default();
    assert_eq!(chunked.decode(&mut read), Ok(Piece::Data(Bytes::from_static(b"ab"))));
    assert_eq!(chunked.state, ChunkedState::Data(u64::MAX - 2));
}

const EXAMPLE: &[u8] =
    b"3\r\nabc\r\n10;q=1\r\n0123456789abcdef\r\n1\r\n\n\r\n0\r\nx-sum: 1\r\n\r\nHTTP/1.1 200 OK";

proptest! {
    #[test]
    fn chunked_body_is_decoded_the_same_in_pieces(
        overwritten in proptest::option::of((0..EXAMPLE.len(), any::<u8>())),
        cuts in proptest::collection::vec(any::<usize>(), 0..8),
    ) {
        let mut bytes = EXAMPLE.to_vec();
        if let Some((place, byte)) = overwritten {
            bytes[place] = byte;
        }
        prop_assert_eq!(decode_in_pieces(&bytes, &cuts), decode_in_pieces(&bytes, &[]));
    }

    #[test]
    fn random_bytes_are_decoded_or_rejected_the_same_in_pieces(
        bytes in proptest::collection::vec(proptest::sample::select(&b"05aF;\r\n :x"[..]), 0..40),
        cuts in proptest::collection::vec(any::<usize>(), 0..8),
    ) {
        prop_assert_eq!(decode_in_pieces(&bytes, &cuts), decode_in_pieces(&bytes, &[]));
    }

    #[test]
    fn encoded_chunks_decode_to_the_same_body(
        chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6),
        cuts in proptest::collection::vec(any::<usize>(), 0..8),
    ) {
        let mut bytes = Vec::new();
        for chunk in &chunks {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\nnext");
        let wanted = (chunks.concat(), Some(Ok(HeaderMap::new())), b"next".to_vec());
        prop_assert_eq!(decode_in_pieces(&bytes, &cuts), wanted);
    }
}

#[test]
fn total_size_of_chunk_extensions_is_bounded() {
    let chunk = |bytes: usize| format!("1;{}\r\nx\r\n", "e".repeat(bytes - 1));
    let (within, over) = (chunk(1024).repeat(16), chunk(1024).repeat(17));
    assert_eq!(decode(&format!("{within}0\r\n\r\n")).0.len(), 16);
    assert_rejected(&format!("{over}0\r\n\r\n"));
}

/// Decoding on after an error could find the end of the message in the wrong place.
#[test]
fn chunked_decoder_stays_failed_after_an_error() {
    for (first, then) in [("5\r\nhello\r", "\n5\rXab\r\n0\r\n\r\n"), ("0\r\nabcdefgh", "ijk\r\n\r\n")] {
        let (mut chunked, mut read) = (ChunkedDecoder::default(), BytesMut::from(first));
        while !matches!(chunked.decode(&mut read).expect(first), Piece::NeedMore) {}
        read.extend_from_slice(then.as_bytes());
        for _ in 0..3 {
            assert!(chunked.decode(&mut read).is_err(), "{first:?} {then:?}");
        }
        assert!(!chunked.is_complete());
    }
}
