"""Mooncake's transfer engine moves memory between two processes, in both directions."""

import ctypes

from mooncake.engine import TransferEngine
from wheel_pair import DEVICE, ROLE, SIZE, compare, get, pattern, put, show_queue_pairs

engine = TransferEngine()
if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", DEVICE) != 0:
    raise SystemExit("the engine was not initialized")
memory = ctypes.create_string_buffer(pattern(1) if ROLE == "target" else b"", SIZE)
address = ctypes.addressof(memory)
if engine.register_memory(address, SIZE) != 0:
    raise SystemExit("the memory was not registered")
if ROLE == "target":
    put("target", f"127.0.0.1:{engine.get_rpc_port()} {address}".encode())
    get("written")
    compare("written by the initiator", memory.raw, pattern(2))
else:
    name, peer = get("target").decode().split()
    if engine.transfer_sync_read(name, address, int(peer), SIZE) != 0:
        raise SystemExit("the read has failed")
    compare("read from the target", memory.raw, pattern(1))
    ctypes.memmove(address, pattern(2), SIZE)
    if engine.transfer_sync_write(name, address, int(peer), SIZE) != 0:
        raise SystemExit("the write has failed")
    put("written", b"")
show_queue_pairs()
