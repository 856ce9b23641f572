//! The readers of answers, for fuzzing.

use bytes::BytesMut;
use http::HeaderMap;

use super::response_head::{Head, Reader};
use crate::http1::chunked::Chunked;
use crate::http1::decoder::{Decoder, Piece};
use crate::http1::malformed::Malformed;

/// How an answer was read.
#[derive(Debug, PartialEq)]
enum Read {
    /// So much holds no whole head.
    Part(Vec<u8>),
    /// This far, and perhaps to its end.
    Whole(Box<(Head, Body)>),
}

/// How a body was read.
#[derive(Debug, Default, PartialEq)]
struct Body {
    content: Vec<u8>,
    trailers: Option<HeaderMap>,
    over: bool,
    /// What is left, which belongs to nobody or to the next answer.
    rest: Vec<u8>,
}

/// The head and body of a response are the same however they come, byte by byte or at once. The first byte says how much
/// comes at once, and whether the request was HEAD.
pub fn answer(data: &[u8]) {
    let Some((steer, data)) = data.split_first() else { return };
    let (to_head, step) = (steer & 1 == 1, usize::from(steer >> 1).max(1));
    let whole = read(data, to_head, data.len());
    let pieces = read(data, to_head, step);
    match (whole, pieces) {
        (Ok(whole), Ok(pieces)) => assert_eq!(whole, pieces, "cut in pieces, an answer is another one"),
        (Err(_), Err(_)) => {}
        // What comes in pieces is looked at again only when a head may have ended.
        (Err(_), Ok(Read::Part(rest))) if !has_empty_line(&rest) => {}
        (whole, pieces) => panic!("at once {whole:?}, in pieces {pieces:?}"),
    }
}

/// Empty lines before a head are passed over and end none.
fn has_empty_line(data: &[u8]) -> bool {
    let start = data.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(data.len());
    [&b"\n\n"[..], b"\n\r\n"].iter().any(|end| data[start..].windows(end.len()).any(|found| found == *end))
}

/// What is written in chunks is read as it was, and never more than that. The first byte says how long the chunks are.
pub fn chunks(data: &[u8]) {
    let Some((steer, data)) = data.split_first() else { return };
    let step = usize::from(*steer).max(1);
    let mut encoded = Vec::new();
    for chunk in data.chunks(step) {
        encoded.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        encoded.extend_from_slice(chunk);
        encoded.extend_from_slice(b"\r\n");
    }
    encoded.extend_from_slice(b"0\r\n\r\nnext");
    for at_once in [1, step, encoded.len()] {
        let body = body(Decoder::Chunked(Chunked::default()), &encoded, at_once);
        let body = body.unwrap_or_else(|error| panic!("what we write is {error:?}"));
        assert!(body.over && body.trailers.is_none() && body.rest == b"next");
        assert_eq!(body.content, data, "chunks change what is in them");
    }
    // The bytes as chunks somebody else has written.
    let (whole, pieces) =
        [data.len(), step].map(|at_once| body(Decoder::Chunked(Chunked::default()), data, at_once)).into();
    match (whole, pieces) {
        (Ok(whole), Ok(pieces)) => {
            assert_eq!(whole, pieces, "cut in pieces, a body is another one");
            assert!(whole.content.len() <= data.len());
        }
        (Err(_), Err(_)) => {}
        (whole, pieces) => panic!("at once {whole:?}, in pieces {pieces:?}"),
    }
}

fn read(data: &[u8], to_head: bool, step: usize) -> Result<Read, Malformed> {
    let mut reader = Reader::new(to_head, false);
    let mut buffer = BytesMut::new();
    let mut pieces = data.chunks(step.max(1));
    let head = loop {
        if let Some(head) = reader.decode(&mut buffer)? {
            break head;
        }
        let Some(piece) = pieces.next() else { return Ok(Read::Part(buffer.to_vec())) };
        buffer.extend_from_slice(piece);
    };
    let rest: Vec<u8> = buffer.iter().copied().chain(pieces.flatten().copied()).collect();
    let length = match &head.length {
        Decoder::Length(octets) => Decoder::Length(*octets),
        Decoder::Chunked(_) => Decoder::Chunked(Chunked::default()),
        Decoder::Close => Decoder::Close,
    };
    assert!(!(head.keeps && length.ends_with_connection()), "a connection is kept whose end is the body's");
    let body = body(length, &rest, step)?;
    Ok(Read::Whole(Box::new((head, body))))
}

fn body(mut length: Decoder, data: &[u8], step: usize) -> Result<Body, Malformed> {
    let mut read = Body::default();
    let mut buffer = BytesMut::new();
    let mut pieces = data.chunks(step.max(1));
    loop {
        match length.decode(&mut buffer)? {
            Piece::Data(data) => {
                assert!(!data.is_empty());
                read.content.extend_from_slice(&data);
            }
            Piece::Trailers(trailers) => {
                read.trailers = Some(trailers);
                read.over = true;
            }
            Piece::End => read.over = true,
            Piece::More => match pieces.next() {
                Some(piece) => buffer.extend_from_slice(piece),
                None => break,
            },
        }
        if read.over {
            break;
        }
    }
    read.rest = buffer.iter().copied().chain(pieces.flatten().copied()).collect();
    Ok(read)
}
