use super::*;

/// Returns the documentation's table, with one line for each row.
fn markdown_table() -> String {
    let columns = [
        RuleKind::Allow,
        RuleKind::Deny,
        RuleKind::WithoutLimit,
        RuleKind::StreamsOnly,
        RuleKind::Remote,
        RuleKind::RemoteOnly,
        RuleKind::Shared,
        RuleKind::Domain,
        RuleKind::Descriptors,
        RuleKind::Decide,
    ];
    let mut lines: Vec<(String, Vec<RuleKind>)> = Vec::new();
    for row in TABLE {
        let values = if row.values.is_empty() { String::new() } else { format!(" {}", row.values) };
        let name = format!("{}{values}", row.path.join("."));
        let kinds = row.exclusions.iter().map(|void| void.kind);
        match lines.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => known.extend(kinds),
            None => lines.push((name, kinds.collect())),
        }
    }
    let line = |(name, kinds): &(String, Vec<RuleKind>)| {
        let is_both = |kind| matches!(kind, RuleKind::Allow | RuleKind::Deny);
        let is_excluded =
            |kind| kinds.contains(&kind) || (is_both(kind) && kinds.contains(&RuleKind::AllowOrDeny));
        let marks = columns.map(|kind| if is_excluded(kind) { "–" } else { "✓" });
        format!("| {name} | {} |\n", marks.join(" | "))
    };
    lines.iter().map(line).collect()
}

#[test]
fn documentation_contains_applicability_table() {
    let documentation = include_str!("../../../../docs/reference/rules.md");
    assert!(
        documentation.contains(&markdown_table()),
        "expected in docs/reference/rules.md:\n{}",
        markdown_table()
    );
}

#[test]
fn applicability_table_keys_exist_in_rule_schema() {
    let rule = &crate::schema::schema()["$defs"]["Rule"]["properties"];
    for row in TABLE {
        assert!(rule.get(row.path[0]).is_some(), "{:?}", row.path);
    }
}

#[test]
fn schema_conditions_forbid_inapplicable_keys() {
    let conditions = schema_conditions();
    let forbidden = |index: usize| conditions[index]["then"]["properties"].as_object().unwrap();
    assert!(forbidden(0).contains_key("limit") && !forbidden(0).contains_key("on_limit"));
    assert!(forbidden(3).contains_key("on_limit"));
    assert!(forbidden(1).contains_key("counter") && !forbidden(1).contains_key("cost"));
    assert!(forbidden(2).contains_key("count") && !forbidden(2).contains_key("cost"));
}
