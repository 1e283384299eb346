"""NIXL moves memory between two processes by its backend UCX, in both directions."""

import numpy
from nixl_cu12 import nixl_agent, nixl_agent_config
from wheel_pair import ROLE, SIZE, compare, get, pattern, put, show_queue_pairs

agent = nixl_agent(ROLE, nixl_agent_config(backends=["UCX"]))
first = pattern(1) if ROLE == "target" else bytes(SIZE)
memory = numpy.frombuffer(first, dtype=numpy.uint8).copy()
registered = agent.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM")
ours = agent.get_xfer_descs([(memory.ctypes.data, SIZE, 0)], "DRAM")
put(ROLE, agent.get_agent_metadata())
put(ROLE + "-memory", agent.get_serialized_descs(ours))


def transfer(operation, theirs, peer):
    handle = agent.initialize_xfer(operation, ours, theirs, peer, b"")
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    if state != "DONE":
        raise SystemExit(f"{operation}: {state}")
    agent.release_xfer_handle(handle)


if ROLE == "target":
    agent.add_remote_agent(get("initiator"))
    get("written")
    compare("written by the initiator", memory.tobytes(), pattern(2))
else:
    peer = agent.add_remote_agent(get("target"))
    theirs = agent.deserialize_descs(get("target-memory"))
    transfer("READ", theirs, peer)
    compare("read from the target", memory.tobytes(), pattern(1))
    memory[:] = numpy.frombuffer(pattern(2), dtype=numpy.uint8)
    transfer("WRITE", theirs, peer)
    put("written", b"")
show_queue_pairs()
