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

__all__ = ["check_grammar"]

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
_BLANKS: Final = re.compile(r"(?:[ \t]+|#[^\r\n]*)*")
_BLANKS_AND_LINES: Final = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*")
_COUNT: Final = re.compile(r"[0-9]+")
_HEX_DIGITS: Final = re.compile(r"[0-9a-fA-F]+")
_HEX: Final = {"x": 2, "u": 4, "U": 8}
_ESCAPES: Final = {"t": 9, "r": 13, "n": 10, **{c: ord(c) for c in '\\"[]-'}}
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
            count = self._literal()
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

    def _literal(self) -> int:
        """Parse a text in quotes; returns its number of characters."""
        start, count = self.at, 0
        self.at += 1
        while (char := self.text[self.at : self.at + 1]) != '"':
            if not char:
                self._fail("unterminated text", expected='"', at=start)
            self._character()
            count += 1
        self.at += 1
        return count

    def _class(self) -> int:
        """Parse a class of characters; returns its number of elements."""
        start, count = self.at, 0
        self.at += 2 if self.text.startswith("[^", self.at) else 1
        while (char := self.text[self.at : self.at + 1]) != "]":
            if not char:
                self._fail("unterminated class of characters", expected="]", at=start)
            low_at, low = self.at, self._character()
            count += 1
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                high = self._character()
                count += 1
                if high < low:
                    self._fail("a range must be ascending", got=repr(self.text[low_at : self.at]), at=low_at)
        self.at += 1
        if not count:
            self._fail("a class of characters must not be empty", at=start)
        return count

    def _character(self) -> int:
        """Parse a character, or an escape; returns its code point."""
        char = self.text[self.at : self.at + 1]
        if not char:
            self._fail("the grammar ends inside a character")
        if char != "\\":
            self.at += 1
            return ord(char)
        kind = self.text[self.at + 1 : self.at + 2]
        if kind in _HEX:
            size = _HEX[kind]
            digits = _HEX_DIGITS.match(self.text, self.at + 2, self.at + 2 + size)
            if not digits or len(digits.group()) < size:
                self._fail(f"\\{kind} must be followed by {size} hex digits")
            self.at += 2 + size
            return int(digits.group(), 16)
        if kind not in _ESCAPES:
            self._fail("unknown escape", expected=r"one of \t \r \n \\ \" \[ \] \- \x.. \u.... \U........")
        self.at += 2
        return _ESCAPES[kind]

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
        self._step(lines=nested)
        low = self._number()
        self._skip(lines=nested)
        high: int | None = low
        if self.text.startswith(",", self.at):
            self._step(lines=nested)
            high = None
            if _COUNT.match(self.text, self.at):
                high = self._number()
                self._skip(lines=nested)
        if not self.text.startswith("}", self.at):
            self._fail("unterminated repetition", expected="}", at=start)
        self._step(lines=nested)
        if max(low, high or 0) > MAX_REPETITIONS:
            self._fail(f"repetitions must be at most {MAX_REPETITIONS}", at=start)
        if high is not None and high < low:
            self._fail("the bounds of a repetition must be ascending", got=f"{{{low},{high}}}", at=start)
        return low, high

    def _number(self) -> int:
        match = _COUNT.match(self.text, self.at)
        if not match:
            self._fail("a repetition must be {m}, {m,} or {m,n}")
        self.at = match.end()
        # longer numbers are too large in any case, and slow to convert
        return int(match.group()[:9])

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
