"""Java virtual machines with Kafka's classes, called from Python by py4j, which needs no Java compiler."""

import atexit
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from py4j import java_gateway
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError, get_return_value

from benchmarks.downloads.kafka_jars import JARS
from interop.librdkafka import DEADLINE_S

ENCODINGS = [f"-D{name}=UTF-8" for name in ("file.encoding", "sun.stdout.encoding", "stdout.encoding")]
SMALL = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", *ENCODINGS]
"""Options of Java for programs that are small or short-lived."""


def _py4j_jar() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    (jar,) = Path(spec.origin).parent.glob("jars/py4j-*.jar")
    return jar


@contextmanager
def java_machine() -> Iterator[JavaGateway]:
    """A Java virtual machine that has Kafka's classes, on a port of its own and with a secret; ends with the block."""
    port, secret, process = launch_gateway(
        classpath=f"{_py4j_jar()}:{JARS}/*",
        javaopts=SMALL,
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret, auto_convert=True))
    try:
        yield gateway
    finally:
        gateway.shutdown()
        process.stdin.close()  # it ends with its input, if not by itself
        process.wait(DEADLINE_S)


@contextmanager
def _exceptions_of_py4j() -> Iterator[None]:
    """Have py4j raise its own exceptions: a Spark session of this process converts them, with classes of Spark's."""
    converting = java_gateway.get_return_value
    java_gateway.get_return_value = get_return_value
    try:
        yield
    finally:
        java_gateway.get_return_value = converting


class Ended(NamedTuple):
    """The output of a tool, and its exit code."""

    code: int
    out: str
    err: str


class ToolMachine:
    """A machine that calls the main methods of tools, one after the other: each start of Java costs a second of a core.

    A tool prints and exits as in a process of its own, but its shutdown hooks wait for the end of the machine.
    """

    def __init__(self, gateway: JavaGateway) -> None:
        self._gateway, self._jvm = gateway, gateway.jvm
        self._lock = threading.Lock()
        self._out, self._err = (self._jvm.java.io.ByteArrayOutputStream() for _ in range(2))
        self._ends = self._jvm.java.util.concurrent.ConcurrentLinkedQueue()
        streams = self._jvm.java.io.PrintStream
        # Once: a class may keep the stream that it has found.
        self._jvm.java.lang.System.setOut(streams(self._out, True, "UTF-8"))
        self._jvm.java.lang.System.setErr(streams(self._err, True, "UTF-8"))
        self._jvm.org.apache.kafka.common.utils.Exit.setExitProcedure(self._exit_procedure())

    def _exit_procedure(self) -> Any:
        """An `Exit.Procedure` that notes the exit code and what was printed, and throws an exception."""
        invoke, of_name = self._jvm.java.lang.invoke, self._jvm.java.lang.Class.forName
        string, error, object_ = (of_name(f"java.lang.{name}") for name in ("String", "RuntimeException", "Object"))
        number, truth, nothing = (getattr(self._jvm.java.lang, name).TYPE for name in ("Integer", "Boolean", "Void"))
        handles, typed = invoke.MethodHandles, invoke.MethodType.methodType
        lookup = handles.publicLookup()
        queue = of_name("java.util.concurrent.ConcurrentLinkedQueue")
        add = lookup.findVirtual(queue, "add", typed(truth, object_)).bindTo(self._ends).asType(typed(nothing, string))
        printed = lookup.findVirtual(of_name("java.io.ByteArrayOutputStream"), "toString", typed(string))
        code = lookup.findStatic(string, "valueOf", typed(string, number))
        made = handles.filterReturnValue(code, lookup.findConstructor(error, typed(nothing, string)))
        procedure = handles.filterReturnValue(made, handles.throwException(nothing, error))
        for noted in (printed.bindTo(self._err), printed.bindTo(self._out), code):  # what is last here is done first
            procedure = handles.foldArguments(procedure, handles.filterReturnValue(noted, add))
        message = self._gateway.new_array(self._jvm.java.lang.Class, 1)
        message[0] = string
        kind = of_name("org.apache.kafka.common.utils.Exit$Procedure")
        return invoke.MethodHandleProxies.asInterfaceInstance(kind, handles.dropArguments(procedure, 1, message))

    def run(self, main_class: str, options: Sequence[str]) -> Ended:
        """Call the main method of this class."""
        tool: Any = self._jvm
        for name in main_class.split("."):
            tool = getattr(tool, name)
        words = self._gateway.new_array(self._jvm.java.lang.String, len(options))
        for index, word in enumerate(options):
            words[index] = word
        with self._lock:
            self._out.reset()
            self._err.reset()
            self._ends.clear()
            code, fault = 0, ""
            try:
                with _exceptions_of_py4j():
                    tool.main(words)
            except Py4JJavaError as error:
                code, fault = 1, str(error)
            if not self._ends.isEmpty():  # a process would have ended there, whatever the tool does with the exception
                return Ended(int(self._ends.poll()), self._ends.poll(), self._ends.poll())
            return Ended(code, self._out.toString(), self._err.toString() + fault)


@cache
def tool_machine() -> ToolMachine:
    """The machine of this process, which begins with the first tool."""
    lasting = ExitStack()
    atexit.register(lasting.close)
    return ToolMachine(lasting.enter_context(java_machine()))
