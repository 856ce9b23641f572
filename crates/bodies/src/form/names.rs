//! Names of fields in forms, and the other spellings that some decoders take for them.
//!
//! No decoder does all of it: PHP trims leading spaces, ends a name at a NUL and turns `.`, a space and an open `[` into `_`; Rack and `qs`
//! take `[name]` and `name[]` for `name`; ASP.NET ignores case and decodes `%u006e`.

use std::sync::Arc;

use crate::fields::{FieldIndex, FieldMask, folded};

/// The fields of forms in a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FormNames(Vec<FormName>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FormName {
    name: Arc<str>,
    /// The name as all spellings of it compare.
    common: Box<str>,
    field: FieldIndex,
}

/// How a name in a form relates to the fields that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FormMatch {
    /// It leads to no field.
    None,
    Field(FieldIndex),
    /// Some decoders take it for the name of a field.
    Similar,
}

impl FormNames {
    pub(crate) fn insert(&mut self, name: &Arc<str>, field: FieldIndex) {
        let common = name.trim_matches(is_ignored_around).chars().flat_map(common).collect::<String>().into();
        self.0.push(FormName { name: Arc::clone(name), common, field });
    }

    /// Compares a decoded name with those of the fields `wanted`.
    pub(crate) fn find(&self, wanted: FieldMask, name: &str) -> FormMatch {
        let wanted = || self.0.iter().filter(|known| wanted.contains(known.field));
        if let Some(known) = wanted().find(|known| *known.name == *name) {
            return FormMatch::Field(known.field);
        }
        if wanted().any(|known| is_spelling_of(&known.common, name)) {
            FormMatch::Similar
        } else {
            FormMatch::None
        }
    }
}

/// Whether some decoder takes `name` for the one whose letters are `common`. The time is linear, however many brackets a name has.
fn is_spelling_of(common_name: &str, name: &str) -> bool {
    let name = name.trim_start_matches(is_ignored_around);
    let mut expected = common_name.chars();
    for (position, letter) in name.char_indices() {
        if expected.as_str().is_empty() {
            return ends_name(letter) || name[position..].trim_end_matches(is_ignored_around).is_empty();
        }
        if !common(letter).all(|letter| expected.next() == Some(letter)) {
            return false;
        }
    }
    expected.as_str().is_empty()
}

/// Returns the letters that are left of the differences between decoders.
fn common(letter: char) -> impl Iterator<Item = char> {
    folded(match letter {
        '.' | ' ' | '[' | ']' => '_',
        other => other,
    })
}

/// Whether a name may end before this letter.
const fn ends_name(letter: char) -> bool {
    matches!(letter, '[' | ']' | '\0' | ';')
}

fn is_ignored_around(letter: char) -> bool {
    letter.is_whitespace() || letter.is_control() || matches!(letter, '[' | ']' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(known: &str, name: &str) -> FormMatch {
        let mut names = FormNames::default();
        names.insert(&known.into(), 3);
        names.find(FieldMask::ALL, name)
    }

    #[test]
    fn spellings_of_some_decoders_are_similar() {
        for (known, spellings) in [
            (
                "username",
                &[
                    " username",
                    "\t\u{feff} username",
                    "username ",
                    "Username",
                    "u\u{17f}ername",
                    "username[]",
                    "username[0]",
                    "username[x][y]",
                    "[username]",
                    "username]",
                    "username\0",
                    "username\0x",
                    "username;x",
                    "\0username",
                ][..],
            ),
            ("user_name", &["user.name", "user name", "user[name", "USER_NAME[]"]),
            ("user.name", &["user_name", "user[name]"]),
            (
                "user[email]",
                &["user.email", "user[email][]", "User[Email]", " user[email]", "user_email", "user[email"],
            ),
            ("tags[]", &["tags", "tags[0]", "tags[][]"]),
        ] {
            assert_eq!(find(known, known), FormMatch::Field(3));
            for name in spellings {
                assert_eq!(find(known, name), FormMatch::Similar, "{name:?} of {known:?}");
            }
        }
    }

    #[test]
    fn other_names_are_no_spellings() {
        for (known, others) in [
            ("username", &["", "user", "username2", "username_confirm", "username.x", "user name"][..]),
            ("user[email]", &["user", "user[password]", "user[]"]),
            ("user_name", &["username", "user__name", "user[name2]"]),
        ] {
            for name in others {
                assert_eq!(find(known, name), FormMatch::None, "{name:?} of {known:?}");
            }
        }
    }

    #[test]
    fn fields_that_are_not_wanted_are_not_compared() {
        let mut names = FormNames::default();
        names.insert(&"tag".into(), 0);
        assert_eq!(names.find(FieldMask::of(1), "tag"), FormMatch::None);
        assert_eq!(names.find(FieldMask::of(1), "tag[]"), FormMatch::None);
    }
}
