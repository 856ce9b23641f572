//! Completion of `kubectl weir` in shells. kubectl runs `kubectl_complete-weir` with the words of the line, of which the last is
//! unfinished, and reads candidates with their descriptions.

use std::fmt::Write as _;

use clap::Command;

/// Last line of the output: no names of files.
const NO_FILES: &str = ":4\n";

/// Returns the candidates for the last of `words`: subcommands, or options behind one.
pub(super) fn candidates(program: &Command, words: &[String]) -> String {
    let (partial, before) = words.split_last().map_or(("", &[][..]), |(last, rest)| (last.as_str(), rest));
    let chosen = before.iter().find_map(|word| program.find_subcommand(word));
    let mut found: Vec<(String, String)> = Vec::new();
    match chosen {
        _ if partial.starts_with('-') => {
            let own = chosen.into_iter().flat_map(Command::get_arguments);
            let shared = program.get_arguments().filter(|option| chosen.is_none() || option.is_global_set());
            for option in own.chain(shared) {
                let help = option.get_help().map(ToString::to_string).unwrap_or_default();
                found.extend(option.get_long().map(|name| (format!("--{name}"), help)));
            }
        }
        None => found.extend(program.get_subcommands().map(|inner| {
            (inner.get_name().to_owned(), inner.get_about().map(ToString::to_string).unwrap_or_default())
        })),
        // Names of objects are those of the cluster.
        Some(_) => {}
    }
    let mut text = String::new();
    for (name, help) in found.into_iter().filter(|(name, _)| name.starts_with(partial)) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}\t{help}");
    }
    text + NO_FILES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::kubectl_command;

    fn names(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let text = candidates(&kubectl_command(), &words);
        assert!(text.ends_with(NO_FILES), "{text}");
        let lines = text.lines().filter_map(|line| line.split_once('\t'));
        lines.map(|(name, _)| name.to_owned()).collect()
    }

    #[test]
    fn subcommands_and_options_are_candidates() {
        assert_eq!(names(&[""]), ["top", "limits", "explain", "ban", "unban", "boost"]);
        assert_eq!(names(&["-n", "web", "b"]), ["ban", "boost"]);
        assert_eq!(names(&["boost", "deploy/shop", "--fa"]), ["--factor"]);
        assert_eq!(names(&["ban", "--name"]), ["--namespace"]);
        assert_eq!(names(&["ban", "deploy/"]), [""; 0]);
        assert_eq!(names(&[]).len(), 6);
    }
}
