from __future__ import annotations

import threading

import msgspec
import zmq

from radixserve.engine import wire
from radixserve.engine.process import Outlet


def test_any_thread_sends_and_each_is_heard_in_its_order_until_the_end() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.set_hwm(0)
    push.set_hwm(0)
    pull.bind("inproc://reports")
    push.connect("inproc://reports")
    outlet = Outlet(push)

    def report(name: str) -> None:
        for index in range(200):
            outlet.put(wire.Loading(f"{name} {index}"))

    threads = [threading.Thread(target=report, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outlet.close()
    outlet.put(wire.Loading("nobody is told of this"))
    decoder = msgspec.msgpack.Decoder(wire.Report)
    texts = []
    while pull.poll(100):
        told = decoder.decode(pull.recv())
        assert isinstance(told, wire.Loading)
        texts.append(told.text.split())
    for name in "abc":
        assert [index for who, index in texts if who == name] == [str(index) for index in range(200)]
    assert len(texts) == 600
    pull.close(linger=0)
    context.term()
