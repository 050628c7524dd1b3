"""Object code in memory: what is loaded, what is refused, and that nothing is left of it."""

from __future__ import annotations

import ctypes
import gc
import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hotfuse.codegen import link, llvm_link
from hotfuse.codegen.link import Code
from hotfuse.codegen.llvm_compile import LLVM, compile_ir, load_llvm, target_machine
from hotfuse.codegen.llvm_link import link_by_llvm
from hotfuse.codegen.object_file import Symbols, read_symbols
from hotfuse.errors import CodegenError
from hotfuse.hardware.spec import host_spec

KERNEL = """
@count = global i64 5
@table = internal constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
define i64 @number() {
  %n = load i64, ptr @count
  %at = getelementptr i64, ptr @table, i64 %n
  %x = load i64, ptr %at
  ret i64 %x
}
define internal i64 @inner() noinline {
  ret i64 7
}
define hidden i64 @unseen() {
  %x = call i64 @inner()
  ret i64 %x
}
define i64 @seven() {
  %x = call i64 @unseen()
  ret i64 %x
}
"""


def constant(number: int) -> str:
    return f"define i64 @number() {{\n  ret i64 {number}\n}}"


def call(code: Code, name: str) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(code.address(name))())


def unchecked_object(text: str) -> bytes:
    """Object code as LLVM writes it, undefined symbols and all."""
    with LLVM:
        return bytes(target_machine(host_spec()).emit_object(load_llvm().parse_assembly(text)))


OBJECT = compile_ir(KERNEL, host_spec())
NEEDY = "define i64 @number() {\n  %x = call i64 @getpid()\n  ret i64 %x\n}\ndeclare i64 @getpid()"


def test_functions_and_variables_of_an_object() -> None:
    code = Code(OBJECT)
    ctypes.c_int64.from_address(code.address("count")).value = 2
    assert (call(code, "number"), call(code, "seven")) == (30, 7)
    assert code.size_bytes == len(OBJECT)
    code.close()


def test_closing_twice_and_asking_after_it() -> None:
    code = Code(OBJECT)
    assert not code.closed
    code.close()
    code.close()
    assert code.closed
    with pytest.raises(CodegenError, match="'number' was asked of code that is closed"):
        code.address("number")


@pytest.mark.parametrize("name", ["nothing", "inner", "table", "unseen"])
def test_names_that_an_object_does_not_offer(name: str) -> None:
    code = Code(OBJECT)
    with pytest.raises(CodegenError, match=f"has no '{name}'; it has .*number"):
        code.address(name)
    code.close()


def test_an_object_that_needs_more_than_itself_is_refused_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = unchecked_object(NEEDY)
    assert read_symbols(data) == Symbols(("number",), ("getpid",))
    monkeypatch.setattr(link, "_Block", lambda found: pytest.fail("it was laid out in memory"))
    with pytest.raises(CodegenError, match="the object needs getpid from outside of itself"):
        Code(data)
    weak = unchecked_object(NEEDY.replace("declare i64", "declare extern_weak i64"))
    with pytest.raises(CodegenError, match="needs getpid"):
        Code(weak)


def test_an_object_that_cannot_be_linked_is_refused() -> None:
    sections, count = struct.unpack_from("<Q", OBJECT, 40)[0], struct.unpack_from("<H", OBJECT, 60)[0]
    broken = bytearray(OBJECT)
    for number in range(count):
        if struct.unpack_from("<I", OBJECT, sections + 64 * number + 4)[0] == 4:  # relocations, of a symbol that is not there
            start = struct.unpack_from("<Q", OBJECT, sections + 64 * number + 24)[0]
            struct.pack_into("<I", broken, start + 12, 1 << 20)
    with pytest.raises(CodegenError, match="the object cannot be linked: it names a section or a symbol that is not there"):
        Code(bytes(broken))


def patched(kind: int | None = None, offset: int | None = None, addend: int | None = None) -> bytes:
    """The object with its first place that waits for an address changed."""
    sections, count = struct.unpack_from("<Q", OBJECT, 40)[0], struct.unpack_from("<H", OBJECT, 60)[0]
    headers = [sections + 64 * n for n in range(count)]
    header = next(h for h in headers if struct.unpack_from("<I", OBJECT, h + 4)[0] == 4)
    start = struct.unpack_from("<Q", OBJECT, header + 24)[0]
    broken = bytearray(OBJECT)
    for value, layout, place in ((kind, "<I", start + 8), (offset, "<Q", start), (addend, "<q", start + 16)):
        if value is not None:
            struct.pack_into(layout, broken, place, value)
    return bytes(broken)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": 200}, "addresses of kind 200 are none"),
        ({"offset": 1 << 40}, "written behind the end of a section"),
        ({"kind": 2, "addend": 1 << 40}, "two parts of it lie too far apart"),
    ],
)
def test_addresses_that_cannot_be_written(changes: dict[str, int], says: str) -> None:
    with pytest.raises(CodegenError, match=f"the object cannot be linked: .*{says}"):
        Code(patched(**changes))


def test_code_is_not_writable_and_data_is_not_executable() -> None:
    code = Code(OBJECT)
    modes = {}
    with open("/proc/self/maps") as file:
        for line in file:
            start, end = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
            modes |= {name: line.split()[1][:3] for name in ("seven", "count") if start <= code.address(name) < end}
    assert modes == {"seven": "r-x", "count": "rw-"}
    code.close()


