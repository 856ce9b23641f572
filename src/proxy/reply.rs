//! An answer on its way to the client.

use http::{HeaderName, HeaderValue, Response};

use super::body::ResponseBody;
use crate::http1::lines::Lines;
use crate::response::rate_limit_headers::Fields;

/// An answer, and what we put on it.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) response: Response<ResponseBody>,
    /// Fields beside those of the response, none of which stands in it.
    pub(super) ours: Lines,
    /// Whether there may be any: HTTP/2 has no lines.
    pub(super) apart: bool,
}

impl Reply {
    /// An answer; what we put on it may stand `apart`.
    pub(super) fn new(response: Response<ResponseBody>, apart: bool) -> Self {
        Self { response, ours: Lines::default(), apart }
    }

    /// An answer with these fields beside its own.
    pub(super) fn with(response: Response<ResponseBody>, ours: Lines) -> Self {
        Self { response, ours, apart: true }
    }

    /// Where fields are set: apart, unless the answer has some of its own by such names.
    pub(super) fn fields(&mut self, is_such: impl Fn(&str) -> bool) -> &mut dyn Fields {
        let Self { response, ours, apart } = self;
        let headers = response.headers_mut();
        if *apart && !headers.keys().any(|name| is_such(name.as_str())) { ours } else { headers }
    }

    /// The answer with all fields in its map.
    pub(super) fn into_response(self) -> Response<ResponseBody> {
        let Self { mut response, ours, .. } = self;
        ours.extend(response.headers_mut());
        response
    }
}

impl From<Response<ResponseBody>> for Reply {
    fn from(response: Response<ResponseBody>) -> Self {
        Self::new(response, false)
    }
}

impl Fields for Lines {
    fn set(&mut self, name: HeaderName, value: &HeaderValue) {
        self.put(&name, value.as_bytes());
    }

    fn set_number(&mut self, name: HeaderName, number: u64) {
        self.number(&name, number);
    }

    fn set_text(&mut self, name: HeaderName, text: Vec<u8>) {
        self.put(&name, &text);
    }
}
