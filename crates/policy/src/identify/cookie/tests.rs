use http::HeaderValue;
use percent_encoding::percent_decode;
use proptest::prelude::*;

use super::*;

type CookieResult = Result<Option<String>, Ambiguity>;

fn text(read: Result<Option<Cow<'_, [u8]>>, Ambiguity>) -> CookieResult {
    Ok(read?.map(|value| String::from_utf8_lossy(&value).into_owned()))
}

fn lines(lines: &[&[u8]]) -> HeaderMap {
    lines.iter().map(|line| (COOKIE, HeaderValue::from_bytes(line).unwrap())).collect()
}

fn key_of(line: &str) -> CookieResult {
    text(canonical_value(&lines(&[line.as_bytes()]), "sid"))
}

fn decoded_of(line: &str) -> CookieResult {
    text(decoded(&lines(&[line.as_bytes()]), "sid"))
}

fn some(value: &str) -> CookieResult {
    Ok(Some(value.to_owned()))
}

#[test]
fn equivalent_cookie_encodings_yield_one_key() {
    for value in [
        "abc",
        "%61bc",
        "%61%62%63",
        "%2561bc",
        "%252561bc",
        "\"abc\"",
        "\"%61bc\"",
        r#""\141bc""#,
        r#""\a\b\c""#,
        r#""\141\142\143""#,
        "%22abc%22",
        "a\\bc",
        " abc ",
        "abc\t",
        "+abc",
        "abc%20",
        "\u{a0}abc",
        "abc\u{85}\u{3000}",
        "\u{2003}\"abc\"\u{2028} ",
        " \u{1680} %61bc",
    ] {
        assert_eq!(key_of(&format!("a=b; sid={value}; c=d")), some("abc"), "{value}");
    }
    for value in ["a b", "a+b", "a%20b", "a%2Bb", "\"a b\"", r#""a\040b""#, r#""a\053b""#] {
        assert_eq!(key_of(&format!("sid={value}")), some("a b"), "{value}");
    }
}

#[test]
fn distinct_cookie_values_yield_distinct_keys() {
    let values =
        ["abc", "abd", "ABC", "ab", "", "a b", "abc=", "a.b-c_d", "a:b/c", "%zz", "a%", "a%2", "%%", "100%"];
    let key_of = |value: &&str| key_of(&format!("sid={value}")).unwrap();
    let keys: std::collections::HashSet<_> = values.iter().map(key_of).collect();
    assert_eq!(keys.len(), values.len());
}

