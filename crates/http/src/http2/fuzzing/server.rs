//! Fuzz target for the server's side.

use std::cell::RefMut;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};

use super::super::error::{Http2Error, Reason};
use super::super::frame::PREFACE;
use super::super::receive::ReceiveStream;
use super::super::responder::Responder;
use super::super::send::SendStream;
use super::super::server::ServerConnection;
use super::super::shared::Http2State;
use super::super::stream::Stream;
use super::script::first_settings;
use super::wire::Wire;
use super::{SETTINGS, Session, Side};

/// Bits of a plan: how a request is responded to.
const AFTER_ITS_BODY: u8 = 1;
const UNREAD: u8 = 1 << 1;
const LARGE: u8 = 1 << 2;
const TRAILERS: u8 = 1 << 3;
const RESET: u8 = 1 << 4;
const UNRELEASED: u8 = 1 << 5;
const LATER: u8 = 1 << 6;
const KEPT: u8 = 1 << 7;
/// Size of a large body, in bytes: more than a window and the output.
const LARGE_SIZE: usize = 150_000;

/// Checks a server whose client is `data`, after its preface and settings.
pub fn http2_server(data: &[u8]) {
    let wire = Wire::default();
    let mut connection = ServerConnection::new(wire.clone(), SETTINGS);
    wire.receive(PREFACE);
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert_eq!(connection.poll_handshake(&mut cx), Poll::Ready(Ok(())));
    let server = FuzzedServer { connection, exchanges: Vec::new(), plan: 0 };
    let mut session = Session::new(server, wire, true);
    session.receive(&first_settings());
    session.run(data);
}

struct FuzzedServer {
    connection: ServerConnection<Wire>,
    exchanges: Vec<ServedExchange>,
    /// Plan of the next request.
    plan: u8,
}

/// A request that is responded to.
struct ServedExchange {
    plan: u8,
    body: Option<ReceiveStream>,
    responder: Option<Responder>,
    stream: Option<SendStream>,
    data: Bytes,
    turns: usize,
}

impl Side for FuzzedServer {
    fn poll_connection(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Http2Error>> {
        let Self { connection, exchanges, plan } = self;
        connection.poll_requests(cx, |request, responder, cx| {
            *plan = plan.wrapping_mul(5).wrapping_add(1);
            let mut exchange = ServedExchange::new(*plan, request, responder);
            if exchange.act(cx) {
                exchanges.push(exchange);
            }
        })
    }

    fn act(&mut self, plan: Option<u8>, cx: &mut Context<'_>) {
        match plan {
            Some(u8::MAX) => self.connection.graceful_shutdown(),
            Some(plan) => self.plan = plan,
            None => {}
        }
        self.exchanges.retain_mut(|exchange| exchange.act(cx));
    }

    fn state(&self) -> RefMut<'_, Http2State> {
        self.connection.state()
    }

    fn held(&self) -> Vec<Rc<Stream>> {
        self.exchanges.iter().filter_map(ServedExchange::stream).collect()
    }

    fn drop_streams(&mut self) {
        self.exchanges.clear();
    }
}

impl ServedExchange {
    fn new(plan: u8, request: Request<ReceiveStream>, responder: Responder) -> Self {
        let data = vec![b'd'; if plan & LARGE != 0 { LARGE_SIZE } else { 10 }].into();
        let (body, responder) = (Some(request.into_body()), Some(responder));
        Self { plan, body, responder, stream: None, data, turns: 0 }
    }

    fn stream(&self) -> Option<Rc<Stream>> {
        let body = self.body.as_ref().map(|body| &body.handle);
        let responder = self.responder.as_ref().map(|responder| &responder.handle);
        let handle = body.or(responder).or_else(|| self.stream.as_ref().map(|stream| &stream.handle));
        handle.map(|handle| Rc::clone(&handle.stream))
    }

    /// Continues. Returns whether the exchange is still needed.
    fn act(&mut self, cx: &mut Context<'_>) -> bool {
        self.turns += 1;
        if self.plan & UNREAD != 0 {
            self.body = None;
        }
        let has_read = self.read(cx);
        let is_late = self.plan & LATER != 0 && self.turns < 3;
        let is_early = self.plan & AFTER_ITS_BODY == 0;
        let is_done = (is_early || has_read) && !is_late && self.respond(cx);
        !is_done || (self.plan & KEPT != 0 && self.turns < 50)
    }

    /// Reads what has arrived. Returns whether that was all.
    fn read(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(body) = &mut self.body else { return true };
        loop {
            match body.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) if self.plan & UNRELEASED == 0 => body.release(data.len()),
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(_) => return true,
                Poll::Pending => return false,
            }
        }
    }

    /// Sends the response. Returns whether that was all.
    fn respond(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(mut responder) = self.responder.take() {
            if self.plan & (RESET | TRAILERS) == RESET {
                // Neither a response nor a reset: both follow from dropping all handles.
                return true;
            }
            let mut response = Response::new(());
            response.headers_mut().insert("x-plan", HeaderValue::from(u16::from(self.plan)));
            let Ok(stream) = responder.send_response(&response, false) else { return true };
            self.stream = Some(stream);
        }
        let Some(stream) = &mut self.stream else { return true };
        if self.plan & (RESET | TRAILERS) == RESET | TRAILERS {
            stream.send_reset(Reason::INTERNAL_ERROR);
            return true;
        }
        let has_trailers = self.plan & TRAILERS != 0;
        match stream.poll_send(&mut self.data, !has_trailers, cx) {
            Poll::Pending => return false,
            Poll::Ready(Ok(())) if has_trailers => {
                let trailers =
                    HeaderMap::from_iter([("x-end".parse().expect("a name"), HeaderValue::from(1))]);
                drop(stream.send_trailers(&trailers));
            }
            Poll::Ready(_) => {}
        }
        if self.plan & KEPT == 0 {
            self.stream = None;
        }
        true
    }
}
