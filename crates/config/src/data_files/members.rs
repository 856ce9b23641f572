//! Members of plans: a YAML map from the identifying value, usually an API key, to a plan, or to a map with `plan` and
//! `limit`.
//!
//! Parsed event by event, so that a million members need no tree. Keys and plans are taken literally: `0123`
//! and `true` are ordinary keys. Messages never quote a key, because keys are secrets.

use super::{DataFileError, DataFileKind, decode_utf8, truncate_errors};
use crate::diagnostic::ValueError;
use crate::parse;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::quota::{Limit, Quota};
use weir_policy::rules::membership::{Members, MembersBuilder};
use weir_yaml::{Event, Events, Position, ScalarStyle};

/// Maximum size in bytes, for about two million keys of 32 characters.
const MAX_SIZE: u64 = 64 << 20;

/// A file of members and their plans.
pub(crate) const MEMBERS: DataFileKind<Members> =
    DataFileKind { name: "members of plans", max_size: MAX_SIZE, parse };

/// State of the parser.
#[derive(Debug)]
struct MembersParser {
    expected: ExpectedEvent,
    builder: MembersBuilder,
    /// Position of each member, in file order.
    positions: Vec<CompactPosition>,
    errors: Vec<DataFileError>,
}

#[derive(Debug)]
enum ExpectedEvent {
    Map,
    /// A key, or the end of the map.
    Key,
    /// The plan of this key, with the position of the key.
    Plan(String, CompactPosition),
    /// A setting of this member, or the end of its map.
    Setting(MemberSettings),
    /// The value of a setting of this member.
    Value(MemberSettings, MemberKey),
    /// Nothing more.
    End,
}

/// A member with a map, as far as it has been read.
#[derive(Debug)]
struct MemberSettings {
    key: String,
    at: CompactPosition,
    plan: Option<String>,
    limit: Option<String>,
}

/// A key in the map of a member.
#[derive(Clone, Copy, Debug)]
enum MemberKey {
    Plan,
    Limit,
}

/// Parses the limit of a member.
pub(crate) fn member_limit(text: &str) -> Result<Limit, ValueError> {
    let limit = parse::rate(text)?;
    // Valid for the algorithms that can have any period.
    Quota::new(Algorithm::Gcra, limit, None).map_err(|error| ValueError::new(error.to_string()))?;
    Ok(limit)
}

/// Draws a random secret, under which members are hashed.
pub(crate) fn random_secret() -> Result<[u64; 2], ValueError> {
    let word = || {
        getrandom::u64().map_err(|error| ValueError::new(format!("cannot generate a random secret: {error}")))
    };
    Ok([word()?, word()?])
}

fn parse(content: Vec<u8>) -> Result<Members, Vec<DataFileError>> {
    let text = decode_utf8(content)?;
    let secret = random_secret().map_err(|error| vec![DataFileError::for_file(error)])?;
    let mut parser = MembersParser {
        expected: ExpectedEvent::Map,
        builder: MembersBuilder::new(secret),
        positions: Vec::new(),
        errors: Vec::new(),
    };
    for next in Events::new(&text) {
        let result = match next {
            Ok((event, at)) => parser.handle_event(event, compact_position(at)),
            Err(error) => {
                Err(error_at(compact_position(error.position), format!("not valid YAML: {}", error.kind)))
            }
        };
        if let Err(end) = result {
            parser.errors.push(end);
            break;
        }
    }
    parser.finish()
}

/// A position in small numbers, because one is stored for each member.
#[derive(Clone, Copy, Debug)]
struct CompactPosition {
    line: u32,
    column: u32,
}

fn compact_position(at: Position) -> CompactPosition {
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    CompactPosition { line: number(at.line), column: number(at.column) }
}

fn error_at(at: CompactPosition, error: impl Into<ValueError>) -> DataFileError {
    DataFileError::at_position(at.line as usize, at.column as usize, error)
}

