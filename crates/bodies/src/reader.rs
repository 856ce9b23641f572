//! The fields of a body, by its content type.

use crate::Unreadable;
use crate::computed;
use crate::fields::{FieldMask, FieldSet, Record, Records};
use crate::form::FormReader;
use crate::graphql::UrlParameters;
use crate::json::JsonReader;

/// Reads the fields of one body.
#[derive(Debug)]
pub struct BodyReader {
    wanted: FieldMask,
    /// The fields to be read for the wanted ones.
    sources: FieldMask,
    format: FormatReader,
}

#[derive(Debug)]
enum FormatReader {
    Json(Box<JsonReader>),
    Form(FormReader),
    /// Messages of a gRPC call, which have no fields.
    Grpc {
        /// Whether the first byte has been read.
        is_begun: bool,
        record: Record,
    },
}

impl BodyReader {
    /// Creates a reader of the fields `wanted` in a body with this `content-type`.
    ///
    /// # Errors
    /// [`Unreadable::ContentType`] if bodies of this type have none of these fields.
    pub fn new(
        fields: &FieldSet,
        wanted: FieldMask,
        content_type: Option<&[u8]>,
    ) -> Result<Self, Unreadable> {
        let media_type = media_type(content_type.unwrap_or_default());
        let format = match media_type.as_slice() {
            json if is_json(json) && fields.has_json(wanted) => FormatReader::Json(Box::default()),
            // A GraphQL request in a form is not measured.
            b"application/x-www-form-urlencoded"
                if fields.has_forms(wanted) && !fields.has_graphql(wanted) =>
            {
                FormatReader::Form(FormReader::default())
            }
            _ if is_grpc(&media_type) => {
                FormatReader::Grpc { is_begun: false, record: fields.empty_record() }
            }
            _ => return Err(Unreadable::ContentType),
        };
        Ok(Self { wanted, sources: fields.sources(wanted), format })
    }

    /// Reads the next piece of the body.
    ///
    /// # Errors
    /// Why the fields are unknown. Then, nothing more is to be read.
    pub fn read(&mut self, fields: &FieldSet, piece: &[u8]) -> Result<(), Unreadable> {
        match &mut self.format {
            FormatReader::Json(reader) => reader.read(fields, piece),
            FormatReader::Form(reader) => reader.read(fields, piece),
            FormatReader::Grpc { is_begun, .. } => match piece.first() {
                // The flag of compression, with which no JSON begins (gRPC over HTTP/2, Length-Prefixed-Message).
                Some(0 | 1) | None => {
                    *is_begun |= !piece.is_empty();
                    Ok(())
                }
                Some(_) if *is_begun => Ok(()),
                Some(_) => Err(Unreadable::ContentType),
            },
        }
    }

    /// Returns the values that have been read so far, if no wanted field is missing any more. The rest of the body may still state one of
    /// them again. `url`: the parameters of the URL that a field depends on.
    ///
    /// # Errors
    /// Why they are unknown.
    pub fn known(
        &self,
        fields: &FieldSet,
        url: Option<&UrlParameters>,
    ) -> Result<Option<Records>, Unreadable> {
        let record = match &self.format {
            FormatReader::Json(reader) => reader.record(),
            FormatReader::Form(reader) => reader.record(),
            // A call may wait for a response before it sends a message.
            FormatReader::Grpc { record, .. } => {
                let mut records = Records::from_iter([record.clone()]);
                computed::compute(fields, self.wanted, &mut records, url)?;
                return Ok(Some(records));
            }
        };
        let Some(record) = record else { return Ok(None) };
        let is_missing =
            |(index, value): (usize, &Option<_>)| value.is_none() && self.sources.contains(index);
        if record.iter().enumerate().any(is_missing) {
            return Ok(None);
        }
        let mut records = Records::from_iter([record.clone()]);
        computed::compute(fields, self.wanted, &mut records, url)?;
        Ok(Some(records))
    }

