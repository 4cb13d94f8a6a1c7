"""Checks the style sheet's rules for prose that a program can check: docstrings, comments, messages, names, pages.

    python scripts/check_prose.py              the whole repository, as `make check` runs it
    python scripts/check_prose.py PATH...      every finding below these paths, exceptions and unwritten parts included
    python scripts/check_prose.py --count      the number of findings per folder, unwritten parts included

Text in backquotes and, outside of code, in double quotes is not checked: it quotes code or a KIP. Two lists stand
beside this file. An entry of either that no finding needs any more is an error.

`prose_exceptions.txt` has the findings that stand as right, `path | phrase | reason` on each line: the phrase is part
of the line in which the finding begins, or * for any.

`prose_unwritten.txt` has the parts of the repository that rules have not reached yet, `path` or `path | rules` on each
line: a file, `folder/*` for the files of one folder, or `folder/` for the whole tree. Without rules the entry covers
every rule.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
CHECKED = ("src", "simulation", "testkit", "tests", "fuzz", "benchmarks", "scripts", "examples", "docs", *PAGES)
"""Files and folders of the repository."""

DOCSTRING, COMMENT, MESSAGE, PAGE = "docstring", "comment", "message", "page"
NAME, TEST_NAME, VARIABLE = "name", "test name", "variable"
"""The words of a name, of a test function or its parameters without `test` in front, and of a variable."""
_PROSE = frozenset({DOCSTRING, COMMENT, MESSAGE, PAGE})
_ALL = _PROSE | {NAME, TEST_NAME}


@dataclass(frozen=True)
class Rule:
    """A rule: `pattern` finds what breaks the rule in texts of these `kinds`."""

    number: str
    message: str
    kinds: frozenset[str]
    pattern: re.Pattern[str]


_SENTENCE_START = r"(?:\A|[.!?:]\s+|\n\s*\n|(?:^|\n)\s*[-*|]\s+|\|\s*)"


def _word_rule(number: str, message: str, words: str, kinds: frozenset[str] = _PROSE) -> Rule:
    """The rule against words in any case; a space in `words` stands for any space, a new line too."""
    return Rule(number, message, kinds, re.compile(rf"\b(?P<hit>{words})\b".replace(" ", r"\s+"), re.IGNORECASE))


_PRONOUN_VERBS = (
    r"that|which|whose|of (?:them|these|those|the)|has|is|was|were|with|without|for|in|at|from|to|may|must|cannot|ends"
    r"|comes|by"
)
"""Words behind a `one` that stands for a noun; behind `one record` stands the noun."""
_CAUSED = (
    r"(?:have|has|had|having) "
    r"(?:it|them|itself|us|(?:the|an?|its|their|all|each|this|(?:an)?other)"
    r"(?: (?!(?:to|that|of|is|other|same|next|first|last)\b)\w+){1,2}) "
    r"(?:(?:take|run|follow|wait|close|make|stand|go|come|start|end|give|look|send|write|read|leave|fail|carry|abort|answer"
    r"|begin|stop)(?=\W)|(?:\w+ed|split|sent|cut|read|made|taken|written|given|done|begun|kept|put)"
    r"(?=\s*(?:[.,;:)]|\Z)|\s+(?:again|by|in|at|to|from|as|for|here|when|before|after|and|or|until|instead)\b))"
)
"""A thing that has another done, in place of the verb."""
RULES = (
    Rule(
        "P1",
        "a docstring begins with the noun of the thing or with a verb, not with a relative clause",
        frozenset({DOCSTRING}),
        re.compile(r"\A\s*(?P<hit>What(?:ever)?|Who(?:ever|se|m)?|Which(?:ever)?|Where(?:ver)?|How|Why)\b"),
    ),
    Rule(
        "P1",
        "the name of a test has its subject first, then the outcome",
        frozenset({TEST_NAME}),
        re.compile(r"\A(?P<hit>what(?:ever)?|who(?:ever|se|m)?|which(?:ever)?|where(?:ver)?|how|why)\b", re.IGNORECASE),
    ),
    _word_rule(
        "P2",
        "name the component, client or caller that is meant",
        "nobody|somebody|anybody|everybody|everyone|whoever|whomever|no one",
        _ALL,
    ),
    _word_rule("P3", "is a word for people: name the component or event", "who|whom", _ALL),
    Rule(
        "P4",
        "a sentence names its subject first",
        _PROSE,
        re.compile(_SENTENCE_START + r"(?P<hit>What(?:ever)?\b)(?=\s+\w)(?![^.!?|]*\?)"),
    ),
    _word_rule("P5", "rename, move, or reserve", r"set(?:s|ting)?(?:[-_]| )aside", _ALL),
    _word_rule(
        "P5",
        "notify, report, receive, or the caller passes it",
        r"(?:is|are|was|were|be|been|being) told(?! (?:apart|from))|(?<=-)told",
        _ALL,
    ),
    _word_rule("P5", "receive, learn, or last contact", "hear[sd]? of|heard from", _ALL),
    _word_rule("P5", "complete, committed, or decided", "(?:un)?settled", _ALL),
    _word_rule(
        "P5", "answer, request, or confirmation", "the word of|(?:own|leader's|coordinator's|controller's) word"
    ),
    _word_rule("P5", "say what is true", "is so(?=[.,;:])"),
    _word_rule("P6", "repeat the noun", rf"ones?(?=\s*(?:[.,;:)]|(?:{_PRONOUN_VERBS})\b))"),
    Rule("P6", "name the thing", frozenset({VARIABLE}), re.compile(r"\A(?P<hit>ones?)\Z")),
    Rule(
        "P7",
        "a docstring begins with its noun or its verb, not with a pronoun",
        frozenset({DOCSTRING}),
        re.compile(r"\A\s*(?P<hit>One|Of|Those|Its?|All|These|Each|They|Others?)\b"),
    ),
    _word_rule("P8", "a verb says what is done: `splits the chunk`, not that something has it split", _CAUSED),
    _word_rule(
        "P9",
        "say what the thing is not, or does not",
        r"(?<!there\s)(?:is|are|was|were) none(?=\s*[.,;:)]|\s+(?:to|that|of)\b)",
    ),
)


@dataclass(frozen=True)
class Text:
    """A docstring, comment, message, name or page, with the line of the file on which it begins."""

    kind: str
    line: int
    content: str


@dataclass(frozen=True)
class Finding:
    """A breach of a rule; `source` is the line of the file with the breach."""

    path: str
    line: int
    rule: Rule
    hit: str
    source: str

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.line}: {self.rule.number} `{self.hit}`: {self.rule.message}\n    {self.source.strip()}"
        )


_SUSPECT = re.compile(
    r"(?i:who(?!l)|body|\bones?\b|(?:no.|every)one|aside|told|hear|settled|word|is\s+so|test_?(?:wh|how)|ids?="
    r"|\bha(?:ve|s|d|ving)\b|\bnone\b)|What|Which|Where|How|Why"
    r"|\"\"\"\s*(?:One|Of|Those|Its?|All|These|Each|They|Others?)\b"
)
"""Something of this is in each text in which a rule finds anything: to parse a module is slow."""


def findings_in(path: str, source: str) -> list[Finding]:
    """Every breach in a file of this name and content, in the order of its lines. Exceptions are not considered."""
    if not _SUSPECT.search(source):
        return []
    lines = source.splitlines()
    texts = _TEXTS_OF[PurePosixPath(path).suffix](source)
    found = {
        (line, rule.number, match["hit"]): Finding(path, line, rule, match["hit"], lines[line - 1])
        for text in texts
        for content in [_unquoted(text)]
        for rule in RULES
        if text.kind in rule.kinds
        for match in rule.pattern.finditer(content)
        if rule.number != "P4" or text.kind != DOCSTRING or content[: match.start("hit")].strip()  # else P1
        for line in [text.line + text.content.count("\n", 0, match.start("hit"))]
    }
    return [found[key] for key in sorted(found)]


def _unquoted(text: Text) -> str:
    """The text without what it quotes, of the same length and with the same lines."""
    quotes = r"`[^`]*`" if text.kind == MESSAGE else r'`[^`]*`|"[^"]*"'
    return re.sub(quotes, lambda quoted: re.sub(r"[^\n]", "_", quoted[0]), text.content)


def texts_of_module(source: str) -> Iterator[Text]:
    """The docstrings, comments, names, ids of parameters and messages of a module."""
    tree = ast.parse(source)
    elsewhere = set[ast.AST]()  # docstrings, and parts of what has been yielded as a whole
    for node in ast.walk(tree):  # from the outside in
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", node.name).replace("_", " ")
            subject = re.sub(r"\A[Tt]est ", "", words)
            yield Text(NAME if subject == words else TEST_NAME, node.lineno, subject)
        elif isinstance(node, ast.keyword) and node.arg in ("id", "ids"):
            ids = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
            for each in ids:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    elsewhere.add(each)
                    yield Text(TEST_NAME, each.lineno, each.value)
        elif isinstance(node, ast.arg):
            yield Text(VARIABLE, node.lineno, node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Text(VARIABLE, node.lineno, node.id)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            elsewhere.add(node.value)
            if isinstance(node.value.value, str):
                yield Text(DOCSTRING, node.lineno, node.value.value)
        elif isinstance(node, ast.JoinedStr) and node not in elsewhere:
            elsewhere.update(ast.walk(node))
            yield Text(MESSAGE, node.lineno, _literal_parts(node))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in elsewhere
            and " " in node.value.strip()
        ):
            yield Text(MESSAGE, node.lineno, node.value)
    yield from _comments(source)


def _literal_parts(joined: ast.JoinedStr) -> str:
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in joined.values)


def _comments(source: str) -> Iterator[Text]:
    """Comments on lines that follow each other are one text."""
    if not any(_SUSPECT.search(line, line.index("#")) for line in source.splitlines() if "#" in line):
        return  # the tokenizer is slower still
    block: list[str] = []
    end = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if block and line != end + 1:
            yield Text(COMMENT, end - len(block) + 1, "\n".join(block))
            block = []
        block.append(token.string.lstrip("#! "))
        end = line
    if block:
        yield Text(COMMENT, end - len(block) + 1, "\n".join(block))


def texts_of_page(source: str) -> Iterator[Text]:
    """The text of a page, with the comments in its blocks of code not their code. Headings may begin with What."""
    lines = []
    fence = ""
    for line in source.splitlines():
        if line.startswith("```"):
            fence = "" if fence else line[3:] or "text"
            lines.append("")
        elif fence and fence != "journey":
            lines.append(line.partition("# ")[2])
        else:
            lines.append(re.sub(r"^#+ .*", lambda heading: re.sub(r"\bWhat\b", "____", heading[0]), line))
    yield Text(PAGE, 1, "\n".join(lines))


def texts_of_kernel(source: str) -> Iterator[Text]:
    """The docstrings and comments of a module of Cython, which has Python's tokens but not its grammar."""
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            yield Text(DOCSTRING, token.start[0], str(ast.literal_eval(token.string)))
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.type
    yield from _comments(source)


