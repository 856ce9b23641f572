//! A request of a log as it arrives at the simulation, and the parts that identify it.

use http::{HeaderMap, Method};

use super::format::scan::{TargetBytes, find};
use super::record::{LoggedRequest, ParsedBlock};
use weir_limiter::timestamp::Timestamp;
use weir_policy::engine::Policy;
use weir_policy::identify::recorded::RecordedRequest;
use weir_policy::identify::{Attributes, MalformedPath};

/// A request of the log that arrives.
pub(super) struct LoggedArrival<'b> {
    pub(super) block: &'b ParsedBlock,
    pub(super) request: &'b LoggedRequest,
    /// Time of the virtual clock, which never decreases.
    pub(super) now: Timestamp,
}

/// The method and the target of a recorded request.
pub(super) struct RecordedParts<'b> {
    method: Option<Method>,
    host: &'b [u8],
    path: &'b str,
    query: Option<&'b str>,
}

impl<'b> RecordedParts<'b> {
    /// Returns the parts of a request; `None` if the proxy would not accept it.
    #[inline]
    pub(super) fn new(&LoggedArrival { block, request, .. }: &LoggedArrival<'b>) -> Option<Self> {
        let TargetParts { host, path, query } = TargetParts::new(request.target.text(&block.data)?)?;
        let method = request.method.text(&block.data).map(Method::from_bytes).transpose().ok()?;
        let host = host.map(str::as_bytes).or_else(|| request.host.text(&block.data)).unwrap_or_default();
        Some(Self { method, host, path, query })
    }

    /// Returns the attributes of the request, without fields of its body.
    ///
    /// # Errors
    /// [`MalformedPath`], as the proxy would.
    #[inline]
    pub(super) fn attributes<'a>(
        &'a self,
        arrival: &LoggedArrival<'_>,
        headers: &'a HeaderMap,
        policy: &'a Policy,
    ) -> Result<Attributes<'a>, MalformedPath> {
        let recorded = RecordedRequest {
            method: self.method.as_ref(),
            host: self.host,
            path: self.path,
            query: self.query,
            headers,
            address: arrival.request.address,
        };
        let attributes = recorded.attributes(&policy.identify, arrival.now)?;
        attributes.body_size.set(arrival.request.received);
        Ok(attributes)
    }
}

/// Parts of a request target.
struct TargetParts<'a> {
    host: Option<&'a str>,
    path: &'a str,
    query: Option<&'a str>,
}

impl<'a> TargetParts<'a> {
    /// Splits a target; `None` if it is not valid.
    #[inline]
    fn new(target: &'a [u8]) -> Option<Self> {
        let TargetBytes { has_space_or_control, path_end } = TargetBytes::of(target);
        if has_space_or_control {
            return None;
        }
        let text = str::from_utf8(target).ok()?;
        let (host, origin, path_end) = match target {
            [b'/', ..] | b"*" => (None, text, path_end),
            _ => {
                let (_, rest) = text.split_once("://")?;
                let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
                let origin = if path.is_empty() { "/" } else { path };
                (Some(host), origin, TargetBytes::of(origin.as_bytes()).path_end)
            }
        };
        let Some(end) = path_end else {
            return Some(Self { host, path: origin, query: None });
        };
        let (path, rest) = (&origin[..end], &origin[end + 1..]);
        let is_query = origin.as_bytes()[end] == b'?';
        let query = is_query.then(|| find(rest.as_bytes(), b'#').map_or(rest, |end| &rest[..end]));
        Some(Self { host, path, query })
    }
}

/// Reads from the texts of all requests, so that the processor fetches them from memory at the same time: another one has
/// written them.
#[inline]
pub(super) fn fetch_texts(arrivals: &[LoggedArrival<'_>]) {
    let bytes = arrivals.iter().map(|LoggedArrival { block, request, .. }| {
        request.target.first_byte(&block.data) | request.host.first_byte(&block.data)
    });
    std::hint::black_box(bytes.fold(0, |all, byte| all | byte));
}
