"""The reader of pickles: what batches need goes through, everything else is refused unexecuted."""

import os
import pickle
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sptlib.errors import DataError
from sptlib.formats import pickles

ARRAY = np.arange(12, dtype=np.uint8).reshape(3, 4)
#: the array above as numpy's pickles of protocol 2 begin it, up to the dtype
START = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
DTYPE = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
PLAIN = b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


def load(raw: bytes) -> object:
    return pickles.load("file", raw)


class Calls:
    """Its pickle calls a function."""

    def __init__(self, function, *arguments):
        self.called = (function, arguments)

    def __reduce__(self):
        return self.called


# --- what goes through --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "old"), [*((p, False) for p in range(6)), *((p, True) for p in range(4))]
)
def test_what_python_3_writes_comes_back(protocol, old):
    whole = {
        b"data": ARRAY,
        b"f": np.asfortranarray(ARRAY.astype(">i4")),
        b"n": [np.int64(-3), np.float32(0.5), 1, 2.5, None, True, 10**30],
        b"": ("a", b"\xff", b""),
        "none": np.zeros((0, 4), np.uint8),
    }
    raw = pickle.dumps(whole, protocol)
    if old:  # as numpy 1 named its modules; from protocol 4 on, a name's length is written as well
        raw = raw.replace(b"numpy._core.", b"numpy.core.")
    found = load(raw)
    assert {k: v for k, v in found.items() if k in (b"n", b"")} == {
        b"n": [-3, 0.5, 1, 2.5, None, True, 10**30],
        b"": ("a", b"\xff", b""),
    }
    for key in (b"data", b"f", "none"):
        array = pickles.plain(found[key])
        assert (array.dtype, array.shape) == (whole[key].dtype, whole[key].shape)
        assert np.array_equal(array, whole[key])


def test_text_of_python_2_is_bytes_in_both_of_its_protocols():
    binary = b"\x80\x02}q\x01(U\x01aK\x01T\x03\x00\x00\x00b\xe9cX\x02\x00\x00\x00\xc3\xa9u."
    assert load(binary) == {b"a": 1, b"b\xe9c": "é"}
    text = b"(dp1\nS'a'\np2\nI7\nsS'b\\xe9c'\n(lp3\nI1\naL2L\nas."
    assert load(text) == {b"a": 7, b"b\xe9c": [1, 2]}
    assert load(b"(S'k'\nI1\nd.") == {b"k": 1}


def test_array_of_python_2():
    raw = START + b"(K\x01K\x03K\x04\x86" + DTYPE + PLAIN + b"I00\nU\x0c" + ARRAY.tobytes() + b"tb."
    assert np.array_equal(pickles.plain(load(raw)), ARRAY)


# --- what is refused ----------------------------------------------------------------------------


@pytest.fixture
def marker(tmp_path):
    """A file that appears when an attack is executed."""
    return tmp_path / "executed"


def attacks(marker) -> dict[str, tuple[bytes, str]]:
    """Pickles that make the file, each with the name of what it asks for."""
    make = f"open({str(marker)!r}, 'w').close()"
    shell = f"echo x > {marker}"
    objects = np.array([Calls(os.system, shell)], dtype=object)
    system = f"{os.system.__module__}.system"  # posix or nt
    return {
        "os.system": (f"cos\nsystem\n(S{shell!r}\ntR.".encode(), "os.system"),
        "system, protocol 0": (pickle.dumps(Calls(os.system, shell), 0), system),
        "system, protocol 5": (pickle.dumps(Calls(os.system, shell), 5), system),
        "eval": (pickle.dumps(Calls(eval, make), 4), "builtins.eval"),
        "exec, python 2": (f"c__builtin__\nexec\n(S{make!r}\ntR.".encode(), "__builtin__.exec"),
        "os.mkdir": (f"cos\nmkdir\n(V{marker}\ntR.".encode(), "os.mkdir"),
        "numpy": (pickle.dumps(Calls(np.savetxt, str(marker), [1]), 2), "numpy.savetxt"),
        "in a batch": (
            pickle.dumps({b"data": ARRAY, b"labels": [Calls(os.system, shell)]}, 2),
            system,
        ),
        "INST": (f"(S{shell!r}\nios\nsystem\n.".encode(), "INST"),
        "OBJ": (f"(cos\nsystem\nS{shell!r}\no.".encode(), "os.system"),
        "array of objects": (pickle.dumps(objects, 2), "O8"),
        "array of objects, protocol 5": (pickle.dumps(objects, 5), "O8"),
        "scalar of an object": (
            b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR"
            + f"cos\nsystem\n(S{shell!r}\ntRtR.".encode(),
            "O8",
        ),
    }


@pytest.mark.filterwarnings("ignore:numpy.core:DeprecationWarning")
@pytest.mark.parametrize("name", list(attacks("")))
def test_attack_is_refused_by_name_and_not_executed(name, marker):
    raw, asked = attacks(marker)[name]
    with pytest.raises(DataError) as caught:
        load(raw)
    assert f"{asked}" in str(caught.value)
    assert "refused" in str(caught.value)
    assert 0 < caught.value.byte <= len(raw)
    assert not marker.exists()
    # the control: pickle itself executes it, so that the test above can fail
    with suppress(TypeError):  # some fail afterwards
        pickle.loads(raw)
    assert marker.exists()


