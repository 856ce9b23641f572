//! Fuzz target for the decoder of requests.

use bytes::BytesMut;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};

use super::request_head::{HeadLimits, RequestHead, RequestHeadDecoder};
use crate::http1::malformed::MalformedMessage;

/// A head and the bytes after it.
type HeadResult = Result<Option<(RequestHead, Vec<u8>)>, MalformedMessage>;

/// Checks that a request's head is decoded the same whether its bytes arrive at once or in pieces, and that its headers
/// frame the body in one way only. The first byte of `data` chooses the size of the pieces and the maximum number of
/// headers.
pub fn request(data: &[u8]) {
    let Some((steer, data)) = data.split_first() else { return };
    let limits = HeadLimits { size: 4096, fields: if steer & 1 == 1 { 10 } else { 200 } };
    let whole = read(data, limits, data.len());
    let pieces = read(data, limits, usize::from(steer >> 1).max(1));
    match (whole, pieces) {
        (Ok(Some((whole, rest))), Ok(Some((pieces, same)))) => {
            assert_eq!(rest, same, "split into pieces, a header section ends elsewhere");
            assert_eq!(
                (&whole.decoder, whole.expects_continue, whole.info),
                (&pieces.decoder, pieces.expects_continue, pieces.info)
            );
            assert_eq!(whole.parts.headers, pieces.parts.headers, "split into pieces, headers differ");
            has_one_end(&whole, limits);
        }
        // With pieces, a head is only parsed once it may have ended or is too long, so an error may not have been found
        // yet.
        (Ok(None) | Err(_), Ok(None) | Err(_)) => {}
        (whole, pieces) => panic!("at once {whole:?}, in pieces {pieces:?}"),
    }
}

fn read(data: &[u8], limits: HeadLimits, step: usize) -> HeadResult {
    let (mut reader, mut buffer) = (RequestHeadDecoder::new(limits), BytesMut::new());
    let mut pieces = data.chunks(step.max(1));
    for piece in pieces.by_ref() {
        buffer.extend_from_slice(piece);
        let mut head = None;
        reader.decode(&mut buffer, &mut head)?;
        if let Some(head) = head {
            return Ok(Some((head, buffer.iter().chain(pieces.flatten()).copied().collect())));
        }
    }
    Ok(None)
}

/// Checks that a recipient of the headers finds the same end of the body.
fn has_one_end(head: &RequestHead, limits: HeadLimits) {
    let fields = &head.parts.headers;
    assert!(fields.len() <= limits.fields as usize);
    let (lengths, codings) =
        (fields.get_all(CONTENT_LENGTH).iter(), fields.get_all(TRANSFER_ENCODING).iter());
    match head.decoder.left() {
        Some(bytes) => {
            assert_eq!(codings.count(), 0, "a transfer coding is ignored");
            let said: Vec<_> = lengths.map(|length| length.to_str().unwrap_or_default().parse()).collect();
            assert!(said == [Ok(bytes)] || (said.is_empty() && bytes == 0), "{said:?} is {bytes}");
        }
        None => assert!(lengths.count() == 0 && codings.count() > 0, "a length beside a transfer coding"),
    }
}