#[test]
fn cookie_value_is_decoded_as_common_servers_do() {
    for (value, read) in [
        ("s%3Aabc.d%2Fe%2B", "s:abc.d/e+"),
        ("a+b", "a+b"),
        (r#""a\054b\\c\"d""#, r#"a,b\c"d"#),
        (r#""a\8\18""#, "a818"),
        (r"a\054", r"a\054"),
        ("%25", "%"),
        ("\"\"", ""),
    ] {
        assert_eq!(decoded_of(&format!("sid={value}")), some(read), "{value}");
    }
}

#[test]
fn equivalent_cookie_name_spellings_match() {
    for name in [
        "sid",
        " sid ",
        "%73id",
        "%73%69%64",
        "SID",
        "%53id",
        "\tsid",
        "\u{a0}sid",
        "sid\u{2000}",
        "%20sid",
        "+ sid",
        "sid%00",
        "sid%00x",
    ] {
        assert_eq!(key_of(&format!("{name}=abc")), some("abc"), "{name}");
    }
    for name in ["sid2", "si", "asid", "s_id", "%2573id", "s%00id", "sid%20x", ""] {
        assert_eq!(key_of(&format!("{name}=abc")), Ok(None), "{name}");
    }
    let php = |name: &str| text(canonical_value(&lines(&[format!("{name}=abc").as_bytes()]), "my_sid"));
    for name in ["my_sid", "my.sid", "my sid", "my%2Esid", "my+sid", "my[sid", "MY_SID"] {
        assert_eq!(php(name), some("abc"), "{name}");
    }
    assert_eq!(php("my-sid"), Ok(None));
}

#[test]
fn different_values_of_equivalent_cookie_names_are_ambiguous() {
    for line in ["sid=a; sid=b", "sid=a; %73id=b", "sid=a; SID=b", "sid=a; sid=", "sid=%61; sid=%62"] {
        assert_eq!(key_of(line), Err(Ambiguity::Repeated), "{line}");
        assert_eq!(decoded_of(line), Err(Ambiguity::Repeated), "{line}");
    }
    for line in ["sid=a; sid=%61", "sid=a; %73id=\"a\"", "SID=%61; sid=a"] {
        assert_eq!(key_of(line), some("a"), "{line}");
    }
    let apart = lines(&[b"sid=a", b"sid=b"]);
    assert_eq!(canonical_value(&apart, "sid"), Err(Ambiguity::Repeated));
}

#[test]
fn latin1_white_space_around_cookies_is_trimmed() {
    for line in [&b"sid=\xa0abc"[..], b"sid=abc\x85 \xa0", b"\xa0sid=abc", b"sid\xa0=\"abc\""] {
        assert_eq!(text(canonical_value(&lines(&[line]), "sid")), some("abc"), "{line:?}");
    }
    // The last byte of a letter is not white space.
    assert_eq!(decoded_of("sid=voilà"), some("voilà"));
    assert_eq!(decoded_of("sid=\u{a0}\u{2003}"), some(""));
}

#[test]
fn cookie_pair_after_white_space_is_ambiguous() {
    for line in [
        "x=1 sid=abc",
        "x=1\tsid=abc",
        "$x sid=abc",
        "x=1; secure sid=abc",
        "x=1 sid = abc",
        "x=\"1\" sid=\"abc\"",
        "x=1 a=b SID=abc",
    ] {
        assert_eq!(key_of(line), Err(Ambiguity::Spaced), "{line}");
        assert_eq!(decoded_of(line), Err(Ambiguity::Spaced), "{line}");
    }
    for line in ["sid=abc x=1", "sid=abc Path=/1", "sid=abc x = 1", "sid=\"abc\" x=1", "sid=a=b c=d"] {
        assert_eq!(key_of(line), Err(Ambiguity::Spaced), "{line}");
    }
    for (line, value) in [
        ("sid=a b", "a b"),
        ("sid = abc==", "abc=="),
        ("sid=\"a b=c\"", "a b=c"),
        ("x=\"1 sid=2\"; sid=abc", "abc"),
        ("x=1 side=2; sid=abc", "abc"),
        ("x=1 sid; sid=abc", "abc"),
    ] {
        assert_eq!(key_of(line), some(value), "{line}");
    }
}

#[test]
fn unclosed_cookie_quote_is_ambiguous() {
    for value in ["\"", "\"abc", "\"abcX", "\"a;b\"", "\"abc\" x"] {
        assert_eq!(key_of(&format!("sid={value}")), Err(Ambiguity::Quoted), "{value}");
        assert_eq!(decoded_of(&format!("sid={value}")), Err(Ambiguity::Quoted), "{value}");
    }
    assert_eq!(key_of("other=\"abc; sid=a"), some("a"));
}

#[test]
fn nested_cookie_encoding_is_decoded_in_linear_time() {
    // Each decoded byte completes the encoding before it, some thirty thousand times.
    let nested = format!("sid={}5", "%3".repeat(100_000));
    assert_eq!(key_of(&nested), some("5"));
    let deep = format!("sid=%{}41", "25".repeat(100_000));
    assert_eq!(key_of(&deep), some("A"));
}

/// A server's function to read a value.
type ServerDecoder = fn(&[u8]) -> Vec<u8>;

/// Functions of various servers.
const SERVERS: [ServerDecoder; 6] = [
    // PHP, ASP.NET.
    |value| percent_decode(value).collect(),
    // Rack, CGI.
    |value| {
        let spaced: Vec<u8> = value.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
        percent_decode(&spaced).collect()
    },
    // Express.
    |value| {
        let inner: Vec<u8> = percent_decode(unquoted(value)).collect();
        if std::str::from_utf8(&inner).is_ok() { inner } else { unquoted(value).to_vec() }
    },
    // Django, Flask.
    |value| {
        let value = String::from_utf8_lossy(value);
        let value = value.trim().as_bytes();
        if unquoted(value) == value { value.to_vec() } else { unescaped(unquoted(value)) }
    },
    // Go, Java.
    |value| unquoted(value).to_vec(),
    <[u8]>::to_vec,
];

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value)
}

/// Generates a realistic session value and a spelling of it with encodings that servers remove.
fn equivalent_spellings() -> impl Strategy<Value = (String, String)> {
    let session = prop_oneof!["[a-zA-Z0-9._-]{1,8}", "[a-z0-9+/=:,{} ]{1,8}"]
        .prop_map(|session| session.trim().to_owned())
        .prop_filter("two cookies for Python", |session| !hides_pair(session.as_bytes(), |_| true));
    let ways = prop::collection::vec(0..4_u8, 8);
    let ends = ("[ \t\u{85}\u{a0}\u{2003}]{0,2}", "[ \u{3000}\u{2028}]{0,2}");
    (session, ways, any::<bool>(), ends).prop_map(|(session, ways, quoted, (before, behind))| {
        let mut spelled = String::new();
        for (byte, way) in session.bytes().zip(ways) {
            match way {
                0 => spelled.push_str(&format!("%{byte:02x}")),
                1 if quoted => spelled.push_str(&format!("\\{byte:03o}")),
                2 if byte == b' ' => spelled.push('+'),
                _ => spelled.push(char::from(byte)),
            }
        }
        if quoted {
            spelled = format!("\"{spelled}\"");
        }
        (session, format!("{before}{spelled}{behind}"))
    })
}

proptest! {
    #[test]
    fn cookie_spellings_a_server_decodes_alike_yield_one_key((session, spelled) in equivalent_spellings()) {
        let of = |value: &[u8]| {
            let line = [b"sid=", value].concat();
            text(canonical_value(&lines(&[&line]), "sid"))
        };
        for read in SERVERS {
            // Only checked if the server reads the spelling as the session.
            if read(spelled.as_bytes()) == session.as_bytes() {
                prop_assert_eq!(of(spelled.as_bytes()), of(session.as_bytes()), "{}", &spelled);
            }
        }
    }

    #[test]
    fn plain_cookie_keys_are_equal_only_for_equal_values(one in "[!#$&'()*,./:<>?@a-zA-Z0-9_~|{}=-]{0,6}", other in "[a-z0-9=:]{0,3}") {
        prop_assert_eq!(key_of(&format!("sid={one}")) == key_of(&format!("sid={other}")), one == other);
    }
}
