//! Members of plans: a YAML map from the identifying value, usually an API key, to a plan.
//!
//! Parsed event by event, so that a million members need no tree. Keys and plans are taken literally: `0123`
//! and `true` are ordinary keys. Messages never quote a key, because keys are secrets.

use super::{Flaw, Kind, first_of, text};
use crate::config::parse;
use crate::config::problem::Fault;
use crate::rules::membership::{Members, MembersBuilder};
use crate::yaml::{Event, Events, Position, ScalarStyle};

/// Maximum size in bytes, for about two million keys of 32 characters.
const LARGEST: u64 = 64 << 20;

/// A file of members and their plans.
pub(in crate::config) const MEMBERS: Kind<Members> =
    Kind { name: "members of plans", largest: LARGEST, parse };

/// State of the parser.
#[derive(Debug)]
struct Reading {
    expected: Expected,
    builder: MembersBuilder,
    /// Position of each member, in file order.
    places: Vec<(u32, u32)>,
    flaws: Vec<Flaw>,
}

#[derive(Debug)]
enum Expected {
    /// The map.
    Map,
    /// A key, or the end of the map.
    Key,
    /// The plan of this key, with the position of the key.
    Plan(String, (u32, u32)),
    /// Nothing more.
    End,
}

/// Draws a random secret, under which members are hashed.
pub(in crate::config) fn secret() -> Result<[u64; 2], Fault> {
    let word =
        || getrandom::u64().map_err(|error| Fault::new(format!("cannot generate a random secret: {error}")));
    Ok([word()?, word()?])
}

fn parse(content: Vec<u8>) -> Result<Members, Vec<Flaw>> {
    let text = text(content)?;
    let secret = secret().map_err(|fault| vec![Flaw::whole(fault)])?;
    let mut reading = Reading {
        expected: Expected::Map,
        builder: MembersBuilder::new(secret),
        places: Vec::new(),
        flaws: Vec::new(),
    };
    for next in Events::of(&text) {
        let went_on = match next {
            Ok((event, at)) => reading.step(event, place(at)),
            Err(error) => Err(flaw(place(error.at), format!("not valid YAML: {}", error.problem))),
        };
        if let Err(end) = went_on {
            reading.flaws.push(end);
            break;
        }
    }
    reading.close()
}

/// Converts to small numbers, because one position is stored for each member.
fn place(at: Position) -> (u32, u32) {
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    (number(at.line), number(at.column))
}

fn flaw((line, column): (u32, u32), fault: impl Into<Fault>) -> Flaw {
    Flaw::at(line as usize, column as usize, fault)
}

impl Reading {
    /// Processes the next event, at `at`; returns an error after which parsing on would produce wrong
    /// messages.
    fn step(&mut self, event: Event<'_>, at: (u32, u32)) -> Result<(), Flaw> {
        let wrong = |what: &str| Err(flaw(at, what));
        self.expected = match (std::mem::replace(&mut self.expected, Expected::End), event) {
            (before, Event::StreamStart | Event::StreamEnd | Event::DocumentEnd) => before,
            (Expected::Map, Event::DocumentStart(..)) => Expected::Map,
            (_, Event::DocumentStart(..)) => return wrong("a second YAML document, expected one"),
            (Expected::Map, Event::MappingStart(..)) => Expected::Key,
            (Expected::Map, _) => return wrong("expected a map from keys to plans"),
            (Expected::Key, Event::MappingEnd) => Expected::End,
            (Expected::Key, Event::Scalar(key, ..)) => Expected::Plan(key.into_owned(), at),
            (Expected::Key, _) => return wrong("a key must be text"),
            (Expected::Plan(key, at), Event::Scalar(plan, style, ..)) => {
                let is_missing = style == ScalarStyle::Plain && matches!(&*plan, "" | "~" | "null");
                let added = if is_missing { Err("missing plan".into()) } else { self.add(&key, &plan) };
                if let Err(fault) = added {
                    self.flaws.push(flaw(at, fault));
                }
                Expected::Key
            }
            (Expected::Plan(_, at), _) => return Err(flaw(at, "expected a plan name")),
            (Expected::End, _) => Expected::End,
        };
        if let Expected::Plan(_, at) = &self.expected {
            self.places.push(*at);
        }
        Ok(())
    }

