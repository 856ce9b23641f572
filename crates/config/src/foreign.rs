//! Keys, words and notations of other programs, and what they are here. Only hints use them.
//!
//! People who know nginx, Envoy, Traefik, Kong, HAProxy, Spring or express-rate-limit write what they know. A hint from
//! here takes precedence over the nearest name, which is often another thing.

mod keys;
mod texts;
mod words;

pub(super) use self::keys::{foreign_key, structure_hint};
pub(super) use self::texts::{UNRENDERED, key_text_hint, line_hint, note_on_text, text_hint};
pub(super) use self::words::{foreign_word, throttle_word};

/// Returns a name in lower case with underscores: `windowMs` and `window-ms` are `window_ms`.
pub(super) fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    let mut previous_is_lower = false;
    for letter in name.chars() {
        if letter.is_uppercase() && previous_is_lower {
            snake.push('_');
        }
        previous_is_lower = letter.is_lowercase() || letter.is_ascii_digit();
        match letter {
            '-' | ' ' => snake.push('_'),
            _ => snake.extend(letter.to_lowercase()),
        }
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_converted_to_snake_case() {
        for (name, snake) in [
            ("windowMs", "window_ms"),
            ("stick-table", "stick_table"),
            ("IPStrategy", "ipstrategy"),
            ("on_limit", "on_limit"),
            ("excludedIPs", "excluded_ips"),
        ] {
            assert_eq!(snake_case(name), snake);
        }
    }
}
