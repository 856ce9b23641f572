//! Both sides against `h2`, an independent implementation, and against each other.

mod client;
mod floods;
mod goaway;
mod interleavings;
mod limits;
mod raw_peer;
mod server;
mod tasks;
mod turns;
mod windows;

use std::future::poll_fn;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use tokio::io::DuplexStream;
use tokio::task::{LocalSet, spawn_local};

use super::{
    AcceptedOrigins, Http2Error, Http2Settings, ReceiveStream, RequestSender, Responder, SendStream,
    ServerConnection,
};

const SETTINGS: Http2Settings = Http2Settings {
    max_streams: 100,
    max_header_list: 16 * 1024,
    stream_window: 16 * 1024,
    max_stream_window: 65_535,
    shared_window: 1 << 18,
    connect_protocol: true,
    origins: AcceptedOrigins::Uri,
    max_premature_resets: 20,
    max_error_resets: 20,
};
/// Capacity of the connection in each direction, in bytes: most messages of the tests need several turns.
const PIPE: usize = 1000;

/// Runs a test on one thread.
fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

/// Reads a body to its end, one piece at a time.
async fn read(body: &mut ReceiveStream) -> Result<(Vec<u8>, Option<HeaderMap>), Http2Error> {
    let mut all = Vec::new();
    while let Some(data) = poll_fn(|cx| body.poll_data(cx)).await {
        let data = data?;
        all.extend_from_slice(&data);
        body.release(data.len());
    }
    Ok((all, body.take_trailers()))
}

async fn send(stream: &mut SendStream, data: &[u8], is_end: bool) -> Result<(), Http2Error> {
    let mut data = Bytes::copy_from_slice(data);
    poll_fn(|cx| stream.poll_send(&mut data, is_end, cx)).await
}

/// Serves a connection with `respond`, which runs as a task for each request.
async fn serve<F: Future<Output = ()> + 'static>(
    stream: DuplexStream,
    settings: Http2Settings,
    respond: impl Fn(Request<ReceiveStream>, Responder) -> F,
) -> Result<(), Http2Error> {
    let mut connection = ServerConnection::new(stream, settings);
    poll_fn(|cx| connection.poll_handshake(cx)).await?;
    poll_fn(|cx| {
        connection.poll_requests(cx, |request, responder, _| {
            drop(spawn_local(respond(request, responder)));
        })
    })
    .await
}

/// Responds with the request's fields, body and trailers.
async fn echo(request: Request<ReceiveStream>, mut responder: Responder) {
    let (head, mut body) = request.into_parts();
    let mut response = Response::new(());
    *response.headers_mut() = head.headers;
    response.headers_mut().insert("x-uri", head.uri.to_string().parse().unwrap());
    let mut stream = responder.send_response(&response, false).unwrap();
    while let Some(Ok(data)) = poll_fn(|cx| body.poll_data(cx)).await {
        send(&mut stream, &data, false).await.unwrap();
        body.release(data.len());
    }
    match body.take_trailers() {
        Some(trailers) => stream.send_trailers(&trailers).unwrap(),
        None => stream.send_end().unwrap(),
    }
}

/// A body whose bytes show an exchanged or lost piece.
fn body(size: usize) -> Vec<u8> {
    (0..size).map(|index| u8::try_from(index * 7 % 251).unwrap()).collect()
}

fn start_server(
    stream: DuplexStream,
    settings: Http2Settings,
) -> tokio::task::JoinHandle<Result<(), Http2Error>> {
    spawn_local(serve(stream, settings, echo))
}

async fn connect_h2(stream: DuplexStream) -> h2::client::SendRequest<Bytes> {
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    drop(spawn_local(async { drop(connection.await) }));
    sender.ready().await.unwrap()
}

fn start_client(stream: DuplexStream, settings: Http2Settings) -> RequestSender {
    let (sender, connection) = super::ClientConnection::new(stream, settings);
    drop(spawn_local(connection));
    sender
}

/// Sends a request with a body and trailers, and returns the response with its body and trailers.
async fn exchange(
    sender: &mut RequestSender,
    request: &Request<()>,
    data: &[u8],
    trailers: Option<HeaderMap>,
) -> Result<(Response<Vec<u8>>, Option<HeaderMap>), Http2Error> {
    poll_fn(|cx| sender.poll_ready(cx)).await?;
    let (response, mut stream) = sender.send_request(request, false)?;
    let data = data.to_vec();
    let upload = spawn_local(async move {
        send(&mut stream, &data, trailers.is_none()).await?;
        trailers.map_or(Ok(()), |trailers| stream.send_trailers(&trailers))
    });
    let (head, mut body) = response.await?.into_parts();
    let (data, trailers) = read(&mut body).await?;
    upload.await.unwrap()?;
    Ok((Response::from_parts(head, data), trailers))
}

#[test]
fn both_sides_exchange_messages_of_all_sizes_at_once() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        start_server(ours, SETTINGS);
        let sender = start_client(theirs, SETTINGS);
        let sizes = [0, 1, 100, 2048, 2049, 8192, 8193, 16_384, 16_385, 65_535, 65_536, 300_000];
        let exchanges = sizes.map(|size| {
            let mut sender = sender.clone();
            spawn_local(async move {
                let uri = format!("http://a.test/{size}?q");
                let request = Request::post(&uri).header("x-size", size).body(()).unwrap();
                let trailers = HeaderMap::from_iter([("x-end".parse().unwrap(), "1".parse().unwrap())]);
                let trailers = (size % 2 == 0).then_some(trailers);
                let (response, end) =
                    exchange(&mut sender, &request, &body(size), trailers.clone()).await.unwrap();
                assert_eq!((response.headers()["x-uri"].to_str().unwrap(), end), (&*uri, trailers));
                assert!(*response.body() == body(size), "{size}");
            })
        });
        for exchange in exchanges {
            exchange.await.unwrap();
        }
    });
}

#[test]
fn requests_beyond_the_maximum_wait_for_a_stream() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let few = Http2Settings { max_streams: 3, ..SETTINGS };
        start_server(ours, few);
        let mut sender = start_client(theirs, SETTINGS);
        assert!(poll_fn(|cx| sender.poll_connect_protocol(cx)).await.unwrap());
        assert_eq!(sender.max_streams(), 3);
        let exchanges: Vec<_> = (0..50)
            .map(|number| {
                let mut sender = sender.clone();
                spawn_local(async move {
                    let request = Request::post("http://a.test/").body(()).unwrap();
                    let sent = body(1000);
                    let waiting = exchange(&mut sender, &request, &sent, None);
                    if number % 5 == 0 {
                        // Some give up, with or without a stream.
                        drop(tokio::time::timeout(std::time::Duration::from_millis(number), waiting).await);
                    } else {
                        assert!(waiting.await.unwrap().0.body().len() == 1000);
                    }
                })
            })
            .collect();
        for exchange in exchanges {
            exchange.await.unwrap();
        }
    });
}

#[test]
fn connection_ends_when_its_senders_are_dropped() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let served = start_server(ours, SETTINGS);
        let (mut sender, connection) = super::ClientConnection::new(theirs, SETTINGS);
        let driven = spawn_local(connection);
        let request = Request::post("http://a.test/").body(()).unwrap();
        exchange(&mut sender, &request, b"x", None).await.unwrap();
        drop(sender);
        assert_eq!(driven.await.unwrap(), Ok(()));
        assert_eq!(served.await.unwrap(), Ok(()));
    });
}
