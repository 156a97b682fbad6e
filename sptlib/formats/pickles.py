"""Reads pickles of arrays, lists and numbers without running what they ask for.

A pickle is a program, and running one that somebody else wrote can do anything. This module runs it
in an interpreter that knows few instructions and no function of the system or of numpy:

- plain values: numbers, text, bytes, lists, tuples, and dictionaries whose keys are text or bytes;
- the names by which numpy's pickles, old and new, ask for arrays, dtypes and scalars. Each gets a
  stand-in written here, which keeps what it is given and checks it: numbers of 1 to 8 bytes only
  (no objects, no records, no metadata) and exactly as many bytes as the shape needs. Only then does
  numpy see anything, namely these bytes;
- ``_codecs.encode`` with latin1, and ``bytes()``, by which Python 3 writes bytes in protocol 2;
- attributes (``BUILD``, ``__setstate__``) are set on those stand-ins only, so that a pickle cannot
  change what the next one meets.

Every other name or instruction is refused before it has any effect, and what a pickle may take of
memory is bounded by a small multiple of its file's size.
"""

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sptlib.errors import DataError


def load(path: Path, raw: bytes) -> object:
    """What a pickle holds; text of Python 2 comes as bytes, an array as an `Array`.

    Args:
        path: for messages.
        raw: the content of the file.

    Raises:
        DataError: if the pickle is damaged or cut off, or asks for anything that is not in this
            module's list; `byte` is where reading stopped (the end of the frame, in protocol 4).
    """
    file = _Whole(raw)
    try:
        return _Unpickler(file, len(raw)).load()
    except _RefusedError as error:
        text = f"the pickle {error}; refused: a batch holds arrays, lists, numbers and text only"
        raise DataError(path, text, byte=file.tell()) from error
    except Exception as error:  # where bytes are damaged, any instruction may fail in any way
        cut_off = isinstance(error, EOFError)
        text = "is cut off" if cut_off else "is damaged, or the file is no pickle"
        raise DataError(path, f"the pickle {text}; download it again", byte=file.tell()) from error


def plain(value: object) -> object:
    """An array of numpy's for an `Array`; anything else as it is."""
    return value.value if isinstance(value, Array) else value


class _RefusedError(Exception):
    """What the pickle does that no batch of images needs."""


class _Whole(io.BytesIO):
    """Bytes that end with an error: the interpreter would go on with half a number or name."""

    def read(self, size: int) -> bytes:
        found = super().read(size)
        if len(found) < size:
            raise EOFError
        return found

    def readline(self) -> bytes:
        found = super().readline()
        if not found.endswith(b"\n"):
            raise EOFError
        return found


class _Global:
    """Stands for a function or class that a pickle names. It can be called, and nothing else."""

    __slots__ = ("make",)

    def __init__(self, make: Callable):
        self.make = make

    def __call__(self, *arguments: object) -> object:
        return self.make(*arguments)


