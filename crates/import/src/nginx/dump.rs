//! The output of `nginx -T`: all files of a configuration in one text, each behind a line with its name.

use std::path::Path;

use super::super::remark::{Effect, Remark, checksum};
use super::include::matches_glob;
use super::syntax::IncludedFile;

const MARK: &str = "# configuration file ";

/// The files of a dump; the first is the main file.
#[derive(Debug)]
pub(super) struct Dump<'t> {
    files: Vec<(&'t str, &'t str)>,
    /// What stands before the first file.
    head: &'t str,
}

impl<'t> Dump<'t> {
    /// Splits a text at the names of files; `None` if it has none.
    pub(super) fn parse(text: &'t str) -> Option<Self> {
        let mut marks: Vec<(&str, usize, usize)> = Vec::new();
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            let name = line.trim_end().strip_prefix(MARK).and_then(|rest| rest.strip_suffix(':'));
            if let Some(name) = name {
                marks.push((name, at, at + line.len()));
            }
            at += line.len();
        }
        let (_, first, _) = marks.first()?;
        let ends = marks.iter().skip(1).map(|(_, start, _)| *start).chain(Some(text.len()));
        let files =
            marks.iter().zip(ends).map(|((name, _, begin), end)| (*name, &text[*begin..end])).collect();
        Some(Self { files, head: &text[..*first] })
    }

    pub(super) fn main_file(&self) -> (&'t str, &'t str) {
        self.files.first().copied().unwrap_or_default()
    }

    /// Returns the files that the parameter of an `include` matches.
    pub(super) fn read(&self, pattern: &str) -> Vec<IncludedFile> {
        let whole = match (pattern.starts_with('/'), Path::new(self.main_file().0).parent()) {
            (false, Some(directory)) => directory.join(pattern).display().to_string(),
            _ => pattern.to_owned(),
        };
        let matches = |name: &str| {
            let (wanted, given): (Vec<_>, Vec<_>) = (whole.split('/').collect(), name.split('/').collect());
            let pairs = wanted.iter().zip(&given);
            wanted.len() == given.len()
                && pairs.into_iter().all(|(wanted, given)| matches_glob(wanted.as_bytes(), given.as_bytes()))
        };
        let found = self.files.iter().filter(|(name, _)| matches(name));
        found
            .map(|(name, text)| IncludedFile { name: (*name).to_owned(), text: Ok((*text).to_owned()) })
            .collect()
    }

    /// Returns remarks on the parts of the dump that no directive includes; `included` has the names of the others.
    pub(super) fn remarks(&self, included: &[String]) -> Vec<Remark> {
        let mut remarks = Vec::new();
        let is_message = |line: &str| line.trim().is_empty() || line.starts_with("nginx: ");
        if !self.head.lines().all(is_message) {
            let text = format!(
                "the text before the first `{MARK}…:` is not read (checksum {})",
                checksum(self.head)
            );
            remarks.push(Remark::new(Effect::Differs, text));
        }
        for (name, text) in self.files.iter().skip(1) {
            if !included.iter().any(|known| known == name) {
                let text =
                    format!("{name}: no `include` has this file: not imported (checksum {})", checksum(text));
                remarks.push(Remark::new(Effect::None, text));
            }
        }
        remarks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "nginx: configuration file /etc/nginx/nginx.conf test is successful
# configuration file /etc/nginx/nginx.conf:
http { include conf.d/*.conf; }

# configuration file /etc/nginx/conf.d/a.conf:
server { include /etc/nginx/snippets/limit; }
# configuration file /etc/nginx/snippets/limit:
limit_req zone=a;
# configuration file /etc/nginx/other:
limit_req zone=b;
";

    #[test]
    fn dumps_of_nginx_are_files_that_include_each_other() {
        let dump = Dump::parse(DUMP).unwrap();
        assert_eq!(dump.main_file().0, "/etc/nginx/nginx.conf");
        let names = |pattern: &str| dump.read(pattern).into_iter().map(|file| file.name).collect::<Vec<_>>();
        assert_eq!(names("conf.d/*.conf"), ["/etc/nginx/conf.d/a.conf"]);
        assert_eq!(names("/etc/nginx/snippets/*"), ["/etc/nginx/snippets/limit"]);
        let included = ["/etc/nginx/conf.d/a.conf", "/etc/nginx/snippets/limit"].map(ToOwned::to_owned);
        let remarks = dump.remarks(&included);
        assert!(
            remarks.len() == 1 && remarks[0].text.starts_with("/etc/nginx/other: no `include`"),
            "{remarks:?}"
        );
        assert!(Dump::parse("http { }").is_none());
    }
}
