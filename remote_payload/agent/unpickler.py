"""A pickle read as plain data: nothing is imported, nothing is called.

Classes become `Global`, what they would have made becomes `Made`; only functions that the caller names as understood
(torch's own rebuild functions) are answered, by pure functions of ours. Work and memory are bounded beforehand.
"""

from typing import IO, Any, Callable, Dict, List, Optional, Set, Tuple

from remote_payload.agent.pickleops import operations
from remote_payload.agent.verdicts import Refusal

MAX_COST = 56 * 1024 * 1024
"""bytes that the objects of one pickle may take: 60,000 tensors, with which the process has grown by 60 MB"""
MAX_STACK = 500_000
LIST_KEPT = 65_536
"""plain values kept of one list: dataset indices can be many millions, and nobody evaluates those"""
_PUT = frozenset((b"q", b"r", b"p", b"\x94"))
_GET = frozenset((b"h", b"j", b"g"))
_PLAIN = (int, float, bool, type(None))
_MAX_KEY = 2**61 - 2
"""integers up to here are their own hash, so that chosen keys can't all collide"""


class Global:
    """A class or function that the pickle names. It is never looked up."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Made:
    """What a class or function would have returned: its name, arguments, state, and the items set on it."""

    __slots__ = ("arguments", "function", "items", "state")

    def __init__(self, function: str, arguments: Any) -> None:
        self.function = function
        self.arguments = arguments
        self.state: Any = None
        self.items: Optional[Dict[Any, Any]] = None


class OddKey:
    """A dictionary key that is neither text, bytes nor a small number. Equal to nothing but itself."""

    __slots__ = ()


class _Mark:
    __slots__ = ()


_MARK = _Mark()
Understood = Dict[str, Callable[[Tuple[Any, ...]], Any]]
"""dotted name of a function -> what to make of its arguments. Not understood: AttributeError, IndexError, KeyError,
TypeError, ValueError."""


class Unpickler:
    """Reads pickles from a seekable stream. `seen` collects the names that became placeholders."""

    def __init__(
        self, stream: IO[bytes], understood: Understood, persistent: Callable[[Any], Any], *, small: bool = False
    ) -> None:
        """`small`: keep everything that is memoized instead of looking first at what is used again."""
        self._stream = stream
        self._small = small
        self._understood = understood
        self._persistent = persistent
        self._globals: Dict[str, Global] = {}
        self.seen: Set[str] = set()
        self.cost = 0
        self._stack: List[Any] = []
        self._memo: Dict[int, Any] = {}
        self._handlers = _handlers(self)

    def load(self) -> Any:
        """The next pickle's value. Raises Torn, and Refusal for what is malformed or past the limits."""
        wanted: Optional[Set[int]] = None
        if not self._small:
            start = self._stream.tell()
            wanted = _memo_in_use(self._stream)
            self._stream.seek(start)
        self._stack, self._memo = [], {}
        handlers, stack = self._handlers, self._stack
        memoized = 0
        try:
            for code, argument in operations(self._stream):
                if code in _PUT:
                    index = memoized if code == b"\x94" else int(argument)
                    memoized += 1
                    if wanted is None or index in wanted:
                        self.charge(100)
                        self._memo[index] = stack[-1]
                elif code in _GET:
                    stack.append(self._memo[int(argument)])
                elif code == b".":
                    return stack.pop()
                else:
                    handlers[code](argument)
                if len(stack) > MAX_STACK:
                    raise Refusal("a pickle of more than %d values at once" % MAX_STACK)
        except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise Refusal("a malformed pickle (%s)" % type(error).__name__) from None
        raise Refusal("a pickle without an end")

    def charge(self, cost: int) -> None:
        """Account for memory that is kept. Raises Refusal past MAX_COST."""
        self.cost += cost
        if self.cost > MAX_COST:
            raise Refusal("a pickle that needs more than %d MB to be read" % (MAX_COST >> 20))

    def push(self, value: Any) -> None:
        """Put a value on the stack; strings are charged, since one of them may be as long as KEPT."""
        if isinstance(value, (str, bytes)):
            self.charge(len(value))
        self._stack.append(value)

    def name(self, dotted: str) -> None:
        """Push the placeholder of a class or function."""
        found = self._globals.get(dotted)
        if found is None:
            self.charge(200)
            found = self._globals[dotted] = Global(dotted)
        self._stack.append(found)

    def name_from_stack(self) -> None:
        """STACK_GLOBAL: module and name are the two texts on top."""
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise Refusal("a class that is not named by text")
        self.name(module + "." + name)

    def to_mark(self) -> List[Any]:
        """Take everything above the newest mark off the stack, in order."""
        stack = self._stack
        at = len(stack) - 1
        while at >= 0 and stack[at] is not _MARK:
            at -= 1
        if at < 0:
            raise Refusal("a malformed pickle (no mark)")
        found = stack[at + 1 :]
        del stack[at:]
        return found

    def top(self) -> Any:
        """The value on top of the stack, left there."""
        return self._stack[-1]

    def take(self, count: int) -> List[Any]:
        """Take `count` values off the stack, in order."""
        if count > len(self._stack):
            raise Refusal("a malformed pickle (empty stack)")
        found = self._stack[-count:]
        del self._stack[-count:]
        return found

    def make_tuple(self, values: List[Any]) -> None:
        self.charge(56 + 8 * len(values))
        self._stack.append(tuple(values))

    def make_list(self, values: List[Any]) -> None:
        self.charge(72)
        self._stack.append([])
        self.extend(values)

    def make_dict(self, pairs: List[Any]) -> None:
        self.charge(80)
        self._stack.append({})
        self.set_items(pairs)

    def make_set(self, values: Optional[List[Any]]) -> None:
        self.make("builtins.set" if values is None else "builtins.frozenset", ())

    def extend(self, values: List[Any]) -> None:
        """APPENDS: onto a list. What other classes collect is dropped."""
        target = self._stack[-1]
        if isinstance(target, Made):
            return
        if type(target) is not list:
            raise Refusal("values appended to a %s" % type(target).__name__)
        if len(target) + len(values) > LIST_KEPT:
            values = [value for value in values if not isinstance(value, _PLAIN)]
        self.charge(40 * len(values))
        target.extend(values)

    def set_items(self, pairs: List[Any]) -> None:
        """SETITEMS: into a dictionary, or into what a subclass of it would have made."""
        target = self._stack[-1]
        if isinstance(target, Made):
            if target.items is None:
                target.items = {}
            target = target.items
        if type(target) is not dict:
            raise Refusal("items set on a %s" % type(target).__name__)
        if len(pairs) % 2:
            raise Refusal("a key without a value")
        self.charge(50 * len(pairs))
        for at in range(0, len(pairs), 2):
            target[_key(pairs[at])] = pairs[at + 1]

    def make(self, function: Any, arguments: Any) -> None:
        """REDUCE, NEWOBJ, INST, OBJ: an understood function's value, else a placeholder."""
        name = function.name if isinstance(function, Global) else function if isinstance(function, str) else ""
        answer = self._understood.get(name)
        if answer is not None and isinstance(arguments, tuple):
            self.charge(100)
            try:
                self._stack.append(answer(arguments))
                return
            except (AttributeError, IndexError, KeyError, TypeError, ValueError):
                pass  # not the arguments that torch writes: a placeholder
        self.charge(150)
        if name:
            self.charge(0 if name in self.seen else 200)
            self.seen.add(name)
        self._stack.append(Made(name or "something made by a placeholder", arguments))

    def build(self) -> None:
        """BUILD: the state is kept on placeholders, and dropped where our own values stand for the object."""
        state = self._stack.pop()
        if isinstance(self._stack[-1], Made):
            self._stack[-1].state = state

    def storage(self) -> None:
        """BINPERSID: in torch's files always a storage."""
        self.charge(150)
        self._stack.append(self._persistent(self._stack.pop()))


