//! Messages of OTLP in the wire format of protobuf, written directly: a batch is never a tree of messages.
//!
//! A field begins with its number and wire type. Lengths precede contents, so they are computed or the contents are
//! written elsewhere first. The field numbers are those of `opentelemetry/proto/trace/v1/trace.proto`.

use prost::encoding::{encode_varint, encoded_len_varint};

/// Field `spans` of `ScopeSpans`.
const SPANS: u8 = 2;

/// Value of an attribute.
#[derive(Clone, Copy, Debug)]
pub(super) enum AttributeValue<'a> {
    Text(&'a str),
    Integer(i64),
    Double(f64),
}

/// Writes an integer in as many bytes as it needs; most need one.
#[inline]
fn push_varint(out: &mut Vec<u8>, number: u64) {
    match u8::try_from(number) {
        Ok(byte) if byte < 0x80 => out.push(byte),
        _ => encode_varint(number, out),
    }
}

/// Writes the head of a field of variable length.
#[inline]
fn push_length(out: &mut Vec<u8>, field: u8, length: usize) {
    out.push(field << 3 | 2);
    push_varint(out, length as u64);
}

/// Returns the size of such a field.
fn field_size(length: usize) -> usize {
    let size_of_length = if length < 0x80 { 1 } else { encoded_len_varint(length as u64) };
    1 + size_of_length + length
}

/// Writes a field of bytes, a text or a message.
pub(super) fn push_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    push_length(out, field, bytes.len());
    out.extend_from_slice(bytes);
}

/// Writes a text field of several parts.
pub(super) fn push_joined(out: &mut Vec<u8>, field: u8, parts: [&str; 3]) {
    push_length(out, field, parts.iter().map(|part| part.len()).sum());
    for part in parts {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Writes an integer field.
pub(super) fn push_integer(out: &mut Vec<u8>, field: u8, number: u64) {
    out.push(field << 3);
    push_varint(out, number);
}

/// Writes a field of eight bytes.
pub(super) fn push_fixed64(out: &mut Vec<u8>, field: u8, number: u64) {
    out.push(field << 3 | 1);
    out.extend_from_slice(&number.to_le_bytes());
}

/// Writes the flags of a span: field 16, of four bytes.
pub(super) fn push_span_flags(out: &mut Vec<u8>, flags: u32) {
    encode_varint(16 << 3 | 5, out);
    out.extend_from_slice(&flags.to_le_bytes());
}

/// Writes an attribute: a `KeyValue`.
pub(super) fn push_attribute(out: &mut Vec<u8>, field: u8, name: &str, value: AttributeValue<'_>) {
    let value_size = value.size();
    push_length(out, field, field_size(name.len()) + field_size(value_size));
    push_bytes(out, 1, name.as_bytes());
    push_length(out, 2, value_size);
    value.write(out);
}

impl AttributeValue<'_> {
    /// Returns the size of the `AnyValue`.
    fn size(self) -> usize {
        match self {
            Self::Text(text) => field_size(text.len()),
            Self::Integer(number) => 1 + encoded_len_varint(number.cast_unsigned()),
            Self::Double(_) => 9,
        }
    }

    fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => push_bytes(out, 1, text.as_bytes()),
            Self::Integer(number) => push_integer(out, 3, number.cast_unsigned()),
            Self::Double(number) => push_fixed64(out, 4, number.to_bits()),
        }
    }
}

/// Appends a span to a batch.
pub(super) fn push_span(batch: &mut Vec<u8>, span: &[u8]) {
    push_bytes(batch, SPANS, span);
}

/// What precedes the spans of a batch: the service and the library that they are of.
#[derive(Debug)]
pub(super) struct BatchHead {
    /// Field `resource` of `ResourceSpans`.
    resource: Vec<u8>,
    /// Field `scope` of `ScopeSpans`.
    scope: Vec<u8>,
}

impl BatchHead {
    pub(super) fn new(service_name: &str, version: &str) -> Self {
        let (mut attributes, mut library) = (Vec::new(), Vec::new());
        for (name, value) in
            [("service.name", service_name), ("service.version", version), ("telemetry.sdk.language", "rust")]
        {
            push_attribute(&mut attributes, 1, name, AttributeValue::Text(value));
        }
        push_bytes(&mut library, 1, b"weir");
        push_bytes(&mut library, 2, version.as_bytes());
        let (mut resource, mut scope) = (Vec::new(), Vec::new());
        push_bytes(&mut resource, 1, &attributes);
        push_bytes(&mut scope, 1, &library);
        Self { resource, scope }
    }

    /// Returns the `ExportTraceServiceRequest` with the spans of a batch.
    pub(super) fn request(&self, spans: &[u8]) -> Vec<u8> {
        let scope_spans = self.scope.len() + spans.len();
        let resource_spans = self.resource.len() + field_size(scope_spans);
        let mut request = Vec::with_capacity(field_size(resource_spans));
        push_length(&mut request, 1, resource_spans);
        request.extend_from_slice(&self.resource);
        push_length(&mut request, 2, scope_spans);
        request.extend_from_slice(&self.scope);
        request.extend_from_slice(spans);
        request
    }
}
