//! Query parameters whose values the access log does not show, because `log_keys` hides the keys of which they are a
//! part.

use std::borrow::Cow;

use weir_policy::identify::lookup;

/// Text in place of a value that is not shown.
const HIDDEN: &str = "-";

/// Returns the path with its query, without the values of parameters with these names. Names are compared decoded, as
/// the rules do.
pub(super) fn hide<'p>(path: &'p str, names: &[Box<str>]) -> Cow<'p, str> {
    if names.is_empty() {
        return Cow::Borrowed(path);
    }
    let Some((plain, query)) = path.split_once('?') else { return Cow::Borrowed(path) };
    let mut shown = String::with_capacity(path.len());
    shown.push_str(plain);
    for (index, pair) in query.split('&').enumerate() {
        shown.push(if index == 0 { '?' } else { '&' });
        let name = pair.split('=').next().unwrap_or_default();
        let is_hidden =
            name.len() < pair.len() && names.iter().any(|hidden| lookup::is_parameter(name, hidden));
        if is_hidden {
            shown.push_str(name);
            shown.push('=');
        }
        shown.push_str(if is_hidden { HIDDEN } else { pair });
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hidden(path: &str) -> String {
        hide(path, &["api_key".into(), "a b".into()]).into_owned()
    }

    #[test]
    fn values_of_hidden_parameters_are_a_dash() {
        for (path, expected) in [
            ("/x?api_key=s3cret", "/x?api_key=-"),
            ("/x?q=1&api_key=s3cret=&z", "/x?q=1&api_key=-&z"),
            ("/x?api%5Fkey=s3cret&api_key=two", "/x?api%5Fkey=-&api_key=-"),
            ("/x?a+b=1&a%20b=2", "/x?a+b=-&a%20b=-"),
            ("/x?api_key&api_keys=1&API_KEY=2", "/x?api_key&api_keys=1&API_KEY=2"),
            ("/x?q=?api_key=1&api_key=", "/x?q=?api_key=1&api_key=-"),
            ("/api_key=1", "/api_key=1"),
        ] {
            assert_eq!(hidden(path), expected, "{path}");
        }
        assert_eq!(hide("/x?api_key=s3cret", &[]), "/x?api_key=s3cret");
    }

    proptest! {
        /// Whatever a rule takes as the value of the parameter is not in the line.
        #[test]
        fn no_rule_finds_the_value_in_what_is_logged(query in "[a-c=&?%+_5F]{0,24}") {
            let logged = hide(&format!("/?{query}"), &["a".into(), "_".into()]).into_owned();
            let (_, logged) = logged.split_once('?').unwrap();
            for name in ["a", "_"] {
                if let Ok(Some(value)) = lookup::parameter(logged, name) {
                    prop_assert!(matches!(&*value, b"-" | b""), "{query}: {logged}");
                }
            }
        }
    }
}
