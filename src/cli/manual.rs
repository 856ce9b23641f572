//! What `--help` and the manual pages say beside the options: examples, exit statuses and files.

mod kubectl;

use std::fmt::Write as _;
use std::io;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::{Cli, KubectlCli};
use weir_import::IMPORTERS;

/// Sections of one command.
#[derive(Clone, Copy)]
struct Sections {
    /// Name of the command, with those above it; empty for the program.
    command: &'static str,
    /// Command lines, and what they do.
    examples: &'static [(&'static str, &'static str)],
    exit: &'static [(&'static str, &'static str)],
    files: &'static [(&'static str, &'static str)],
}

/// Name of the program as a plugin of kubectl.
pub(super) const KUBECTL_PROGRAM: &str = "kubectl-weir";

const CONFIG_FILE: (&str, &str) = ("/etc/weir/weir.yaml", "configuration of `weir run` without -c");
const USAGE: (&str, &str) = ("2", "bad usage, or an invalid configuration");

const IMPORT_EXIT: &[(&str, &str)] =
    &[("0", "success"), ("1", "the rules cannot be printed"), ("2", "a file is invalid or unreadable")];

const SECTIONS: &[Sections] = &[
    Sections {
        command: "",
        examples: &[
            (
                "weir run -c config/quickstart.yaml",
                "run with a built-in service; try curl -i http://127.0.0.1:8080/",
            ),
            ("weir check weir.yaml", "validate a configuration"),
            ("weir top", "watch rules and heaviest keys of the instance on this host"),
        ],
        exit: &[("0", "success"), ("1", "failure"), USAGE],
        files: &[CONFIG_FILE],
    },
    Sections {
        command: "run",
        examples: &[
            ("weir run", "run with /etc/weir/weir.yaml"),
            ("weir run -c weir.yaml --log-format json", "another file, and log lines as JSON"),
            ("LIMIT=50/s weir run -c weir.yaml", "with a value for ${LIMIT} in the file"),
        ],
        exit: &[
            ("0", "ended on request, after the drain"),
            ("1", "a socket, file or thread is not available, or a thread has failed"),
            USAGE,
        ],
        files: &[CONFIG_FILE, ("/var/lib/weir/", "usual directory of the state file (`state.file`)")],
    },
    Sections {
        command: "check",
        examples: &[
            ("weir check weir.yaml", "print every problem, or what the configuration contains"),
            ("weir check --strict weir.yaml", "fail on notes, too"),
            ("helm template web ./chart | weir check -", "check the configuration inside a manifest"),
            ("weir check --against running.yaml next.yaml", "print what would change"),
        ],
        exit: &[("0", "all configurations are valid"), ("1", "with --strict: there are notes"), USAGE],
        files: &[],
    },
    Sections {
        command: "schema",
        examples: &[("weir schema > weir.schema.json", "for an editor")],
        exit: &[("0", "success")],
        files: &[],
    },
    Sections {
        command: "rls",
        examples: &[
            (
                "RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit weir rls",
                "serve the rules in /data/ratelimit/config",
            ),
            ("weir rls --print-config", "print the equivalent configuration"),
        ],
        exit: &[("0", "ended on request"), ("1", "failure"), ("2", "invalid variables")],
        files: &[("$RUNTIME_ROOT/$RUNTIME_SUBDIRECTORY/config/", "rules, as files of envoyproxy/ratelimit")],
    },
    Sections {
        command: "top",
        examples: &[
            ("weir top", "the instance on this host"),
            (
                "weir top --admin 10.0.0.7:9901 --token-file token",
                "another one, whose admin port needs a token",
            ),
            ("weir top --once", "print one view, for scripts"),
        ],
        exit: &[("0", "success"), ("1", "the admin port cannot be used"), ("2", "bad usage")],
        files: &[],
    },
    Sections {
        command: "replay",
        examples: &[
            ("weir replay -c weir.yaml access.log.gz", "which clients would have been limited"),
            (
                "weir replay -c next.yaml --against weir.yaml --html report.html access.log",
                "compare two configurations",
            ),
            ("kubectl logs deploy/web | weir replay -c weir.yaml -", "read standard input"),
        ],
        exit: &[("0", "success"), ("1", "a log cannot be read, or a report cannot be written"), USAGE],
        files: &[],
    },
    Sections {
        command: "import",
        examples: &[
            ("weir import nginx /etc/nginx/nginx.conf", "the limits of nginx"),
            ("weir import envoy-ratelimit config/*.yaml", "the files of envoyproxy/ratelimit"),
        ],
        exit: IMPORT_EXIT,
        files: &[],
    },
    Sections {
        command: "inject",
        examples: &[
            (
                "kubectl get deploy,svc shop -o yaml | weir inject --limit 100/s | kubectl apply -f -",
                "100 requests a second for each client",
            ),
            (
                "weir inject --config weir.yaml --port 3000 shop.yaml > injected.yaml",
                "with rules of your own",
            ),
            (
                "weir inject --check --limit 100/s injected.yaml",
                "fail if the sidecar is missing or out of date",
            ),
        ],
        exit: &[
            ("0", "success"),
            ("1", "with --check: manifests would change; or they cannot be printed"),
            ("2", "bad usage, or a workload that cannot have the sidecar"),
        ],
        files: &[],
    },
    Sections {
        command: "uninject",
        examples: &[(
            "kubectl get deploy,svc shop -o yaml | weir uninject | kubectl apply -f -",
            "remove the sidecar",
        )],
        exit: &[
            ("0", "success"),
            ("1", "the manifests cannot be printed"),
            ("2", "a file is unreadable or invalid"),
        ],
        files: &[],
    },
    Sections {
        command: "redirect",
        examples: &[(
            "weir redirect --port 8080 --to 18080 --uid 65532 --exclude 9902",
            "in an init container with NET_ADMIN",
        )],
        exit: &[("0", "success"), ("1", "the rules cannot be installed"), ("2", "bad usage")],
        files: &[],
    },
    Sections {
        command: "suggest",
        examples: &[
            ("weir suggest", "of the instance on the default admin port"),
            ("weir suggest --admin 127.0.0.1:9901 --lower > dry-run.yaml", "lower limits, too"),
        ],
        exit: &[("0", "success"), ("1", "the admin port cannot be used"), ("2", "bad usage")],
        files: &[],
    },
    Sections {
        command: "explain",
        examples: &[
            ("weir explain -c weir.yaml POST https://api.example.com/login", "by a configuration"),
            (
                "weir explain --admin 127.0.0.1:9901 --client 203.0.113.7 GET /",
                "by the counters of an instance",
            ),
            ("weir explain -c weir.yaml -H 'x-api-key: 8c1f' GET /v1/x", "with a header"),
        ],
        exit: &[("0", "success"), ("2", "there is no explanation")],
        files: &[CONFIG_FILE],
    },
    Sections {
        command: "completions",
        examples: &[("weir completions bash > /etc/bash_completion.d/weir", "install for bash")],
        exit: &[("0", "success")],
        files: &[],
    },
    Sections {
        command: "man",
        examples: &[
            ("weir man | man -l -", "read the page"),
            ("weir man /usr/local/share/man/man1", "install all pages"),
        ],
        exit: &[("0", "success"), ("1", "a page cannot be written")],
        files: &[],
    },
];

