//! Bodies written from the fields that a log has of them, for the readers of real bodies.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use weir_bodies::path::{Path, Step};

/// The members of a JSON document: their paths, and their JSON.
#[derive(Debug, Default)]
pub(super) struct DocumentWriter<'f> {
    members: Vec<Member<'f>>,
}

type Member<'f> = (&'f [Step], &'f str);

impl<'f> DocumentWriter<'f> {
    pub(super) const fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Adds a member, unless there is one at this path.
    pub(super) fn add(&mut self, path: &'f Path, json: &'f str) {
        if !self.members.iter().any(|(known, _)| *known == path.steps()) {
            self.members.push((path.steps(), json));
        }
    }

    /// Returns the document.
    pub(super) fn write(&self) -> Vec<u8> {
        let mut document = Vec::new();
        match self.members.is_empty() {
            true => document.extend_from_slice(b"{}"),
            false => write_value(&self.members, &mut document),
        }
        document
    }
}

/// Writes the value that has these members. If paths contradict each other, the first one counts.
fn write_value(members: &[Member<'_>], document: &mut Vec<u8>) {
    match members.first() {
        Some((path, json)) => match path.first() {
            None => document.extend_from_slice(json.as_bytes()),
            Some(Step::Key(_)) => write_object(members, document),
            Some(Step::Index(_)) => write_array(members, document),
        },
        None => document.extend_from_slice(b"null"),
    }
}

fn write_object(members: &[Member<'_>], document: &mut Vec<u8>) {
    let mut written: Vec<&Step> = Vec::new();
    for step in members.iter().filter_map(|(path, _)| path.first()) {
        let Step::Key(key) = step else { continue };
        if written.contains(&step) {
            continue;
        }
        document.push(if written.is_empty() { b'{' } else { b',' });
        written.push(step);
        document.extend_from_slice(serde_json::Value::from(&**key).to_string().as_bytes());
        document.push(b':');
        write_value(&members_below(members, step), document);
    }
    document.push(b'}');
}

fn write_array(members: &[Member<'_>], document: &mut Vec<u8>) {
    let indices = members.iter().filter_map(|(path, _)| match path.first() {
        Some(Step::Index(index)) => Some(*index),
        Some(Step::Key(_)) | None => None,
    });
    for index in 0..=indices.max().unwrap_or(0) {
        document.push(if index == 0 { b'[' } else { b',' });
        write_value(&members_below(members, &Step::Index(index)), document);
    }
    document.push(b']');
}

/// Returns the members of the value behind `step`.
fn members_below<'f>(members: &[Member<'f>], step: &Step) -> Vec<Member<'f>> {
    let below = members.iter().filter_map(|(path, json)| match path.split_first() {
        Some((first, rest)) if first == step => Some((rest, *json)),
        _ => None,
    });
    below.collect()
}

/// The pairs of a form.
#[derive(Debug, Default)]
pub(super) struct FormWriter<'f> {
    pairs: Vec<(&'f str, String)>,
}

impl<'f> FormWriter<'f> {
    pub(super) const fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Adds a pair, unless there is one with this name. Of JSON that is no string, the value is its text.
    pub(super) fn add(&mut self, name: &'f str, json: &str) {
        if !self.pairs.iter().any(|(known, _)| *known == name) {
            let value = serde_json::from_str::<String>(json);
            self.pairs.push((name, value.unwrap_or_else(|_| json.to_owned())));
        }
    }

    /// Returns the form.
    pub(super) fn write(&self) -> String {
        let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
        let pairs = self.pairs.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
        pairs.collect::<Vec<_>>().join("&")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(members: &[(&str, &str)]) -> String {
        let members: Vec<(Path, &str)> =
            members.iter().map(|(path, json)| (path.parse().unwrap(), *json)).collect();
        let mut document = DocumentWriter::default();
        members.iter().for_each(|(path, json)| document.add(path, json));
        String::from_utf8(document.write()).unwrap()
    }

    #[test]
    fn members_are_where_their_paths_lead() {
        for (members, expected) in [
            (&[][..], "{}"),
            (&[("model", "\"m\""), ("max_tokens", "10")], r#"{"model":"m","max_tokens":10}"#),
            (&[("usage.in", "1"), ("id", "2"), ("usage.out", "3")], r#"{"usage":{"in":1,"out":3},"id":2}"#),
            (&[("a[2].b", "true"), ("a[0]", "0")], r#"{"a":[0,null,{"b":true}]}"#),
            (&[("a[\"b.\\c\"]", "1")], r#"{"a":{"b.\\c":1}}"#),
            (&[("a", "1"), ("a", "2")], r#"{"a":1}"#),
            (&[("a", "1"), ("a.b", "2")], r#"{"a":1}"#),
            (&[("a.b", "1"), ("a[0]", "2")], r#"{"a":{"b":1}}"#),
            (&[("a[0]", "1"), ("a.b", "2")], r#"{"a":[1]}"#),
        ] {
            assert_eq!(document(members), expected);
        }
    }

    #[test]
    fn values_of_forms_are_encoded() {
        let mut form = FormWriter::default();
        form.add("user", "\"a b\\u00e4&=\"");
        form.add("user", "\"other\"");
        form.add("n", "12");
        assert_eq!(form.write(), "user=a%20b%C3%A4%26%3D&n=12");
    }
}
