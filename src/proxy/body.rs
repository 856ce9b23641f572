//! Request and response bodies, streamed frame by frame and never collected.

mod downstream;
mod message;
mod replay;
mod request;
mod response;

use hyper::body::SizeHint;

pub(super) use self::downstream::{DownstreamBody, DownstreamBodyError};
pub(super) use self::replay::ReplayBuffer;
pub(super) use self::request::RequestBody;
pub(super) use self::response::ResponseBody;
use super::streams::BodyGate;

/// Returns the size of a body of which `gate` holds a part.
fn with_held(left: SizeHint, gate: Option<&BodyGate>) -> SizeHint {
    let Some(held) = gate.map(BodyGate::held).filter(|held| *held > 0) else { return left };
    let mut hint = SizeHint::new();
    if let Some(upper) = left.upper() {
        hint.set_upper(upper.saturating_add(held));
    }
    hint.set_lower(left.lower().saturating_add(held));
    hint
}