def test_linking_by_llvm_gives_the_same() -> None:
    """What other machines use."""
    addresses, drop = link_by_llvm(OBJECT, ("count", "number", "seven"))
    ctypes.c_int64.from_address(addresses["count"]).value = 1
    assert [int(ctypes.CFUNCTYPE(ctypes.c_int64)(addresses[name])()) for name in ("number", "seven")] == [20, 7]
    drop()
    assert len(llvm_link._DROPPED) == 1
    link_by_llvm(OBJECT, ("seven",))[1]()
    assert len(llvm_link._DROPPED) == 1
    with pytest.raises(CodegenError, match="the object cannot be linked"):
        link_by_llvm(patched(kind=200), ("seven",))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "damaged object"),
        (b"not an object" * 20, "not a 64-bit ELF object"),
        (b"\x7fELF\x01" + OBJECT[5:], "not a 64-bit ELF object"),
        (OBJECT[:18] + b"\xff\x7f" + OBJECT[20:], "was not compiled for linking on this machine"),
        (OBJECT[:16] + b"\x03\x00" + OBJECT[18:], "was not compiled for linking on this machine"),
        (OBJECT[:58] + b"\x20\x00" + OBJECT[60:], "its section headers have 32 bytes"),
    ],
)
def test_bytes_that_are_no_object_for_this_machine(data: bytes, says: str) -> None:
    with pytest.raises(CodegenError, match=says):
        Code(data)


def symbol_table(data: bytes) -> tuple[int, int, int]:
    """Where the header of the symbol table lies, the table itself, and its names' header."""
    sections, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    headers = [sections + 64 * n for n in range(count)]
    header = next(h for h in headers if struct.unpack_from("<I", data, h + 4)[0] == 2)
    return header, struct.unpack_from("<Q", data, header + 24)[0], headers[struct.unpack_from("<I", data, header + 40)[0]]


@pytest.mark.parametrize("damage", ["link", "size", "offset", "name", "names"])
def test_damaged_symbol_tables(damage: str) -> None:
    header, table, names = symbol_table(OBJECT)
    place, layout, value, says = {
        "link": (header + 40, "<I", 999, "its symbols have no names"),
        "size": (header + 32, "<Q", 25, "a symbol table of 25 bytes"),
        "offset": (header + 24, "<Q", 1 << 60, "damaged object: bytes"),
        "name": (table + 24 * 2, "<I", 1 << 30, "the name of a symbol has no end"),
        "names": (names + 32, "<Q", 1 << 62, "damaged object: bytes"),
    }[damage]
    broken = bytearray(OBJECT)
    struct.pack_into(layout, broken, place, value)
    if damage == "name":  # of one that other code may call, or it is not read
        broken[place + 4] = 0x12
        struct.pack_into("<H", broken, place + 6, 1)
    with pytest.raises(CodegenError, match=says):
        read_symbols(bytes(broken))


def outcome(data: bytes) -> Any:
    try:
        return read_symbols(data)
    except CodegenError as error:
        return str(error)


def test_no_damage_makes_the_reader_fail_otherwise() -> None:
    for size in range(len(OBJECT)):
        assert isinstance(outcome(OBJECT[:size]), str)  # its section headers are last
    for place in range(len(OBJECT)):
        for bit in (1, 0x80):
            broken = bytearray(OBJECT)
            broken[place] ^= bit
            outcome(bytes(broken))


def test_an_object_of_another_process_runs_here() -> None:
    program = (
        "import sys\nfrom hotfuse.codegen.llvm_compile import compile_ir\nfrom hotfuse.hardware.spec import host_spec\n"
        f"sys.stdout.buffer.write(compile_ir({constant(1234)!r}, host_spec()))"
    )
    data = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    code = Code(data)
    assert call(code, "number") == 1234
    code.close()


def footprint() -> tuple[int, int]:
    """Resident bytes, and the number of mappings."""
    with open("/proc/self/statm") as memory, open("/proc/self/maps") as maps:
        return int(memory.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), len(maps.readlines())


def test_memory_is_flat_over_hundreds_of_objects() -> None:
    for _ in range(100):
        Code(OBJECT).close()
    bytes_before, maps_before = footprint()
    for _ in range(500):
        Code(OBJECT).close()
    bytes_after, maps_after = footprint()
    assert bytes_after - bytes_before < 1 << 20  # a page each would be 2 MB
    assert maps_after - maps_before < 10


def test_the_check_of_flat_memory_sees_objects_that_are_kept() -> None:
    bytes_before, maps_before = footprint()
    kept = [Code(OBJECT) for _ in range(100)]
    bytes_after, maps_after = footprint()
    assert bytes_after - bytes_before > 1 << 18
    assert maps_after - maps_before > 10
    for code in kept:
        code.close()


def test_closed_code_is_gone() -> None:
    code = Code(OBJECT)
    address = code.address("number")

    def mapped() -> bool:
        with open("/proc/self/maps") as file:
            spans = [line.split(" ", 1)[0].split("-") for line in file]
        return any(int(start, 16) <= address < int(end, 16) for start, end in spans)

    assert mapped()
    code.close()
    assert not mapped()


def test_code_that_nobody_refers_to_is_freed() -> None:
    code = Code(OBJECT)
    address = code.address("number")
    del code
    gc.collect()
    with open("/proc/self/maps") as file:
        spans = [[int(part, 16) for part in line.split(" ", 1)[0].split("-")] for line in file]
    assert not any(start <= address < end for start, end in spans)


def test_many_threads_link_call_and_close_at_once() -> None:
    objects = [compile_ir(constant(n), host_spec()) for n in range(8)]

    def use(turn: int) -> int:
        code = Code(objects[turn % 8])
        try:
            return call(code, "number")
        finally:
            code.close()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(use, range(200))) == [n % 8 for n in range(200)]
    finally:
        sys.setswitchinterval(interval)