/// Returns the command line with examples, exit statuses and files in its help.
pub fn command() -> Command {
    with_help(Cli::command(), "")
}

/// Returns the command line of `kubectl weir`, as [`command`].
pub fn kubectl_command() -> Command {
    with_help(KubectlCli::command(), KUBECTL_PROGRAM)
}

fn with_help(command: Command, path: &str) -> Command {
    let command = match sections(path) {
        Some(sections) => command.after_help(sections.help()),
        None => command,
    };
    command.mut_subcommands(|inner| {
        let path = format!("{path} {}", inner.get_name());
        with_help(inner, path.trim_start())
    })
}

fn sections(path: &str) -> Option<Sections> {
    let written = SECTIONS.iter().chain(kubectl::SECTIONS).find(|sections| sections.command == path).copied();
    written.or_else(|| import_sections(path.strip_prefix("import ")?))
}

/// Returns the sections of the import of a format.
fn import_sections(format: &str) -> Option<Sections> {
    let importer = IMPORTERS.iter().find(|importer| importer.name == format)?;
    Some(Sections { command: importer.name, examples: importer.examples, exit: IMPORT_EXIT, files: &[] })
}

/// A headline, and rows of a name and its meaning.
type Section = (&'static str, &'static [(&'static str, &'static str)]);