impl MembersParser {
    /// Processes the next event, at `at`; returns an error after which parsing on would produce wrong
    /// messages.
    fn handle_event(&mut self, event: Event<'_>, at: CompactPosition) -> Result<(), DataFileError> {
        let reject = |what: &str| Err(error_at(at, what));
        self.expected = match (std::mem::replace(&mut self.expected, ExpectedEvent::End), event) {
            (before, Event::StreamStart | Event::StreamEnd | Event::DocumentEnd) => before,
            (ExpectedEvent::Map, Event::DocumentStart(..)) => ExpectedEvent::Map,
            (_, Event::DocumentStart(..)) => return reject("a second YAML document, expected one"),
            (ExpectedEvent::Map, Event::MappingStart(..)) => ExpectedEvent::Key,
            (ExpectedEvent::Map, _) => return reject("expected a map from keys to plans"),
            (ExpectedEvent::Key, Event::MappingEnd) => ExpectedEvent::End,
            (ExpectedEvent::Key, Event::Scalar(key, ..)) => ExpectedEvent::Plan(key.into_owned(), at),
            (ExpectedEvent::Key, _) => return reject("a key must be text"),
            (ExpectedEvent::Plan(key, at), Event::Scalar(plan, style, ..)) => {
                let is_missing = style == ScalarStyle::Plain && matches!(&*plan, "" | "~" | "null");
                let added =
                    if is_missing { Err("missing plan".into()) } else { self.add_member(&key, &plan, None) };
                if let Err(error) = added {
                    self.errors.push(error_at(at, error));
                }
                ExpectedEvent::Key
            }
            (ExpectedEvent::Plan(key, at), Event::MappingStart(..)) => {
                ExpectedEvent::Setting(MemberSettings { key, at, plan: None, limit: None })
            }
            (ExpectedEvent::Plan(_, at), _) => return Err(error_at(at, "expected a plan name")),
            (ExpectedEvent::Setting(member), event) => self.handle_setting(member, event, at)?,
            (ExpectedEvent::Value(member, key), event) => take_value(member, key, event, at)?,
            (ExpectedEvent::End, _) => ExpectedEvent::End,
        };
        if let ExpectedEvent::Plan(_, at) = &self.expected {
            self.positions.push(*at);
        }
        Ok(())
    }

    /// Processes a key in the map of a member, or its end.
    fn handle_setting(
        &mut self,
        member: MemberSettings,
        event: Event<'_>,
        at: CompactPosition,
    ) -> Result<ExpectedEvent, DataFileError> {
        match event {
            Event::MappingEnd => {
                self.end_member(&member);
                Ok(ExpectedEvent::Key)
            }
            Event::Scalar(name, ..) if name == "plan" => Ok(ExpectedEvent::Value(member, MemberKey::Plan)),
            Event::Scalar(name, ..) if name == "limit" => Ok(ExpectedEvent::Value(member, MemberKey::Limit)),
            _ => Err(error_at(at, "unknown key of a member, expected `plan` or `limit`")),
        }
    }

    fn end_member(&mut self, member: &MemberSettings) {
        let added = match (&member.plan, member.limit.as_deref().map(member_limit).transpose()) {
            (_, Err(error)) => Err(error),
            (None, Ok(_)) => Err("missing plan".into()),
            (Some(plan), Ok(limit)) => self.add_member(&member.key, plan, limit),
        };
        if let Err(error) = added {
            self.errors.push(error_at(member.at, error));
        }
    }

    fn add_member(&mut self, key: &str, plan: &str, limit: Option<Limit>) -> Result<(), ValueError> {
        let plan = parse::plan_name(plan)?;
        self.builder.add(key, &plan, limit).map_err(|error| error.to_string().into())
    }

    fn finish(mut self) -> Result<Members, Vec<DataFileError>> {
        if matches!(self.expected, ExpectedEvent::Map) && self.errors.is_empty() {
            return Err(vec![DataFileError::for_file(
                ValueError::new("no members in this file").with_hint("write `{}` for none"),
            )]);
        }
        if !self.errors.is_empty() {
            return Err(truncate_errors(self.errors));
        }
        let places = std::mem::take(&mut self.positions);
        self.builder.close().map_err(|all| {
            truncate_errors(all.into_iter().map(|duplicate| {
                let line = places[duplicate.first].line;
                error_at(
                    places[duplicate.again],
                    ValueError::new("duplicate key").with_hint(format!("first in line {line}")),
                )
            }))
        })
    }
}

