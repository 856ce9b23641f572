//! What the numbers of a rule's limits count: requests, or what its cost measures.

use super::cost::Cost;
use super::rule::LimitAction;
use weir_bodies::fields::FieldName;
use weir_bodies::path::Step;

/// A unit of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostUnit {
    Requests,
    /// Tokens of a language model.
    Tokens,
    Bytes,
    /// What only the operator knows.
    Units,
}

impl CostUnit {
    /// Returns the unit of a rule's rates. Numbers in flight are requests under any rule.
    ///
    /// Numbers in headers and fields are tokens if each of their names says so, as those of all known formats do.
    pub fn of(limiting: &LimitAction) -> Self {
        let are_tokens = match &limiting.cost_model.cost {
            // A counter that other rules charge, too, may count what they cost.
            Cost::Fixed(1) if limiting.counter.is_none() => return Self::Requests,
            Cost::RequestBytes(size) | Cost::ResponseBytes(size) if size.bytes_per_unit.get() == 1 => {
                return Self::Bytes;
            }
            Cost::Fixed(_) | Cost::RequestBytes(_) | Cost::ResponseBytes(_) => false,
            Cost::Header(told) | Cost::ResponseHeader(told) => names_tokens(told.name.as_str()),
            Cost::RequestField(stated) => is_of_tokens(&stated.field.field),
            Cost::ResponseFields(stated) => {
                stated.terms.iter().flat_map(|term| &term.fields).all(|field| is_of_tokens(&field.field))
            }
        };
        if are_tokens { Self::Tokens } else { Self::Units }
    }

    /// Returns the name, in the plural.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Bytes => "bytes",
            Self::Units => "units",
        }
    }
}

/// Returns a rate such as `100/s` with its unit, such as `100 tokens/s`. Requests need none.
pub fn with_unit(rate: &str, unit: &str) -> String {
    match rate.split_once('/') {
        Some((count, period)) => format!("{count}{}/{period}", spaced(unit)),
        None => rate.to_owned(),
    }
}

/// Returns a unit with a space before it, as it follows a number. Requests need none.
pub fn spaced(unit: &str) -> String {
    match unit {
        "" | "requests" => String::new(),
        unit => format!(" {unit}"),
    }
}

fn is_of_tokens(field: &FieldName) -> bool {
    match field {
        FieldName::Json(path) | FieldName::JsonObject(path) => match path.steps().last() {
            Some(Step::Key(key)) => names_tokens(key),
            Some(Step::Index(_)) | None => false,
        },
        FieldName::Form(name) => names_tokens(name),
        FieldName::Graphql(_) | FieldName::JsonCount(_) => false,
    }
}

fn names_tokens(name: &str) -> bool {
    name.to_ascii_lowercase().contains("token")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_their_unit_before_the_period() {
        for (rate, unit, expected) in [
            ("100/s", "requests", "100/s"),
            ("100/s", "", "100/s"),
            ("100000/min", "tokens", "100000 tokens/min"),
            ("10/30s", "units", "10 units/30s"),
            ("12", "tokens", "12"),
        ] {
            assert_eq!(with_unit(rate, unit), expected);
        }
    }

    #[test]
    fn names_of_token_counts_are_recognised() {
        let field = |path: &str| FieldName::Json(std::sync::Arc::new(path.parse().unwrap()));
        for path in ["usage.total_tokens", "usageMetadata.totalTokenCount", "usage.totalTokens", "max_tokens"]
        {
            assert!(is_of_tokens(&field(path)), "{path}");
        }
        for path in ["usage.credits", "tokens.total", "tokens[0]"] {
            assert!(!is_of_tokens(&field(path)), "{path}");
        }
    }
}