def texts_of_toml(source: str) -> Iterator[Text]:
    """The `what` and `law` of a mutant, each on one line; its patches quote code. A `what` is a sentence of its own."""
    for number, line in enumerate(source.splitlines(), 1):
        if match := re.match(r'(?:what|law) = "(?P<text>.*)"$', line):
            yield Text(DOCSTRING, number, match["text"].replace('\\"', "'"))


_TEXTS_OF = {
    ".py": texts_of_module,
    ".md": texts_of_page,
    ".pyx": texts_of_kernel,
    ".pxi": texts_of_kernel,
    ".toml": texts_of_toml,
}


@dataclass(frozen=True)
class Exceptions:
    """The two lists beside this file."""

    allowed: Sequence[tuple[str, str]]
    """A path, and a phrase in the line of the finding or *."""
    unwritten: Sequence[tuple[str, frozenset[str]]]
    """A path, and the numbers of the rules; without numbers all rules."""

    def allow(self, finding: Finding) -> tuple[str, str] | None:
        """The entry that allows this finding, or None."""
        for entry in self.allowed:
            if finding.path == entry[0] and (entry[1] == "*" or entry[1] in finding.source):
                return entry
        return None

    def cover(self, finding: Finding) -> list[tuple[str, frozenset[str]]]:
        """The entries of the unwritten list that cover this finding."""
        return [
            (entry, rules)
            for entry, rules in self.unwritten
            if _covers(entry, finding.path) and (not rules or finding.rule.number in rules)
        ]