REFUSED = {
    "zip": (b"c_codecs\nencode\n(Vabc\nVzip\ntR.", "other ways than latin1"),
    "getattr": (b"cbuiltins\ngetattr\n.", "builtins.getattr"),
    "name with dots": (b"\x80\x04\x8c\x05numpy\x8c\x0bos.path.sep\x93.", "numpy.os.path.sep"),
    "name that is unprintable": (b"cos\n\x1b[31m\n.", "os.?[31m"),
    "a function of numpy": (b"cnumpy.core.multiarray\nfromfile\n.", "multiarray.fromfile"),
    "class called directly": (b"cnumpy\nndarray\n(I2\ntR.", "without going through"),
    "other kind of array": (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(I0\ntS'b'\ntR.",
        "of an unknown kind",
    ),
    "NEWOBJ": (b"\x80\x02cnumpy\ndtype\nU\x02u1\x85\x81.", "NEWOBJ"),
    "extension": (b"\x80\x02\x82\x01.", "EXT1"),
    "persistent id": (b"Pabc\n.", "PERSID"),
    "set": (b"\x80\x04\x8f.", "EMPTY_SET"),
    "buffer": (b"\x80\x05\x97.", "NEXT_BUFFER"),
    "records": (pickle.dumps(np.zeros(2, [("a", "u1")]), 2), "an array of V1"),
    "dates": (pickle.dumps(np.zeros(2, "M8[s]"), 2), "an array of M8"),
    "text": (pickle.dumps(np.array(["a"]), 2), "an array of U1"),
    "dtype from a list": (b"cnumpy\ndtype\n((lS'u1'\natR.", "something unnamed"),
    "dtype with fields": (DTYPE + b"(K\x03U\x01|N)}J\x01\x00\x00\x00K\x01K\x00tb.", "of records"),
    "dtype with a subarray": (DTYPE + b"(K\x03U\x01|U\x01xNNK\x01K\x01K\x00tb.", "of records"),
    "order of bytes": (DTYPE + b"(K\x03U\x01zNNNK\x01K\x01K\x00tb.", "unknown order of bytes"),
    "more shape than bytes": (START + b"(K\x01K\xff\x85" + DTYPE + b"\x89U\x01xtb.", "its shape"),
    "negative shape": (
        START + b"(K\x01J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86" + DTYPE + b"\x89U\x01xtb.",
        "unknown form",
    ),
    "shape of text": (START + b"(K\x01U\x01x\x85" + DTYPE + b"\x89U\x01xtb.", "unknown form"),
    "bytes that are a list": (START + b"(K\x01K\x01\x85" + DTYPE + b"\x89]tb.", "unknown form"),
    "state that is no tuple": (START + b"}b.", "unknown form"),
    "attributes of a function": (b"c_codecs\nencode\n}S'make'\nNsb.", "sets attributes"),
    "attributes of a class": (b"cnumpy\ndtype\nN}S'NAMES'\nNs\x86b.", "sets attributes"),
    "attributes of a dictionary": (b"}}S'x'\nNsb.", "sets attributes"),
    "tuple as a key": (b"}" + b")" + b"\x85" * 200_000 + b"Ns.", "a tuple as a key"),
    "tuple as a key, at once": (b"()Nd.", "a tuple as a key"),
    "text encoded again and again": (
        b"]\x94c_codecs\nencode\nX\xe8\x03\x00\x00" + b"x" * 1000 + b"\x8c\x06latin1\x86\x940"
        + b"h\x00c_codecs\nencode\nh\x01Ra" * 100 + b".",
        "more bytes than its file",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    raw, text = REFUSED[name]
    with pytest.raises(DataError) as caught:
        load(raw)
    assert text in str(caught.value)
    assert "refused" in str(caught.value)
    # and what comes after is read as before
    assert np.array_equal(pickles.plain(load(pickle.dumps(ARRAY, 2))), ARRAY)


def test_large_numbers_take_no_memory():
    """Each would take gigabytes or more if the length were believed."""
    huge = struct.pack("<Q", 1 << 40)
    for instruction in (b"\x96", b"\x8e", b"\x8d", b"\x95"):  # bytearray, bytes, text, frame
        with pytest.raises(DataError, match=r"cut off|damaged"):
            load(b"\x80\x05" + instruction + huge + b"x.")
    assert load(b"\x80\x02Nr\xff\xff\xff\xff.") is None  # 4 billion places in a memo that is a list


# --- what is damaged ----------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(6))
def test_cut_off_anywhere(protocol):
    raw = pickle.dumps({b"data": ARRAY, b"labels": [1, 2, 300, np.int64(4)]}, protocol)
    for size in range(len(raw)):
        with pytest.raises(DataError, match="cut off; download it again") as caught:
            load(raw[:size])
        assert caught.value.byte == size


@pytest.mark.parametrize("raw", [b"\xff\xd8\xff\xe0 JPEG", b"<html>not found", b"\x80\x63N."])
def test_no_pickle(raw):
    with pytest.raises(DataError, match="damaged, or the file is no pickle"):
        load(raw)


@given(
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    protocol=st.integers(0, 5),
)
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
def test_changed_bytes_are_read_or_reported(changes, protocol):
    raw = bytearray(pickle.dumps({b"data": ARRAY, b"labels": [1, np.int64(2)]}, protocol))
    for at, value in changes:
        raw[at % len(raw)] = value
    with suppress(DataError):  # whatever else is raised fails the test
        load(bytes(raw))
