//! Envoy's calls for decisions over gRPC: the request to decide is in the body.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;

use bytes::BytesMut;
use http::request;
use hyper::body::{Body as _, Frame};

use super::warn_of_invalid;
use crate::proxy::body::DownstreamBody;
use crate::proxy::connection::DownstreamConnection;
use crate::proxy::failure::ForwardFailure;
use crate::proxy::local_reply::{DownstreamResponse, LocalReply, UnreadBody};
use crate::proxy::request_context::{RequestContext, start_log};
use crate::proxy::response_future::RequestOutcome;
use crate::proxy::timeouts::UploadTimer;
use crate::proxy::view::GenerationView;
use weir_limits::AppliedLimits;
use weir_net::overload::LoadShed;
use weir_policy::decision::check;
use weir_policy::decision::{InquiryForm, InvalidInquiry};
use weir_telemetry::spans::context::TraceContext;

/// Maximum size of a call's message: headers of the largest request that Envoy accepts, a certificate, and a part of the
/// body that Envoy may be configured to add.
const MAX_MESSAGE_SIZE: usize = 1024 * 1024;
/// Bytes of a message for which no memory is taken. Most messages are smaller.
const UNCOUNTED_SIZE: usize = 16 * 1024;

/// Why a call cannot be decided.
enum Undecided {
    Shed,
    Failed(ForwardFailure),
    Invalid(InvalidInquiry),
}

impl From<ForwardFailure> for Undecided {
    fn from(failure: ForwardFailure) -> Self {
        Self::Failed(failure)
    }
}

/// Reads a call and lets `decide` handle the request in it. Boxed as any future, because it contains that of `decide`, in
/// which it is used.
pub(in crate::proxy) fn answer<F, D>(
    mut context: Box<RequestContext>,
    view: Rc<GenerationView>,
    mut body: DownstreamBody,
    decide: D,
) -> Pin<Box<dyn Future<Output = DownstreamResponse>>>
where
    F: Future<Output = DownstreamResponse> + 'static,
    D: FnOnce(
            &Rc<DownstreamConnection>,
            Rc<GenerationView>,
            Box<RequestContext>,
            Option<TraceContext>,
            &mut request::Parts,
            DownstreamBody,
        ) -> RequestOutcome<F>
        + 'static,
{
    Box::pin(async move {
        let mut head = match read_request(&mut context, &view, &mut body).await {
            Ok(head) => head,
            Err(undecided) => return undecided.reply(context),
        };
        (context.is_grpc, context.inquiry) = (false, Some(InquiryForm::GrpcCheck));
        // Of the request in the call.
        let trace = start_log(&mut context, &head, &view);
        let connection = Rc::clone(&context.connection);
        match decide(&connection, view, context, trace, &mut head, DownstreamBody::None) {
            RequestOutcome::Response(response) => response,
            RequestOutcome::Pending(pending) => pending.await,
        }
    })
}

async fn read_request(
    context: &mut RequestContext,
    view: &GenerationView,
    body: &mut DownstreamBody,
) -> Result<request::Parts, Undecided> {
    let timer = UploadTimer::start(&context.timer);
    let queues = context.connection.worker.shared.limiter.queues();
    let (mut content, mut memory) = (BytesMut::new(), Vec::new());
    loop {
        let frame = poll_fn(|cx| {
            let polled = Pin::new(&mut *body).poll_frame(cx);
            if polled.is_pending() {
                timer.data_awaited();
            }
            polled
        });
        let frame = context.timer.limit(pin!(frame)).await.map_err(ForwardFailure::from)?;
        let Some(frame) = frame.transpose().map_err(|_| ForwardFailure::BrokenRequest)? else { break };
        let Some(data) = Frame::data_ref(&frame) else { break };
        timer.received(data.len() as u64);
        let size = content.len().saturating_add(data.len());
        if size > MAX_MESSAGE_SIZE {
            return Err(Undecided::Invalid(InvalidInquiry::Message("longer than 1 MiB")));
        }
        if size > UNCOUNTED_SIZE {
            memory.push(queues.take_memory(data.len()).ok_or(Undecided::Shed)?);
        }
        content.extend_from_slice(data);
    }
    timer.body_complete();
    check::read_request(&content, &view.policy.identify).map_err(Undecided::Invalid)
}

impl Undecided {
    /// Fails the call. Envoy admits or rejects the request then, as its `failure_mode_allow` says.
    fn reply(self, mut context: Box<RequestContext>) -> DownstreamResponse {
        context.inquiry = None;
        match self {
            Self::Shed => LocalReply::overloaded(LoadShed::Waiting).send(context, UnreadBody::Rest),
            Self::Failed(failure) => {
                let limits = &mut AppliedLimits::none(context.started_at);
                LocalReply::failed(&mut context, &failure, limits).send(context, UnreadBody::Rest)
            }
            Self::Invalid(problem) => {
                warn_of_invalid(&context.connection, &problem);
                LocalReply::invalid_inquiry(&problem).send(context, UnreadBody::Rest)
            }
        }
    }
}
