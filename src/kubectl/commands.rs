//! The commands on one pod, and what they report.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::key_rules::{full_key, rules_of_key, rules_with_keys};
use super::table;
use crate::admin_client::{AdminClient, AdminClientError, AdminResponse};
use crate::explain_command::{self, ExplainError};
use weir_replay::explain::{RequestDescription, render};

/// Maximum length of an error response that is shown, in characters.
const MAX_SHOWN_ERROR: usize = 500;

/// What is done with each pod.
#[derive(Clone, Debug)]
pub(super) enum PodCommand {
    /// Its rules.
    Limits,
    /// What it would do with a request.
    Explain(Box<RequestDescription>),
    /// A ban, the end of one, or a boost.
    Change(KeyChange),
}

/// A change of the limits of a key.
#[derive(Clone, Debug)]
pub(super) struct KeyChange {
    pub(super) action: KeyAction,
    /// As the user has written it.
    pub(super) key: Option<String>,
    /// Names of rules; without one, those that count by the attributes of the key.
    pub(super) rules: Vec<String>,
}

/// What happens to a key.
#[derive(Clone, Debug)]
pub(super) enum KeyAction {
    Ban { duration: String },
    Unban,
    Boost { change: BoostChange, duration: Option<String> },
}

/// What a boost raises.
#[derive(Clone, Debug)]
pub(super) enum BoostChange {
    Factor(String),
    Limit(String),
}

/// Outcome of a command on one pod.
#[derive(Clone, Debug, Default)]
pub(super) struct PodReport {
    /// For people.
    pub(super) text: String,
    /// For programs.
    pub(super) json: Value,
    /// What has failed.
    pub(super) problems: Vec<String>,
}

impl PodReport {
    pub(super) fn failure(problem: String) -> Self {
        Self { problems: vec![problem], ..Self::default() }
    }
}

/// Why a request to the admin port has no usable response.
#[derive(Debug)]
pub(super) enum CommandFailure {
    /// The connection has failed, so that kubectl may know the reason.
    Connection(String),
    /// Anything else.
    Other(String),
}

impl From<AdminClientError> for CommandFailure {
    fn from(error: AdminClientError) -> Self {
        match error {
            AdminClientError::Connect { .. }
            | AdminClientError::Http { .. }
            | AdminClientError::Timeout(_) => Self::Connection(error.to_string()),
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<String> for CommandFailure {
    fn from(problem: String) -> Self {
        Self::Other(problem)
    }
}

impl PodCommand {
    /// Runs the command on the pod behind this client.
    pub(super) async fn run(&self, client: &AdminClient) -> Result<PodReport, CommandFailure> {
        match self {
            Self::Limits => {
                let limits = json_of(&client.get("/limits").await?)?;
                let overrides = json_of(&client.get("/limits/overrides").await?)?;
                let text = table::limits_text(&limits, &overrides);
                let json = json!({ "limits": limits, "overrides": overrides["overrides"] });
                Ok(PodReport { text, json, problems: Vec::new() })
            }
            Self::Explain(request) => {
                let response = client.get(&explain_command::target(request)).await?;
                let explanation = explain_command::read_explanation(&client.address().to_string(), &response);
                let explanation = explanation.map_err(|error| match error {
                    ExplainError::Other(problem) => problem,
                    ExplainError::Configuration(problems) => {
                        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
                    }
                })?;
                let json = serde_json::to_value(&explanation).map_err(|error| error.to_string())?;
                Ok(PodReport { text: render(&explanation), json, problems: Vec::new() })
            }
            Self::Change(change) => change.run(client).await,
        }
    }
}

impl KeyChange {
    async fn run(&self, client: &AdminClient) -> Result<PodReport, CommandFailure> {
        let rules = match (&self.rules, &self.key) {
            (rules, Some(key)) if rules.is_empty() => self.rules_of(client, &full_key(key)).await?,
            (rules, _) => rules.clone(),
        };
        let (mut report, mut changes) = (PodReport::default(), Vec::new());
        for rule in &rules {
            let response = client.post(&self.target(rule)).await;
            match response.map_err(CommandFailure::from).and_then(|response| json_of(&response)) {
                Ok(changed) => {
                    report.text += &table::change_text(&self.action, &changed);
                    changes.push(changed);
                }
                // What was changed is reported in any case.
                Err(CommandFailure::Connection(problem) | CommandFailure::Other(problem)) => {
                    report.problems.push(format!("rule {rule}: {problem}"));
                }
            }
        }
        report.json = Value::Array(changes);
        Ok(report)
    }

    /// Returns the rules that count by the attributes of the key. A boost needs exactly one, because several limits may
    /// protect different things.
    async fn rules_of(&self, client: &AdminClient, key: &str) -> Result<Vec<String>, CommandFailure> {
        let limits = json_of(&client.get("/limits").await?)?;
        let rules = rules_of_key(&rules_with_keys(&limits), key)?;
        match self.action {
            KeyAction::Boost { .. } if rules.len() > 1 => Err(format!(
                "several rules count by the attributes of `{key}`, name one with --rule: {}",
                rules.join(", ")
            )
            .into()),
            _ => Ok(rules),
        }
    }

    /// Returns path and query of the command.
    fn target(&self, rule: &str) -> String {
        let key = self.key.as_deref().map(full_key);
        let mut pairs = vec![("rule", Some(rule)), ("key", key.as_deref())];
        let path = match &self.action {
            KeyAction::Ban { duration } => {
                pairs.push(("for", Some(duration)));
                "/limits/ban"
            }
            KeyAction::Unban => "/limits/unban",
            KeyAction::Boost { change, duration } => {
                pairs.push(match change {
                    BoostChange::Factor(factor) => ("factor", Some(factor)),
                    BoostChange::Limit(limit) => ("limit", Some(limit)),
                });
                pairs.push(("for", duration.as_deref()));
                "/limits/boost"
            }
        };
        let pairs = pairs.into_iter().filter_map(|(name, value)| {
            Some(format!("{name}={}", utf8_percent_encode(value?, NON_ALPHANUMERIC)))
        });
        format!("{path}?{}", pairs.collect::<Vec<_>>().join("&"))
    }
}

/// Reads a response as JSON; a status other than 200 is a failure.
fn json_of(response: &AdminResponse) -> Result<Value, CommandFailure> {
    match response.status {
        200 => serde_json::from_slice(&response.body)
            .map_err(|error| CommandFailure::Other(format!("its response is no JSON: {error}"))),
        401 => Err(AdminClientError::Unauthorized.into()),
        status => {
            let text = String::from_utf8_lossy(&response.body);
            let text: String =
                text.trim().chars().filter(|letter| !letter.is_control()).take(MAX_SHOWN_ERROR).collect();
            Err(CommandFailure::Other(format!("the admin port responds {status}: {text}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_encoded_for_the_admin_port() {
        let change = |action| KeyChange { action, key: Some("path=/a b".to_owned()), rules: Vec::new() };
        let ban = change(KeyAction::Ban { duration: "10m".to_owned() });
        assert_eq!(ban.target("per ip"), "/limits/ban?rule=per%20ip&key=path%3D%2Fa%20b&for=10m");
        assert_eq!(change(KeyAction::Unban).target("r"), "/limits/unban?rule=r&key=path%3D%2Fa%20b");
        let end = KeyAction::Boost { change: BoostChange::Factor("1".to_owned()), duration: None };
        assert_eq!(change(end).target("r"), "/limits/boost?rule=r&key=path%3D%2Fa%20b&factor=1");
    }
}
