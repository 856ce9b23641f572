//! Differential tests of requests.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use bytes::{Buf as _, Bytes};
use http::header::{CONNECTION, TRANSFER_ENCODING};
use http::{HeaderName, Method, Request, Response, Uri, Version};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::AsyncReadExt as _;

use super::{
    Pieces, ReadBody, duplex_pair, end_to_end, has_bare_lf_trailers, has_empty_element, messages, read_body,
    run_local, send_in_pieces,
};
use crate::http1::head::may_be_complete;
use crate::http1::malformed::MalformedMessage;
use crate::http1::server::request_head::{HeadLimits, RequestHeadDecoder};

const LIMITS: HeadLimits = HeadLimits { size: 64 * 1024, fields: 100 };

/// What was read from a connection.
#[derive(Debug, PartialEq)]
struct ParsedConnection {
    requests: Vec<ConnectionRequest>,
    /// What follows is not a valid request, and an error response is sent.
    rejected: bool,
}

#[derive(Debug, PartialEq)]
struct ConnectionRequest {
    line: (Method, Uri, Version),
    fields: Vec<(HeaderName, Vec<u8>)>,
    content: ReadBody,
    /// Whether it has a `Connection` header.
    names_connection: bool,
}

/// Reason why Weir reads no further.
#[derive(Debug, PartialEq)]
enum StopReason {
    /// Nothing follows, or the last request does not keep the connection open.
    Clean,
    /// A body failed.
    Broken,
    Rejected(MalformedMessage),
    /// The last request had both a `Content-Length` and a `Transfer-Encoding`.
    LengthAndTransferEncoding,
}

/// Returns the requests as Weir reads them, in order.
fn read_by_weir(pieces: &mut Pieces<'_>) -> (ParsedConnection, StopReason) {
    let mut reader = RequestHeadDecoder::new(LIMITS);
    let mut seen = ParsedConnection { requests: Vec::new(), rejected: false };
    loop {
        while matches!(&pieces.read[..], [b'\n', ..] | [b'\r', b'\n', ..]) {
            pieces.read.advance(1);
        }
        let mut decoded = None;
        if let Err(malformed) = reader.decode(&mut pieces.read, &mut decoded) {
            seen.rejected = true;
            return (seen, StopReason::Rejected(malformed));
        }
        let Some(head) = decoded else {
            if !pieces.read_more() {
                return (seen, StopReason::Clean);
            }
            continue;
        };
        let content = pieces.read_body(head.decoder);
        let names_connection = head.parts.headers.contains_key(CONNECTION);
        let is_broken = content == ReadBody::Broken;
        let line = (head.parts.method, head.parts.uri, head.parts.version);
        let is_closed_for_both = !head.info.keep_alive && head.parts.headers.contains_key(TRANSFER_ENCODING);
        seen.requests.push(ConnectionRequest {
            line,
            fields: end_to_end(&head.parts.headers),
            content,
            names_connection,
        });
        if is_broken {
            return (seen, StopReason::Broken);
        }
        if !head.info.keep_alive {
            return (
                seen,
                if is_closed_for_both { StopReason::LengthAndTransferEncoding } else { StopReason::Clean },
            );
        }
    }
}

/// Returns the requests as hyper reads them.
fn read_by_hyper(bytes: &[u8], cuts: &[usize]) -> ParsedConnection {
    let requests = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&requests);
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let noted = Rc::clone(&noted);
        async move {
            let (head, body) = request.into_parts();
            let line = (head.method, head.uri, head.version);
            let content = read_body(body).await;
            let names_connection = head.headers.contains_key(CONNECTION);
            let fields = end_to_end(&head.headers);
            noted.borrow_mut().push(ConnectionRequest { line, fields, content, names_connection });
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let answers = run_local(async {
        let (client, server) = duplex_pair();
        let (mut receiving, sending) = tokio::io::split(client);
        let serving = hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .serve_connection(TokioIo::new(server), service);
        let sending = tokio::task::spawn_local(send_in_pieces(sending, bytes.to_vec(), cuts.to_vec()));
        let receiving = tokio::task::spawn_local(async move {
            let mut answers = Vec::new();
            let _ = receiving.read_to_end(&mut answers).await;
            answers
        });
        let _ = serving.await;
        sending.abort();
        receiving.await.unwrap()
    });
    let rejected = [&b"HTTP/1.1 4"[..], b"HTTP/1.0 4"]
        .iter()
        .any(|start| answers.windows(10).any(|line| line == *start));
    ParsedConnection { requests: requests.take(), rejected }
}

