use super::*;

fn environment(name: &str) -> Option<String> {
    match name {
        "ONE" => Some("1".to_owned()),
        "EMPTY" => Some(String::new()),
        "DOLLAR" => Some("${ONE}".to_owned()),
        _ => None,
    }
}

fn expanded(text: &str) -> String {
    expand(text, &environment).unwrap().text
}

#[test]
fn variables_stand_for_their_values() {
    for (text, value) in [
        ("${ONE}", "1"),
        ("a${ONE}b${ONE}", "a1b1"),
        ("${NONE:-two}", "two"),
        ("${NONE:-}", ""),
        ("${EMPTY:-two}", "two"),
        ("${EMPTY}", ""),
        ("${ONE:-two}", "1"),
        ("${NONE:-a:-b}", "a:-b"),
        ("$${ONE}", "${ONE}"),
        ("a$${ONE}${ONE}", "a${ONE}1"),
        ("$ONE $$ $", "$ONE $$ $"),
        ("~\\.php$", "~\\.php$"),
    ] {
        assert_eq!(expanded(text), value, "{text}");
    }
}

#[test]
fn what_a_variable_holds_is_not_expanded_again() {
    assert_eq!(expanded("${DOLLAR}"), "${ONE}");
}

#[test]
fn only_one_reference_and_nothing_else_is_the_whole_value() {
    let is_whole = |text: &str| expand(text, &environment).unwrap().is_whole;
    assert!(is_whole("${ONE}") && is_whole("${NONE:-x}"));
    for text in ["${ONE}${ONE}", "${EMPTY}${ONE}", " ${ONE}", "${ONE} ", "$${ONE}", "${ONE}s"] {
        assert!(!is_whole(text), "{text}");
    }
}

#[test]
fn broken_references_are_named() {
    let fault = |text: &str| expand(text, &environment).unwrap_err().message;
    assert_eq!(fault("${NONE}"), "environment variable `NONE` is not set");
    assert_eq!(fault("a ${ONE"), "`${` without `}` in \"a ${ONE\"");
    for text in ["${}", "${1}", "${a-b}", "${ ONE }", "${:-x}", "${ONE:+x}", "${NONE:-${ONE}}"] {
        assert!(expand(text, &environment).is_err(), "{text}");
    }
}

#[test]
fn the_environment_itself_can_be_read() {
    assert!(variable("PATH").is_some());
    assert_eq!(variable("WEIR_TEST_SURELY_NOT_SET"), None);
}

#[test]
fn a_file_at_the_size_limit_is_read_and_one_byte_more_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.yaml");
    let most = usize::try_from(LARGEST_FILE).unwrap();
    fs::write(&path, vec![b'#'; most]).unwrap();
    assert_eq!(read(&path).unwrap().len(), most);
    fs::write(&path, vec![b'#'; most + 1]).unwrap();
    assert_eq!(read(&path).unwrap_err().message, "larger than 1 MiB");
}

#[test]
fn a_link_to_itself_is_a_problem() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.yaml");
    std::os::unix::fs::symlink(&path, &path).unwrap();
    assert!(read(&path).is_err());
}