def _covers(entry: str, path: str) -> bool:
    if entry.endswith("/*"):
        return str(PurePosixPath(path).parent) == entry[:-2]
    return path.startswith(entry) if entry.endswith("/") else path == entry


def read_exceptions(root: Path) -> Exceptions:
    """The two lists below `root`. Raises ValueError for a line without a path, a phrase and a reason."""
    allowed = []
    for line in _entries(root / "scripts" / "prose_exceptions.txt"):
        fields = [field.strip() for field in line.split(" | ")]
        if len(fields) != 3 or not all(fields):
            raise ValueError(f"prose_exceptions.txt: not `path | phrase | reason`: {line}")
        allowed.append((fields[0], fields[1]))
    unwritten = []
    for line in _entries(root / "scripts" / "prose_unwritten.txt"):
        path, _, rules = line.partition(" | ")
        unwritten.append((path.strip(), frozenset(rules.split())))
    return Exceptions(allowed, unwritten)


def _entries(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in lines if line.strip() and not line.startswith("#")]


def files_below(root: Path, paths: Iterable[str]) -> Iterator[Path]:
    """The modules, kernels, pages and mutants that are checked below these paths, sorted."""
    for name in paths:
        path = root / name
        if path.is_dir():
            yield from sorted(file for suffix in _TEXTS_OF for file in path.rglob(f"*{suffix}"))
        else:
            yield path


