//! Differential tests of responses.

use bytes::Bytes;
use http::{HeaderName, Method, Request, StatusCode};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::AsyncReadExt as _;

use super::{
    Pieces, ReadBody, duplex_pair, end_to_end, has_bare_lf_trailers, has_empty_element, messages, read_body,
    run_local, send_in_pieces,
};
use crate::http1::client::response_head::ResponseHeadDecoder;
use crate::http1::malformed::MalformedMessage;

#[derive(Debug, PartialEq)]
struct ParsedResponse {
    status: StatusCode,
    fields: Vec<(HeaderName, Vec<u8>)>,
    content: ReadBody,
}

/// Returns the first final response as Weir reads it; `None` if there is none.
fn read_by_weir(
    bytes: &[u8],
    cuts: &[usize],
    to_head: bool,
) -> Result<Option<ParsedResponse>, MalformedMessage> {
    let mut pieces = Pieces::new(bytes, cuts);
    let mut reader = ResponseHeadDecoder::new(to_head);
    let head = loop {
        if !pieces.read_more() {
            return Ok(None);
        }
        if let Some(head) = reader.decode(&mut pieces.read)? {
            break head;
        }
    };
    let content = pieces.read_body(head.decoder);
    Ok(Some(ParsedResponse { status: head.status, fields: end_to_end(&head.headers.into_map()), content }))
}

/// Returns the first final response as hyper reads it.
fn read_by_hyper(bytes: &[u8], cuts: &[usize], to_head: bool) -> Option<ParsedResponse> {
    run_local(async {
        let (client, mut server) = duplex_pair();
        let (bytes, cuts) = (bytes.to_vec(), cuts.to_vec());
        tokio::task::spawn_local(async move {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n")
                && server.read_buf(&mut request).await.is_ok_and(|read| read > 0)
            {}
            let (receiving, sending) = tokio::io::split(server);
            send_in_pieces(sending, bytes, cuts).await;
            drop(receiving);
        });
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(client)).await.ok()?;
        tokio::task::spawn_local(connection);
        let method = if to_head { Method::HEAD } else { Method::GET };
        let request =
            Request::builder().method(method).header("host", "a").body(Empty::<Bytes>::new()).unwrap();
        let (head, body) = sender.send_request(request).await.ok()?.into_parts();
        Some(ParsedResponse {
            status: head.status,
            fields: end_to_end(&head.headers),
            content: read_body(body).await,
        })
    })
}

fn is_broken(seen: &Option<ParsedResponse>) -> bool {
    seen.as_ref().is_some_and(|seen| seen.content == ReadBody::Broken)
}

fn length_may_be_ignored(bytes: &[u8]) -> bool {
    let text = bytes.to_ascii_lowercase();
    let has = |what: &[u8]| text.windows(what.len()).any(|window| window == what);
    has(b" 204") || has(b" 304") || has(b" 101") || has(b"transfer-encoding")
}

fn responses() -> impl Strategy<Value = Vec<u8>> {
    let lines = vec![
        "HTTP/1.1 200 OK",
        "HTTP/1.1 200 OK",
        "HTTP/1.1 200",
        "HTTP/1.1 404 Not Found",
        "HTTP/1.0 200 OK",
        "HTTP/1.1 204 No Content",
        "HTTP/1.1 304 Not Modified",
        "HTTP/1.1 500 \u{e9}",
        "HTTP/1.1 099 Low",
        "HTTP/1.1 999 High",
        "HTTP/2.0 200 OK",
        "\r\nHTTP/1.1 200 OK",
        "HTTP/1.1  200 OK",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 200OK",
    ];
    let interim = prop::sample::select(vec![
        "",
        "",
        "",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 103 Early\r\nlink: </a>\r\n\r\n",
    ]);
    messages::message_bytes(
        (interim, messages::message(lines)).prop_map(|(interim, last)| vec![interim.to_owned(), last]),
    )
}

fn has_space_before_colon(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|pair| matches!(pair, b" :" | b"\t:"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200_000))]

    #[test]
    fn responses_are_decoded_as_by_hyper(
        bytes in responses(),
        cuts in vec(any::<usize>(), 0..5),
        to_head: bool,
    ) {
        let ours = match read_by_weir(&bytes, &cuts, to_head) {
            // RFC 9112 section 6.1: a body with an unknown transfer coding could only be forwarded together with that
            // coding, which Weir does not do. hyper treats it as content.
            Err(MalformedMessage::TransferEncoding) => return Ok(()),
            // RFC 9112 section 6.3: invalid or differing lengths are an error. hyper ignores them if no body follows,
            // or if a transfer coding frames it.
            Err(MalformedMessage::ContentLength) if to_head || length_may_be_ignored(&bytes) => return Ok(()),
            ours => ours,
        };
        // RFC 9112 section 5.1: a proxy removes white space before a colon. RFC 9110 section 5.6.1.2: empty elements of
        // lists are ignored. hyper does neither.
        if has_space_before_colon(&bytes) || has_empty_element(&bytes) {
            return Ok(());
        }
        let mut theirs = read_by_hyper(&bytes, &cuts, to_head);
        if matches!(ours, Err(MalformedMessage::ContentLength)) {
            // Some recipients read a length above 63 bits as negative. hyper accepts it and waits for a body that never
            // completes.
            theirs.take_if(|theirs| theirs.content == ReadBody::Broken);
        }
        let ours = ours.unwrap_or_default();
        if has_bare_lf_trailers(&bytes) && (is_broken(&ours) || is_broken(&theirs)) {
            return Ok(());
        }
        prop_assert_eq!(ours, theirs, "{}", bytes.escape_ascii());
    }
}