    /// Returns the values at the end of the body. `url`: as of [`Self::known`].
    ///
    /// # Errors
    /// Why they are unknown.
    pub fn finish(self, fields: &FieldSet, url: Option<&UrlParameters>) -> Result<Records, Unreadable> {
        let mut records = match self.format {
            FormatReader::Json(reader) => reader.finish(fields)?,
            FormatReader::Form(reader) => Records::from_iter([reader.finish(fields)?]),
            FormatReader::Grpc { record, .. } => Records::from_iter([record]),
        };
        computed::compute(fields, self.wanted, &mut records, url)?;
        Ok(records)
    }
}

/// Whether bodies of this type are JSON documents.
pub(crate) fn is_json(media_type: &[u8]) -> bool {
    media_type == b"application/json" || media_type.ends_with(b"+json") && !is_grpc(media_type)
}

/// Whether bodies of this type are the messages of a gRPC call, whatever their own format is.
fn is_grpc(media_type: &[u8]) -> bool {
    media_type.strip_prefix(b"application/grpc").is_some_and(|rest| rest.is_empty() || rest.starts_with(b"+"))
}

/// Returns the type without parameters, in lower case (RFC 9110, section 8.3.1).
pub(crate) fn media_type(content_type: &[u8]) -> Vec<u8> {
    let end = content_type.iter().position(|byte| *byte == b';').unwrap_or(content_type.len());
    content_type[..end].trim_ascii().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fields::FieldName;

    fn fields() -> FieldSet {
        let path = |text: &str| FieldName::Json(Arc::new(text.parse().expect("a path")));
        FieldSet::new([path("a"), path("b"), FieldName::Form("user".into())])
    }

    fn reader(wanted: &[usize], content_type: &str) -> Result<BodyReader, Unreadable> {
        let wanted = wanted.iter().copied().collect();
        BodyReader::new(&fields(), wanted, Some(content_type.as_bytes()))
    }

    #[test]
    fn content_type_decides_the_format() {
        for accepted in ["application/json", "APPLICATION/JSON ; charset=x", "application/vnd.api+json"] {
            assert!(reader(&[0], accepted).is_ok(), "{accepted}");
            assert_eq!(reader(&[2], accepted).err(), Some(Unreadable::ContentType), "{accepted}");
        }
        assert!(reader(&[2], "application/x-www-form-urlencoded").is_ok());
        for other in [
            "",
            "text/plain",
            "application/jsonp",
            "multipart/form-data; boundary=x",
            "application/x-www-form-urlencoded",
        ] {
            assert_eq!(reader(&[0], other).err(), Some(Unreadable::ContentType), "{other}");
        }
    }

    #[test]
    fn grpc_calls_have_no_fields() {
        let fields = fields();
        for content_type in ["application/grpc", "application/grpc+json", "Application/gRPC+proto; x=y"] {
            let grpc = || reader(&[0, 2], content_type).expect("a call");
            assert!(
                grpc().known(&fields, None).is_ok_and(|known| known.is_some()),
                "before the first message"
            );
            assert_eq!(grpc().finish(&fields, None), Ok(Records::from_iter([fields.empty_record()])));
            let mut with_messages = grpc();
            for piece in [&b""[..], b"\x01\0\0\0\x01", b"{"] {
                assert_eq!(with_messages.read(&fields, piece), Ok(()));
            }
            assert_eq!(grpc().read(&fields, br#"{"a":1}"#), Err(Unreadable::ContentType), "no message");
        }
        assert_eq!(reader(&[0], "application/grpc-web+proto").err(), Some(Unreadable::ContentType));
    }

    #[test]
    fn wanted_fields_are_known_before_the_end() {
        let (fields, mut reader) = (fields(), reader(&[0], "application/json").expect("JSON"));
        for (piece, is_known) in [(&br#"{"b":"x","a":1"#[..], false), (br#","c":["#, true)] {
            reader.read(&fields, piece).expect("readable");
            assert_eq!(reader.known(&fields, None).expect("readable").is_some(), is_known);
        }
        assert_eq!(reader.finish(&fields, None), Err(Unreadable::Invalid));
    }
}
