//! Generated messages, decoded by Weir and by hyper. A message that two parsers read differently can be used for
//! request smuggling.
//!
//! Whole connections are compared, not only heads: which messages are found, their headers, bodies and trailers, and
//! whether what follows is rejected. Every intended difference is listed with its reason in the two properties; there
//! are no other exceptions.

mod client;
mod messages;
mod server;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName};
use http_body_util::BodyExt as _;
use hyper::body::Body;
use tokio::io::{AsyncWriteExt as _, DuplexStream};

use super::decoder::{BodyDecoder, Piece};

/// Result of decoding a body.
#[derive(Clone, Debug, PartialEq)]
enum ReadBody {
    Complete(Vec<u8>, HeaderMap),
    /// It ended too early, or its framing is malformed.
    Broken,
}

/// Bytes that arrive in pieces.
struct Pieces<'a> {
    pieces: std::vec::IntoIter<&'a [u8]>,
    read: BytesMut,
}

impl<'a> Pieces<'a> {
    fn new(bytes: &'a [u8], cuts: &[usize]) -> Self {
        Self { pieces: split_at_cuts(bytes, cuts).into_iter(), read: BytesMut::new() }
    }

    /// Reads the next piece and returns whether there was one.
    fn read_more(&mut self) -> bool {
        self.pieces.next().map(|piece| self.read.extend_from_slice(piece)).is_some()
    }

    /// Returns the bytes that have not been decoded.
    fn remaining(self) -> Vec<u8> {
        self.read.iter().chain(self.pieces.flatten()).copied().collect()
    }

    /// Decodes a body to its end.
    fn read_body(&mut self, mut decoder: BodyDecoder) -> ReadBody {
        let (mut content, mut trailers) = (Vec::new(), HeaderMap::new());
        loop {
            match decoder.decode(&mut self.read) {
                Ok(Piece::Data(data)) => content.extend_from_slice(&data),
                Ok(Piece::Trailers(fields)) => trailers = fields,
                Ok(Piece::End) => return ReadBody::Complete(content, trailers),
                Ok(Piece::NeedMore) if self.read_more() => {}
                Ok(Piece::NeedMore) if decoder.ends_with_connection() => {
                    return ReadBody::Complete(content, trailers);
                }
                Ok(Piece::NeedMore) | Err(_) => return ReadBody::Broken,
            }
        }
    }
}

fn split_at_cuts<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).filter(|pair| pair[0] < pair[1]).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

/// Sends the pieces one by one, giving the other side time to read each, and then the end of the stream.
async fn send_in_pieces(mut stream: impl tokio::io::AsyncWrite + Unpin, bytes: Vec<u8>, cuts: Vec<usize>) {
    for piece in split_at_cuts(&bytes, &cuts) {
        if stream.write_all(piece).await.is_err() {
            return;
        }
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }
    let _ = stream.shutdown().await;
}

/// Returns a body as hyper reads it.
async fn read_body(body: impl Body<Data = Bytes>) -> ReadBody {
    match body.collect().await {
        Ok(collected) => {
            let trailers = collected.trailers().cloned().unwrap_or_default();
            ReadBody::Complete(collected.to_bytes().to_vec(), trailers)
        }
        Err(_) => ReadBody::Broken,
    }
}

/// Returns the headers sorted by name, without those on framing and the connection. Those are compared by their effect.
fn end_to_end(headers: &HeaderMap) -> Vec<(HeaderName, Vec<u8>)> {
    let is_about_us = |name: &HeaderName| {
        matches!(*name, CONNECTION | CONTENT_LENGTH | TRANSFER_ENCODING) || name.as_str() == "keep-alive"
    };
    let fields = headers.iter().filter(|(name, _)| !is_about_us(name));
    let mut fields: Vec<_> = fields.map(|(name, value)| (name.clone(), value.as_bytes().to_vec())).collect();
    // The sort is stable: headers of the same name keep their order.
    fields.sort_by(|one, other| one.0.as_str().cmp(other.0.as_str()));
    fields
}

/// Whether a line may be a list with an empty element, which hyper does not ignore in `Transfer-Encoding` and
/// `Content-Length` (RFC 9110 section 5.6.1.2).
fn has_empty_element(bytes: &[u8]) -> bool {
    bytes.split(|byte| *byte == b'\n').any(|line| {
        let name = line.get(..17).unwrap_or_default();
        let mut elements = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        (line.contains(&b',') || name.eq_ignore_ascii_case(b"transfer-encoding"))
            && elements.any(|element| element.is_empty() || element.ends_with(b":"))
    })
}

/// Whether a line after a last chunk ends in LF alone. This is allowed for lines of trailers, as in heads (RFC 9112
/// section 2.2), but not for the empty line that ends a body; hyper does it the other way round.
fn has_bare_lf_trailers(bytes: &[u8]) -> bool {
    // White space and extensions may follow the size of a chunk.
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let mut trailers = lines.skip_while(|line| line.first() != Some(&b'0')).skip(1);
    trailers.any(|line| line.ends_with(b"\n") && !line.ends_with(b"\r\n"))
}

/// Runs `task` to its end, together with the tasks that it starts on this thread.
fn run_local<T>(task: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, task)
}

fn duplex_pair() -> (DuplexStream, DuplexStream) {
    tokio::io::duplex(64 * 1024)
}