/// Processes the value of a setting.
fn take_value(
    mut member: MemberSettings,
    key: MemberKey,
    event: Event<'_>,
    at: CompactPosition,
) -> Result<ExpectedEvent, DataFileError> {
    let Event::Scalar(value, ..) = event else { return Err(error_at(at, "expected text")) };
    let place = match key {
        MemberKey::Plan => &mut member.plan,
        MemberKey::Limit => &mut member.limit,
    };
    match place.replace(value.into_owned()) {
        Some(_) => Err(error_at(at, "a setting of a member occurs twice")),
        None => Ok(ExpectedEvent::Setting(member)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(String, usize)>, Vec<String>> {
        let formatted = |flaw: DataFileError| {
            let (line, column) = flaw.position.unwrap_or_default();
            let hint = flaw.error.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("{line}:{column}: {}{hint}", flaw.error.message)
        };
        match parse(text.as_bytes().to_vec()) {
            Ok(members) => Ok(members.counts().map(|(plan, count)| (plan.to_owned(), count)).collect()),
            Err(flaws) => Err(flaws.into_iter().map(formatted).collect()),
        }
    }

    #[track_caller]
    fn assert_counts(text: &str, expected: &[(&str, usize)]) {
        let expected = expected.iter().map(|(plan, count)| ((*plan).to_owned(), *count)).collect();
        assert_eq!(read(text), Ok(expected), "{text}");
    }

    #[test]
    fn members_are_read_from_yaml_or_json() {
        assert_counts(
            "\u{feff}# ours\na: pro\n'b b': \"gold\"\r\nc: pro # late\n",
            &[("pro", 2), ("gold", 1)],
        );
        assert_counts("{\"a\": \"pro\", \"b\": \"pro\"}", &[("pro", 2)]);
        assert_counts("---\na: pro\n...\n", &[("pro", 1)]);
        assert_counts("{}", &[]);
    }

    #[test]
    fn members_may_have_limits() {
        assert_counts(
            "a: { plan: pro, limit: 500/min }\nb:\n  limit: 5 per second\n  plan: pro\nc: gold\n",
            &[("pro", 2), ("gold", 1)],
        );
        let flaws = read("a: { plan: pro, limit: fast }\nb: { plan: pro, limit: 2000000/ms }\n").unwrap_err();
        assert!(flaws[0].starts_with("1:1: expected a rate"), "{flaws:?}");
        assert!(flaws[1].starts_with("2:1: more than 1000000000 a second"), "{flaws:?}");
    }

    #[test]
    fn member_keys_are_taken_literally() {
        assert_counts("0123: a\n123: a\ntrue: a\n1e3: a\n1000: a\nnull: a\n~: a\n", &[("a", 7)]);
    }

    #[test]
    fn duplicate_member_is_reported_by_lines_not_by_key() {
        let flaws = read("sk_one: pro\nsk_two: pro\n\n  \nsk_one: free\n'sk_two': pro\n").unwrap_err();
        assert_eq!(flaws, ["5:1: duplicate key (first in line 1)", "6:1: duplicate key (first in line 2)"]);
    }

    #[test]
    fn invalid_plans_are_reported_with_lines() {
        let flaws = read("a: two words\nb:\nc: pro\nd: ''\n").unwrap_err();
        assert!(flaws[0].starts_with("1:1: invalid plan name"), "{flaws:?}");
        assert_eq!(flaws[1..], ["2:1: missing plan", "4:1: empty plan name"]);
        assert_eq!(read(&(0..100).map(|n| format!("{n}:\n")).collect::<String>()).unwrap_err().len(), 20);
    }

    #[test]
    fn members_file_must_be_a_map_of_text() {
        for (text, said) in [
            ("", "0:0: no members in this file (write `{}` for none)"),
            ("# none\n", "0:0: no members in this file (write `{}` for none)"),
            ("- a\n", "1:1: expected a map from keys to plans"),
            ("a: pro\n---\nb: pro\n", "2:1: a second YAML document, expected one"),
            ("a: [pro]\n", "1:1: expected a plan name"),
            ("? [a]\n: pro\n", "1:3: a key must be text"),
            ("a: { plan: pro, rate: 5/s }\n", "1:17: unknown key of a member, expected `plan` or `limit`"),
            ("a: { plan: pro, plan: pro }\n", "1:23: a setting of a member occurs twice"),
            ("a: { plan: [pro] }\n", "1:12: expected text"),
            ("a: { limit: 5/s }\n", "1:1: missing plan"),
        ] {
            assert_eq!(read(text), Err(vec![said.to_owned()]), "{text}");
        }
        assert!(read("a: pro\nb: 'x\n").unwrap_err()[0].contains("not valid YAML"));
    }
}
