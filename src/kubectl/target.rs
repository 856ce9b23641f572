//! What the user points at: a workload, a pod or labels; and the labels by which a workload finds its pods.

use serde_json::Value;

use super::object::Object;

/// Kinds whose pods are those of other objects.
const INDIRECT_KINDS: [&str; 1] = ["CronJob"];

/// Returns a target as `KIND/NAME`. A name alone is that of a pod.
///
/// # Errors
/// Returns what is wrong with the text.
pub(super) fn parse_target(text: &str) -> Result<String, String> {
    let is_word = |word: &str| {
        let allowed = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | ':');
        !word.is_empty() && !word.starts_with('-') && word.chars().all(allowed)
    };
    let (kind, name) = text.split_once('/').unwrap_or(("pod", text));
    if is_word(kind) && is_word(name) {
        return Ok(format!("{kind}/{name}"));
    }
    Err(format!("`{text}` is no target, expected KIND/NAME, such as `deploy/shop`, or the name of a pod"))
}

/// Returns the labels by which an object selects its pods, as `kubectl get --selector` reads them.
///
/// # Errors
/// Returns why the object selects no pods.
pub(super) fn selector_of(target: &str, object: &Object) -> Result<String, String> {
    let Object { kind, spec, .. } = object;
    if INDIRECT_KINDS.contains(&kind.as_str()) {
        return Err(format!("{target} has no pods of its own: name one of its jobs, such as job/NAME"));
    }
    let selector = &spec["selector"];
    let is_structured = selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some();
    let labels = if is_structured { &selector["matchLabels"] } else { selector };
    let mut terms = Vec::new();
    for (label, value) in labels.as_object().into_iter().flatten() {
        let value = value.as_str().ok_or_else(|| format!("{target}: the label {label} is no text"))?;
        terms.push(format!("{label}={value}"));
    }
    let expressions = selector["matchExpressions"].as_array();
    for expression in expressions.into_iter().flatten().filter(|_| is_structured) {
        terms.push(term_of(expression).ok_or_else(|| {
            format!(
                "{target}: an expression of its selector is unknown: {expression}; select the pods with -l"
            )
        })?);
    }
    if terms.is_empty() {
        return Err(format!(
            "{target} ({kind}) selects no pods: name a workload, a Service with a selector or a pod"
        ));
    }
    Ok(terms.join(","))
}

/// Returns a requirement of `matchExpressions`; `None` if its operator is unknown.
fn term_of(expression: &Value) -> Option<String> {
    let label = expression["key"].as_str()?;
    let values = || {
        let values = expression["values"].as_array()?.iter().map(Value::as_str);
        Some(values.collect::<Option<Vec<_>>>()?.join(","))
    };
    match expression["operator"].as_str()? {
        "In" => Some(format!("{label} in ({})", values()?)),
        "NotIn" => Some(format!("{label} notin ({})", values()?)),
        "Exists" => Some(label.to_owned()),
        "DoesNotExist" => Some(format!("!{label}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selector(kind: &str, spec: Value) -> Result<String, String> {
        let object = Object { kind: kind.to_owned(), spec, ..Object::default() };
        selector_of("deploy/shop", &object)
    }

    #[test]
    fn targets_are_kind_and_name() {
        assert_eq!(parse_target("deploy/shop").unwrap(), "deploy/shop");
        assert_eq!(parse_target("deployments.apps/shop").unwrap(), "deployments.apps/shop");
        assert_eq!(parse_target("shop-0").unwrap(), "pod/shop-0");
        for text in ["", "/", "deploy/", "/shop", "--raw=/", "deploy/-x", "a b", "deploy/a,b", "a/b/c"] {
            assert!(parse_target(text).is_err(), "{text}");
        }
    }

    #[test]
    fn selectors_of_workloads_and_services_become_one_text() {
        let labels = json!({ "selector": { "matchLabels": { "app": "shop", "tier": "web" } } });
        assert_eq!(selector("Deployment", labels).unwrap(), "app=shop,tier=web");
        assert_eq!(selector("Service", json!({ "selector": { "app": "shop" } })).unwrap(), "app=shop");
        let expressions = json!({ "selector": { "matchExpressions": [
            { "key": "a", "operator": "In", "values": ["x", "y"] },
            { "key": "b", "operator": "NotIn", "values": ["z"] },
            { "key": "c", "operator": "Exists" },
            { "key": "d", "operator": "DoesNotExist" },
        ] } });
        assert_eq!(selector("StatefulSet", expressions).unwrap(), "a in (x,y),b notin (z),c,!d");
    }

    #[test]
    fn objects_that_select_no_pods_are_errors() {
        for (kind, spec, expected) in [
            ("CronJob", json!({ "schedule": "* * * * *" }), "name one of its jobs"),
            ("ConfigMap", json!(null), "selects no pods"),
            ("Service", json!({ "selector": {} }), "selects no pods"),
            (
                "Deployment",
                json!({ "selector": { "matchExpressions": [{ "key": "a", "operator": "Gt" }] } }),
                "is unknown",
            ),
        ] {
            let error = selector(kind, spec).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
