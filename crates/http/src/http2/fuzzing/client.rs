//! Fuzz target for the client's side.

use std::cell::RefMut;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request};

use super::super::client::{ClientConnection, PendingResponse, RequestSender};
use super::super::error::{Http2Error, Reason};
use super::super::handle::StreamHandle;
use super::super::receive::ReceiveStream;
use super::super::send::SendStream;
use super::super::shared::Http2State;
use super::super::stream::Stream;
use super::script::first_settings;
use super::wire::Wire;
use super::{SETTINGS, Session, Side};

/// Bits of a plan: what a request does.
const HAS_BODY: u8 = 1;
const LARGE: u8 = 1 << 1;
const HEAD: u8 = 1 << 2;
const NO_INTERIM: u8 = 1 << 3;
const UNREAD: u8 = 1 << 4;
const UNRELEASED: u8 = 1 << 5;
const RESET: u8 = 1 << 6;
/// No further request.
const NOTHING: u8 = 1 << 7;
/// Size of a large body, in bytes: more than a window and the output.
const LARGE_SIZE: usize = 150_000;

/// Checks a client whose server is `data`, after its settings.
pub fn http2_client(data: &[u8]) {
    let wire = Wire::default();
    let (sender, connection) = ClientConnection::new(wire.clone(), SETTINGS);
    let client = FuzzedClient { connection, sender: Some(sender), exchanges: Vec::new() };
    let mut session = Session::new(client, wire, false);
    session.receive(&first_settings());
    for plan in [0, HAS_BODY | LARGE, HEAD] {
        session.turn(Some(plan));
    }
    session.run(data);
}

struct FuzzedClient {
    connection: ClientConnection<Wire>,
    sender: Option<RequestSender>,
    exchanges: Vec<SentExchange>,
}

/// A request and its response.
struct SentExchange {
    plan: u8,
    response: Option<PendingResponse>,
    upload: Option<SendStream>,
    data: Bytes,
    body: Option<ReceiveStream>,
    turns: usize,
}

impl Side for FuzzedClient {
    fn poll_connection(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Http2Error>> {
        Pin::new(&mut self.connection).poll(cx)
    }

    fn act(&mut self, plan: Option<u8>, cx: &mut Context<'_>) {
        match plan {
            Some(u8::MAX) => self.sender = None,
            Some(plan) if plan & NOTHING == 0 => self.send(plan, cx),
            _ => {}
        }
        self.exchanges.retain_mut(|exchange| exchange.act(cx));
    }

    fn state(&self) -> RefMut<'_, Http2State> {
        self.connection.state()
    }

    fn held(&self) -> Vec<Rc<Stream>> {
        self.exchanges.iter().filter_map(SentExchange::stream).collect()
    }

    fn drop_streams(&mut self) {
        self.exchanges.clear();
    }
}

impl FuzzedClient {
    fn send(&mut self, plan: u8, cx: &mut Context<'_>) {
        let Some(sender) = &mut self.sender else { return };
        if !matches!(sender.poll_ready(cx), Poll::Ready(Ok(()))) {
            return;
        }
        let mut request = Request::new(());
        *request.uri_mut() = http::Uri::from_static("http://a.test/path");
        if plan & HEAD != 0 {
            *request.method_mut() = Method::HEAD;
        }
        let has_body = plan & HAS_BODY != 0;
        let (response, upload) = sender.send_request(&request, !has_body).expect("the connection is ready");
        let data = vec![b'd'; if plan & LARGE != 0 { LARGE_SIZE } else { 10 }].into();
        let (response, upload) = (Some(response), has_body.then_some(upload));
        self.exchanges.push(SentExchange { plan, response, upload, data, body: None, turns: 0 });
    }
}

impl SentExchange {
    fn stream(&self) -> Option<Rc<Stream>> {
        let response = self.response.as_ref().and_then(PendingResponse::handle);
        let upload = self.upload.as_ref().map(|upload| &upload.handle);
        let handle = response.or(upload).or_else(|| self.body.as_ref().map(|body| &body.handle));
        handle.map(|handle: &StreamHandle| Rc::clone(&handle.stream))
    }

    /// Continues. Returns whether the exchange is still needed.
    fn act(&mut self, cx: &mut Context<'_>) -> bool {
        self.turns += 1;
        if self.plan & RESET != 0 && self.turns > 5 {
            if let Some(upload) = &mut self.upload {
                upload.send_reset(Reason::CANCEL);
            }
            return false;
        }
        self.send(cx);
        self.receive(cx);
        self.response.is_some() || self.upload.is_some() || self.body.is_some()
    }

    fn send(&mut self, cx: &mut Context<'_>) {
        if let Some(upload) = &mut self.upload
            && upload.poll_send(&mut self.data, true, cx).is_ready()
        {
            self.upload = None;
        }
    }

    fn receive(&mut self, cx: &mut Context<'_>) {
        if let Some(response) = &mut self.response {
            while self.plan & NO_INTERIM == 0
                && let Some(interim) = response.take_interim()
            {
                assert!(interim.status().is_informational());
            }
            // Interim responses that are not taken are limited.
            if self.plan & NO_INTERIM != 0 && self.turns < 10 {
                return;
            }
            match Pin::new(response).poll(cx) {
                Poll::Pending => return,
                Poll::Ready(Err(_)) => self.response = None,
                Poll::Ready(Ok(response)) => {
                    assert!(!response.status().is_informational(), "an interim response is not the response");
                    self.response = None;
                    self.body = Some(response.into_body()).filter(|_| self.plan & UNREAD == 0);
                }
            }
        }
        let Some(body) = &mut self.body else { return };
        loop {
            match body.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) if self.plan & UNRELEASED == 0 => body.release(data.len()),
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(_) => break self.body = None,
                Poll::Pending => break,
            }
        }
    }
}