fn connections() -> impl Strategy<Value = Vec<u8>> {
    let lines = vec![
        "GET / HTTP/1.1",
        "GET / HTTP/1.1",
        "POST /a?b=c HTTP/1.1",
        "POST /p HTTP/1.1",
        "PUT http://a.test:80/x HTTP/1.0",
        "OPTIONS * HTTP/1.1",
        "HEAD /h HTTP/1.1",
        "brew /%zz HTTP/1.1",
        "GET a HTTP/1.1",
        "GET  / HTTP/1.1",
        "GET / HTTP/2.0",
        "\nGET / HTTP/1.1",
        "\r\n\r\nGET / HTTP/1.0",
        "GET /\u{e9} HTTP/1.1",
        "GET / HTTP/1.1 ",
    ];
    messages::message_bytes(vec(messages::message(lines), 1..4))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200_000))]

    #[test]
    fn connections_are_decoded_as_by_hyper(bytes in connections(), cuts in vec(any::<usize>(), 0..5)) {
        if has_empty_element(&bytes) {
            return Ok(());
        }
        let mut pieces = Pieces::new(&bytes, &cuts);
        let (mut ours, end) = read_by_weir(&mut pieces);
        let mut theirs = read_by_hyper(&bytes, &cuts);
        match end {
            // RFC 9112 section 6.1: a server that decodes such a request must close the connection afterwards. hyper
            // keeps it open.
            StopReason::LengthAndTransferEncoding => {
                theirs.requests.truncate(ours.requests.len());
                theirs.rejected = false;
            }
            // Some recipients read a length above 63 bits as negative. hyper accepts it and waits for a body that never
            // completes.
            StopReason::Rejected(MalformedMessage::ContentLength)
                if theirs.requests.last().is_some_and(|last| last.content == ReadBody::Broken) =>
            {
                theirs.requests.pop();
                theirs.rejected = true;
            }
            // While a head is incomplete, either may find out only later that it is malformed.
            _ if !may_be_complete(&pieces.remaining(), 0) => (ours.rejected, theirs.rejected) = (false, false),
            _ => {}
        }
        let is_broken = |seen: &ParsedConnection| seen.requests.iter().any(|request| request.content == ReadBody::Broken);
        // hyper may reject such trailers before the service has read the body's end.
        let is_cut = theirs.requests.len() < ours.requests.len();
        if has_bare_lf_trailers(&bytes) && (is_broken(&ours) || is_broken(&theirs) || is_cut) {
            return Ok(());
        }
        // `Connection` is split as bytes, so that one member beyond ASCII does not hide another (RFC 9110 section
        // 5.6.1). hyper ignores such a value, so the two may disagree about whether another request follows.
        let ends = |seen: &ParsedConnection| (seen.requests.len(), seen.rejected);
        if !bytes.is_ascii() && ends(&ours) != ends(&theirs) {
            let shorter = ours.requests.len().min(theirs.requests.len());
            ours = ParsedConnection { requests: ours.requests.drain(..shorter).collect(), rejected: false };
            theirs = ParsedConnection { requests: theirs.requests.drain(..shorter).collect(), rejected: false };
            prop_assert!(ours.requests.last().is_some_and(|last| last.names_connection));
        }
        prop_assert_eq!(ours, theirs, "{}", bytes.escape_ascii());
    }
}
