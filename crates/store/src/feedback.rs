//! What instances tell each other about a provider: encoding of the calls of the store's script.

use std::time::Duration;

use super::protocol;
use super::redis::Value;
use weir_limiter::feedback::LimitShare;
use weir_limiter::feedback::controller::MAX_IDLE;
use weir_limiter::feedback::sharing::SharedKeyState;
use weir_limiter::key::KeyHash;
use weir_limiter::timestamp::saturating_millis;

/// The script that the store runs.
pub(super) const SCRIPT: &str = include_str!("feedback.lua");

/// Returns the key of the state of a rule.
pub(super) fn rule_key(prefix: &str, rule: &str) -> String {
    protocol::fleet_key(prefix, &format!("feedback:{rule}"))
}

/// Encodes the arguments of a call.
pub(super) fn encode(states: &[SharedKeyState]) -> Vec<Vec<u8>> {
    let state = |state: &SharedKeyState| {
        let [first, second] = state.key.words();
        let (share, ceiling) = (state.share.millionths(), state.ceiling.map_or(0, LimitShare::millionths));
        let age =
            state.decreased_ago.map_or_else(|| "-1".to_owned(), |ago| saturating_millis(ago).to_string());
        let pause = saturating_millis(state.paused_for);
        format!("{first:016x}{second:016x} {share} {ceiling} {} {age} {pause}", state.epoch).into_bytes()
    };
    std::iter::once(saturating_millis(MAX_IDLE).to_string().into_bytes())
        .chain(states.iter().map(state))
        .collect()
}

/// Decodes the reply; `None` if it is malformed.
pub(super) fn decode(reply: Value) -> Option<Vec<SharedKeyState>> {
    let Value::Array(states) = reply else { return None };
    states.into_iter().map(decode_state).collect()
}

fn decode_state(value: Value) -> Option<SharedKeyState> {
    let Value::Array(fields) = value else { return None };
    let [Value::BulkString(key), numbers @ ..] = &fields[..] else { return None };
    let number =
        |value: &Value| if let Value::Int(number) = value { u64::try_from(*number).ok() } else { None };
    let numbers = numbers.iter().map(number).collect::<Option<Vec<_>>>()?;
    let &[share, ceiling, epoch, age, pause] = &numbers[..] else { return None };
    let share_of = |millionths: u64| u32::try_from(millionths).ok().map(LimitShare::from_millionths);
    let text = std::str::from_utf8(key).ok().filter(|text| text.len() == 32)?;
    let word = |range| u64::from_str_radix(text.get(range)?, 16).ok();
    Some(SharedKeyState {
        key: KeyHash::from_words([word(0..16)?, word(16..32)?]),
        share: share_of(share)?,
        ceiling: share_of(ceiling).filter(|_| ceiling > 0),
        epoch,
        decreased_ago: (epoch > 0).then(|| Duration::from_millis(age)),
        paused_for: Duration::from_millis(pause),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_replies_are_not_decoded() {
        let state = |key: &str, numbers: &[i64]| {
            let numbers = numbers.iter().map(|number| Value::Int(*number));
            let key = Value::BulkString(key.as_bytes().to_vec());
            Value::Array(vec![Value::Array(std::iter::once(key).chain(numbers).collect())])
        };
        let key = "0123456789abcdef0123456789abcdef";
        let decoded = decode(state(key, &[700_000, 0, 7, 20, 1500])).unwrap();
        assert_eq!((decoded[0].share.millionths(), decoded[0].ceiling), (700_000, None));
        assert_eq!(decoded[0].paused_for, Duration::from_millis(1500));
        assert_eq!(decoded[0].key.words(), [0x0123_4567_89ab_cdef; 2]);
        for wrong in [
            state(key, &[700_000, 0, 7, 20]),
            state(key, &[-1, 0, 7, 20, 0]),
            state("é", &[700_000, 0, 7, 20, 0]),
            Value::Array(vec![Value::Int(1)]),
            Value::Nil,
        ] {
            assert_eq!(decode(wrong), None);
        }
    }
}
