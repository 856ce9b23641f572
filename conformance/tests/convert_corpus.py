"""Writes the inputs of `tests/hostile`, where they stand with the response of one proxy, into the corpus of the suite: `python3
tests/convert_corpus.py`. A test compares the two.
"""

from __future__ import annotations

import re
from pathlib import Path

from weir_conformance.corpus import GROUPS

SOURCE = Path(__file__).parents[2] / "tests" / "hostile"
CORPUS = Path(__file__).parents[1] / "src" / "weir_conformance" / "corpus"

# What must be rejected, by the section of RFC 9112 that says so. What is not here may be accepted.
FAULTS: dict[str, str] = {
    # Section 6.3: lengths that are not valid, and codings that do not end in chunks.
    "FRAMING": "smuggling: chunked-gzip coding-identity coding-x coding-quoted coding-non-breaking-space coding-vertical-tab length-empty"
    " length-float length-hexadecimal length-inner-space length-leading-tab-form-feed length-list-differs length-minus length-plus length-trailing"
    " length-underscore two-lengths",
    # Section 7.1.
    "CHUNKS": "chunks: more-data-than-size no-size size-0x size-comma size-letter size-minus size-nul size-plus size-underscore",
    # Section 3.2: none, several, and one that is not valid.
    "HOSTS": "host: missing same-twice twice",
    "HOST": "host: bracket-open path port-word space userinfo",
    # Section 5.1.
    "NAME": "fields: space-before-colon tab-before-colon",
}


def faults_of(group: str) -> dict[str, str]:
    """Returns the faults of a group's inputs by name."""
    by_group = ((fault, *inputs.split(": ")) for fault, inputs in FAULTS.items())
    return {name: fault for fault, of_group, names in by_group if of_group == group for name in names.split()}


def convert(group: str) -> str:
    """Returns the file of a group."""
    faults = faults_of(group)
    texts = {path.stem: path.read_text("utf-8") for path in sorted((SOURCE / group).glob("*.txt"))}
    unknown = set(faults) - set(texts)
    assert not unknown, f"no such input in {group}: {unknown}"
    return "\n".join(_convert(name, text, faults.get(name)) for name, text in texts.items())


def _convert(name: str, text: str, fault: str | None) -> str:
    about, *sections = re.split(r"^--- ", text, flags=re.MULTILINE)
    # Further bytes after a response are sent at once.
    bodies = [section.partition("\n") for section in sections]
    sent = [(title, body) for title, _, body in bodies if title in ("client", "frames")]
    must = f"must reject: {fault}\n" if fault else ""
    return f"== {name}\n{about}{must}--- {sent[0][0]}\n" + "".join(body for _, body in sent)


if __name__ == "__main__":
    for group in GROUPS:
        (CORPUS / f"{group}.txt").write_text(convert(group), "utf-8")