def check(root: Path, exceptions: Exceptions) -> list[str]:
    """The complaints about the repository in `root`: findings that nothing allows, and entries that nothing needs."""
    complaints = []
    needed = set[object]()
    for path in files_below(root, CHECKED):
        name = path.relative_to(root).as_posix()
        for finding in findings_in(name, path.read_text(encoding="utf-8")):
            entry = exceptions.allow(finding)
            if entry is not None:
                needed.add(entry)
            elif covering := exceptions.cover(finding):
                needed.update(covering)
            else:
                complaints.append(str(finding))
    complaints += [
        f"scripts/prose_exceptions.txt: nothing needs `{' | '.join(entry)}` any more: take it off"
        for entry in exceptions.allowed
        if entry not in needed
    ]
    complaints += [
        f"scripts/prose_unwritten.txt: {entry[0]} keeps {', '.join(sorted(entry[1])) or 'all rules'}: take it off"
        for entry in exceptions.unwritten
        if entry not in needed
    ]
    return complaints


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the complaints, or with paths or --count all findings. Returns the exit status: 1 with complaints."""
    parser = argparse.ArgumentParser(description="Check the rules for prose.")
    parser.add_argument("paths", nargs="*", type=Path, help="print every finding below these paths")
    parser.add_argument("--count", action="store_true", help="print the number of findings per folder")
    options = parser.parse_args(arguments)
    if not options.paths and not options.count:
        complaints = check(ROOT, read_exceptions(ROOT))
        for complaint in complaints:
            print(complaint)
        print(f"Prose: {len(complaints)} complaints." if complaints else "Prose: no complaints.")
        return bool(complaints)
    names = [path.resolve().relative_to(ROOT).as_posix() for path in options.paths] or CHECKED
    per_folder = Counter[str]()
    for path in files_below(ROOT, names):
        name = path.relative_to(ROOT).as_posix()
        for finding in findings_in(name, path.read_text(encoding="utf-8")):
            per_folder[str(PurePosixPath(name).parent)] += 1
            if not options.count:
                print(finding)
    if options.count:
        for folder, number in sorted(per_folder.items()):
            print(f"{number:6} {folder}")
    print(f"{per_folder.total():6} findings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
