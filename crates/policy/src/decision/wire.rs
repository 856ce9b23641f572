//! Messages of `envoy.service.auth.v3.Authorization`, with the fields that decisions need.
//!
//! The field numbers are those of Envoy's `external_auth.proto` and `attribute_context.proto`. A map is a repeated message
//! on the wire.

use prost::Message;

/// `envoy.service.auth.v3.CheckRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) attributes: Option<CheckAttributes>,
}

/// `envoy.service.auth.v3.AttributeContext`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckAttributes {
    #[prost(message, optional, tag = "1")]
    pub(super) source: Option<CheckPeer>,
    #[prost(message, optional, tag = "4")]
    pub(super) request: Option<CheckedMessage>,
}

/// `envoy.service.auth.v3.AttributeContext.Peer`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckPeer {
    #[prost(message, optional, tag = "1")]
    pub(super) address: Option<CoreAddress>,
}

/// `envoy.config.core.v3.Address`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CoreAddress {
    #[prost(message, optional, tag = "1")]
    pub(super) socket_address: Option<CoreSocketAddress>,
}

/// `envoy.config.core.v3.SocketAddress`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CoreSocketAddress {
    #[prost(string, tag = "2")]
    pub(super) address: String,
}

/// `envoy.service.auth.v3.AttributeContext.Request`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckedMessage {
    #[prost(message, optional, tag = "2")]
    pub(super) http: Option<CheckedHttp>,
}

/// `envoy.service.auth.v3.AttributeContext.HttpRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckedHttp {
    #[prost(string, tag = "2")]
    pub(super) method: String,
    /// Lines of one name are joined. Empty with `encode_raw_headers`.
    #[prost(message, repeated, tag = "3")]
    pub(super) headers: Vec<CoreHeader>,
    #[prost(string, tag = "4")]
    pub(super) path: String,
    #[prost(string, tag = "5")]
    pub(super) host: String,
    #[prost(message, optional, tag = "13")]
    pub(super) header_map: Option<CoreHeaderMap>,
}

/// `envoy.config.core.v3.HeaderValue`, and an entry of a map of headers, which has no `raw_value`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CoreHeader {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) raw_value: Vec<u8>,
}

/// `envoy.config.core.v3.HeaderMap`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CoreHeaderMap {
    #[prost(message, repeated, tag = "1")]
    pub(super) headers: Vec<CoreHeader>,
}

/// `envoy.service.auth.v3.CheckResponse`; exactly one of the responses is set.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<RpcStatus>,
    #[prost(message, optional, tag = "2")]
    pub(super) denied: Option<DeniedHttpResponse>,
    #[prost(message, optional, tag = "3")]
    pub(super) admitted: Option<OkHttpResponse>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

/// `envoy.service.auth.v3.DeniedHttpResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DeniedHttpResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub(super) headers: Vec<HeaderOption>,
    #[prost(string, tag = "3")]
    pub(super) body: String,
}

/// `envoy.type.v3.HttpStatus`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

/// `envoy.service.auth.v3.OkHttpResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OkHttpResponse {
    /// For the upstream.
    #[prost(message, repeated, tag = "2")]
    pub(super) headers: Vec<HeaderOption>,
    /// Of the request, before it is forwarded.
    #[prost(string, repeated, tag = "5")]
    pub(super) headers_to_remove: Vec<String>,
    /// For the client.
    #[prost(message, repeated, tag = "6")]
    pub(super) response_headers_to_add: Vec<HeaderOption>,
}

/// `envoy.config.core.v3.HeaderValueOption`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderOption {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<CoreHeader>,
    #[prost(message, optional, tag = "2")]
    pub(super) append: Option<BoolValue>,
}

/// `google.protobuf.BoolValue`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct BoolValue {
    #[prost(bool, tag = "1")]
    pub(super) value: bool,
}
