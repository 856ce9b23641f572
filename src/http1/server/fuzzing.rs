//! The reader of requests, for fuzzing.

use bytes::BytesMut;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};

use super::request_head::{Head, Limits, Reader};
use crate::http1::malformed::Malformed;

/// A head and what is behind it.
type Read = Result<Option<(Head, Vec<u8>)>, Malformed>;

/// The head of a request is the same however it comes, and tells one end of its body. The first byte says how much comes at
/// once, and how many fields there may be.
pub fn request(data: &[u8]) {
    let Some((steer, data)) = data.split_first() else { return };
    let limits = Limits { size: 4096, fields: if steer & 1 == 1 { 10 } else { 200 } };
    let whole = read(data, limits, data.len());
    let pieces = read(data, limits, usize::from(steer >> 1).max(1));
    match (whole, pieces) {
        (Ok(Some((whole, rest))), Ok(Some((pieces, same)))) => {
            assert_eq!(rest, same, "cut in pieces, a head ends elsewhere");
            assert_eq!(
                (&whole.length, whole.expects, whole.asked),
                (&pieces.length, pieces.expects, pieces.asked)
            );
            assert_eq!(whole.parts.headers, pieces.parts.headers, "cut in pieces, a head is another one");
            has_one_end(&whole, limits);
        }
        // What comes in pieces is looked at again only when a head may have ended, or is too long.
        (Ok(None) | Err(_), Ok(None) | Err(_)) => {}
        (whole, pieces) => panic!("at once {whole:?}, in pieces {pieces:?}"),
    }
}

fn read(data: &[u8], limits: Limits, step: usize) -> Read {
    let (mut reader, mut buffer) = (Reader::new(limits), BytesMut::new());
    let mut pieces = data.chunks(step.max(1));
    for piece in pieces.by_ref() {
        buffer.extend_from_slice(piece);
        if reader.decode(&mut buffer)?
            && let Some(head) = reader.take()
        {
            return Ok(Some((head, buffer.iter().chain(pieces.flatten()).copied().collect())));
        }
    }
    Ok(None)
}

/// Whoever reads the fields comes to the end of the body that we have come to.
fn has_one_end(head: &Head, limits: Limits) {
    let fields = &head.parts.headers;
    assert!(fields.len() <= limits.fields as usize);
    let (lengths, codings) =
        (fields.get_all(CONTENT_LENGTH).iter(), fields.get_all(TRANSFER_ENCODING).iter());
    match head.length.left() {
        Some(octets) => {
            assert_eq!(codings.count(), 0, "a coding is passed over");
            let said: Vec<_> = lengths.map(|length| length.to_str().unwrap_or_default().parse()).collect();
            assert!(said == [Ok(octets)] || (said.is_empty() && octets == 0), "{said:?} is {octets}");
        }
        None => assert!(lengths.count() == 0 && codings.count() > 0, "a length beside chunks"),
    }
}
