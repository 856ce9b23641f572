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
    format: FormatReader,
}

#[derive(Debug)]
enum FormatReader {
    Json {
        reader: Box<JsonReader>,
        /// The fields to be read for the wanted ones.
        sources: FieldMask,
    },
    Form(FormReader),
    /// Messages of a gRPC call, which have no fields.
    Grpc {
        /// Whether the first byte has been read.
        is_begun: bool,
        record: Record,
    },
}

impl BodyReader {
    /// Creates a reader of the fields `wanted` in a body with these values of `content-type`.
    ///
    /// # Errors
    /// [`Unreadable::ContentType`] if bodies of this type have none of these fields, or if it is unclear what the type is.
    pub fn new<'v>(
        fields: &FieldSet,
        wanted: FieldMask,
        content_types: impl IntoIterator<Item = &'v [u8]>,
    ) -> Result<Self, Unreadable> {
        let mut content_types = content_types.into_iter();
        let content_type = content_types.next().unwrap_or_default();
        // Of several lines, some programs use the first, others the last.
        if content_types.any(|other| other != content_type) {
            return Err(Unreadable::ContentType);
        }
        let media_type = media_type(content_type);
        let format = match media_type.as_slice() {
            json if is_json(json) && fields.has_json(wanted) && is_utf8(content_type) => {
                let sources = fields.json_sources(wanted);
                FormatReader::Json { reader: Box::new(JsonReader::new(sources)), sources }
            }
            // A GraphQL request in a form is not measured.
            b"application/x-www-form-urlencoded"
                if fields.has_forms(wanted) && !fields.has_graphql(wanted) && is_utf8(content_type) =>
            {
                FormatReader::Form(FormReader::new(fields.form_sources(wanted)))
            }
            _ if is_grpc(&media_type) => {
                FormatReader::Grpc { is_begun: false, record: fields.empty_record() }
            }
            _ => return Err(Unreadable::ContentType),
        };
        Ok(Self { wanted, format })
    }

    /// Reads the next piece of the body.
    ///
    /// # Errors
    /// Why the fields are unknown. Then, nothing more is to be read.
    pub fn read(&mut self, fields: &FieldSet, piece: &[u8]) -> Result<(), Unreadable> {
        match &mut self.format {
            FormatReader::Json { reader, .. } => reader.read(fields, piece),
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

    /// Returns the values that have been read so far, if no wanted field is missing any more. They are returned once. The rest of the body may
    /// still state one of them again, so [`Self::finish`] says whether they hold. `url`: the parameters of the URL that a field depends on.
    ///
    /// # Errors
    /// Why they are unknown.
    pub fn known(
        &mut self,
        fields: &FieldSet,
        url: Option<&UrlParameters>,
    ) -> Result<Option<Records>, Unreadable> {
        let record = match &mut self.format {
            FormatReader::Json { reader, sources } => {
                let is_missing =
                    |(index, value): (usize, &Option<_>)| value.is_none() && sources.contains(index);
                let is_known = |record: &Record| !record.iter().enumerate().any(is_missing);
                if reader.record().is_some_and(is_known) { reader.take_record() } else { None }
            }
            // Where the upload of a form ends early, it is a form as well.
            FormatReader::Form(_) => None,
            // A call may wait for a response before it sends a message.
            FormatReader::Grpc { record, .. } => Some(record.clone()),
        };
        let Some(record) = record else { return Ok(None) };
        let mut records = Records::from_iter([record]);
        computed::compute(fields, self.wanted, &mut records, url)?;
        Ok(Some(records))
    }

    /// Returns the bytes that are kept, with the values that have been returned.
    pub fn kept_size(&self) -> usize {
        match &self.format {
            FormatReader::Json { reader, .. } => reader.kept_size(),
            FormatReader::Form(reader) => reader.kept_size(),
            FormatReader::Grpc { record, .. } => size_of_val(&**record),
        }
    }

    /// Returns the values at the end of the body, unless they have been returned before. `url`: as of [`Self::known`].
    ///
    /// # Errors
    /// Why they are unknown.
    pub fn finish(self, fields: &FieldSet, url: Option<&UrlParameters>) -> Result<Records, Unreadable> {
        let mut records = match self.format {
            FormatReader::Json { reader, .. } => reader.finish(fields)?,
            FormatReader::Form(reader) => Records::from_iter([reader.finish(fields)?]),
            FormatReader::Grpc { record, .. } => Records::from_iter([record]),
        };
        computed::compute(fields, self.wanted, &mut records, url)?;
        Ok(records)
    }
}

/// Whether bodies of this type are JSON documents.
pub(crate) fn is_json(media_type: &[u8]) -> bool {
    media_type == b"application/json"
        || media_type.ends_with(b"+json") && is_one(media_type) && !is_grpc(media_type)
}

/// Whether bodies of this type are the messages of a gRPC call, whatever their own format is.
fn is_grpc(media_type: &[u8]) -> bool {
    let format = media_type.strip_prefix(b"application/grpc");
    format.is_some_and(|format| format.is_empty() || format.starts_with(b"+")) && is_one(media_type)
}

/// Whether this is one type, and not a list of which some programs use another element (RFC 9110, section 5.6.2).
fn is_one(media_type: &[u8]) -> bool {
    media_type.iter().all(|byte| byte.is_ascii_alphanumeric() || b"/!#$%&'*+-.^_`|~".contains(byte))
}

/// Returns the type without parameters, in lower case (RFC 9110, section 8.3.1).
pub(crate) fn media_type(content_type: &[u8]) -> Vec<u8> {
    let end = content_type.iter().position(|byte| *byte == b';').unwrap_or(content_type.len());
    content_type[..end].trim_ascii().to_ascii_lowercase()
}

/// Whether the type names no charset but UTF-8 and its part. In another one, the same bytes are other names and values for some programs.
fn is_utf8(content_type: &[u8]) -> bool {
    let content_type = content_type.to_ascii_lowercase();
    let mut named = memchr::memmem::find_iter(&content_type, b"charset").map(|at| {
        let value = content_type[at..].strip_prefix(b"charset").unwrap_or_default();
        let value = value.trim_ascii_start().strip_prefix(b"=").unwrap_or_default().trim_ascii_start();
        let value = value.strip_prefix(b"\"").or_else(|| value.strip_prefix(b"'")).unwrap_or(value);
        value.split(|byte| b"\"'; \t".contains(byte)).next().unwrap_or_default()
    });
    named.all(|charset| matches!(charset, b"utf-8" | b"utf8" | b"us-ascii" | b"ascii"))
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
        BodyReader::new(&fields(), wanted, [content_type.as_bytes()])
    }

    #[test]
    fn content_type_decides_the_format() {
        for accepted in ["application/json", "APPLICATION/JSON ; charset=UTF-8", "application/vnd.api+json"] {
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
    fn content_type_has_one_meaning() {
        let new = |wanted: usize, values: &[&'static str]| {
            BodyReader::new(&fields(), FieldMask::of(wanted), values.iter().map(|value| value.as_bytes()))
        };
        let (json, form) = ("application/json", "application/x-www-form-urlencoded");
        assert!(new(0, &[json, json]).is_ok());
        for (wanted, values) in [
            (0, &[form, json][..]),
            (0, &[json, form]),
            (0, &[json, ""]),
            (2, &[form, json]),
            (2, &[form, "application/x-www-form-urlencoded; x=y"]),
            (0, &["application/x-www-form-urlencoded, x/y+json"]),
            (0, &["application/x-www-form-urlencoded +json"]),
            (0, &["application/json, application/x-www-form-urlencoded"]),
            (0, &["application/grpc+x,application/json"]),
        ] {
            assert_eq!(new(wanted, values).err(), Some(Unreadable::ContentType), "{values:?}");
        }
    }

    #[test]
    fn charset_is_utf8() {
        for (wanted, media_type) in [(0, "application/json"), (2, "application/x-www-form-urlencoded")] {
            for utf8 in ["charset=utf-8", "Charset = \"UTF-8\"", "x=y;charset=us-ascii ;z", "charset='utf8'"]
            {
                assert!(reader(&[wanted], &format!("{media_type}; {utf8}")).is_ok(), "{utf8}");
            }
            for other in [
                "charset=utf-16",
                "charset=ibm037",
                "charset=iso-8859-1",
                "charset=utf-8; charset=utf-16",
                "x=\"; charset=utf-8\"; charset=utf-7",
                "charset*=utf-16''x",
                "charset=",
                "charset",
                "charset=\"\\utf-16\"",
            ] {
                let content_type = format!("{media_type}; {other}");
                assert_eq!(reader(&[wanted], &content_type).err(), Some(Unreadable::ContentType), "{other}");
            }
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

    #[test]
    fn fields_of_a_document_do_not_wait_for_those_of_a_form() {
        let (fields, mut reader) = (fields(), reader(&[0, 2], "application/json").expect("JSON"));
        reader.read(&fields, br#"{"a":1,"#).expect("readable");
        assert!(reader.known(&fields, None).is_ok_and(|known| known.is_some()));
    }

    #[test]
    fn fields_of_a_form_are_known_at_its_end() {
        let (fields, mut reader) =
            (fields(), reader(&[2], "application/x-www-form-urlencoded").expect("a form"));
        reader.read(&fields, b"user=decoy&password=x&user=victim").expect("readable");
        assert_eq!(reader.known(&fields, None), Ok(None));
        assert_eq!(reader.finish(&fields, None), Err(Unreadable::Duplicate));
    }

    #[test]
    fn rest_of_a_body_is_not_kept() {
        let (fields, mut reader) = (fields(), reader(&[0], "application/json").expect("JSON"));
        let read = |reader: &mut BodyReader, piece: &[u8]| reader.read(&fields, piece).expect("readable");
        read(&mut reader, br#"{"a":1,"b":""#);
        assert!(reader.known(&fields, None).is_ok_and(|known| known.is_some()));
        let known = reader.kept_size();
        for _ in 0..100 {
            read(&mut reader, &[b'x'; 1000]);
            assert_eq!(reader.kept_size(), known, "the value of a field that is not wanted");
        }
        read(&mut reader, b"\",\"");
        for _ in 0..100 {
            read(&mut reader, &[b'x'; 1000]);
            assert!(reader.kept_size() < known + 100, "{} bytes of a name", reader.kept_size());
        }
        read(&mut reader, br#"":1,"n":"#);
        for _ in 0..100 {
            read(&mut reader, &[b'1'; 1000]);
            assert!(reader.kept_size() < known + 100, "{} bytes of a number", reader.kept_size());
        }
        read(&mut reader, b"}");
        assert!(reader.finish(&fields, None).is_ok());
    }

    #[test]
    fn kept_size_covers_values_and_records() {
        let (fields, mut reader) = (fields(), reader(&[0, 1], "application/json").expect("JSON"));
        let read = |reader: &mut BodyReader, piece: &[u8]| reader.read(&fields, piece).expect("readable");
        read(&mut reader, br#"{"a":""#);
        read(&mut reader, &[b'x'; 1000]);
        assert!(reader.kept_size() >= 1000, "while it is read");
        read(&mut reader, br#"","b":1"#);
        assert!((1000..2000).contains(&reader.kept_size()), "once it has been read");
        let mut batch = self::reader(&[0], "application/json").expect("JSON");
        read(&mut batch, format!("[{}]", vec!["{}"; 100].join(",")).as_bytes());
        assert!(batch.kept_size() >= 100 * 3 * size_of::<Option<crate::fields::Value>>());
    }
}
