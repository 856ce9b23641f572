//! The arguments of `weir import`: a subcommand for each format that the importers know.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, Subcommand, value_parser};

use weir_import::{Conversion, IMPORTERS, Importer};

const FILES: &str = "files";

/// A format, and files in it.
#[derive(Debug)]
pub struct ImportArgs {
    /// The format.
    pub importer: &'static Importer,
    /// The files; `-` is standard input.
    pub files: Vec<PathBuf>,
    /// The value of the format's option, if it has one and it is given.
    pub option: Option<String>,
}

impl FromArgMatches for ImportArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let chosen = matches.subcommand().and_then(|(name, matches)| Some((importer(name)?, matches)));
        let (importer, matches) = chosen.ok_or_else(|| clap::Error::new(ErrorKind::MissingSubcommand))?;
        let files = matches.get_many(FILES).into_iter().flatten().cloned().collect();
        let option = importer.option().and_then(|option| matches.get_one(option.name).cloned());
        Ok(Self { importer, files, option })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for ImportArgs {
    fn augment_subcommands(command: Command) -> Command {
        command.subcommands(IMPORTERS.iter().map(|importer| subcommand(importer)))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        importer(name).is_some()
    }
}

fn importer(name: &str) -> Option<&'static Importer> {
    IMPORTERS.iter().copied().find(|importer| importer.name == name)
}

fn subcommand(importer: &'static Importer) -> Command {
    let files = Arg::new(FILES).value_name("FILE").help(importer.files);
    let files = files.required(true).value_parser(value_parser!(PathBuf));
    let files = match importer.convert {
        Conversion::OneFile(_) => files.action(ArgAction::Set),
        Conversion::Files(_) | Conversion::FilesWith(..) => files.action(ArgAction::Append).num_args(1..),
    };
    let option = importer.option().map(|option| {
        let value = Arg::new(option.name).long(option.name).value_name(option.value_name);
        value.help(option.help).default_value(option.default).action(ArgAction::Set)
    });
    Command::new(importer.name).about(importer.about).args(option).arg(files)
}
