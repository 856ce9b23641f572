//! What the arguments ask for.

use std::io::{self, IsTerminal as _};

use super::commands::{BoostChange, KeyAction, KeyChange, PodCommand};
use super::target::parse_target;
use crate::cli::{KeyArgs, KubectlCli, KubectlCommand, OutputFormat, PodArgs, RequestArgs};
use crate::explain_command::{self, ExplainError};
use weir_replay::explain::RequestDescription;

/// A valid command line.
#[derive(Debug)]
pub(super) struct Request {
    /// `KIND/NAME`; `None` if labels select the pods.
    pub(super) target: Option<String>,
    pub(super) work: Work,
}

/// What is done with the pods.
#[derive(Debug)]
pub(super) enum Work {
    /// One view of all of them.
    Top(TopRequest),
    /// A command on each of them.
    EachPod { command: PodCommand, format: OutputFormat },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct TopRequest {
    /// Also the case if standard output is not a terminal.
    pub(super) is_once: bool,
    pub(super) has_colors: bool,
}

impl Request {
    /// Reads the arguments.
    ///
    /// # Errors
    /// Returns what is wrong with them.
    pub(super) fn new(cli: &KubectlCli) -> Result<Self, String> {
        check_pod_args(&cli.pods)?;
        let selector = cli.pods.selector.as_deref();
        let one = |target: &Option<String>| split(&target.iter().cloned().collect::<Vec<_>>(), selector);
        let (words, work) = match &cli.command {
            KubectlCommand::Top { target, once, no_color } => (
                one(target)?,
                Work::Top(TopRequest {
                    is_once: *once || !io::stdout().is_terminal(),
                    has_colors: !no_color,
                }),
            ),
            KubectlCommand::Limits { target, format } => {
                (one(target)?, Work::EachPod { command: PodCommand::Limits, format: *format })
            }
            KubectlCommand::Explain { words, request, format } => {
                let words = split(words, selector)?;
                let command = PodCommand::Explain(Box::new(describe(&words.rest, request)?));
                (Words { rest: Vec::new(), ..words }, Work::EachPod { command, format: *format })
            }
            KubectlCommand::Ban { key, duration } => {
                change(key, selector, KeyAction::Ban { duration: duration.clone() })?
            }
            KubectlCommand::Unban { key } => change(key, selector, KeyAction::Unban)?,
            KubectlCommand::Boost { key, factor, limit, duration } => {
                let change_of = match (factor, limit) {
                    (Some(factor), _) => BoostChange::Factor(factor.clone()),
                    (None, Some(limit)) => BoostChange::Limit(limit.clone()),
                    (None, None) => return Err("boost: expected --factor N or --limit RATE".to_owned()),
                };
                let action = KeyAction::Boost { change: change_of, duration: duration.clone() };
                change(key, selector, action)?
            }
        };
        match words.rest.first() {
            Some(word) => Err(format!("unexpected argument `{word}`: with -l there is no TARGET")),
            None => Ok(Self { target: words.target, work }),
        }
    }
}

/// The words of a command line, divided.
struct Words {
    target: Option<String>,
    rest: Vec<String>,
}

fn check_pod_args(args: &PodArgs) -> Result<(), String> {
    let problem = match (args.all_namespaces, &args.namespace, &args.selector) {
        (true, Some(_), _) => "--all-namespaces and --namespace exclude each other",
        (true, None, None) => "--all-namespaces needs --selector LABELS, since a target has a namespace",
        (_, _, Some(selector)) if selector.trim().is_empty() => {
            "--selector: expected labels, such as `app=shop`"
        }
        _ => return Ok(()),
    };
    Err(problem.to_owned())
}

/// Takes the target from the words, unless labels select the pods.
fn split(words: &[String], selector: Option<&str>) -> Result<Words, String> {
    match (selector, words.split_first()) {
        (Some(_), _) => Ok(Words { target: None, rest: words.to_vec() }),
        (None, Some((target, rest))) => {
            Ok(Words { target: Some(parse_target(target)?), rest: rest.to_vec() })
        }
        (None, None) => Err("expected a TARGET, such as `deploy/shop`, or -l LABELS".to_owned()),
    }
}

/// Returns the request that is to be explained.
fn describe(words: &[String], request: &RequestArgs) -> Result<RequestDescription, String> {
    let (method, url) = match words {
        [method, url] => (Some(method.as_str()), Some(url.as_str())),
        [] if request.domain.is_some() => (None, None),
        [] => return Err("explain: expected METHOD and URL behind the target, such as `GET /`".to_owned()),
        [word] => {
            return Err(format!("explain: expected METHOD and URL behind the target, got only `{word}`"));
        }
        [_, _, word, ..] => {
            return Err(format!("unexpected argument `{word}`: with -l there is no TARGET"));
        }
    };
    explain_command::describe(method, url, request).map_err(|error| match error {
        ExplainError::Other(problem) => problem,
        ExplainError::Configuration(problems) => {
            problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        }
    })
}

fn change(args: &KeyArgs, selector: Option<&str>, action: KeyAction) -> Result<(Words, Work), String> {
    let mut words = split(&args.words, selector)?;
    let key = (!words.rest.is_empty()).then(|| words.rest.remove(0));
    if key.is_none() && args.rules.is_empty() {
        return Err(
            "expected a KEY, such as `client_ip=203.0.113.7`, or --rule of a rule without a key".to_owned()
        );
    }
    let command = PodCommand::Change(KeyChange { action, key, rules: args.rules.clone() });
    Ok((words, Work::EachPod { command, format: args.format }))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn request(arguments: &[&str]) -> Result<Request, String> {
        let cli = KubectlCli::try_parse_from(["kubectl-weir"].iter().chain(arguments));
        Request::new(&cli.unwrap_or_else(|error| panic!("{arguments:?}: {error}")))
    }

    #[test]
    fn first_word_is_the_target_unless_labels_select_the_pods() {
        assert_eq!(request(&["top", "deploy/shop"]).unwrap().target.as_deref(), Some("deploy/shop"));
        assert_eq!(request(&["limits", "-l", "app=shop"]).unwrap().target, None);
        assert_eq!(
            request(&["-n", "web", "explain", "shop-0", "GET", "/"]).unwrap().target.as_deref(),
            Some("pod/shop-0")
        );
        for arguments in [
            &["ban", "deploy/shop", "203.0.113.7", "--for", "1h"][..],
            &["ban", "-l", "app=shop", "203.0.113.7", "--for", "1h"],
        ] {
            let Work::EachPod { command: PodCommand::Change(change), .. } = request(arguments).unwrap().work
            else {
                panic!("{arguments:?}");
            };
            assert_eq!(change.key.as_deref(), Some("203.0.113.7"));
        }
    }

    #[test]
    fn arguments_that_contradict_each_other_are_explained() {
        for (arguments, expected) in [
            (&["top"][..], "expected a TARGET"),
            (&["top", "deploy/shop", "-A"], "needs --selector"),
            (&["top", "-l", "a=b", "-A", "-n", "x"], "exclude each other"),
            (&["top", "-l", ""], "expected labels"),
            (&["top", "-l", "a=b", "deploy/shop"], "unexpected argument `deploy/shop`"),
            (&["top", "--", "--x"], "is no target"),
            (&["explain", "deploy/shop", "GET"], "got only `GET`"),
            (&["explain", "deploy/shop"], "expected METHOD and URL"),
            (&["explain", "-l", "a=b", "x", "GET", "/"], "unexpected argument"),
            (&["ban", "deploy/shop", "--for", "1h"], "expected a KEY"),
        ] {
            let problem = request(arguments).unwrap_err();
            assert!(problem.contains(expected), "{arguments:?}: {problem}");
        }
    }
}
