//! Selectors of labels: those of Services have pairs, those of NetworkPolicies also expressions.

use crate::tree::{ManifestTree, TreeNodeId};

/// PodLabels of a pod.
pub(crate) type PodLabels<'l> = [(&'l str, &'l str)];

/// Whether a Service selects pods with these labels. Without a selector it selects none.
pub(crate) fn service_selects(tree: &ManifestTree, service: TreeNodeId, labels: &PodLabels<'_>) -> bool {
    let selector = tree.at(service, &["spec", "selector"]);
    selector
        .is_some_and(|selector| !tree.entries(selector).is_empty() && has_pairs(tree, Some(selector), labels))
}

/// Whether a selector of a NetworkPolicy selects pods with these labels. An empty one selects all.
///
/// <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#resources-that-support-set-based-requirements>
pub(crate) fn selects(tree: &ManifestTree, selector: TreeNodeId, labels: &PodLabels<'_>) -> bool {
    let expressions = tree.get(selector, "matchExpressions").map(|list| tree.items(list)).unwrap_or_default();
    has_pairs(tree, tree.get(selector, "matchLabels"), labels)
        && expressions.iter().all(|expression| holds(tree, *expression, labels))
}

/// Whether a selector may select an object of which only these labels are known.
pub(crate) fn may_select(tree: &ManifestTree, selector: TreeNodeId, known: &PodLabels<'_>) -> bool {
    let is_known = |key: Option<&str>| known.iter().any(|(name, _)| Some(*name) == key);
    let pairs = tree.get(selector, "matchLabels").map(|map| tree.entries(map)).unwrap_or_default();
    let expressions = tree.get(selector, "matchExpressions").map(|list| tree.items(list)).unwrap_or_default();
    let may_have = |(key, value): &(TreeNodeId, TreeNodeId)| {
        let pair = tree.text(*key).zip(tree.text(*value));
        !is_known(tree.text(*key)) || pair.is_some_and(|pair| known.contains(&pair))
    };
    pairs.iter().all(may_have)
        && expressions.iter().all(|expression| {
            !is_known(tree.text_at(*expression, &["key"])) || holds(tree, *expression, known)
        })
}

/// Whether a selector has no terms, and selects all pods.
pub(crate) fn is_of_all(tree: &ManifestTree, selector: TreeNodeId) -> bool {
    let pairs = tree.get(selector, "matchLabels").map(|map| tree.entries(map)).unwrap_or_default();
    let expressions = tree.get(selector, "matchExpressions").map(|list| tree.items(list)).unwrap_or_default();
    pairs.is_empty() && expressions.is_empty()
}

fn has_pairs(tree: &ManifestTree, pairs: Option<TreeNodeId>, labels: &PodLabels<'_>) -> bool {
    let entries = pairs.map(|map| tree.entries(map)).unwrap_or_default();
    entries.iter().all(|(key, value)| {
        let pair = tree.text(*key).zip(tree.text(*value));
        pair.is_some_and(|pair| labels.contains(&pair))
    })
}

fn holds(tree: &ManifestTree, expression: TreeNodeId, labels: &PodLabels<'_>) -> bool {
    let key = tree.text_at(expression, &["key"]).unwrap_or_default();
    let label = labels.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    let values = tree.get(expression, "values").map(|list| tree.items(list)).unwrap_or_default();
    let is_listed = label.is_some_and(|label| values.iter().any(|value| tree.text(*value) == Some(label)));
    match tree.text_at(expression, &["operator"]).unwrap_or_default() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => label.is_some(),
        "DoesNotExist" => label.is_none(),
        _ => false,
    }
}
