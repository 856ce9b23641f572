//! Names: a type has one meaning, a bound is `MAX_*` or `MIN_*`, and a signature names each parameter.

use std::collections::BTreeMap;

use super::source::{Source, Token};
use super::{assert_none, program_sources};

/// Prefixes of constants that are bounds under another name.
const OTHER_BOUNDS: [&str; 7] = ["MOST", "LEAST", "LARGEST", "LONGEST", "SHORTEST", "FEWEST", "DEEPEST"];

/// Returns the types that `source` defines. Associated types of a trait have the trait's names.
fn types(source: &Source) -> Vec<&str> {
    let tokens = source.tokens();
    let mut found = Vec::new();
    let mut depth = 0_usize;
    for pair in tokens.windows(2) {
        match pair[0].text {
            "{" => depth += 1,
            "}" => depth -= 1,
            "struct" | "enum" | "trait" | "union" | "type"
                if depth == 0 && pair[1].text.starts_with(char::is_uppercase) =>
            {
                found.push(pair[1].text);
            }
            _ => {}
        }
    }
    found
}

/// Returns the names of constants and statics that `source` defines.
fn constants(source: &Source) -> Vec<&str> {
    let tokens = source.tokens();
    let is_definition = |pair: &&[Token<'_>]| {
        ["const", "static"].contains(&pair[0].text)
            && pair[1].text.len() > 1
            && pair[1].text.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_')
    };
    tokens.windows(2).filter(is_definition).map(|pair| pair[1].text).collect()
}

/// Returns the functions of `source` with a tuple in place of parameters: `(a, b): (A, B)`.
fn functions_with_tuple_parameters(source: &Source) -> Vec<&str> {
    let tokens = source.tokens();
    let starts = (0..tokens.len()).filter(|&index| tokens[index].text == "fn");
    let has_tuple = |start: &usize| {
        let open = (*start..tokens.len()).find(|&index| tokens[index].text == "(").unwrap_or(*start);
        let mut depth = 0_usize;
        for index in open..tokens.len() {
            match tokens[index].text {
                // A parameter begins behind `(` or `,` of the signature itself.
                "(" if depth == 1 && ["(", ","].contains(&tokens[index - 1].text) => return true,
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" if depth == 1 => return false,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
        }
        false
    };
    starts.filter(has_tuple).filter_map(|start| tokens.get(start + 1)).map(|name| name.text).collect()
}

#[test]
fn no_two_types_share_a_name() {
    let mut definitions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in program_sources() {
        // A type of the YAML has the name of the type that is compiled from it.
        if source.path.starts_with("crates/config/src/raw") {
            continue;
        }
        for name in types(&source) {
            definitions.entry(name.to_owned()).or_default().push(source.path.clone());
        }
    }
    assert!(definitions.len() > 500, "only {} types found", definitions.len());
    let shared = definitions.into_iter().filter(|(_, paths)| paths.len() > 1);
    let shared: Vec<_> = shared.map(|(name, paths)| format!("{name}: {}", paths.join(", "))).collect();
    assert_none("a name with two meanings", &shared);
}

#[test]
fn bounds_are_named_max_or_min() {
    let sources = program_sources();
    let is_other = |name: &&str| name.split('_').next().is_some_and(|prefix| OTHER_BOUNDS.contains(&prefix));
    let others = sources.iter().flat_map(|source| {
        constants(source).into_iter().filter(is_other).map(|name| format!("{}: {name}", source.path))
    });
    assert_none("a bound that is neither MAX_* nor MIN_*", &others.collect::<Vec<_>>());
}

#[test]
fn no_parameters_are_hidden_in_tuples() {
    let sources = program_sources();
    let found = sources.iter().flat_map(|source| {
        let names = functions_with_tuple_parameters(source);
        names.into_iter().map(|name| format!("{}: {name}", source.path))
    });
    assert_none("a tuple in place of parameters", &found.collect::<Vec<_>>());
}

mod parser_tests {
    use super::*;

    #[test]
    fn types_and_constants_are_found() {
        let text = "pub struct A; enum B { C } impl D for A { type E = u8; const F: u8 = 1; }\n\
                    type G = A; pub(crate) static HI_J: u8 = 1; const fn k() {}";
        let source = Source::new("src/x.rs", text);
        assert_eq!(types(&source), ["A", "B", "G"]);
        assert_eq!(constants(&source), ["HI_J"]);
    }

    #[test]
    fn tuples_are_found_among_parameters_only() {
        let text = "fn a((x, y): (u8, u8)) {} fn b(x: (u8, u8)) -> (u8, u8) { c((x, x)) }\n\
                    fn d<T>(x: T, (y, z): &(u8, u8)) {} fn e(x: impl Fn((u8, u8)), A { y, .. }: A) {}";
        assert_eq!(functions_with_tuple_parameters(&Source::new("src/x.rs", text)), ["a", "d"]);
    }
}