impl Sections {
    fn filled(&self) -> impl Iterator<Item = Section> {
        let all = [("EXAMPLES", self.examples), ("EXIT STATUS", self.exit), ("FILES", self.files)];
        all.into_iter().filter(|(_, rows)| !rows.is_empty())
    }

    fn help(&self) -> String {
        let mut text = String::new();
        for (headline, rows) in self.filled() {
            let gap = if text.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{gap}{headline}:");
            for (name, meaning) in rows {
                let _ = match headline {
                    "EXAMPLES" => writeln!(text, "  {name}\n      {meaning}"),
                    _ => writeln!(text, "  {name}  {meaning}"),
                };
            }
        }
        text.truncate(text.trim_end().len());
        text
    }

    fn write(&self, roff: &mut Roff) {
        for (headline, rows) in self.filled() {
            roff.control("SH", [headline]);
            for (name, meaning) in rows {
                roff.control("TP", []);
                roff.text([bold(*name)]);
                roff.text([roman(*meaning)]);
            }
        }
    }
}

/// Returns the manual page of a command.
///
/// # Errors
/// Returns an error if the page cannot be written to memory.
pub fn manual_page(command: &Command) -> io::Result<Vec<u8>> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    // Levels of commands are joined by `-`, which names of programs and formats may contain.
    let sections = match name.strip_prefix(KUBECTL_PROGRAM) {
        Some(inner) => sections(&format!("{KUBECTL_PROGRAM}{}", inner.replacen('-', " ", 1))),
        None => {
            let path = name.strip_prefix("weir").unwrap_or(name).trim_start_matches(['-', ' ']);
            sections(&path.replacen("import-", "import ", 1))
        }
    };
    // The sections take the place of the text that the help shows.
    let man = Man::new(command.clone().after_help(None::<&str>));
    let (mut page, mut roff) = (Vec::new(), Roff::new());
    man.render(&mut page)?;
    if let Some(sections) = sections {
        sections.write(&mut roff);
        page.extend_from_slice(roff.to_roff().as_bytes());
    }
    Ok(page)
}

/// Returns the manual pages of all commands by their file name.
///
/// # Errors
/// Returns an error if a page cannot be written to memory.
pub fn manual_pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut pages = Vec::new();
    for program in [command(), kubectl_command()] {
        let mut program = program.disable_help_subcommand(true);
        program.build();
        collect_pages(&program, &mut pages)?;
    }
    Ok(pages)
}

fn collect_pages(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        collect_pages(inner, pages)?;
    }
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    pages.push((format!("{name}.1"), manual_page(command)?));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_examples_and_exit_statuses() {
        let program = command();
        let mut paths = vec![String::new()];
        for inner in program.get_subcommands() {
            paths.push(inner.get_name().to_owned());
            paths.extend(
                inner.get_subcommands().map(|leaf| format!("{} {}", inner.get_name(), leaf.get_name())),
            );
        }
        let kubectl = kubectl_command();
        paths.push(KUBECTL_PROGRAM.to_owned());
        paths
            .extend(kubectl.get_subcommands().map(|inner| format!("{KUBECTL_PROGRAM} {}", inner.get_name())));
        for path in &paths {
            let found = sections(path);
            assert!(
                found.is_some_and(|found| !found.examples.is_empty() && !found.exit.is_empty()),
                "{path}"
            );
        }
        assert_eq!(paths.len(), SECTIONS.len() + kubectl::SECTIONS.len() + IMPORTERS.len());
    }

    #[test]
    fn manual_pages_have_the_sections_of_the_help() {
        let pages = manual_pages().unwrap();
        let text = |file: &str| {
            let (_, page) = pages.iter().find(|(name, _)| name == file).unwrap();
            String::from_utf8(page.clone()).unwrap()
        };
        assert!(text("kubectl-weir-ban.1").contains(".SH EXAMPLES"), "{}", text("kubectl-weir-ban.1"));
        let text = text("weir-run.1");
        for headline in [".SH EXAMPLES", ".SH \"EXIT STATUS\"", ".SH FILES"] {
            assert!(text.contains(headline), "{headline}: {text}");
        }
    }
}
