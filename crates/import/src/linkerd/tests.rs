use super::*;

fn rules(spec: &str) -> String {
    let text = format!(
        "apiVersion: policy.linkerd.io/v1alpha1\nkind: {KIND}\nmetadata: {{ name: p, namespace: s }}\nspec: {spec}\n"
    );
    import(&[ImportSource { path: "f".into(), name: "f".to_owned(), text }]).unwrap().rules
}

#[test]
fn clients_of_an_override_share_one_counter_apart_from_the_others() {
    let rules = rules(
        "{ identity: { requestsPerSecond: 1 }, overrides: [{ requestsPerSecond: 9, clientRefs: \
         [{ kind: ServiceAccount, name: a }, { kind: ServiceAccount, name: b }] }] }",
    );
    let rule = rules.split("  - name: ").find(|rule| rule.starts_with("s.p.overrides-0")).unwrap();
    assert!(!rule.contains("key:") && rule.contains("limit: 9/s"), "{rule}");
    let identity = rules.split("  - name: ").find(|rule| rule.starts_with("s.p.identity")).unwrap();
    assert!(identity.contains("except: { header: { l5d-client-id: ["), "{identity}");
}

#[test]
fn an_override_without_a_limit_leaves_its_clients_to_the_limit_of_identities() {
    let rules = rules(
        "{ identity: { requestsPerSecond: 1 }, overrides: [{ requestsPerSecond: 0, clientRefs: \
         [{ kind: ServiceAccount, name: a }] }] }",
    );
    assert!(!rules.contains("except:") && !rules.contains("overrides-0"), "{rules}");
}

#[test]
fn the_last_of_several_overrides_for_a_client_counts() {
    let client = "clientRefs: [{ kind: ServiceAccount, name: a }]";
    let rules = rules(&format!(
        "{{ overrides: [{{ requestsPerSecond: 1, {client} }}, {{ requestsPerSecond: 2, {client} }}] }}"
    ));
    assert!(rules.contains("limit: 2/s") && !rules.contains("limit: 1/s"), "{rules}");
}