def _memo_in_use(stream: IO[bytes]) -> Set[int]:
    """Numbers of the memo that are read back. All others needn't be kept: picklers memoize nearly everything."""
    used: Set[int] = set()
    for code, argument in operations(stream):
        if code in _GET:
            try:
                used.add(int(argument))
            except ValueError:
                raise Refusal("a malformed pickle (memo)") from None
            if len(used) > MAX_STACK:
                raise Refusal("a pickle that reuses more than %d values" % MAX_STACK)
    return used


def _key(value: Any) -> Any:
    if isinstance(value, (str, bytes, bool, float)) or value is None:
        return value
    if isinstance(value, int) and abs(value) <= _MAX_KEY:
        return value
    return OddKey()


def _number(text: str) -> Any:
    """INT and LONG of protocol 0, where 00 and 01 are the two truth values."""
    if text in ("00", "01"):
        return text == "01"
    return int(text[:-1] if text.endswith("L") else text)


def _handlers(machine: Unpickler) -> Dict[bytes, Callable[[Any], object]]:
    """What each opcode does. Those for memo and STOP are in `load`."""
    push = machine.push

    def both(make: Callable[[Any, Any], None]) -> None:
        function, arguments = machine.take(2)
        make(function, arguments)

    def with_keywords() -> None:
        kind, arguments, _ = machine.take(3)
        machine.make(kind, arguments)

    def from_mark() -> None:
        kind, *arguments = machine.to_mark()
        machine.make(kind, tuple(arguments))

    handlers: Dict[bytes, Callable[[Any], object]] = {
        code: push for code in _codes(b"JKMGX\x8c\x8d\x8a\x8bUTCB\x8e\x96")
    }
    handlers.update(
        {
            b"\x80": lambda _: None,
            b"\x95": lambda _: None,
            b"I": lambda text: push(_number(text)),
            b"L": lambda text: push(_number(text)),
            b"F": lambda text: push(float(text)),
            b"S": lambda text: push(text.strip("'\"")),
            b"V": push,
            b"N": lambda _: push(None),
            b"\x88": lambda _: push(True),
            b"\x89": lambda _: push(False),
            b"(": lambda _: push(_MARK),
            b"0": lambda _: machine.take(1),
            b"1": lambda _: machine.to_mark(),
            b"2": lambda _: push(machine.top()),
            b")": lambda _: push(()),
            b"t": lambda _: machine.make_tuple(machine.to_mark()),
            b"\x85": lambda _: machine.make_tuple(machine.take(1)),
            b"\x86": lambda _: machine.make_tuple(machine.take(2)),
            b"\x87": lambda _: machine.make_tuple(machine.take(3)),
            b"]": lambda _: machine.make_list([]),
            b"l": lambda _: machine.make_list(machine.to_mark()),
            b"a": lambda _: machine.extend(machine.take(1)),
            b"e": lambda _: machine.extend(machine.to_mark()),
            b"}": lambda _: machine.make_dict([]),
            b"d": lambda _: machine.make_dict(machine.to_mark()),
            b"s": lambda _: machine.set_items(machine.take(2)),
            b"u": lambda _: machine.set_items(machine.to_mark()),
            b"\x8f": lambda _: machine.make_set(None),
            b"\x90": lambda _: machine.to_mark(),
            b"\x91": lambda _: machine.make_set(machine.to_mark()),
            b"c": lambda names: machine.name("%s.%s" % names),
            b"\x93": lambda _: machine.name_from_stack(),
            b"R": lambda _: both(machine.make),
            b"\x81": lambda _: both(machine.make),
            b"\x92": lambda _: with_keywords(),
            b"o": lambda _: from_mark(),
            b"i": lambda names: machine.make("%s.%s" % names, tuple(machine.to_mark())),
            b"b": lambda _: machine.build(),
            b"Q": lambda _: machine.storage(),
        }
    )
    return handlers


def _codes(codes: bytes) -> List[bytes]:
    return [bytes([code]) for code in codes]
