//! Fuzz targets for the decoders of responses.

use bytes::BytesMut;
use http::HeaderMap;

use super::response_head::{ResponseHead, ResponseHeadDecoder};
use crate::http1::chunked::ChunkedDecoder;
use crate::http1::decoder::{BodyDecoder, Piece};
use crate::http1::malformed::MalformedMessage;

/// Result of decoding a response.
#[derive(Debug, PartialEq)]
enum ReadOutcome {
    /// These bytes hold no complete head.
    Incomplete(Vec<u8>),
    /// A complete head, with its body as far as it was received.
    Complete(Box<(ResponseHead, DecodedBody)>),
}

/// Result of decoding a body.
#[derive(Debug, Default, PartialEq)]
struct DecodedBody {
    content: Vec<u8>,
    trailers: Option<HeaderMap>,
    is_complete: bool,
    /// The bytes left, which may belong to the next response.
    remainder: Vec<u8>,
}

/// Checks that a response is decoded the same whether its bytes arrive at once or in pieces. The first byte of `data`
/// chooses the size of the pieces, and whether the request was HEAD.
pub fn response(data: &[u8]) {
    let Some((steer, data)) = data.split_first() else { return };
    let (to_head, step) = (steer & 1 == 1, usize::from(steer >> 1).max(1));
    let whole = read(data, to_head, data.len());
    let pieces = read(data, to_head, step);
    match (whole, pieces) {
        (Ok(whole), Ok(pieces)) => assert_eq!(whole, pieces, "split into pieces, a response differs"),
        (Err(_), Err(_)) => {}
        // With pieces, a head is only parsed once it may have ended, so an error may not have been found yet.
        (Err(_), Ok(ReadOutcome::Incomplete(rest))) if !has_empty_line(&rest) => {}
        (whole, pieces) => panic!("at once {whole:?}, in pieces {pieces:?}"),
    }
}

/// Whether there is an empty line that may end a head. Empty lines before a head are skipped.
fn has_empty_line(data: &[u8]) -> bool {
    let start = data.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(data.len());
    [&b"\n\n"[..], b"\n\r\n"].iter().any(|end| data[start..].windows(end.len()).any(|found| found == *end))
}

/// Checks that chunked content is decoded to the same content, and that nothing beyond its end is read. The first byte
/// of `data` chooses the size of the chunks.
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
        let body = body(BodyDecoder::Chunked(ChunkedDecoder::default()), &encoded, at_once);
        let body = body.unwrap_or_else(|error| panic!("an encoded body gives {error:?}"));
        assert!(body.is_complete && body.trailers.is_none() && body.remainder == b"next");
        assert_eq!(body.content, data, "chunked framing changes the content");
    }
    // The same bytes decoded as a chunked body of some other sender.
    let (whole, pieces) = [data.len(), step]
        .map(|at_once| body(BodyDecoder::Chunked(ChunkedDecoder::default()), data, at_once))
        .into();
    match (whole, pieces) {
        (Ok(whole), Ok(pieces)) => {
            assert_eq!(whole, pieces, "split into pieces, a body differs");
            assert!(whole.content.len() <= data.len());
        }
        (Err(_), Err(_)) => {}
        (whole, pieces) => panic!("at once {whole:?}, in pieces {pieces:?}"),
    }
}

fn read(data: &[u8], to_head: bool, step: usize) -> Result<ReadOutcome, MalformedMessage> {
    let mut reader = ResponseHeadDecoder::new(to_head);
    let mut buffer = BytesMut::new();
    let mut pieces = data.chunks(step.max(1));
    let head = loop {
        if let Some(head) = reader.decode(&mut buffer)? {
            break head;
        }
        let Some(piece) = pieces.next() else { return Ok(ReadOutcome::Incomplete(buffer.to_vec())) };
        buffer.extend_from_slice(piece);
    };
    let rest: Vec<u8> = buffer.iter().copied().chain(pieces.flatten().copied()).collect();
    let length = match &head.decoder {
        BodyDecoder::Length(bytes) => BodyDecoder::Length(*bytes),
        BodyDecoder::Chunked(_) => BodyDecoder::Chunked(ChunkedDecoder::default()),
        BodyDecoder::Close => BodyDecoder::Close,
    };
    assert!(
        !(head.keep_alive && length.ends_with_connection()),
        "a connection is reused although its end delimits the body"
    );
    let body = body(length, &rest, step)?;
    Ok(ReadOutcome::Complete(Box::new((head, body))))
}

fn body(mut length: BodyDecoder, data: &[u8], step: usize) -> Result<DecodedBody, MalformedMessage> {
    let mut read = DecodedBody::default();
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
                read.is_complete = true;
            }
            Piece::End => read.is_complete = true,
            Piece::NeedMore => match pieces.next() {
                Some(piece) => buffer.extend_from_slice(piece),
                None => break,
            },
        }
        if read.is_complete {
            break;
        }
    }
    read.remainder = buffer.iter().copied().chain(pieces.flatten().copied()).collect();
    Ok(read)
}