    fn add(&mut self, key: &str, plan: &str) -> Result<(), Fault> {
        let plan = parse::plan(plan)?;
        self.builder.add(key, &plan).map_err(|error| error.to_string().into())
    }

    fn close(mut self) -> Result<Members, Vec<Flaw>> {
        if matches!(self.expected, Expected::Map) && self.flaws.is_empty() {
            return Err(vec![Flaw::whole(Fault::new("no members in this file").hint("write `{}` for none"))]);
        }
        if !self.flaws.is_empty() {
            return Err(first_of(self.flaws));
        }
        let places = std::mem::take(&mut self.places);
        self.builder.close().map_err(|all| {
            first_of(all.into_iter().map(|twice| {
                let (line, _) = places[twice.first];
                flaw(places[twice.again], Fault::new("duplicate key").hint(format!("first in line {line}")))
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(String, usize)>, Vec<String>> {
        let told = |flaw: Flaw| {
            let (line, column) = flaw.place.unwrap_or_default();
            let hint = flaw.fault.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("{line}:{column}: {}{hint}", flaw.fault.message)
        };
        match parse(text.as_bytes().to_vec()) {
            Ok(members) => Ok(members.counts().map(|(plan, count)| (plan.to_owned(), count)).collect()),
            Err(flaws) => Err(flaws.into_iter().map(told).collect()),
        }
    }

    #[track_caller]
    fn assert_counts(text: &str, expected: &[(&str, usize)]) {
        let expected = expected.iter().map(|(plan, count)| ((*plan).to_owned(), *count)).collect();
        assert_eq!(read(text), Ok(expected), "{text}");
    }

    #[test]
    fn a_map_of_yaml_or_json_is_read() {
        assert_counts(
            "\u{feff}# ours\na: pro\n'b b': \"gold\"\r\nc: pro # late\n",
            &[("pro", 2), ("gold", 1)],
        );
        assert_counts("{\"a\": \"pro\", \"b\": \"pro\"}", &[("pro", 2)]);
        assert_counts("---\na: pro\n...\n", &[("pro", 1)]);
        assert_counts("{}", &[]);
    }

    #[test]
    fn keys_are_what_is_written() {
        assert_counts("0123: a\n123: a\ntrue: a\n1e3: a\n1000: a\nnull: a\n~: a\n", &[("a", 7)]);
    }

    #[test]
    fn a_key_that_comes_again_is_told_with_both_lines_and_not_by_name() {
        let flaws = read("sk_one: pro\nsk_two: pro\n\n  \nsk_one: free\n'sk_two': pro\n").unwrap_err();
        assert_eq!(flaws, ["5:1: duplicate key (first in line 1)", "6:1: duplicate key (first in line 2)"]);
    }

    #[test]
    fn every_bad_plan_has_its_line() {
        let flaws = read("a: two words\nb:\nc: pro\nd: ''\n").unwrap_err();
        assert!(flaws[0].starts_with("1:1: invalid plan name"), "{flaws:?}");
        assert_eq!(flaws[1..], ["2:1: missing plan", "4:1: empty plan name"]);
        assert_eq!(read(&(0..100).map(|n| format!("{n}:\n")).collect::<String>()).unwrap_err().len(), 20);
    }

    #[test]
    fn what_is_no_map_of_texts_is_refused() {
        for (text, said) in [
            ("", "0:0: no members in this file (write `{}` for none)"),
            ("# none\n", "0:0: no members in this file (write `{}` for none)"),
            ("- a\n", "1:1: expected a map from keys to plans"),
            ("a: pro\n---\nb: pro\n", "2:1: a second YAML document, expected one"),
            ("a: [pro]\n", "1:1: expected a plan name"),
            ("? [a]\n: pro\n", "1:3: a key must be text"),
        ] {
            assert_eq!(read(text), Err(vec![said.to_owned()]), "{text}");
        }
        assert!(read("a: pro\nb: 'x\n").unwrap_err()[0].contains("not valid YAML"));
    }
}
