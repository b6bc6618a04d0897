"""A resolver on 127.0.0.1:53 that knows one name, its argument: 127.0.0.1. Others do not exist."""

import socket
import sys

name = b"".join(bytes([len(part)]) + part.encode() for part in sys.argv[1].split(".")) + b"\0"
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
print("ready")
while True:
    query, client = server.recvfrom(512)
    end = query.index(b"\0", 12) + 1
    kind = query[end:end + 2]
    question = query[12:end + 4]
    known = question.startswith(name)
    address = known and kind == b"\0\1"
    head = query[:2] + (b"\x81\x80" if known else b"\x81\x83") + b"\0\1" + bytes([0, address]) + b"\0\0\0\0"
    answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x7f\0\0\1" if address else b""
    server.sendto(head + question + answer, client)
