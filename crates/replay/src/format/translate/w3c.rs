//! The extended log file format of W3C, as IIS writes it with spaces and CloudFront with tabs, and CloudFront's JSON.

use super::record::RecordWriter;
use weir_policy::identify::forwarded::X_FORWARDED_FOR;

/// Fields of CloudFront's standard logs, if there is no line that names them.
const CLOUDFRONT: &str = "date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) \
    cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken";
/// Maximum number of fields.
const MAX_FIELDS: usize = 128;

/// Parser of lines whose fields a line before them names.
#[derive(Debug, Default)]
pub(super) struct W3cParser {
    fields: Vec<String>,
}

impl W3cParser {
    /// Translates a line; returns whether it is one of this format. A directive gives no request.
    pub(super) fn translate(&mut self, line: &[u8], record: &mut RecordWriter<'_>) -> bool {
        if let Some(directive) = line.strip_prefix(b"#") {
            if let Some(names) = directive.strip_prefix(b"Fields:") {
                let names = String::from_utf8_lossy(names).into_owned();
                self.fields = names.split_ascii_whitespace().take(MAX_FIELDS).map(str::to_owned).collect();
            }
            return ["Fields:", "Version:", "Software:", "Date:", "Start-Date:", "End-Date:", "Remark:"]
                .iter()
                .any(|known| directive.starts_with(known.as_bytes()));
        }
        if line.starts_with(b"{") {
            return translate_json(line, record);
        }
        let is_dated = |line: &[u8]| line.get(4) == Some(&b'-') && line.get(7) == Some(&b'-');
        let is_tabular = is_dated(line) && line.get(10) == Some(&b'\t');
        if self.fields.is_empty() && is_tabular {
            self.fields = CLOUDFRONT.split_ascii_whitespace().map(str::to_owned).collect();
            self.fields.push(X_FORWARDED_FOR.as_str().to_owned());
        }
        if self.fields.is_empty() {
            return false;
        }
        let separator = if line.contains(&b'\t') { b'\t' } else { b' ' };
        let values: Vec<&[u8]> = line.split(|byte| *byte == separator).collect();
        let is_whole =
            values.len() == self.fields.len() || (separator == b'\t' && values.len() > self.fields.len());
        if !is_whole {
            return false;
        }
        let value = |name: &str| {
            let at = self.fields.iter().position(|field| field.eq_ignore_ascii_case(name))?;
            values.get(at).copied().filter(|value| !matches!(*value, b"" | b"-"))
        };
        let headers = self.fields.iter().zip(&values).map(|(name, value)| (name.as_str(), *value));
        write(value, headers, separator == b'\t', record)
    }
}

/// Translates a line of CloudFront's JSON, whose members have the names of fields.
fn translate_json(line: &[u8], record: &mut RecordWriter<'_>) -> bool {
    if !line.windows(11).any(|text| text == b"cs-uri-stem") {
        return false;
    }
    let Ok(serde_json::Value::Object(object)) = serde_json::from_slice(line) else { return false };
    let texts: Vec<(String, String)> = object
        .into_iter()
        .filter_map(|(name, value)| match value {
            serde_json::Value::String(text) => Some((name, text)),
            serde_json::Value::Number(number) => Some((name, number.to_string())),
            _ => None,
        })
        .collect();
    let value = |name: &str| {
        let found = texts.iter().find(|(field, _)| field.eq_ignore_ascii_case(name))?;
        Some(found.1.as_bytes()).filter(|value| !matches!(*value, b"" | b"-"))
    };
    let headers = texts.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    write(value, headers, true, record)
}

/// Writes a request. CloudFront states the time that it took in seconds and encodes values with percent signs; IIS states
/// milliseconds and encodes a space as a plus sign.
fn write<'v>(
    value: impl Fn(&str) -> Option<&'v [u8]>,
    headers: impl Iterator<Item = (&'v str, &'v [u8])>,
    is_cloudfront: bool,
    record: &mut RecordWriter<'_>,
) -> bool {
    let (Some(date), Some(time), Some(path)) = (value("date"), value("time"), value("cs-uri-stem")) else {
        return false;
    };
    record.texts("time", &[date, b"T", time, b"Z"]);
    let peer = value("c-ip").or_else(|| value("OriginalIP"));
    peer.inspect(|peer| record.text("remote_addr", peer));
    match value("cs-uri-query") {
        Some(query) => record.texts("path", &[path, b"?", query]),
        None => record.text("path", path),
    }
    for (name, fields) in [
        ("method", &["cs-method"][..]),
        ("host", &["x-host-header", "cs-host", "cs(Host)"]),
        ("status", &["sc-status"]),
        ("bytes_sent", &["sc-bytes"]),
        ("bytes_received", &["cs-bytes"]),
        (if is_cloudfront { "request_time" } else { "duration_ms" }, &["time-taken"]),
        ("x_forwarded_for", &[X_FORWARDED_FOR.as_str(), "cs(X-Forwarded-For)"]),
    ] {
        if let Some(value) = fields.iter().find_map(|field| value(field)) {
            record.text(name, value);
        }
    }
    for (name, text) in headers {
        let Some(header) = name.strip_prefix("cs(").and_then(|name| name.strip_suffix(')')) else { continue };
        let header = header.to_ascii_lowercase();
        if !header.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            || header == "host"
            || header == X_FORWARDED_FOR.as_str()
        {
            continue;
        }
        let known = match &*header {
            "user-agent" => "user_agent",
            "referer" => "referer",
            header => header,
        };
        record.text(known, &decoded(text, is_cloudfront));
    }
    true
}

/// Decodes a header.
fn decoded(text: &[u8], is_cloudfront: bool) -> Vec<u8> {
    match is_cloudfront {
        true => percent_encoding::percent_decode(text).collect(),
        false => text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect(),
    }
}
