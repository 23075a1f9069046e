"""Parser that validates a GBNF grammar before llama.cpp parses it.

llama.cpp's parser reports errors on stderr without a position, and fails on some texts (tested with 0.3.36):
it overflows the stack on deeply nested brackets and long chains of rules, does not terminate on {5,2} or on a
left recursion after a nullable rule, and aborts the process where a rule for a whole token (<...>) is reached
in the middle of another token. All of these are refused here, with line and column. llama.cpp parses every
grammar that passes.

    grammar      = { name "::=" alternatives newline }
    alternatives = sequence { "|" sequence }
    sequence     = { unit [ "*" | "+" | "?" | "{" m [ "," [ n ] ] "}" ] }
    unit         = "text" | [class] | . | name | ( alternatives )

Brackets and repetitions become separate rules, as in llama.cpp. :mod:`suffixsvc_driver.sampling.gbnf_graph`
checks the graph of the rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NoReturn

from suffixsvc.errors import GrammarError
from suffixsvc_driver.sampling.gbnf_graph import Rule, Sequence, check_rules

#: characters of a grammar
MAX_LENGTH: Final = 1 << 20
#: nesting depth of brackets: llama.cpp parses them recursively
MAX_NESTING: Final = 1000
#: characters and rule references after expansion of repetitions: every draft needs a copy of the grammar's
#: state, which takes time in proportion
MAX_ELEMENTS: Final = 100_000
#: llama.cpp's own limit, but it silently treats {1,3000} as {1,}
MAX_REPETITIONS: Final = 2000
#: characters of a rule's name
MAX_NAME: Final = 200

_NAME: Final = re.compile(r"[a-zA-Z0-9-]+")
# possessive: a grammar that almost matches must not be tried in exponentially many ways
_BLANK: Final = r"(?:[ \t]++|#[^\r\n]*+)*+"
_BLANK_OR_LINE: Final = r"(?:[ \t\r\n]++|#[^\r\n]*+)*+"
_BLANKS: Final = re.compile(_BLANK)
_BLANKS_AND_LINES: Final = re.compile(_BLANK_OR_LINE)
_BOUNDS: Final = r"\{{{0}([0-9]++){0}(,)?{0}([0-9]++)?{0}\}}"
#: {m}, {m,} and {m,n}, in brackets also over several lines
_REPETITION: Final = {
    False: re.compile(_BOUNDS.format(_BLANK)), True: re.compile(_BOUNDS.format(_BLANK_OR_LINE))
}  # fmt: skip
_ESCAPE: Final = r'\\(?:[trn\\"\[\]-]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})'
_CHARACTER: Final = re.compile(rf"[^\\]|{_ESCAPE}")
_TEXT: Final = re.compile(rf'(?:[^\\"]|{_ESCAPE})*+')
_CLASS: Final = re.compile(rf"(?:[^\\\]]|{_ESCAPE})*+")
_HEX: Final = {"x": 2, "u": 4, "U": 8}
_ESCAPES: Final = {"t": "\t", "r": "\r", "n": "\n"}
_INVALID: Final = re.compile("[\0\ud800-\udfff]")


def check_grammar(text: str) -> None:
    """Check a GBNF grammar.

    Raises:
        GrammarError: the grammar is malformed, or exceeds one of the limits.
    """
    if len(text) > MAX_LENGTH:
        raise GrammarError(f"the grammar must have at most {MAX_LENGTH} characters", got=len(text))
    check_rules(_Parser(text).parse())


@dataclass(slots=True)
class _Open:
    """Alternatives that are being parsed: those of a named rule, or those in brackets.

    Attributes:
        rule: index of the rule.
        start: position in the text.
        symbols: number of rules before.
        done: completed alternatives.
        sequence: current alternative.
        unit: index in it of the last unit, to which a repetition applies.
        elements: size of that unit after expansion.
        within: rules that a repetition of it repeats, by llama.cpp's count.
    """

    rule: int
    start: int
    symbols: int
    done: list[Sequence] = field(default_factory=list)
    sequence: Sequence = field(default_factory=list)
    unit: int = 0
    elements: int = 0
    within: int = 1

    def add(self, what: list[int | None], elements: int, within: int = 1) -> None:
        """Append a unit."""
        self.unit = len(self.sequence)
        self.sequence.extend(what)
        self.elements, self.within = elements, within

    def next_alternative(self) -> None:
        """Complete the current alternative."""
        self.done.append(self.sequence)
        self.sequence = []
        self.unit = 0


class _Parser:
    """Recursive-descent parser of one text; brackets are kept on an explicit stack.

    Attributes:
        text: the grammar.
        at: position of the next character.
        rules: rules by index.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.rules: list[Rule] = []
        self._ids: dict[str, int] = {}
        self._used_at: dict[int, int] = {}
        self._elements = 0
        self._symbols = 0

    def parse(self) -> list[Rule]:
        """Parse the text and return its rules.

        Raises:
            GrammarError: the text is malformed, or exceeds one of the limits.
        """
        bad = _INVALID.search(self.text)
        if bad:
            self._fail("invalid character", got=repr(bad.group()), at=bad.start())
        self._skip(lines=True)
        if self.at == len(self.text):
            self._fail("the grammar is empty", expected='rules, such as: root ::= "yes" | "no"')
        while self.at < len(self.text):
            self._named_rule()
        for rule, at in self._used_at.items():
            if not self.rules[rule].alternatives:
                self._fail(f"rule '{self.rules[rule].name}' is used but not defined", at=at)
        if "root" not in self._ids:
            self._fail("the grammar must have a rule named root")
        return self.rules

    def _named_rule(self) -> None:
        start = self.at
        name = self._name()
        rule = self._rule_of(name)
        if self.rules[rule].alternatives:
            self._fail(f"rule '{name}' is defined twice", at=start)
        self._skip(lines=False)
        if not self.text.startswith("::=", self.at):
            self._fail(f"'{name}' must be followed by ::=")
        self.at += 3
        self._skip(lines=True)
        self._alternatives(rule)
        if self.at < len(self.text) and self.text[self.at] not in "\r\n":
            self._fail("text after a rule", expected="the end of the line")
        self._skip(lines=True)

    def _alternatives(self, rule: int) -> None:
        """Parse the alternatives of a rule."""
        opened = [_Open(rule, self.at, self._symbols)]
        while True:
            here = opened[-1]
            char = self.text[self.at : self.at + 1]
            nested = len(opened) > 1
            if char == "(":
                if len(opened) > MAX_NESTING:
                    self._fail(f"brackets must be nested at most {MAX_NESTING} deep")
                symbols, start = self._symbols, self.at
                opened.append(_Open(self._new_rule(self.rules[rule].name), start, symbols))
                self._step(lines=True)
            elif char == ")" and nested:
                here.next_alternative()
                self.rules[here.rule].alternatives = here.done
                opened.pop()
                opened[-1].add([here.rule], 1, max(1, self._symbols - here.symbols))
                self._count(2)
                self._step(lines=len(opened) > 1)
            elif char == "|":
                here.next_alternative()
                self._count(1)
                self._step(lines=True)
            elif not (self._unit(here, char, nested) or self._repetition(here, char, nested)):
                break
        if nested:
            self._fail("unclosed brackets", expected=")", at=here.start)
        here.next_alternative()
        self.rules[rule].alternatives = here.done

    def _unit(self, here: _Open, char: str, nested: bool) -> bool:
        """Parse a unit, if there is one; returns whether there was."""
        if char == '"':
            count = len(self._characters(_TEXT, self.at + 1, '"', "text"))
            here.add([None] if count else [], count)
        elif char == "[":
            here.add([None], self._class())
        elif char == ".":
            self.at += 1
            here.add([None], 1)
        elif char and char in "<!":
            self._fail(
                "a rule for a whole token is not supported",
                expected="characters",
                remedy="llama.cpp aborts where it reaches one inside another token: write its characters.",
            )
        elif _NAME.match(char):
            start = self.at
            rule = self._rule_of(self._name())
            self._used_at.setdefault(rule, start)
            here.add([rule], 1)
        else:
            return False
        self._count(here.elements)
        self._skip(lines=nested)
        return True

    def _class(self) -> int:
        """Parse a class of characters; returns its number of elements."""
        start = self.at
        body = start + (2 if self.text.startswith("[^", start) else 1)
        found = self._characters(_CLASS, body, "]", "class of characters")
        if not found:
            self._fail("a class of characters must not be empty", at=start)
        count = at = 0
        while at < len(found):
            ranged = found[at + 1 : at + 2] == ["-"] and at + 2 < len(found)
            if ranged and _code_point(found[at + 2]) < _code_point(found[at]):
                text = "".join(found[at : at + 3])
                self._fail("a range must be ascending", got=repr(text), at=body + len("".join(found[:at])))
            count, at = (count + 2, at + 3) if ranged else (count + 1, at + 1)
        return count

    def _characters(self, pattern: re.Pattern[str], start: int, end: str, what: str) -> list[str]:
        """Parse characters and escapes up to the character ``end``; returns them as they are written."""
        body = pattern.match(self.text, start)
        written = body.group() if body else ""
        at = start + len(written)
        if self.text.startswith("\\", at):
            kind = self.text[at + 1 : at + 2]
            if kind in _HEX:
                self._fail(f"\\{kind} must be followed by {_HEX[kind]} hex digits", at=at)
            expected = r"one of \t \r \n \\ \" \[ \] \- \x.. \u.... \U........"
            self._fail("unknown escape", expected=expected, at=at)
        if at == len(self.text):
            self._fail(f"unterminated {what}", expected=end)
        self.at = at + 1
        return _CHARACTER.findall(written)

    def _repetition(self, here: _Open, char: str, nested: bool) -> bool:
        """Parse a repetition, if there is one, and apply it to the last unit; returns whether there was."""
        start = self.at
        if char and char in "*+?":
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
            self._step(lines=nested)
        elif char == "{":
            low, high = self._bounds(nested)
        else:
            return False
        unit = here.sequence[here.unit :]
        if not unit:
            self._fail(f"nothing to repeat before '{char}'", at=start)
        total = high or low or 1
        if here.within * total > MAX_REPETITIONS:
            self._fail(f"nested repetitions must multiply to at most {MAX_REPETITIONS}", got=total, at=start)
        optional = 1 if high is None else high - low
        self._count(max(0, low - 1) * here.elements + optional * (here.elements + 3))
        del here.sequence[here.unit :]
        here.sequence.extend(unit * min(low, 2))
        if optional:
            again = self._new_rule(self.rules[here.rule].name, times=optional)
            self.rules[again].alternatives = [[*unit, again], []]
            here.sequence.append(again)
        here.elements = low * here.elements + (1 if optional else 0)
        here.within *= total
        return True

    def _bounds(self, nested: bool) -> tuple[int, int | None]:
        start = self.at
        match = _REPETITION[nested].match(self.text, start)
        if not match or (match[3] and not match[2]):
            self._fail("a repetition must be {m}, {m,} or {m,n}")
        # longer numbers are too large in any case, and slow to convert
        low, last = int(match[1][:9]), int((match[3] or match[1])[:9])
        high = None if match[2] and not match[3] else last
        self.at = match.end()
        self._skip(lines=nested)
        if max(low, last) > MAX_REPETITIONS:
            self._fail(f"repetitions must be at most {MAX_REPETITIONS}", at=start)
        if last < low:
            self._fail("the bounds of a repetition must be ascending", got=f"{{{low},{high}}}", at=start)
        return low, high

    def _name(self) -> str:
        match = _NAME.match(self.text, self.at)
        if not match:
            self._fail("a rule's name must be of letters, digits and -")
        if match.end() - match.start() > MAX_NAME:
            self._fail(f"a rule's name must have at most {MAX_NAME} characters")
        self.at = match.end()
        return match.group()

    def _rule_of(self, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = self._new_rule(name)
        return self._ids[name]

    def _new_rule(self, name: str, times: int = 0) -> int:
        self.rules.append(Rule(name, times=times))
        self._symbols += max(1, times)
        return len(self.rules) - 1

    def _count(self, elements: int) -> None:
        self._elements += elements
        if self._elements > MAX_ELEMENTS:
            self._fail(
                f"the grammar must have at most {MAX_ELEMENTS} characters and rule references"
                " after expansion of its repetitions"
            )

    def _step(self, *, lines: bool) -> None:
        """Skip one character and the blanks after it."""
        self.at += 1
        self._skip(lines=lines)

    def _skip(self, *, lines: bool) -> None:
        match = (_BLANKS_AND_LINES if lines else _BLANKS).match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _fail(
        self,
        what: str,
        *,
        expected: str | None = None,
        got: object = None,
        at: int | None = None,
        remedy: str | None = None,
    ) -> NoReturn:
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        if got is None:
            rest = self.text[at : at + 20].splitlines()
            got = repr(rest[0]) if rest and rest[0] else "the end"
        raise GrammarError(
            f"grammar, line {line}, column {column}: {what}", expected=expected, got=got, remedy=remedy
        )


def _code_point(written: str) -> int:
    """Return the code point of a character or an escape."""
    kind = written[1:2]
    if not kind:
        return ord(written)
    return int(written[2:], 16) if kind in _HEX else ord(_ESCAPES.get(kind, kind))