class _Dtype:
    """Stands for a dtype of plain numbers."""

    NAMES = frozenset(("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"))

    def __init__(self, name: object, *_options: object):
        self.name, self.order = _text(name), "<"
        if self.name not in self.NAMES:
            raise _RefusedError(f"asks for an array of {_printable(self.name)}, not of numbers")

    def build(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or any(x is not None for x in state[2:5]):
            raise _RefusedError("asks for an array of records, not of numbers")
        self.order = _text(state[1])
        if self.order not in ("<", ">", "|", "="):
            raise _RefusedError("asks for an unknown order of bytes")


class Array:
    """Stands for an array.

    Attributes:
        value: the array, read-only or not; None until its state has come.
    """

    def __init__(self, kind: object, *_placeholders: object):
        if kind is not _NDARRAY:
            raise _RefusedError("asks for an array of an unknown kind")
        self.value = None

    def build(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise _RefusedError("gives an array in an unknown form")
        _, shape, dtype, fortran, raw = state
        self.value = _numbers(raw, dtype, shape, "F" if fortran else "C")


def _ndarray(*_arguments: object) -> None:
    raise _RefusedError("makes an array without going through its reconstruction")


_NDARRAY = _Global(_ndarray)


def _numbers(raw: object, dtype: object, shape: object, order: object) -> np.ndarray:
    """An array over the bytes themselves, after everything about them has been checked."""
    known = isinstance(dtype, _Dtype) and isinstance(raw, (bytes, bytearray))
    known = known and isinstance(shape, tuple) and len(shape) <= 4 and _text(order) in ("C", "F")
    if not known or any(type(n) is not int or n < 0 for n in shape):
        raise _RefusedError("gives an array in an unknown form")
    kind = np.dtype(dtype.order + dtype.name)
    if math.prod(shape) * kind.itemsize != len(raw):
        raise _RefusedError(f"gives an array {len(raw):,} bytes, which do not fit its shape")
    return np.ndarray(shape, kind, buffer=raw, order=_text(order))


def _frombuffer(raw: object, dtype: object, shape: object, order: object) -> Array:
    array = Array(_NDARRAY)
    array.value = _numbers(raw, dtype, shape, order)
    return array


def _scalar(dtype: object, raw: object) -> int | float:
    return _numbers(raw, dtype, (), "C").item()


def _text(name: object) -> str:
    """Text that Python 2 wrote as bytes; "" for what is neither."""
    if isinstance(name, bytes):
        return name.decode("latin1")
    return name if isinstance(name, str) else ""


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name[:80]) or "something unnamed"


class _Keyed(dict):
    """A dictionary of text and bytes: hashing a tuple that is nested deeply overflows the stack."""

    def __setitem__(self, key: object, value: object) -> None:
        if not isinstance(key, (str, bytes)):
            raise _RefusedError(f"uses a {type(key).__name__} as a key")
        super().__setitem__(key, value)


class _Instructions(dict):
    """The instructions by code. All others are refused, among them those of future protocols."""

    def __missing__(self, code: int) -> None:
        known = pickletools.code2op.get(chr(code))
        if known is None:
            raise ValueError(f"{code} is no instruction")
        raise _RefusedError(f"uses the instruction {known.name}")


_PLAIN = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.DUP),
    *(pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2),
    *(pickle.LONG, pickle.LONG1, pickle.LONG4, pickle.FLOAT, pickle.BINFLOAT),
    *(pickle.STRING, pickle.BINSTRING, pickle.SHORT_BINSTRING),
    *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8),
    *(pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
    *(pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_TUPLE),
    *(pickle.EMPTY_LIST, pickle.LIST, pickle.APPEND, pickle.APPENDS),
    *(pickle.SETITEM, pickle.SETITEMS),
    *(pickle.GET, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE),
)


class _Unpickler(pickle._Unpickler):
    """Runs a pickle with the instructions and names that this module's docstring lists.

    The interpreter written in Python, not the one in C: its instructions are a table that can be
    cut down, and its memo is a dictionary, which a large index does not blow up.
    """

    dispatch = _Instructions((code[0], pickle._Unpickler.dispatch[code[0]]) for code in _PLAIN)

    def __init__(self, file: io.BytesIO, size: int):
        super().__init__(file, encoding="bytes")
        self._budget = size
        self._globals = {
            "numpy.ndarray": _NDARRAY,
            "numpy.dtype": _Global(_Dtype),
            "_codecs.encode": _Global(self._encode),
            "__builtin__.bytes": _Global(lambda: b""),
        }
        for core in ("numpy.core", "numpy._core"):  # up to numpy 1, from numpy 2
            self._globals[f"{core}.multiarray._reconstruct"] = _Global(Array)
            self._globals[f"{core}.multiarray.scalar"] = _Global(_scalar)
            self._globals[f"{core}.numeric._frombuffer"] = _Global(_frombuffer)

    def find_class(self, module: str, name: str) -> _Global:
        try:
            return self._globals[f"{module}.{name}"]
        except KeyError:
            named = _printable(f"{module}.{name}")
            raise _RefusedError(f"asks for the function {named}") from None

    def _encode(self, text: str, encoding: str) -> bytes:
        if _text(encoding) != "latin1":
            raise _RefusedError("encodes text in other ways than latin1")
        self._budget -= len(text)
        if self._budget < 0:  # one text, encoded again and again
            raise _RefusedError("makes more bytes than its file has")
        return text.encode("latin1")

    def _build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], (_Dtype, Array)):
            raise _RefusedError("sets attributes of something that is no array")
        self.stack[-1].build(state)

    def _empty_dict(self) -> None:
        self.append(_Keyed())

    def _dict(self) -> None:
        items = self.pop_mark()
        made = _Keyed()
        for key, value in zip(items[::2], items[1::2], strict=True):
            made[key] = value
        self.append(made)

    def _bytearray8(self) -> None:
        size = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(size)))  # its memory is taken after it was read, not before

    dispatch[pickle.BUILD[0]] = _build
    dispatch[pickle.EMPTY_DICT[0]] = _empty_dict
    dispatch[pickle.DICT[0]] = _dict
    dispatch[pickle.BYTEARRAY8[0]] = _bytearray8
