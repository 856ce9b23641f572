//! Body of a call for a service that needs one that can be sent to other threads. Streams of [`weir_http::http2`] belong to the
//! thread of their connection.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

use weir_http::http2::Http2Error;
use weir_net::transport::Http2Body;

/// What a task reads of a body. Dropping it ends the task, and resets the stream if the response is complete.
#[derive(Debug)]
pub(super) struct RelayedBody(mpsc::Receiver<Result<Frame<Bytes>, Http2Error>>);

impl RelayedBody {
    /// Starts the task. It reads one frame ahead.
    pub(super) fn new(mut body: Http2Body) -> Self {
        let (frames, received) = mpsc::channel(1);
        drop(tokio::task::spawn_local(async move {
            let ahead = async {
                // A frame is read once there is room for it.
                while let Ok(room) = frames.reserve().await
                    && let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await
                {
                    let has_failed = frame.is_err();
                    room.send(frame);
                    if has_failed {
                        return;
                    }
                }
            };
            tokio::select! {
                () = ahead => {}
                () = frames.closed() => {}
            }
        }));
        Self(received)
    }
}

impl Body for RelayedBody {
    type Data = Bytes;
    type Error = Http2Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Http2Error>>> {
        self.0.poll_recv(cx)
    }
}
